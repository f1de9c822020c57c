"""
Conversations that stand in a data set twice, found by digests of 16 bytes.

Each unit of the transform leaves the digests of its rows; when all are there, the later ones of
equal rows are found at once, in memory of about 40 bytes for each row of the data set.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.parts import Part
from neve_chat.pool import run_units
from neve_chat.quarantine import Quarantine
from neve_chat.shards import ShardFile, read_lines, read_shard

__all__ = ["DIGEST_BYTES", "Duplicates", "digests_path", "find_duplicates"]

DIGEST_BYTES = 16
QUARANTINED_ROWS = 1_000


def digests_path(output_path: str, part: Part) -> str:
    """
    Where a unit's digests are.
    """
    return storage.join(output_path, ".parts", f"{part.index:05d}.digests")


@dataclass(frozen=True)
class Duplicates:
    """
    The rows that repeat an earlier one, numbered over all shards in order, ascending.
    """

    later: np.ndarray
    """int64[duplicate], the row that repeats."""
    first: np.ndarray
    """int64[duplicate], the first row that is equal to it."""
    shards: list[dict[str, Any]]
    """Name, rows and bytes of each shard as the units wrote them."""

    def __len__(self) -> int:
        return len(self.later)

    def refuse(self, output_path: str) -> None:
        """
        Does nothing where there is none.

        Raises:
            ChatInputError: names the first duplicate and the row that it repeats.
        """
        if not len(self):
            return
        [later] = self._rows(output_path, self.later[:1])
        [first] = self._rows(output_path, self.first[:1])
        raise ChatInputError(
            f"row {later['source']}: must not repeat an earlier conversation, got that of row "
            f"{first['source']} again, and {len(self) - 1:,} more duplicates. Remove them, or set "
            "the policy duplicate_rows to 'drop' or 'keep'."
        )

    def drop(self, output_path: str, num_processes: int | None) -> list[dict[str, Any]]:
        """
        The shards are written again without the duplicates, the first of which are kept in
        `rejected/duplicates.jsonl`. May be killed and called again.

        Returns:
            Name, rows and bytes of each shard as it is now.
        """
        self._write_quarantine(output_path)
        starts = self._starts()
        jobs: list[_Rewrite] = []
        for index, shard in enumerate(self.shards):
            begin, end = np.searchsorted(self.later, starts[index : index + 2])
            if begin < end:
                dropped = self.later[begin:end] - starts[index]
                jobs.append(_Rewrite(index, output_path, shard, dropped))
        shards = list(self.shards)
        for index, shard in run_units(_rewriter, None, jobs, num_processes=num_processes):
            shards[index] = shard
        return [shard for shard in shards if shard["rows"]]

    def _write_quarantine(self, output_path: str) -> None:
        path = storage.join(output_path, "rejected", "duplicates.jsonl")
        if not len(self) or storage.exists(path):  # an earlier attempt has begun to drop them
            return
        with Quarantine(path) as quarantine:
            numbers, firsts = self.later[:QUARANTINED_ROWS], self.first[:QUARANTINED_ROWS]
            for row, first in zip(self._rows(output_path, numbers), firsts, strict=True):
                name, number = self._place(int(first))
                detail = f"equal to row {number} of {name}"
                quarantine.add("duplicate row", detail, row["source"], row)

    def _starts(self) -> np.ndarray:
        counts = [0, *(shard["rows"] for shard in self.shards)]
        return np.cumsum(np.array(counts, dtype=np.int64))

    def _place(self, row: int) -> tuple[str, int]:
        starts = self._starts()
        index = int(np.searchsorted(starts, row, side="right")) - 1
        return self.shards[index]["name"], row - int(starts[index])

    def _rows(self, output_path: str, numbers: np.ndarray) -> Iterator[dict[str, Any]]:
        """
        The rows of these ascending numbers; every shard is opened at most once.
        """
        places = [self._place(int(number)) for number in numbers]
        for name, group in itertools.groupby(places, key=lambda place: place[0]):
            wanted = {number for _, number in group}
            rows = read_shard(storage.join(output_path, name))
            yield from (
                row
                for number, row in enumerate(itertools.islice(rows, max(wanted) + 1))
                if number in wanted
            )


@dataclass(frozen=True)
class _Rewrite:
    """
    One shard to write again without some rows.
    """

    index: int
    output_path: str
    shard: dict[str, Any]
    dropped: np.ndarray


def _rewriter(unused: Any) -> Callable[[_Rewrite], tuple[int, dict[str, Any]]]:
    return _rewrite


def _rewrite(job: _Rewrite) -> tuple[int, dict[str, Any]]:
    path = storage.join(job.output_path, job.shard["name"])
    num_left = job.shard["rows"] - len(job.dropped)
    if not num_left:
        storage.remove_tree(path)
        return job.index, {**job.shard, "rows": 0, "bytes": 0}
    num_rows = sum(1 for _ in read_lines(path))
    if num_rows == num_left:  # an earlier attempt did it
        return job.index, {**job.shard, "rows": num_left, "bytes": storage.size(path)}
    if num_rows != job.shard["rows"]:
        raise ChatInputError(
            f"shard {path}: must hold {job.shard['rows']:,} rows, got {num_rows:,}. Remove the "
            "output and transform again."
        )
    dropped = set(job.dropped.tolist())
    with ShardFile(path) as out:
        for number, line in enumerate(read_lines(path)):
            if number not in dropped:
                out.write(line.removesuffix(b"\n"))
    return job.index, {**job.shard, "rows": out.num_rows, "bytes": out.num_bytes}


def find_duplicates(
    output_path: str, parts: Sequence[Part], shards: list[dict[str, Any]]
) -> Duplicates:
    """
    The duplicates among the rows of all units.

    Args:
        output_path: where the units left their digests.
        parts: all units, in order.
        shards: name, rows and bytes of all shards, in order.
    """
    raw = b"".join(storage.read_bytes(digests_path(output_path, part)) for part in parts)
    keys = np.frombuffer(raw, dtype=np.uint64).reshape(-1, 2)
    order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: equal rows stay in their order
    ordered = keys[order]
    is_repeat = np.zeros(len(order), dtype=bool)
    is_repeat[1:] = (ordered[1:] == ordered[:-1]).all(axis=1)
    starts = np.maximum.accumulate(np.where(is_repeat, 0, np.arange(len(order))))
    later, first = order[is_repeat], order[starts[is_repeat]]
    ascending = np.argsort(later)
    return Duplicates(later[ascending], first[ascending], shards)
