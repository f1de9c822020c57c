"""
Shards of canonical conversations: JSON lines under zstd.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import orjson
import zstandard
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.input_files import find_input_files
from neve_chat.zstd import open_zstd

__all__ = [
    "ShardFile",
    "ShardWriter",
    "iter_conversations",
    "list_shards",
    "read_lines",
    "read_shard",
]

_PATTERN = "shard-*.jsonl.zst"
# Shards are read once, as a rule: half the time of level 1, for up to two thirds more space.
_ZSTD_LEVEL = -10
_FLUSH_BYTES = 1 << 20
SHARD_BYTES = 64 * 2**20


class ShardFile:
    """
    Writes one shard, which is there as a whole when the block ends without an exception.
    """

    def __init__(self, path: str) -> None:
        self.num_rows = 0
        """Lines so far."""
        self.num_json_bytes = 0
        """Bytes before compression so far."""
        self.num_bytes = 0
        """Bytes of the file, known at its end."""
        self._path = path
        self._lines: list[bytes] = []
        self._num_waiting_bytes = 0
        self._open = contextlib.ExitStack()
        self._file: Any = None
        self._stream: Any = None

    def write(self, line: bytes) -> None:
        """
        Append one line, given without its newline.
        """
        self._lines.append(line)
        self.num_rows += 1
        self.num_json_bytes += len(line) + 1
        self._num_waiting_bytes += len(line) + 1
        if self._num_waiting_bytes >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._lines.append(b"")
        self._stream.write(b"\n".join(self._lines))
        self._lines, self._num_waiting_bytes = [], 0

    def __enter__(self) -> ShardFile:
        self._file = self._open.enter_context(storage.open_file(self._path, "wb"))
        compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
        self._stream = compressor.stream_writer(self._file, closefd=False)
        return self

    def __exit__(self, *exception: Any) -> None:
        if exception[0] is None:
            if self._lines:
                self._flush()
            self._stream.close()
            self.num_bytes = self._file.tell()
        self._open.__exit__(*exception)


class ShardWriter:
    """
    Writes the lines of one unit: `shard-NNNNN.jsonl.zst`, and after each 64 MB of JSON another
    `shard-NNNNN_MMM.jsonl.zst`, so that one huge compressed file gives shards to share out.
    """

    def __init__(self, output_path: str, index: int, *, shard_bytes: int = SHARD_BYTES) -> None:
        self.shards: list[dict[str, Any]] = []
        """Name, rows and bytes of each finished shard; a unit without rows has none."""
        self._output_path = output_path
        self._index = index
        self._shard_bytes = shard_bytes
        self._shard: ShardFile | None = None

    def write(self, line: bytes) -> None:
        """
        Append one line, given without its newline.
        """
        if self._shard is None:
            self._shard = ShardFile(storage.join(self._output_path, self._name)).__enter__()
        self._shard.write(line)
        if self._shard.num_json_bytes >= self._shard_bytes:
            self._finish()

    @property
    def _name(self) -> str:
        more = f"_{len(self.shards):03d}" if self.shards else ""
        return f"shard-{self._index:05d}{more}.jsonl.zst"

    def _finish(self, *exception: Any) -> None:
        shard, self._shard = self._shard, None
        if shard is not None:
            shard.__exit__(*(exception or (None, None, None)))
            facts = {"name": self._name, "rows": shard.num_rows, "bytes": shard.num_bytes}
            self.shards.append(facts)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._finish(*exception)


def list_shards(input_path: str) -> list[str]:
    """
    Paths of the shards below input_path, in order.

    Raises:
        ChatInputError: there is none.
    """
    return [file.path for file in find_input_files(input_path, (_PATTERN,))]


def iter_conversations(input_path: str) -> Iterator[dict[str, Any]]:
    """
    The rows of all shards below input_path, in order, as `read_shard` gives them.
    """
    for path in list_shards(input_path):
        yield from read_shard(path)


def read_shard(path: str) -> Iterator[dict[str, Any]]:
    """
    The rows of one shard in order: id, messages, source, and tools and chat_template_kwargs where
    present.

    Raises:
        ChatInputError: the shard is damaged or cut off.
    """
    return map(_loads, read_lines(path))


def read_lines(path: str) -> Iterator[bytes]:
    """
    The lines of one shard in order, each with its newline.

    Raises:
        ChatInputError: the shard is damaged or cut off.
    """
    try:
        with storage.open_file(path, "rb") as raw, open_zstd(raw) as stream:
            yield from stream
    except (EOFError, zstandard.ZstdError) as error:
        raise ChatInputError(
            f"shard {path}: must be readable to its end, got {error}. Transform again."
        ) from error


def _loads(line: bytes) -> dict[str, Any]:
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)
