"""
Writes Levanter's TreeCache: what `levanter.store.cache.TreeCache.load` opens unmodified.

A split consists of parts, each a small cache of its own that one process writes: `<field>/data`
with all rows joined, `<field>/offsets` with the number of rows and then each row's end, both zarr3,
and a `shard_ledger.json` last. The ledger of the split names the parts; it is written when all of
them are there, and makes the split complete (Levanter's layout "sharded").

The arrays differ from Levanter's own in two values, which readers take from zarr.json. A chunk file
holds 2**22 elements instead of 2**27, so that each is written once, whole, from a buffer of 16 MiB;
Levanter's size needs either half a gigabyte of buffer for each field or a rewrite of the file at
every flush. And the codec is lz4: half the time of zstd for a quarter more space; masks aren't
shuffled, which makes them smaller and twice as fast to read.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
from neve import storage

__all__ = ["PART_PATTERN", "TreeCacheWriter", "write_split_ledger"]

PART_PATTERN = "part-{:05d}-of-{:05d}"

_INNER_CHUNK = 262_144
_CHUNK = 16 * _INNER_CHUNK
_UNBOUNDED = 2**54
_FIELDS = ("input_ids", "assistant_masks")
_SHUFFLE = {"input_ids": "shuffle", "assistant_masks": "noshuffle"}


class TreeCacheWriter:
    """
    Writes one part. Use as a context manager: after an exception no ledger appears.
    """

    def __init__(
        self, output_path: str, *, scratch: Path, preprocessor_metadata: dict[str, Any]
    ) -> None:
        """
        Args:
            output_path: folder of the part.
            scratch: empty local folder; holds at most a few chunk files of a remote cache.
            preprocessor_metadata: what Levanter's processor would report, compared when it loads.
        """
        self._output_path = output_path
        self._metadata = preprocessor_metadata
        is_local = storage.is_local(output_path)
        self._local = Path(storage.local_path(output_path)) if is_local else scratch
        self._is_local = is_local
        self._local.mkdir(parents=True, exist_ok=True)
        self._columns = {
            name: _Column(self._local / name / "data", _SHUFFLE[name]) for name in _FIELDS
        }
        self._ends = array("q")  # 8 bytes a row; element 0 of the file is known only at the end
        self.num_tokens = 0

    @property
    def num_rows(self) -> int:
        """
        Rows written so far.
        """
        return len(self._ends)

    def append(self, input_ids: np.ndarray, assistant_masks: np.ndarray) -> None:
        """
        Add one row.

        Args:
            input_ids: int32[token].
            assistant_masks: int32[token], 0 or 1.
        """
        assert len(input_ids) == len(assistant_masks)
        is_full = self._columns["input_ids"].append(input_ids)
        self._columns["assistant_masks"].append(assistant_masks)
        self.num_tokens += len(input_ids)
        self._ends.append(self.num_tokens)
        if is_full:
            self._publish()

    def finish(self) -> None:
        """
        Write what is buffered, the offsets and, last, the ledger.
        """
        offsets = np.concatenate(
            [[self.num_rows], np.frombuffer(self._ends, dtype=np.int64)]
        ).astype(np.int64)
        # All at once: they wait for the disk as well as for each other's compression.
        opened = [_open(self._local / name / "offsets", "int64") for name in _FIELDS]
        writes = [column.write() for column in self._columns.values()]
        writes += [store.result()[: len(offsets)].write(offsets) for store in opened]
        for write in writes:
            write.result()
        self._publish()
        ledger = _ledger({"": (self.num_rows, self.num_tokens)}, "consolidated", self._metadata)
        storage.write_json(storage.join(self._output_path, "shard_ledger.json"), ledger)

    def _publish(self) -> None:
        """
        Move finished files of a remote cache to where they belong.
        """
        if self._is_local:
            return
        for path in sorted(self._local.rglob("*")):
            if path.is_file():
                name = path.relative_to(self._local).as_posix()
                storage.upload_file(path, storage.join(self._output_path, name))
                if path.name != "zarr.json":
                    path.unlink()

    def __enter__(self) -> TreeCacheWriter:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            self.finish()


def write_split_ledger(
    split_path: str, parts: Mapping[str, tuple[int, int]], preprocessor_metadata: dict[str, Any]
) -> None:
    """
    Declare a split complete: `.stats.json` and, last, the ledger that names its parts.

    Args:
        split_path: folder of the split.
        parts: folder of each part below it -> (rows, tokens), in the order of the rows.
        preprocessor_metadata: what Levanter's processor would report.
    """
    rows, tokens = (sum(counts) for counts in zip(*parts.values(), strict=True))
    stats = {"total_tokens": tokens, "total_elements": rows}
    storage.write_json(storage.join(split_path, ".stats.json"), stats)
    ledger = _ledger(parts, "sharded", preprocessor_metadata)
    storage.write_json(storage.join(split_path, "shard_ledger.json"), ledger)


def _ledger(
    parts: Mapping[str, tuple[int, int]], layout: str, metadata: dict[str, Any]
) -> dict[str, Any]:
    by_part = {name: dict.fromkeys(_FIELDS, tokens) for name, (_, tokens) in parts.items()}
    return {
        "total_num_rows": sum(rows for rows, _ in parts.values()),
        "shard_rows": {name: rows for name, (rows, _) in parts.items()},
        "is_finished": True,
        "finished_shards": list(parts),
        "field_counts": dict.fromkeys(_FIELDS, sum(tokens for _, tokens in parts.values())),
        "field_counts_by_shard": by_part,
        "layout": layout,
        "metadata": {"preprocessor_metadata": metadata},
    }


class _Column:
    """
    One 1-D array of int32 that grows; written in whole chunks.
    """

    def __init__(self, path: Path, shuffle: str) -> None:
        self._store = _open(path, "int32", shuffle)
        self._buffer = np.zeros(_CHUNK, dtype=np.int32)
        self._filled = 0
        self._written = 0

    def append(self, values: np.ndarray) -> bool:
        """
        Add values; True if a chunk was written.
        """
        has_written = False
        while len(values):
            part = values[: _CHUNK - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            values = values[len(part) :]
            if self._filled == _CHUNK:
                self.write().result()
                self._filled = 0
                has_written = True
        return has_written

    def write(self) -> Any:
        """
        Start to write what is buffered, which must stay so until it is written. Only the last chunk
        may be partial.

        Returns:
            A future.
        """
        start, self._written = self._written, self._written + self._filled
        store = self._store.result()
        return store[start : self._written].write(self._buffer[: self._filled])


def _open(path: Path, dtype: str, shuffle: str = "shuffle") -> Any:
    """
    Returns:
        A future of the new array.
    """
    blosc = {"cname": "lz4", "clevel": 1, "shuffle": shuffle}
    inner = {"chunk_shape": [_INNER_CHUNK], "codecs": [{"name": "blosc", "configuration": blosc}]}
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {
            "shape": [_UNBOUNDED],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [_CHUNK]}},
            "codecs": [{"name": "sharding_indexed", "configuration": inner}],
        },
        # Two threads compress; more would only hold more copies of a chunk.
        "context": {"cache_pool": {"total_bytes_limit": 0}, "data_copy_concurrency": {"limit": 2}},
    }
    return ts.open(spec, create=True, delete_existing=True)
