"""Best fit: rows that are full, whole conversations, the same every time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neve_chat.packing import pack_best_fit

from benchmarks.lengths import conversation_lengths


def rows_of(lengths: list[int], seq_len: int, max_segments: int = 64) -> list[list[int]]:
    order, ends = pack_best_fit(np.array(lengths, np.int64), seq_len, max_segments=max_segments)
    return [part.tolist() for part in np.split(order, ends[:-1])] if len(ends) else []


def test_each_conversation_goes_where_it_leaves_the_least_room() -> None:
    """By hand: 7 and 6 open rows; 4 fits only beside 6; 3 fills the row of 7; 2 opens a third."""
    assert rows_of([3, 6, 2, 7, 4], 10) == [[3, 0], [1, 4], [2]]


def test_conversations_of_a_row_length_stand_alone() -> None:
    """Seven rows of 300 in 500 share none: 7 rows, not ceil(2100 / 500). Source: marin#7130."""
    assert len(rows_of([300] * 7, 500)) == 7
    assert len(rows_of([100] * 10, 500)) == 2


def test_the_segment_limit_closes_a_row() -> None:
    """At most so many conversations, however short."""
    assert [len(row) for row in rows_of([1] * 10, 100, max_segments=4)] == [4, 4, 2]


def test_nothing_gives_no_rows() -> None:
    """An empty epoch is no error here."""
    assert rows_of([], 10) == []


@given(
    lengths=st.lists(st.integers(1, 50), max_size=200),
    max_segments=st.integers(1, 64),
)
@settings(max_examples=150, deadline=None)
def test_rows_hold_every_conversation_once_and_whole(lengths: list[int], max_segments: int) -> None:
    """No row is too long or has too many; no two rows could be one but for the limit."""
    rows = rows_of(lengths, 50, max_segments)

    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    sums = [sum(lengths[index] for index in row) for row in rows]
    assert all(0 < total <= 50 for total in sums)
    assert all(1 <= len(row) <= max_segments for row in rows)
    if max_segments == 64 and len(sums) > 1:
        assert sum(sorted(sums)[:2]) > 50


def test_agent_lengths_fill_at_least_98_percent() -> None:
    """3,000 log-normal lengths of median 8,000 in rows of 32,768."""
    lengths = conversation_lengths()

    _, ends = pack_best_fit(lengths, 32_768)

    assert lengths.sum() / (len(ends) * 32_768) >= 0.98


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_packing_is_the_same_every_time(dtype: type) -> None:
    """Order and ends depend on the lengths alone, not on their type."""
    lengths = conversation_lengths(500).astype(dtype)

    first, second = pack_best_fit(lengths, 32_768), pack_best_fit(lengths.astype(np.int64), 32_768)

    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
