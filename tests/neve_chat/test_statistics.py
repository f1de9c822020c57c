"""
Counts of a split and its length histogram.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from neve_chat.statistics import SplitCounts, length_classes
from neve_chat.tokens import Tokens

_LENGTHS = st.lists(st.integers(0, 3_000), max_size=20)


def counted(lengths: list[int]) -> SplitCounts:
    """
    Counts of rows with these lengths, every second token trained.
    """
    counts = SplitCounts()
    for length in lengths:
        ids = np.zeros(length, dtype=np.int32)
        counts.add(Tokens(ids, np.arange(length, dtype=np.int32) % 2))
    return counts


@given(first=_LENGTHS, second=_LENGTHS)
def test_counts_of_parts_add_up(first: list[int], second: list[int]) -> None:
    """
    Merged counts are those of all rows, also through JSON.
    """
    merged = SplitCounts.from_json(counted(first).as_json())
    merged.merge(SplitCounts.from_json(counted(second).as_json()))

    assert merged == counted(first + second)


@given(lengths=_LENGTHS)
def test_counts_from_lengths_are_those_row_by_row(lengths: list[int]) -> None:
    """
    One pass over an array of lengths counts what adding rows does, at every class border.
    """
    trained = sum(length // 2 for length in lengths)

    assert SplitCounts.from_lengths(np.array(lengths, dtype=np.int64), trained) == counted(lengths)


def test_length_classes_have_no_gap() -> None:
    """
    Classes end at powers of two; an empty one between others is there with nothing in it.
    """
    classes = length_classes(counted([3, 4, 4, 4, 9, 16]))

    bars = [(c.first, c.last, c.num_rows, round(c.height, 2)) for c in classes]
    assert bars == [(3, 4, 4, 1.0), (5, 8, 0, 0.0), (9, 16, 2, 0.5)]
    assert length_classes(SplitCounts()) == []
