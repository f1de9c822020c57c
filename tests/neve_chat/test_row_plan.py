"""The planned rows: what fits, how many train steps, the same bytes every time."""

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.cache import TreeCacheWriter
from neve_chat.cache_reader import CacheReader
from neve_chat.errors import ChatInputError
from neve_chat.fitting import FittedRows, fit_rows
from neve_chat.mixing import MixtureSource
from neve_chat.row_plan import SEGMENT, PlannedTraining, RowPlan, plan_training

from benchmarks.lengths import conversation_lengths


def write_cache(folder: Path, rows: list[tuple[list[int], list[int]]]) -> CacheReader:
    writer = TreeCacheWriter(str(folder), scratch=folder / "scratch", preprocessor_metadata={})
    with writer:
        for ids, mask in rows:
            writer.append(np.array(ids, np.int32), np.array(mask, np.int32))
    return CacheReader(str(folder))


def of_lengths(*lengths: int) -> FittedRows:
    values = np.array(lengths)
    return FittedRows(
        rows=np.arange(len(values)), lengths=values.astype(np.int32), trained=values, counts={}
    )


def plan(fitted: dict[str, FittedRows], **changes: Any) -> PlannedTraining:
    fields = changes.pop("fields", {})
    sources = [
        MixtureSource(name=name, num_rows=len(used.rows), **fields.get(name, {}))
        for name, used in fitted.items()
    ]
    values: dict[str, Any] = {
        "mixing": "concat",
        "packing": "separate",
        "seq_len": 500,
        "batch_size": 2,
        "num_train_steps": None,
        "num_train_epochs": None,
        "seed": 0,
    }
    return plan_training(sources, list(fitted.values()), **(values | changes))


SHORT = ([1, 2, 3, 4], [0, 0, 1, 1]), ([5, 6], [0, 1]), ([7, 8, 9], [0, 1, 1]), ([10], [1])


@pytest.mark.parametrize(
    ("policy", "lengths", "expected"),
    [
        ("drop", [2, 3, 1], {"tokens": 6, "tokens_lost": 4, "trained_tokens_lost": 2, "cut": 0}),
        (
            "truncate",
            [3, 2, 3, 1],
            {
                "tokens": 9,
                "tokens_lost": 1,
                "trained_tokens_lost": 1,
                "cut": 1,
                "cut_inside_an_answer": 1,
            },
        ),
    ],
)
def test_long_rows_are_dropped_or_cut_and_counted(
    tmp_path: Path, policy: str, lengths: list[int], expected: dict[str, int]
) -> None:
    """Rows of 4, 2, 3 and 1 tokens at seq_len 3. Source: trl#4554, tokens lost without a word."""
    used = fit_rows(write_cache(tmp_path, list(SHORT)), "a", seq_len=3, long_conversations=policy)

    assert used.lengths.tolist() == lengths
    assert {name: used.counts[name] for name in expected} == expected
    assert used.counts["dropped"]["too long"] == (1 if policy == "drop" else 0)
    assert used.counts["too_long"] == 1


@pytest.mark.parametrize("policy", ["error", "first_turns", "last_turns", "windows"])
def test_long_rows_are_an_error_where_none_may_be_left(tmp_path: Path, policy: str) -> None:
    """The message names the row and both lengths."""
    reader = write_cache(tmp_path, list(SHORT))

    with pytest.raises(ChatInputError, match=r"seq_len 3 tokens.*the first is row 0 with 4"):
        fit_rows(reader, "a", seq_len=3, long_conversations=policy)


def test_a_cut_before_the_answer_drops_the_row(tmp_path: Path) -> None:
    """Five of eight tokens, none of them trained, are no example; the row is counted."""
    rows = [(list(range(1, 9)), [0] * 6 + [1] * 2), ([9, 10], [0, 1])]

    used = fit_rows(write_cache(tmp_path, rows), "a", seq_len=5, long_conversations="truncate")

    assert used.rows.tolist() == [1]
    assert used.counts["dropped"]["no trained token left"] == 1
    assert (used.counts["tokens_lost"], used.counts["trained_tokens_lost"]) == (8, 2)


