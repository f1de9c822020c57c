"""
Reads Levanter's TreeCache, consolidated or sharded, without jax: row lengths, rows, trained tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from neve import storage

from neve_chat.cache_ledger import CachePart, read_ledger
from neve_chat.errors import ChatInputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["FIELDS", "CacheReader", "read_row_lengths", "read_trained_tokens"]

_BLOCK_ELEMENTS = 1 << 22
_POOL_BYTES = 1 << 28  # decoded chunks that are kept, all readers of a process together
FIELDS = ("input_ids", "assistant_masks")


class CacheReader:
    """
    Random access to the rows of one split. Threads may share it; arrays are opened when needed.
    """

    def __init__(self, split_path: str) -> None:
        """
        Args:
            split_path: folder of one split, with `shard_ledger.json`.

        Raises:
            ChatInputError: there is no finished cache, or its ledger contradicts itself.
        """
        self.split_path = split_path
        self.num_rows, parts = read_ledger(split_path, FIELDS)
        self._parts = [_Part(part) for part in parts]
        self._first_rows = np.cumsum([0, *(part.num_rows for part in parts)])

    @cached_property
    def lengths(self) -> np.ndarray:
        """
        int64[row], tokens of every row, checked against both arrays' offsets and the ledger.

        Raises:
            ChatInputError: the offsets don't increase, differ between the arrays, or lie beyond
                what is stored.
        """
        pieces = [np.diff(part.bounds) for part in self._parts]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64)

    def read(
        self, row: int, start: int = 0, stop: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """
        Tokens `start` to `stop` of a row.

        Args:
            row: 0 <= row < num_rows.
            start: first token, from 0.
            stop: token after the last one; None: the row's end, and never beyond it.

        Returns:
            (ids, mask): int32[token] each, the mask 1 where the token is trained.
        """
        return self.read_many([(row, start, stop)])[0]

    def read_many(
        self, pieces: Sequence[tuple[int, int, int | None]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """
        The (row, start, stop) pieces in their order, each as `read` gives it, read together.
        """
        futures = self._reads(pieces)
        values = [future.result() for future in futures]
        return _pairs(values)

    async def read_many_async(
        self, pieces: Sequence[tuple[int, int, int | None]]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """
        As `read_many`, without blocking the event loop while data is fetched.
        """
        return _pairs(await asyncio.gather(*self._reads(pieces)))

    def blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """
        All rows in order, whole rows of about 4 M tokens at a time.

        Yields:
            (number of the first row, int64[row] lengths, int32[token] ids, int32[token] mask).
        """
        for first, last, part, start, stop in self._spans():
            ids, mask = (part.array(name)[start:stop].read().result() for name in FIELDS)
            yield first, self.lengths[first:last], _int32(ids), _int32(mask)

    def trained_tokens(self, limit: int | None = None) -> np.ndarray:
        """
        int64[row]: trained tokens among the first `limit` tokens of every row (None: among all).
        """
        trained = np.zeros(self.num_rows, dtype=np.int64)
        for first, last, part, start, stop in self._spans():
            mask = part.array("assistant_masks")[start:stop].read().result()
            sums = np.concatenate([[0], np.cumsum(mask, dtype=np.int64)])
            lengths = self.lengths[first:last]
            begins = np.cumsum(lengths) - lengths
            kept = lengths if limit is None else np.minimum(lengths, limit)
            trained[first:last] = sums[begins + kept] - sums[begins]
        return trained

    def _spans(self) -> Iterator[tuple[int, int, _Part, int, int]]:
        """
        (first row, last row + 1, part, first element, last element + 1) of blocks of whole rows.
        """
        for part, offset in zip(self._parts, self._first_rows.tolist(), strict=False):
            bounds, first = part.bounds, 0
            while first < part.num_rows:
                start = int(bounds[first])
                # A row longer than the block stands alone.
                last = int(np.searchsorted(bounds, start + _BLOCK_ELEMENTS, side="right")) - 1
                last = max(first + 1, last)
                yield offset + first, offset + last, part, start, int(bounds[last])
                first = last

    def _reads(self, pieces: Sequence[tuple[int, int, int | None]]) -> list[Any]:
        import tensorstore as ts  # heavy optional dependency

        futures = []
        with ts.Batch() as batch:
            for row, start, stop in pieces:
                if not 0 <= row < self.num_rows:
                    raise IndexError(f"row {row} of {self.split_path}: it has {self.num_rows} rows")
                at = int(np.searchsorted(self._first_rows, row, side="right")) - 1
                part, local = self._parts[at], row - int(self._first_rows[at])
                begin, end = int(part.bounds[local]), int(part.bounds[local + 1])
                if stop is not None:
                    end = min(end, begin + stop)
                begin = min(begin + start, end)
                futures += [part.array(name)[begin:end].read(batch=batch) for name in FIELDS]
        return futures


class _Part:
    """
    One set of arrays: the whole of a consolidated cache, or one part of a sharded one.
    """

    def __init__(self, part: CachePart) -> None:
        self._part = part
        self.num_rows = part.num_rows
        self._stores: dict[str, Any] = {}
        self._copies = contextlib.ExitStack()

    @cached_property
    def bounds(self) -> np.ndarray:
        """
        int64[row + 1]: where each row starts, and the end of the last one.
        """
        if not self.num_rows:
            return np.zeros(1, dtype=np.int64)
        bounds = {name: self._read_bounds(name) for name in FIELDS}
        ids, masks = bounds.values()
        if not np.array_equal(ids, masks):
            raise _broken(
                self._part.path,
                "both arrays must have rows of the same lengths",
                f"{int(ids[-1]):,} and {int(masks[-1]):,} tokens",
            )
        return ids

    def array(self, field: str) -> Any:
        """
        The open data array of a field.
        """
        if field not in self._stores:
            path = storage.join(self._part.path, field, "data")
            self._check_chunks(path, field)
            self._stores[field] = _open(path, self._copies)
        return self._stores[field]

    def _read_bounds(self, field: str) -> np.ndarray:
        path = storage.join(self._part.path, field, "offsets")
        with contextlib.ExitStack() as copies:
            store = _open(path, copies)
            if store.shape[0] < self.num_rows + 1:
                raise _broken(
                    path, f"must hold {self.num_rows:,} rows", f"{store.shape[0] - 1:,} entries"
                )
            bounds = np.array(store[: self.num_rows + 1].read().result(), dtype=np.int64)
        if bounds[0] != self.num_rows:
            raise _broken(path, f"must hold the ledger's {self.num_rows:,} rows", f"{bounds[0]:,}")
        bounds[0] = 0  # the first element holds the number of rows
        if (np.diff(bounds) < 0).any():
            row = int(np.argmax(np.diff(bounds) < 0))
            raise _broken(path, "must not decrease", f"{bounds[row + 1]} for row {row}")
        counted = self._part.field_counts.get(field)
        if counted is not None and counted != bounds[-1]:
            raise _broken(path, f"must end at the ledger's {counted:,} tokens", f"{bounds[-1]:,}")
        return bounds

    def _check_chunks(self, path: str, field: str) -> None:
        """
        Refuse an array that is shorter than its offsets say: absent chunks would read as zeros.

        TensorStore stores no chunk of zeros: one of masks may be absent that holds nothing but the
        untrained end of the last row.
        """
        num_elements = int(self.bounds[-1])
        metadata = storage.read_json(storage.join(path, "zarr.json"))
        (size,), (chunk,) = (
            metadata["shape"],
            metadata["chunk_grid"]["configuration"]["chunk_shape"],
        )
        if size < num_elements:
            raise _broken(path, f"must hold {num_elements:,} tokens", f"{size:,}")
        encoding = metadata.get("chunk_key_encoding", {})
        if encoding.get("configuration", {}).get("separator", "/") != "/":
            return
        if encoding.get("name", "default") != "default":
            return
        is_mask = field == "assistant_masks"
        for index in range(-(-num_elements // chunk)):
            if storage.exists(storage.join(path, "c", str(index))):
                continue
            if not is_mask or index * chunk <= self.bounds[-2]:
                got = f"no chunk c/{index}" + (" (lost, or it trains no token)" if is_mask else "")
                raise _broken(path, f"must hold {num_elements:,} tokens", got)


def read_row_lengths(split_path: str) -> np.ndarray:
    """
    The number of tokens of every row, in order.

    Args:
        split_path: folder of one split, with `shard_ledger.json`.

    Returns:
        int64[row].

    Raises:
        ChatInputError: there is no finished cache, or it is inconsistent.
    """
    return CacheReader(split_path).lengths


def read_trained_tokens(split_path: str, lengths: np.ndarray, limit: int) -> np.ndarray:
    """
    The number of trained tokens among the first `limit` tokens of every row.

    Args:
        split_path: folder of one split.
        lengths: int64[row], as read_row_lengths gives them.
        limit: tokens of a row that count, >= 1.

    Returns:
        int64[row].
    """
    trained = CacheReader(split_path).trained_tokens(limit)
    assert len(trained) == len(lengths)
    return trained


def _pairs(values: Sequence[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    arrays = [_int32(value) for value in values]
    return list(zip(arrays[::2], arrays[1::2], strict=True))


def _int32(values: Any) -> np.ndarray:
    return np.asarray(values).astype(np.int32, copy=False)


def _broken(path: str, rule: str, got: str) -> ChatInputError:
    return ChatInputError(
        f"token cache {path}: {rule}, got {got}. It is damaged: run its tokenize step again."
    )


def _open(path: str, copies: contextlib.ExitStack) -> Any:
    """
    Open a zarr3 array for reading; files of a remote one are copied to this machine first, and live
    as long as `copies`.
    """
    import tensorstore as ts  # heavy optional dependency

    if not storage.exists(storage.join(path, "zarr.json")):
        raise _broken(path, "must be an array", "no zarr.json")
    if storage.is_local(path):
        local = Path(storage.local_path(path))
    else:
        local = copies.enter_context(storage.scratch_dir())
        for info in storage.list_files(path):
            storage.download_file(storage.join(path, info.name), local / info.name)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{local}/"}}
    return ts.open(spec, open=True, read=True, context=_context()).result()


@functools.cache
def _context() -> Any:
    """
    The pool of decoded chunks that all readers share.
    """
    import tensorstore as ts  # heavy optional dependency

    return ts.Context({"cache_pool": {"total_bytes_limit": _POOL_BYTES}})
