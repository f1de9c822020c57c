"""
The input cut into units of about 16 MB. The cut depends on the files alone, never on how many
processes or cluster tasks there are.

Plain JSON lines are cut into byte ranges, parquet between row groups, arrow between record
batches; a compressed or JSON file is never cut. What is smaller goes together with its neighbors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from neve_chat.input_files import COLUMNAR_SUFFIXES, PLAIN_LINE_SUFFIXES, InputFile
from neve_chat.parts import Part
from neve_chat.rows import Piece

__all__ = ["UNIT_BYTES", "cut_units", "part_bytes", "pieces_of"]

UNIT_BYTES = 16 * 2**20
_THREADS = 16  # footers of remote files are waited for


def cut_units(
    files: Sequence[InputFile], required: Sequence[str] = (), *, unit_bytes: int = UNIT_BYTES
) -> list[Part]:
    """
    The units of all files, in order.

    Args:
        files: what to read, in order.
        required: columns that columnar files must have.
        unit_bytes: size of a unit, where the files allow it.

    Raises:
        ChatInputError: a columnar file is damaged or lacks a required column.
    """

    def pieces(file: InputFile) -> list[tuple[Piece, int]]:
        return list(_pieces(file, required, unit_bytes))

    with ThreadPoolExecutor(_THREADS) as pool:
        by_file = list(pool.map(pieces, files))
    units: list[list[Piece]] = []
    sizes: list[int] = []
    for piece, num_bytes in (pair for pairs in by_file for pair in pairs):
        if not units or sizes[-1] + num_bytes > unit_bytes:
            units.append([])
            sizes.append(0)
        units[-1].append(piece)
        sizes[-1] += num_bytes
    return [
        Part(index, {"bytes": size, "pieces": [_as_json(piece) for piece in unit]})
        for index, (unit, size) in enumerate(zip(units, sizes, strict=True))
    ]


def part_bytes(part: Part) -> int:
    """
    About how many bytes of input a unit has, to show progress.
    """
    return part.unit["bytes"]


def pieces_of(part: Part, files: dict[str, InputFile]) -> list[Piece]:
    """
    The pieces of a unit.

    Args:
        part: the unit.
        files: name -> file.
    """
    return [
        Piece(files[each["file"]], each["start"], each["stop"], each["first_row"])
        for each in part.unit["pieces"]
    ]


def _as_json(piece: Piece) -> dict[str, Any]:
    return {
        "file": piece.file.name,
        "file_bytes": piece.file.num_bytes,
        "file_version": piece.file.version,
        "start": piece.start,
        "stop": piece.stop,
        "first_row": piece.first_row,
    }


def _pieces(
    file: InputFile, required: Sequence[str], unit_bytes: int
) -> Iterator[tuple[Piece, int]]:
    if file.suffix in COLUMNAR_SUFFIXES:
        yield from _columnar_pieces(file, required, unit_bytes)
    elif file.suffix in PLAIN_LINE_SUFFIXES:
        count = max(1, round(file.num_bytes / unit_bytes))
        borders = [file.num_bytes * index // count for index in range(count + 1)]
        for start, stop in itertools.pairwise(borders):
            yield Piece(file, start, stop), stop - start
    else:
        yield Piece(file), file.num_bytes


def _columnar_pieces(
    file: InputFile, required: Sequence[str], unit_bytes: int
) -> Iterator[tuple[Piece, int]]:
    from neve_chat.columnar import read_groups  # lazy: pyarrow

    groups = read_groups(file, required)
    first = first_row = num_rows = num_bytes = 0
    for index, group in enumerate(groups):
        if num_bytes and num_bytes + group.num_bytes > unit_bytes:
            yield Piece(file, groups[first].start, group.start, first_row), num_bytes
            first, first_row, num_bytes = index, num_rows, 0
        num_rows += group.num_rows
        num_bytes += group.num_bytes
    if groups:
        yield Piece(file, groups[first].start, None, first_row), num_bytes