@pytest.mark.parametrize(("seq_len", "trained", "dropped"), [(22, 2, 0), (20, 0, 1), (26, 5, 0)])
def test_a_cut_inside_an_answer_loses_its_end(
    tmp_path: Path, seq_len: int, trained: int, dropped: int
) -> None:
    """26 tokens, trained from 20 to 24. Source: transformers#34494."""
    mask = [0] * 20 + [1] * 5 + [0]

    used = fit_rows(
        write_cache(tmp_path, [(list(range(1, 27)), mask)]),
        "a",
        seq_len=seq_len,
        long_conversations="truncate",
    )

    assert used.trained.sum() == trained
    assert used.counts["dropped"]["no trained token left"] == dropped
    assert used.counts["cut_inside_an_answer"] == (1 if seq_len == 22 else 0)


def test_the_cap_keeps_the_first_of_one_seeded_order(tmp_path: Path) -> None:
    """A larger cap keeps what a smaller one keeps; another seed keeps others."""
    reader = write_cache(tmp_path, [([1, 2], [0, 1])] * 40)

    def kept(cap: int | None, seed: int = 0) -> set[int]:
        used = fit_rows(
            reader, "a", seq_len=4, long_conversations="drop", max_conversations=cap, seed=seed
        )
        assert used.counts["dropped"]["over max_conversations"] == 40 - len(used.rows)
        return set(used.rows.tolist())

    assert len(kept(10)) == 10
    assert kept(10) < kept(20) < kept(None) == set(range(40))
    assert kept(50) == kept(None)
    assert kept(10, seed=1) != kept(10)


@pytest.mark.parametrize(
    ("lengths", "epochs", "batch_size", "packing", "steps"),
    [
        ([100] * 10, 1, 1, "packed", 2),  # two rows of five, not ten. marin#7130
        ([300] * 7, 3, 2, "packed", 11),  # 7 x 3 / 2 = 10.5, not ceil(6300 / 1000) = 7
        ([300] * 7, 3, 2, "separate", 11),
        ([300] * 8, 0.5, 2, "separate", 2),
        ([300] * 8, 1.25, 2, "separate", 5),
        ([300], 3, 2, "separate", 2),
    ],
)
def test_train_steps_of_epochs_count_rows_after_packing(
    lengths: list[int], epochs: float, batch_size: int, packing: str, steps: int
) -> None:
    """ceil(rows / batch), where the rows are those that packing makes."""
    planned = plan(
        {"a": of_lengths(*lengths)},
        num_train_epochs=epochs,
        batch_size=batch_size,
        packing=packing,
    )

    assert planned.num_train_steps == steps
    assert planned.rows.num_rows == steps * batch_size


def test_the_last_batch_is_filled_from_the_rows_that_follow() -> None:
    """Three epochs of seven rows in batches of two: every row three times and one a fourth time."""
    planned = plan({"a": of_lengths(*[300] * 7)}, num_train_epochs=3)

    counts = np.bincount(planned.rows.segments["row"])
    assert sorted(counts.tolist()) == [3] * 6 + [4]
    assert planned.num_epochs == pytest.approx(22 / 7)
    longer = plan({"a": of_lengths(*[300] * 7)}, num_train_epochs=4)
    assert np.array_equal(planned.rows.segments, longer.rows.segments[:22])


@pytest.mark.parametrize("packing", ["separate", "packed"])
def test_each_epoch_holds_every_conversation_once(packing: str) -> None:
    """Packing is done epoch by epoch, and each epoch has an order of its own."""
    lengths = np.random.default_rng(0).integers(50, 400, 60).tolist()

    planned = plan({"a": of_lengths(*lengths)}, num_train_epochs=2, batch_size=1, packing=packing)

    first, second = planned.rows_per_epoch
    epochs = planned.rows.rows(0, first), planned.rows.rows(first, first + second)
    one, two = (epoch.segments["row"].tolist() for epoch in epochs)
    assert sorted(one) == sorted(two) == list(range(60))
    assert one != two
    sums = np.add.reduceat(planned.rows.segments["length"], [0, *planned.rows.row_ends[:-1]])
    assert sums.max() <= 500


