"""
Reading zstd files to their end.

The library's own stream reader takes a file that was cut off for one that ended.
"""

from __future__ import annotations

import io
from typing import Any

import zstandard

__all__ = ["open_zstd"]

_CHUNK_BYTES = 1 << 20


class _WholeFrames(io.RawIOBase):
    """
    The decompressed bytes of one or more frames; EOFError where the last one is not complete.
    """

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._output:
            if not self._input:
                self._input = self._raw.read(_CHUNK_BYTES)
                if not self._input:
                    if self._frame is not None:
                        raise EOFError("the end of the file inside a zstd frame: it is cut off")
                    return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._output = memoryview(self._frame.decompress(self._input))
            self._input = b""
            if self._frame.eof:
                self._input, self._frame = self._frame.unused_data, None
        size = min(len(buffer), len(self._output))
        buffer[:size] = self._output[:size]
        self._output = self._output[size:]
        return size


def open_zstd(raw: Any, buffer_bytes: int = _CHUNK_BYTES) -> io.BufferedReader:
    """
    The decompressed stream of an open binary file.

    Reading raises EOFError where the file is cut off, and zstandard.ZstdError where it is damaged.
    """
    return io.BufferedReader(_WholeFrames(raw), buffer_bytes)
