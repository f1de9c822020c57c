"""
Rows of parquet and arrow files, read by row groups and record batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.input_files import InputFile
from neve_chat.rows import Columns, Piece

__all__ = ["Group", "read_groups", "read_rows"]

_BATCH_ROWS = 64
_READ_BYTES = 1 << 20
_FILE_FORMAT_MAGIC = b"ARROW1"


@dataclass(frozen=True)
class Group:
    """
    What a file can be cut between: a row group of parquet, a record batch of arrow.
    """

    start: int
    """Its number; in the stream format of arrow the byte at which it starts."""
    num_rows: int
    """Its rows."""
    num_bytes: int
    """Its size in memory, roughly."""


def read_groups(file: InputFile, required: Sequence[str]) -> list[Group]:
    """
    The groups of a file, and a check that its columns are there.

    Raises:
        ChatInputError: the file is damaged, or lacks a required column.
    """
    with _opened(file) as source, _explained(file):
        if file.suffix == ".parquet":
            parquet = _parquet(source)
            _check_columns(file, parquet.schema_arrow.names, required)
            facts = [parquet.metadata.row_group(i) for i in range(parquet.num_row_groups)]
            return [Group(i, f.num_rows, f.total_byte_size) for i, f in enumerate(facts)]
        if _is_file_format(source):
            reader = ipc.open_file(source)
            _check_columns(file, reader.schema.names, required)
            batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            return [Group(i, batch.num_rows, batch.nbytes) for i, batch in enumerate(batches)]
        schema = ipc.read_schema(source)
        _check_columns(file, schema.names, required)
        return list(_stream_groups(source, schema))


def read_rows(piece: Piece, columns: Columns) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    (number in the file, row) for the rows of a piece, in order.

    Raises:
        ChatInputError: the file is damaged, or lacks a required column.
    """
    number = piece.first_row
    with _opened(piece.file) as source, _explained(piece.file):
        for batch in _batches(source, piece, columns):
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                for values in batch.slice(start, _BATCH_ROWS).to_pylist():
                    yield number, values
                    number += 1


def _batches(source: Any, piece: Piece, columns: Columns) -> Iterator[pa.RecordBatch]:
    file = piece.file
    if file.suffix == ".parquet":
        parquet = _parquet(source)
        stop = parquet.num_row_groups if piece.stop is None else piece.stop
        yield from parquet.iter_batches(
            batch_size=_BATCH_ROWS,
            row_groups=range(piece.start, stop),
            columns=_chosen(file, parquet.schema_arrow.names, columns),
            use_threads=False,
        )
    elif _is_file_format(source):
        reader = ipc.open_file(source)
        names = _chosen(file, reader.schema.names, columns)
        stop = reader.num_record_batches if piece.stop is None else piece.stop
        for index in range(piece.start, stop):
            yield reader.get_batch(index).select(names)
    else:
        schema = ipc.read_schema(source)
        names = _chosen(file, schema.names, columns)
        source.seek(max(piece.start, source.tell()))
        while piece.stop is None or source.tell() < piece.stop:
            message = _next_message(source)
            if message is None:
                return
            yield ipc.read_record_batch(message, schema).select(names)


def _stream_groups(source: Any, schema: pa.Schema) -> Iterator[Group]:
    while True:
        start = source.tell()
        message = _next_message(source)
        if message is None:
            return
        batch = ipc.read_record_batch(message, schema)
        yield Group(start, batch.num_rows, batch.nbytes)


def _next_message(source: Any) -> Any:
    """
    The next record batch of a stream, or None at the mark that ends it.
    """
    start = source.tell()
    try:
        message = ipc.read_message(source)
    except EOFError:
        if source.tell() == start:
            raise pa.ArrowInvalid("the end of the file without the mark of the end") from None
        return None
    if message.type != "record batch":
        raise pa.ArrowInvalid(
            f"a message of the type {message.type!r}; columns with dictionaries can't be read, "
            "write them as plain values"
        )
    return message


@contextlib.contextmanager
def _opened(file: InputFile) -> Iterator[Any]:
    """
    The file for Arrow: mapped into memory where it is local, so that batches are only touched.
    """
    if storage.is_local(file.path) and file.num_bytes:
        with pa.memory_map(storage.local_path(file.path)) as source:
            yield source
    else:
        with storage.open_file(file.path, "rb") as raw, pa.PythonFile(raw, "r") as source:
            yield source


@contextlib.contextmanager
def _explained(file: InputFile) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        kind = file.suffix.removeprefix(".")
        raise ChatInputError(
            f"input file {file.name}: must be a whole {kind} file, got: {error}. Fetch it again."
        ) from error


def _parquet(source: Any) -> pq.ParquetFile:
    return pq.ParquetFile(source, buffer_size=_READ_BYTES, pre_buffer=False)


def _is_file_format(source: Any) -> bool:
    magic = source.read(len(_FILE_FORMAT_MAGIC))
    source.seek(0)
    return magic == _FILE_FORMAT_MAGIC


def _chosen(file: InputFile, there: Sequence[str], columns: Columns) -> list[str]:
    _check_columns(file, there, columns.required)
    wanted = {*columns.required, *columns.optional}
    return [name for name in there if columns.is_all or name in wanted]


def _check_columns(file: InputFile, there: Sequence[str], required: Sequence[str]) -> None:
    missing = [column for column in required if column not in there]
    if missing:
        raise ChatInputError(
            f"input file {file.name}: must have the column {', '.join(missing)}, got "
            f"{', '.join(there)}. "
            "Name the right column in the schema."
        )
