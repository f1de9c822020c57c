"""
The exact sequence of rows that training sees, as arrays on disk.

`segments.npy` has one entry per conversation of a row: data set, row of its cache, first token and
number of tokens; `row_ends.npy` tells where each row's segments end. Row r of the training holds
segments[row_ends[r - 1] : row_ends[r]]; train step s takes the rows from s * batch_size on.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.fitting import FittedRows
from neve_chat.mixing import MixtureSource, iter_epochs, seeded_generator
from neve_chat.packing import pack_best_fit

__all__ = ["SEGMENT", "PlannedTraining", "RowPlan", "plan_rows", "plan_training"]

SEGMENT = np.dtype([("source", "<i4"), ("row", "<i8"), ("start", "<i4"), ("length", "<i4")])
"""One conversation of a row: number of the data set, row of its cache, tokens start to start +
length."""


@dataclass(frozen=True)
class RowPlan:
    """
    Rows of training or validation.
    """

    segments: np.ndarray
    """SEGMENT[segment], row after row."""
    row_ends: np.ndarray
    """int64[row], where the segments of each row end."""

    @property
    def num_rows(self) -> int:
        """
        Rows in all.
        """
        return len(self.row_ends)

    def row(self, index: int) -> np.ndarray:
        """
        SEGMENT[segment]: what a row holds, in order.
        """
        start = self.row_ends[index - 1] if index else 0
        return self.segments[start : self.row_ends[index]]

    def rows(self, start: int, stop: int) -> RowPlan:
        """
        The rows from start to before stop, as a plan of its own.
        """
        first = int(self.row_ends[start - 1]) if start else 0
        last = int(self.row_ends[stop - 1]) if stop else 0
        return RowPlan(self.segments[first:last], self.row_ends[start:stop] - first)

    def save(self, path: str) -> None:
        """
        Write segments.npy and row_ends.npy below a folder; the same plan gives the same bytes.
        """
        for name, values in (("segments", self.segments), ("row_ends", self.row_ends)):
            buffer = io.BytesIO()
            np.save(buffer, values, allow_pickle=False)
            storage.write_bytes(storage.join(path, f"{name}.npy"), buffer.getvalue())

    @staticmethod
    def load(path: str) -> RowPlan:
        """
        Read what `save` wrote.

        Raises:
            ChatInputError: a file is missing, or the two don't belong together.
        """
        arrays = []
        for name in ("segments", "row_ends"):
            file = storage.join(path, f"{name}.npy")
            if not storage.exists(file):
                raise ChatInputError(
                    f"row plan {path}: must hold {name}.npy, got none. Mix the data sets again."
                )
            arrays.append(np.load(io.BytesIO(storage.read_bytes(file)), allow_pickle=False))
        segments, row_ends = arrays
        told = int(row_ends[-1]) if len(row_ends) else 0
        if segments.dtype != SEGMENT or told != len(segments) or (np.diff(row_ends) < 1).any():
            raise ChatInputError(
                f"row plan {path}: row_ends must increase up to the {len(segments):,} segments, "
                f"got {told:,} and {segments.dtype}. Mix the data sets again."
            )
        return RowPlan(segments, row_ends)

    @staticmethod
    def joined(plans: list[RowPlan]) -> RowPlan:
        """
        The rows of all plans, one after the other.
        """
        counts = [len(plan.segments) for plan in plans]
        starts = np.cumsum([0, *counts[:-1]]) if plans else []
        ends = [plan.row_ends + start for plan, start in zip(plans, starts, strict=True)]
        return RowPlan(
            np.concatenate([plan.segments for plan in plans] or [np.zeros(0, SEGMENT)]),
            np.concatenate(ends or [np.zeros(0, np.int64)]),
        )


@dataclass(frozen=True, kw_only=True)
class PlannedTraining:
    """
    The rows of a training, and how many epochs they are.
    """

    rows: RowPlan
    """num_train_steps * batch_size rows."""
    num_train_steps: int
    """Optimizer updates."""
    num_epochs: float
    """Epochs that the rows are, the last one in part."""
    rows_per_epoch: tuple[int, ...]
    """Rows of each epoch that is used, at its full size."""


def plan_training(
    sources: list[MixtureSource],
    fitted: list[FittedRows],
    *,
    mixing: str,
    packing: str,
    seq_len: int,
    batch_size: int,
    num_train_steps: int | None,
    num_train_epochs: float | None,
    seed: int,
) -> PlannedTraining:
    """
    The rows of a training: epochs are mixed, packed and shuffled one by one, then cut into batches.

    A fraction of an epoch is the head of its shuffled rows. Where the rows of num_train_epochs
    don't fill the last batch, the next rows of the sequence do, so that no batch is padded:
    num_train_steps = ceil(rows / batch_size).

    Args:
        sources: data sets.
        fitted: the rows of each that can be used.
        mixing: one of mixture_rules.MIXINGS.
        packing: "separate" or "packed".
        seq_len: tokens of a row.
        batch_size: rows of a train step.
        num_train_steps: train steps; this or num_train_epochs is given.
        num_train_epochs: epochs, above 0.
        seed: of every order.

    Raises:
        ChatInputError: a data set is empty, or has a weight of which nothing is among the rows.
    """
    epochs = _planned_epochs(sources, fitted, mixing, packing, seq_len, seed)
    plans: list[RowPlan] = []
    wanted = None if num_train_steps is None else num_train_steps * batch_size
    num_rows = 0
    while wanted is None or num_rows < wanted:
        plans.append(next(epochs))
        num_rows += plans[-1].num_rows
        if num_train_epochs is not None and wanted is None and len(plans) >= num_train_epochs:
            last = plans[-1].num_rows
            part = num_train_epochs - (len(plans) - 1)
            exact = num_rows - last + math.ceil(part * last - 1e-6)
            wanted = math.ceil(exact / batch_size) * batch_size
    sizes = tuple(plan.num_rows for plan in plans)
    rows = RowPlan.joined(plans).rows(0, wanted)
    if mixing != "concat":  # there a training shorter than an epoch may do without one
        _check_all_drawn(sources, rows, wanted)
    return PlannedTraining(
        rows=rows,
        num_train_steps=wanted // batch_size,
        num_epochs=len(sizes) - (sum(sizes) - wanted) / sizes[-1],
        rows_per_epoch=sizes,
    )


def plan_rows(
    source: np.ndarray, row: np.ndarray, length: np.ndarray, *, packing: str, seq_len: int
) -> RowPlan:
    """
    Conversations put into rows, whole and from their start.

    Args:
        source: int32[conversation] number of the data set.
        row: int64[conversation] row of its cache.
        length: int32[conversation] tokens of it, from 1 to seq_len.
        packing: "separate": one in each row, in their order; "packed": best fit.
        seq_len: tokens of a row.
    """
    segments = np.zeros(len(row), dtype=SEGMENT)
    segments["source"], segments["row"], segments["length"] = source, row, length
    if packing == "separate":
        return RowPlan(segments, np.arange(1, len(row) + 1, dtype=np.int64))
    order, row_ends = pack_best_fit(length, seq_len)
    return RowPlan(segments[order], row_ends)


def _planned_epochs(
    sources: list[MixtureSource],
    fitted: list[FittedRows],
    mixing: str,
    packing: str,
    seq_len: int,
    seed: int,
) -> Iterator[RowPlan]:
    for epoch, (source, drawn) in enumerate(iter_epochs(sources, mixing, seed)):
        row, length = np.empty(len(drawn), np.int64), np.empty(len(drawn), np.int32)
        for index, used in enumerate(fitted):
            is_here = source == index
            row[is_here], length[is_here] = used.rows[drawn[is_here]], used.lengths[drawn[is_here]]
        plan = plan_rows(source, row, length, packing=packing, seq_len=seq_len)
        yield _shuffled(plan, seed, epoch) if packing == "packed" else plan


def _shuffled(plan: RowPlan, seed: int, epoch: int) -> RowPlan:
    """
    The same rows in a seeded order: packing leaves them sorted by their longest conversation.
    """
    order = seeded_generator("packed", seed, epoch).permutation(plan.num_rows)
    counts = np.diff(plan.row_ends, prepend=0)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    by_place = np.argsort(np.repeat(place, counts), kind="stable")
    return RowPlan(plan.segments[by_place], np.cumsum(counts[order]))


def _check_all_drawn(sources: list[MixtureSource], rows: RowPlan, num_rows: int) -> None:
    counts = np.bincount(rows.segments["source"], minlength=len(sources))
    never = [source.name for source, count in zip(sources, counts, strict=True) if not count]
    if never:
        raise ChatInputError(
            f"mixture: every data set must be drawn at least once, got none of {', '.join(never)} "
            f"in the {num_rows:,} rows of the training. Train longer, raise its weight or leave it out."
        )
