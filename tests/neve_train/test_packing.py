"""Planned rows, and several conversations in one: each is computed as if it stood alone."""

from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def rows(run_toy: Run) -> dict[str, Any]:
    """What training reads from both plans of the toy."""
    return run_toy("rows")


@pytest.mark.parametrize("packing", ["separate", "packed"])
def test_training_reads_exactly_the_planned_rows(rows: dict[str, Any], packing: str) -> None:
    """Ids, loss weights and segments of every row are those built by hand from the cache.

    Source: marin#7130, where the rows of an epoch were a guess.
    """
    result = rows[packing]

    assert result["num_rows"] == result["equal"] == 8 * 4
    assert (result["num_segments"] > 8 * 4) == (packing == "packed")
    assert result["in_order"]


@pytest.mark.parametrize("packing", ["separate", "packed"])
def test_training_that_starts_late_reads_the_rest_of_the_rows(
    rows: dict[str, Any], packing: str
) -> None:
    """The batches from train step 5 on are the last three of the whole."""
    assert rows[packing]["late_start"]


def test_every_row_is_read_once_an_epoch_wherever_a_training_stopped(rows: dict[str, Any]) -> None:
    """Case 055: also where it stopped between two epochs, or one train step before the end.

    Sources: verl#7401, entrenar#294, levanter#311.
    """
    positions = rows["positions"]
    read = [number for batch in positions["whole"] for number in batch]

    assert positions["num_train_steps"] == len(positions["whole"]) == 16
    assert sorted(read[:64]) == sorted(read[64:]) == list(range(64))
    assert read[:64] != read[64:]
    assert positions["goes_on"] == [True] * 4


def test_separate_rows_are_levanters_own(rows: dict[str, Any]) -> None:
    """Every example has the leaves, types and structure of Levanter's chat format, pack=1."""
    assert rows["same_as_levanter"] == 8 * 4


def test_held_out_rows_are_packed_like_the_others(rows: dict[str, Any]) -> None:
    """Each data set has its held-out rows under its name, whole in either form."""
    ((names, num_rows, num_segments),) = rows["separate"]["held_out"]
    ((_, num_packed, num_packed_segments),) = rows["packed"]["held_out"]

    assert names == ["a"]
    assert num_rows == num_segments == num_packed_segments
    assert num_packed < num_rows


def test_packed_conversations_equal_separate_ones(run_toy: Run) -> None:
    """Hidden states agree to float32 rounding, and training learns.

    1e-5 is some hundred units in the last place of states of size 1; without the mask they differ
    at least a thousand times more.
    """
    results = run_toy("packed")

    assert results["packed"] < 1e-5
    assert results["unmasked"] > 1e-2
    trained = results["trained"]
    assert trained["heldout_loss"] < trained["heldout_loss_first"]
