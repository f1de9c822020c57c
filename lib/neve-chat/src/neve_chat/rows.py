"""
Rows of parquet, JSON lines and JSON files, one at a time, with memory that doesn't grow with the
file.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import zstandard
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.zstd import open_zstd

__all__ = ["InputFile", "SourceRow", "find_input_files", "read_rows"]

_PARQUET_BATCH_ROWS = 64
_READ_BYTES = 1 << 20
_LINE_SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst")
_SUFFIXES = (".parquet", *_LINE_SUFFIXES, ".json", ".json.gz", ".json.zst")


@dataclass(frozen=True)
class InputFile:
    """
    One file to read.
    """

    name: str
    """Path relative to the input, or the file's own name."""
    path: str
    """Where it is."""
    num_bytes: int
    """Its size."""


@dataclass(frozen=True)
class SourceRow:
    """
    One row with its place.
    """

    file: str
    """Name of its file."""
    index: int
    """Number of the row in its file, from 0."""
    values: dict[str, Any]
    """Column name -> value; empty where error is set."""
    is_padded: bool = False
    """From a columnar file: null struct keys may be padding."""
    error: str = ""
    """Why the row could not be read, if it couldn't."""


def find_input_files(input_path: str, patterns: Sequence[str]) -> list[InputFile]:
    """
    The files below input_path that match a pattern, sorted by name; input_path may be a file
    itself.

    Args:
        input_path: folder or file, local or remote.
        patterns: globs relative to it; `*` stays inside one folder, `**` crosses folders.

    Raises:
        ChatInputError: nothing there, nothing matches, or a match of a format that can't be read.
    """
    if input_path.lower().endswith(_SUFFIXES) and not storage.is_dir(input_path):
        if not storage.exists(input_path):
            raise ChatInputError(
                f"input {input_path}: must exist, got nothing there. Correct the path."
            )
        return [InputFile(input_path.rsplit("/", 1)[-1], input_path, storage.size(input_path))]
    present = [info for info in storage.list_files(input_path) if not _is_hidden(info.name)]
    found = sorted(
        (i for i in present if any(_glob(p).fullmatch(i.name) for p in patterns)),
        key=lambda i: i.name,
    )
    if not found:
        names = sorted(info.name for info in present)
        there = (
            ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
            or "no files"
        )
        raise ChatInputError(
            f"input {input_path}: a file must match {', '.join(patterns)}, got {there}. "
            "Pass patterns that match the data files."
        )
    for info in found:
        if not info.name.lower().endswith(_SUFFIXES):
            raise ChatInputError(
                f"input file {info.name}: must end in {', '.join(_SUFFIXES)}, got a format "
                f"that can't be read. "
                "Narrow the patterns."
            )
    return [InputFile(info.name, storage.join(input_path, info.name), info.size) for info in found]


def read_rows(
    file: InputFile, required: Sequence[str], optional: Sequence[str]
) -> Iterator[SourceRow]:
    """
    The file's rows in order.

    Args:
        file: what to read.
        required: columns that a parquet file must have; rows of JSON are checked one by one later.
        optional: columns read where they exist.

    Raises:
        ChatInputError: the file is damaged, or a parquet file lacks a required column.
    """
    name = file.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet_rows(file, required, optional)
        return
    with storage.open_file(file.path, "rb") as raw:
        stream = _decompressed(raw, name)
        values = _json_lines(stream) if name.endswith(_LINE_SUFFIXES) else _json_values(stream)
        index = -1
        try:
            for index, (value, error) in enumerate(values):
                if not error and not isinstance(value, dict):
                    error = f"must be an object, got a {type(value).__name__}"
                yield SourceRow(file.name, index, {} if error else value, error=error)
        except (EOFError, OSError, UnicodeError, zlib.error, zstandard.ZstdError) as error:
            raise ChatInputError(
                f"input file {file.name}: must be readable to its end, got {error} after row "
                f"{index}. "
                "Fetch the file again."
            ) from error


def _parquet_rows(
    file: InputFile, required: Sequence[str], optional: Sequence[str]
) -> Iterator[SourceRow]:
    import pyarrow as pa  # lazy: 0.1 s that readers of JSON lines need not pay
    import pyarrow.parquet as pq

    with storage.open_file(file.path, "rb") as raw:
        try:
            parquet = pq.ParquetFile(raw, buffer_size=_READ_BYTES, pre_buffer=False)
        except pa.ArrowInvalid as error:
            raise ChatInputError(
                f"input file {file.name}: must be a whole parquet file, got: {error}. Fetch it "
                f"again."
            ) from error
        there = parquet.schema_arrow.names
        missing = [column for column in required if column not in there]
        if missing:
            raise ChatInputError(
                f"input file {file.name}: must have the column {', '.join(missing)}, got "
                f"{', '.join(there)}. "
                "Name the right column in the schema."
            )
        columns = [column for column in there if column in {*required, *optional}]
        index = 0
        for batch in parquet.iter_batches(
            batch_size=_PARQUET_BATCH_ROWS, columns=columns, use_threads=False
        ):
            for values in batch.to_pylist():
                yield SourceRow(file.name, index, values, is_padded=True)
                index += 1


def _decompressed(raw: Any, name: str) -> io.BufferedReader:
    if name.endswith(".gz"):
        return io.BufferedReader(gzip.GzipFile(fileobj=raw), _READ_BYTES)  # type: ignore[arg-type]
    if name.endswith(".zst"):
        return open_zstd(raw, _READ_BYTES)
    return raw


def _json_lines(stream: Any) -> Iterator[tuple[Any, str]]:
    for line in stream:
        if line.strip():
            yield _parse_line(line)


def _parse_line(line: bytes) -> tuple[Any, str]:
    try:
        return orjson.loads(line), ""
    except ValueError:
        pass
    try:  # the standard parser also takes NaN and lone surrogates, which orjson refuses
        return json.loads(line), ""
    except ValueError as error:
        return None, f"not JSON: {error}"


def _json_values(stream: Any) -> Iterator[tuple[Any, str]]:
    """
    Items of one JSON array, or one value after the other; only one item is held at a time.
    """
    decoder, text = json.JSONDecoder(), ""
    utf8 = codecs.getincrementaldecoder("utf-8")()
    step, at_end, is_array = _READ_BYTES, False, None
    while True:
        text = text.lstrip(" \t\r\n,") if is_array else text.lstrip()
        if is_array is None and text:
            is_array = text[0] == "["
            text = text[1:] if is_array else text
            continue
        if is_array and text.startswith("]"):
            return
        value = None
        try:
            value, end = decoder.raw_decode(text) if text else (None, 0)
        except ValueError as error:
            end = 0
            if at_end:
                yield None, f"not JSON: {error}"
                return
        if end and (at_end or end < len(text)):
            text, step = text[end:], _READ_BYTES
            yield value, ""
        elif at_end:
            return
        else:
            more = stream.read(step)
            step *= 2  # so that one huge item is parsed a logarithmic number of times
            at_end = not more
            text += utf8.decode(more, at_end)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


@lru_cache(maxsize=256)
def _glob(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts))
