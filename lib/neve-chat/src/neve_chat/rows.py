"""
Rows of a piece of a file, one at a time, with memory that doesn't grow with the file.

Where a row stands is told as `file@offset` with the byte at which its line starts for plain JSON
lines, whose row numbers nobody knows without reading all of the file, and as `file:number` with
the row's number from 0 for everything else. Both are the same however the work is cut.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import zstandard
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.exact_json import DECODER, holds_huge_number
from neve_chat.input_files import (
    COLUMNAR_SUFFIXES,
    LINE_SUFFIXES,
    PLAIN_LINE_SUFFIXES,
    InputFile,
)
from neve_chat.zstd import open_zstd

__all__ = ["Columns", "Piece", "SourceRow", "read_rows"]

_READ_BYTES = 1 << 20
_SHOWN_BYTES = 80
_BETWEEN_ITEMS = re.compile(r"[ \t\r\n,]*")
_BETWEEN_VALUES = re.compile(r"[ \t\r\n]*")
_DAMAGE = (
    EOFError,
    UnicodeError,
    json.JSONDecodeError,
    RecursionError,
    zlib.error,
    gzip.BadGzipFile,
    zstandard.ZstdError,
)


@dataclass(frozen=True)
class Columns:
    """
    Which columns of a columnar file are read; rows of JSON are always whole.
    """

    required: tuple[str, ...] = ()
    """Columns that must be there."""
    optional: tuple[str, ...] = ()
    """Columns that are read where they exist."""
    is_all: bool = False
    """Read every column that there is."""


@dataclass(frozen=True)
class Piece:
    """
    A part of a file: bytes of plain JSON lines, row groups of parquet, record batches of arrow.
    """

    file: InputFile
    """The file."""
    start: int = 0
    """First byte, row group or batch; a line belongs to the piece in which it starts."""
    stop: int | None = None
    """One behind the last one; None: to the end of the file."""
    first_row: int = 0
    """Number of the first row in its file; 0 for plain JSON lines."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """
    One row with its place.
    """

    place: str
    """`file@offset` or `file:number`."""
    values: dict[str, Any]
    """Column name -> value; empty where error is set."""
    is_padded: bool = False
    """From a columnar file: null struct keys may be padding."""
    error: str = ""
    """Why the row could not be read, if it couldn't."""


def read_rows(
    piece: Piece, columns: Columns, *, on_bytes: Callable[[int], None] | None = None
) -> Iterator[SourceRow]:
    """
    The rows of a piece in order.

    Args:
        piece: what to read.
        columns: which columns of a columnar file.
        on_bytes: called with the size of each read of a file that can't be cut, so that a huge one
            shows progress.

    Raises:
        ChatInputError: the file is damaged, or a columnar file lacks a required column.
    """
    file = piece.file
    if file.suffix in COLUMNAR_SUFFIXES:
        from neve_chat import columnar  # lazy: pyarrow takes 0.1 s that JSON lines need not pay

        for number, values in columnar.read_rows(piece, columns):
            yield SourceRow(f"{file.name}:{number}", values, is_padded=True)
        return
    place = "the start"
    try:
        with storage.open_file(file.path, "rb") as raw:
            for place, value, error in _values(raw, piece, on_bytes):
                if not error and not isinstance(value, dict):
                    error = f"must be an object, got a {type(value).__name__}"
                yield SourceRow(place, {} if error else value, error=error)
    except _DAMAGE as error:
        raise ChatInputError(
            f"input file {file.name}: must be readable to its end, got {error} after {place}. "
            "Fetch the file again."
        ) from error


def _values(
    raw: Any, piece: Piece, on_bytes: Callable[[int], None] | None
) -> Iterator[tuple[str, Any, str]]:
    name, suffix = piece.file.name, piece.file.suffix
    if suffix in PLAIN_LINE_SUFFIXES:
        for offset, line in _lines_starting_in(raw, piece.start, piece.stop):
            if not line.isspace():
                yield f"{name}@{offset}", *_parse_line(line)
        return
    if suffix.endswith((".gz", ".zst")) and not piece.file.num_bytes:
        raise EOFError("an empty file, which is no compressed one")
    stream = _decompressed(_Counted(raw, on_bytes) if on_bytes is not None else raw, suffix)
    if suffix in LINE_SUFFIXES:
        values = (_parse_line(line) for line in stream if not line.isspace())
    else:
        values = _json_values(stream)
    for number, (value, error) in enumerate(values):
        yield f"{name}:{number}", value, error


def _lines_starting_in(stream: Any, start: int, stop: int | None) -> Iterator[tuple[int, bytes]]:
    """
    (offset, line) of the lines whose first byte lies in [start, stop).
    """
    position = start
    if start:
        position -= 1
        stream.seek(position)
        while stop is None or position < stop:  # in short reads: a line may be larger than memory
            rest = stream.readline(_READ_BYTES)
            position += len(rest)
            if not rest or rest.endswith(b"\n"):
                break
    while stop is None or position < stop:
        line = stream.readline()
        if not line:
            return
        yield position, line
        position += len(line)


class _Counted:
    """
    An open file that tells how much of it is read.
    """

    def __init__(self, raw: Any, on_bytes: Callable[[int], None]) -> None:
        self._raw = raw
        self._on_bytes = on_bytes

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        self._on_bytes(len(data))
        return data


def _decompressed(raw: Any, suffix: str) -> io.BufferedReader:
    if suffix.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), _READ_BYTES)  # type: ignore[arg-type]
    if suffix.endswith(".zst"):
        return open_zstd(raw, _READ_BYTES)
    return raw


def _parse_line(line: bytes) -> tuple[Any, str]:
    try:
        value = orjson.loads(line)
        if not holds_huge_number(value):
            return value, ""
    except ValueError:
        pass
    try:
        return DECODER.decode(line.decode("utf-8-sig")), ""
    except ValueError as error:
        problem = f"not JSON: {error}"
    except RecursionError:
        problem = "nested too deeply"
    return None, f"{problem}; it begins {line[:_SHOWN_BYTES].decode(errors='replace')!r}"


def _json_values(stream: Any) -> Iterator[tuple[Any, str]]:
    """
    Items of one JSON array, or one value after the other; only one item is held at a time.
    """
    utf8 = codecs.getincrementaldecoder("utf-8-sig")()
    text, at, step, at_end, is_array = "", 0, _READ_BYTES, False, None
    while True:
        separators = _BETWEEN_ITEMS if is_array else _BETWEEN_VALUES
        at += len(separators.match(text, at)[0])  # type: ignore[index]  both match ""
        if is_array is None and at < len(text):
            is_array = text[at] == "["
            at += is_array
            continue
        if at < len(text):
            if is_array and text[at] == "]":
                return
            try:
                value, end = DECODER.raw_decode(text, at)
            except ValueError:
                if at_end:
                    raise
            else:
                if at_end or end < len(text):  # a number might go on in the next read
                    yield value, ""
                    at, step = end, _READ_BYTES
                    continue
        if at_end:
            if is_array:
                raise EOFError("the end of the file inside a JSON array: it is cut off")
            return
        more = stream.read(step)
        step *= 2  # so that one huge item is parsed a logarithmic number of times
        at_end = not more
        text, at = text[at:] + utf8.decode(more, at_end), 0
