"""
Which conversations share a row: best fit, longest first.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np

__all__ = ["MAX_SEGMENTS", "pack_best_fit"]

MAX_SEGMENTS = 64
"""Conversations of a row at most; Levanter's own limit."""


def pack_best_fit(
    lengths: np.ndarray, seq_len: int, *, max_segments: int = MAX_SEGMENTS
) -> tuple[np.ndarray, np.ndarray]:
    """
    Put each conversation, longest first, whole into the row that it leaves the least room in.

    A new row is begun where none has room. Conversations of one length keep their order, so the
    result depends on nothing but the arguments; time n log n, memory some numbers a conversation.

    Args:
        lengths: int[conversation], each from 1 to seq_len.
        seq_len: tokens of a row.
        max_segments: conversations of a row at most, >= 1.

    Returns:
        (order, row_ends): int64[conversation] and int64[row]; row r holds the conversations
        order[row_ends[r - 1] : row_ends[r]].
    """
    assert not len(lengths) or 1 <= lengths.min() <= lengths.max() <= seq_len
    longest_first = np.argsort(-lengths.astype(np.int64), kind="stable")
    row_of = np.empty(len(lengths), dtype=np.int64)
    rooms: list[int] = []  # the different amounts of room that open rows have, ascending
    open_rows: dict[int, list[int]] = {}  # room -> rows with exactly that much
    num_segments: list[int] = []
    for number, length in enumerate(lengths[longest_first].tolist()):
        at = bisect_left(rooms, length)
        if at == len(rooms):
            row, room = len(num_segments), seq_len
            num_segments.append(0)
        else:
            room = rooms[at]
            row = open_rows[room].pop()
            if not open_rows[room]:
                del rooms[at], open_rows[room]
        row_of[number] = row
        num_segments[row] += 1
        room -= length
        if room and num_segments[row] < max_segments:
            if room in open_rows:
                open_rows[room].append(row)
            else:
                open_rows[room] = [row]
                insort(rooms, room)
    order = longest_first[np.argsort(row_of, kind="stable")]
    return order, np.cumsum(num_segments, dtype=np.int64)
