"""
Reads what a plan needs from a Levanter TreeCache: row lengths and trained tokens, no jax.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from neve import storage

from neve_chat.errors import ChatInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_row_lengths", "read_trained_tokens"]

_BLOCK_ELEMENTS = 1 << 24


def read_row_lengths(split_path: str) -> np.ndarray:
    """
    The number of tokens of every row, in order.

    Args:
        split_path: folder of one split, with `shard_ledger.json`.

    Returns:
        int64[row].

    Raises:
        ChatInputError: there is no finished cache.
    """
    num_rows = _num_rows(split_path)
    with _array(storage.join(split_path, "input_ids", "offsets")) as offsets:
        ends = np.asarray(offsets[: num_rows + 1].read().result(), dtype=np.int64).copy()
    ends[0] = 0  # the first element holds the number of rows
    return np.diff(ends)


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
    ends = np.cumsum(lengths)
    trained = np.zeros(len(lengths), dtype=np.int64)
    with _array(storage.join(split_path, "assistant_masks", "data")) as masks:
        first = 0
        while first < len(lengths):
            start = int(ends[first] - lengths[first])
            # Whole rows of about one block; a row longer than the block stands alone.
            last = max(first + 1, int(np.searchsorted(ends, start + _BLOCK_ELEMENTS, side="right")))
            block = np.asarray(masks[start : int(ends[last - 1])].read().result(), dtype=np.int64)
            sums = np.concatenate([[0], np.cumsum(block)])
            begins = ends[first:last] - lengths[first:last] - start
            stops = begins + np.minimum(lengths[first:last], limit)
            trained[first:last] = sums[stops] - sums[begins]
            first = last
    return trained


def _num_rows(split_path: str) -> int:
    path = storage.join(split_path, "shard_ledger.json")
    ledger = storage.read_json(path) if storage.exists(path) else {}
    if not ledger.get("is_finished"):
        found = "an unfinished one" if ledger else "no shard_ledger.json"
        raise ChatInputError(
            f"token cache {split_path}: must be a finished cache, got {found}. "
            "Run its tokenize step again."
        )
    return int(ledger["total_num_rows"])


@contextmanager
def _array(path: str) -> Iterator[Any]:
    """
    Open a zarr3 array for reading; files of a remote one are copied to this machine first.
    """
    import tensorstore as ts  # heavy optional dependency

    with storage.scratch_dir() as scratch:
        local = Path(storage.local_path(path)) if storage.is_local(path) else scratch
        if not storage.is_local(path):
            for info in storage.list_files(path):
                storage.download_file(storage.join(path, info.name), scratch / info.name)
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{local}/"}}
        yield ts.open(spec, open=True, read=True).result()