def test_more_train_steps_leave_the_first_rows_as_they_are() -> None:
    """The sequence of rows depends on no amount, so training can be made longer."""
    lengths = np.random.default_rng(1).integers(50, 400, 30).tolist()
    fitted = {"a": of_lengths(*lengths), "b": of_lengths(*lengths[:10])}
    fields = {"a": {"weight": 1.0}, "b": {"weight": 2.0}}

    def rows(steps: int) -> RowPlan:
        return plan(
            fitted, fields=fields, mixing="weighted", packing="packed", num_train_steps=steps
        ).rows

    short, long = rows(5), rows(50)
    assert np.array_equal(long.rows(0, 10).segments, short.segments)


def test_packed_rows_are_not_sorted_by_length() -> None:
    """Best fit leaves the long conversations first; the shuffle moves them."""
    lengths = np.random.default_rng(2).integers(20, 400, 200).tolist()

    planned = plan({"a": of_lengths(*lengths)}, num_train_steps=20, packing="packed")

    longest = [int(planned.rows.row(index)["length"].max()) for index in range(20)]
    assert longest != sorted(longest, reverse=True)
    assert abs(np.corrcoef(longest, np.arange(20))[0, 1]) < 0.6


def test_a_data_set_that_is_never_drawn_is_an_error() -> None:
    """A share too small for the planned steps is told. Source: levanter's warning, case 049."""
    fitted = {"d1": of_lengths(*[10] * 50), "d2": of_lengths(*[10] * 50)}
    fields = {"d1": {"weight": 0.99999}, "d2": {"weight": 0.00001}}

    with pytest.raises(ChatInputError, match=r"got none of d2 in the 20 rows of the training"):
        plan(fitted, fields=fields, mixing="weighted", num_train_steps=10)


def test_saved_plans_are_the_same_bytes_and_load_again(tmp_path: Path) -> None:
    """Planning again gives the same files; loading gives the same rows."""
    lengths = np.random.default_rng(0).integers(50, 400, 60).tolist()
    for name in ("one", "two"):
        planned = plan({"a": of_lengths(*lengths)}, num_train_steps=9, packing="packed")
        planned.rows.save(str(tmp_path / name))

    for file in ("segments.npy", "row_ends.npy"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    loaded = RowPlan.load(str(tmp_path / "one"))
    assert np.array_equal(loaded.segments, planned.rows.segments)
    assert loaded.row(3).tolist() == planned.rows.row(3).tolist()
    part = loaded.rows(4, 7)
    assert [part.row(index).tolist() for index in range(3)] == [
        loaded.row(index).tolist() for index in range(4, 7)
    ]


def test_plans_that_are_damaged_are_refused(tmp_path: Path) -> None:
    """A missing file, and two files that don't belong together."""
    with pytest.raises(ChatInputError, match=r"must hold segments\.npy, got none"):
        RowPlan.load(str(tmp_path))

    RowPlan(np.zeros(3, SEGMENT), np.array([1, 2])).save(str(tmp_path))

    with pytest.raises(ChatInputError, match="must increase up to the 3 segments, got 2"):
        RowPlan.load(str(tmp_path))


def test_an_empty_plan_can_be_saved_and_loaded(tmp_path: Path) -> None:
    """A mixture without held-out rows has one."""
    RowPlan.joined([]).save(str(tmp_path))

    assert RowPlan.load(str(tmp_path)).num_rows == 0


def agents(number: int) -> dict[str, FittedRows]:
    lengths = conversation_lengths(number)
    cut = 7 * number // 10
    return {"a": of_lengths(*lengths[:cut].tolist()), "b": of_lengths(*lengths[cut:].tolist())}


@pytest.mark.full
def test_a_million_conversations_are_planned_in_a_minute() -> None:
    """Mixed, packed and shuffled; about 10 s of one core."""
    fitted = agents(1_000_000)
    started = time.process_time()

    planned = plan(fitted, num_train_epochs=1, batch_size=8, packing="packed", seq_len=32_768)

    assert len(planned.rows.segments) >= 1_000_000
    assert time.process_time() - started < 60


def test_planning_takes_memory_by_the_conversation() -> None:
    """Some arrays and lists of numbers: well below the 500 bytes that a dict for each would take."""
    fitted = agents(20_000)
    tracemalloc.start()

    plan(fitted, num_train_epochs=1, batch_size=8, packing="packed", seq_len=32_768)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * 20_000
