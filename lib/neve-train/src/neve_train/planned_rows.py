"""The rows of a plan as the examples that Levanter trains on, in the plan's order."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import haliax as hax
import numpy as np
from haliax import Axis
from levanter.data.dataset import AsyncDataset
from levanter.layers.attention import AttentionMask
from levanter.models.lm_model import LmExample

from neve_train.errors import TrainInputError

if TYPE_CHECKING:
    from neve_chat.cache_reader import CacheReader
    from neve_chat.row_plan import RowPlan

__all__ = ["PlannedRows", "check_plan"]


class PlannedRows(AsyncDataset[LmExample]):
    """Row i is row i of the plan: random access, so a resumed run reads on where it stopped."""

    def __init__(self, plan: RowPlan, readers: Sequence[CacheReader], Pos: Axis) -> None:
        """Notes what to read; nothing is read yet.

        Args:
            plan: Which tokens each row holds.
            readers: Token caches, in the order of the plan's data sets.
            Pos: Positions of a row.
        """
        super().__init__()
        self.plan = plan
        self.readers = readers
        self.Pos = Pos

    def evened(self, max_rows: int | None, num_empty: int = 0) -> PlannedRows:
        """Returns the first rows, followed by rows that are padding alone.

        Args:
            max_rows: Rows that are kept at most; None: all.
            num_empty: Rows of padding, 0 or more.
        """
        num_rows = self.plan.num_rows if max_rows is None else min(self.plan.num_rows, max_rows)
        plan = self.plan.rows(0, num_rows)
        ends = np.append(plan.row_ends, np.full(num_empty, len(plan.segments), np.int64))
        return PlannedRows(dataclasses.replace(plan, row_ends=ends), self.readers, self.Pos)

    async def async_len(self) -> int:
        """Returns the number of rows."""
        return self.plan.num_rows

    def is_finite(self) -> bool:
        """Returns True: the plan is the whole training."""
        return True

    async def get_batch(self, indices: Sequence[int]) -> Sequence[LmExample]:
        """Returns the examples of some rows, in the order asked for."""
        rows = [self.plan.row(int(index)) for index in indices]
        if not rows:
            return []
        segments = np.concatenate(rows)
        places = [
            (source, np.flatnonzero(segments["source"] == source))
            for source in np.unique(segments["source"]).tolist()
        ]
        reads = [self._read(source, segments[place]) for source, place in places]
        pieces: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for (_, place), part in zip(places, await asyncio.gather(*reads), strict=True):
            pieces.update(zip(place.tolist(), part, strict=True))
        ends = np.cumsum([len(row) for row in rows]).tolist()
        return [
            self._example([pieces[at] for at in range(end - len(row), end)])
            for row, end in zip(rows, ends, strict=True)
        ]

    async def _read(self, source: int, segments: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        starts, lengths = segments["start"].tolist(), segments["length"].tolist()
        wanted = [
            (row, start, start + length)
            for row, start, length in zip(segments["row"].tolist(), starts, lengths, strict=True)
        ]
        return await self.readers[source].read_many_async(wanted)

    def _example(self, pieces: Sequence[tuple[np.ndarray, np.ndarray]]) -> LmExample:
        """Returns one row: padding is token 0, segment -1, weight 0.

        The weight of a position is that of the token after it, which it predicts; none predicts the
        first token of a conversation.
        """
        size = self.Pos.size
        tokens = np.zeros(size, np.int32)
        weights = np.zeros(size, np.float32)
        segments = np.full(size, -1, np.int32)
        start = 0
        for number, (ids, mask) in enumerate(pieces):
            stop = start + len(ids)
            tokens[start:stop] = ids
            weights[start : stop - 1] = mask[1:]
            segments[start:stop] = number
            start = stop
        KeyPos = self.Pos.alias("key_position")
        mask = AttentionMask(
            is_causal=True,
            segment_ids=(hax.named(segments, self.Pos), hax.named(segments, KeyPos)),
        )
        return LmExample(
            tokens=hax.named(tokens, self.Pos),
            loss_weight=hax.named(weights, self.Pos),
            attn_mask=mask,
        )


def check_plan(what: str, plan: RowPlan, readers: Sequence[CacheReader], seq_len: int) -> None:
    """Refuses a plan that these caches can't fill, before anything is trained.

    Raises:
        TrainInputError: A segment is beyond its cache or row, or a row longer than seq_len.
    """
    segments = plan.segments
    problems = []
    if len(segments) and int(segments["source"].max()) >= len(readers):
        problems.append(f"data set {int(segments['source'].max())} of {len(readers)} caches")
    for index, reader in enumerate(readers):
        mine = segments[segments["source"] == index]
        if not len(mine):
            continue
        if int(mine["row"].max()) >= reader.num_rows:
            problems.append(f"row {int(mine['row'].max()):,} of {reader.num_rows:,}")
        elif (mine["start"] + mine["length"] > reader.lengths[mine["row"]]).any():
            problems.append(f"tokens beyond the end of a row of {reader.split_path}")
    if plan.num_rows:
        sums = np.add.reduceat(segments["length"], np.append(0, plan.row_ends[:-1]))
        if int(sums.max()) > seq_len:
            problems.append(f"{int(sums.max()):,} tokens in a row of {seq_len:,}")
    if problems:
        raise TrainInputError(
            f"row plan {what}: must fit the token caches, got {'; '.join(problems)}. "
            "Mix the data sets again."
        )
