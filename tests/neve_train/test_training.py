"""Training, death and resumption of the toy, compared with a run that was left alone."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


# Two minutes and more; tests/e2e kills and resumes the recipe itself in every run.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def whole(run_toy: Run) -> dict[str, Any]:
    """Results of the run that was left alone."""
    return run_toy("whole")


@pytest.fixture(scope="module")
def resumed(run_toy: Run) -> dict[str, Any]:
    """Results of the runs after a kill and after checkpoints were torn."""
    run_toy("killed", ended_by=signal.SIGKILL)
    return run_toy("resumed")


def rows_of(path: Path) -> dict[int, dict[str, float]]:
    """Returns loss.jsonl by train step."""
    return {row["step"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_training_measures_every_train_step_and_the_held_out_rows(
    whole: dict[str, Any], toy: Path
) -> None:
    """Every train step has one row, held-out loss falls, and the last checkpoint is complete."""
    rows = rows_of(toy / "whole" / "loss.jsonl")

    assert [step for step, row in rows.items() if "loss" in row] == list(range(1, 9))
    assert [step for step, row in rows.items() if "heldout_loss" in row] == [0, 4, 8]
    assert whole["heldout_loss"] == rows[8]["heldout_loss"] < whole["heldout_loss_first"]
    assert whole["final_loss"] == rows[8]["loss"]
    assert rows[1]["learning_rate"] == pytest.approx(3e-3)
    assert whole["positions"] == 8 * 4 * 128
    # Kept every 3 train steps and at the end; Levanter counts from 0.
    folders = {path.name for path in (toy / "whole" / "checkpoints").iterdir()}
    assert folders == {"step-2", "step-5", "step-7"}
    assert (toy / "whole" / whole["checkpoint"] / "metadata.json").exists()
    assert (toy / "whole" / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_training_after_a_kill_gives_the_losses_of_a_run_that_was_left_alone(
    whole: dict[str, Any], resumed: dict[str, Any], toy: Path
) -> None:
    """kill -9 after a checkpoint changes no loss by a single bit, and no row is there twice."""
    expected = rows_of(toy / "whole" / "loss.jsonl")
    rows = resumed["rows"]

    assert resumed["after_kill"]["resumed_from"] == 3
    assert [row["step"] for row in rows] == list(range(9))
    for row in rows:
        for name in ("loss", "heldout_loss", "learning_rate"):
            assert row.get(name) == expected[row["step"]].get(name), (row["step"], name)
    assert resumed["after_kill"]["heldout_loss"] == whole["heldout_loss"]


def test_training_passes_over_a_torn_checkpoint_and_replaces_it(
    whole: dict[str, Any], resumed: dict[str, Any]
) -> None:
    """A newest checkpoint without its data is named, and training goes on from the one before."""
    after = resumed["after_tear"]

    assert after["resumed_from"] == 6
    assert after["final_loss"] == whole["final_loss"]
    assert any("step-7 is unreadable (missing d/)" in text for text in resumed["messages"])
    assert resumed["is_whole_again"]


def test_training_refuses_to_start_over_checkpoints_that_cannot_be_read(
    resumed: dict[str, Any],
) -> None:
    """With only torn checkpoints training fails and changes nothing."""
    assert "checkpoints exist under" in resumed["refusal"]
    assert "none can be loaded" in resumed["refusal"]
    assert resumed["is_untouched"]
