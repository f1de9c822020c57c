"""
Rows of files: read once, in order, in flat memory, and damage is never a shorter file.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from neve_chat.errors import ChatInputError
from neve_chat.input_files import InputFile
from neve_chat.rows import Columns, SourceRow, read_rows
from neve_chat.units import cut_units, pieces_of

EVERYTHING = Columns(is_all=True)
ROWS: list[dict[str, Any]] = [{"n": i, "text": "é\u2028" * (i % 9)} for i in range(100)]


def as_file(path: Path) -> InputFile:
    return InputFile(path.name, str(path), path.stat().st_size)


def read(path: Path, unit_bytes: int = 10**9, columns: Columns = EVERYTHING) -> list[SourceRow]:
    """
    Rows of all units of one file.
    """
    file = as_file(path)
    parts = cut_units([file], columns.required, unit_bytes=unit_bytes)
    pieces = [piece for part in parts for piece in pieces_of(part, {file.name: file})]
    return [row for piece in pieces for row in read_rows(piece, columns)]


@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.text(alphabet="ab\u00e9 ", max_size=12), max_size=12),
    end=st.sampled_from(["", "\n", "\r\n", "\n\n"]),
    unit_bytes=st.integers(1, 40),
)
def test_byte_ranges_hold_every_line_once(
    lines: list[str], end: str, unit_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """
    However a file is cut, each line that isn't blank is read once, in order, where it starts.
    """
    path = tmp_path_factory.getbasetemp() / "lines.jsonl"
    data = "\n".join(json.dumps({"t": t}, ensure_ascii=False) if t else "" for t in lines) + end
    path.write_bytes(data.encode())

    rows = read(path, unit_bytes)

    assert [row.values["t"] for row in rows] == [text for text in lines if text]
    for row in rows:
        offset = int(row.place.removeprefix("lines.jsonl@"))
        assert json.loads(data.encode()[offset:].split(b"\n")[0]) == row.values


def test_a_cut_depends_on_the_file_alone(tmp_path: Path) -> None:
    """
    Units of 32 MB: 100 MB of lines are three of them, small files go together in order.
    """
    big = InputFile("a.jsonl", str(tmp_path / "a.jsonl"), 100_000_000)
    small = [InputFile(f"b{i}.jsonl.gz", "", 15_000_000) for i in range(5)]
    (tmp_path / "a.jsonl").write_text("")

    parts = cut_units([big, *small], unit_bytes=32 * 2**20)

    names = [[piece["file"] for piece in part.unit["pieces"]] for part in parts]
    assert names == [
        ["a.jsonl"], ["a.jsonl"], ["a.jsonl"],
        ["b0.jsonl.gz", "b1.jsonl.gz"], ["b2.jsonl.gz", "b3.jsonl.gz"], ["b4.jsonl.gz"],
    ]  # fmt: skip
    ranges = [(part.unit["pieces"][0]["start"], part.unit["pieces"][0]["stop"]) for part in parts]
    assert ranges[:3] == [(0, 33_333_333), (33_333_333, 66_666_666), (66_666_666, 100_000_000)]


def write_arrow(path: Path, *, is_stream: bool) -> None:
    table = pa.Table.from_pylist(ROWS)
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    with new(str(path), table.schema) as out:
        out.write_table(table, max_chunksize=7)


@pytest.mark.parametrize("unit_bytes", [1, 300, 10**9])
@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_columnar_files_are_cut_between_groups(kind: str, unit_bytes: int, tmp_path: Path) -> None:
    """
    Row groups and record batches give the rows of the file with their numbers.
    """
    path = tmp_path / ("x.parquet" if kind == "parquet" else "x.arrow")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=7)
    else:
        write_arrow(path, is_stream=kind == "stream")

    rows = read(path, unit_bytes)

    assert [row.values for row in rows] == ROWS
    assert [row.place for row in rows] == [f"{path.name}:{i}" for i in range(100)]


def test_only_the_columns_asked_for_are_read(tmp_path: Path) -> None:
    """
    Required and optional columns, also of arrow files; an absent required one lists the others.
    """
    write_arrow(tmp_path / "x.arrow", is_stream=True)

    rows = read(tmp_path / "x.arrow", columns=Columns(("n",), ("absent",)))

    assert rows[3].values == {"n": 3}
    with pytest.raises(ChatInputError, match=r"x.arrow: must have the column chat, got n, text"):
        read(tmp_path / "x.arrow", columns=Columns(("chat",)))


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_a_columnar_file_that_is_cut_off_is_refused(kind: str, tmp_path: Path) -> None:
    """
    Half of a file is an error that names it, never fewer rows.
    """
    path = tmp_path / ("x.parquet" if kind == "parquet" else "x.arrow")
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        write_arrow(path, is_stream=kind == "stream")
    data = path.read_bytes()

    for kept in (0, 3, len(data) // 2, len(data) * 9 // 10, len(data) - 8):
        path.write_bytes(data[:kept])
        with pytest.raises(ChatInputError, match=rf"input file {path.name}: must be a whole"):
            read(path)


def test_a_json_array_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    """
    Also where it ends between two items; a broken item isn't the end either.
    """
    path = tmp_path / "x.json"
    for text in (
        '[{"a": 1}, {"a": 2}',
        '[{"a": 1},',
        '[{"a": 1}, {"a": 2',
        '[{"a": 1} x {"a": 2}]',
    ):
        path.write_text(text)
        with pytest.raises(ChatInputError, match=r"x.json: must be readable to its end"):
            read(path)


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("suffix", ["json", "json.gz", "json.zst"])
def test_json_files_are_arrays_or_values_in_a_row(
    suffix: str, indent: int | None, tmp_path: Path
) -> None:
    """
    Both forms give the same rows, with or without compression and a byte order mark.
    """
    items = [json.dumps(row, indent=indent, ensure_ascii=False) for row in ROWS]
    pack = {"json": bytes, "json.gz": gzip.compress, "json.zst": zstandard.compress}[suffix]

    for text in (f"[{', '.join(items)}]\n", "\n".join(items), "\ufeff" + f" [ {','.join(items)} ]"):
        (tmp_path / f"x.{suffix}").write_bytes(pack(text.encode()))
        rows = read(tmp_path / f"x.{suffix}")
        assert [row.values for row in rows] == ROWS
        assert rows[5].place == f"x.{suffix}:5"


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_is_read_whole_or_not(suffix: str, tmp_path: Path) -> None:
    """
    Compressed lines have numbers, and a cut is an error.
    """
    path = tmp_path / f"x.jsonl.{suffix}"
    data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    packed = gzip.compress(data) if suffix == "gz" else zstandard.compress(data)
    path.write_bytes(packed)

    assert [row.place for row in read(path)] == [f"x.jsonl.{suffix}:{i}" for i in range(100)]
    path.write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(ChatInputError, match="must be readable to its end"):
        read(path)


def test_rows_that_are_no_objects_are_told(tmp_path: Path) -> None:
    """
    What can't be a row has its place and reason; numbers beyond JSON and lone surrogates are rows.
    """
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": NaN}\n7\n{"a": "\\ud800"}\n{broken\n')

    rows = read(path)

    assert [row.error[:14] for row in rows] == ["", "must be an obj", "", "not JSON: Expe"]
    assert rows[2].values == {"a": "\ud800"}


def test_dictionary_columns_of_arrow_are_refused(tmp_path: Path) -> None:
    """
    A form that isn't read is said, instead of an error of the library.
    """
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    table = pa.table({"a": column})
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as out:
        out.write_table(table)

    with pytest.raises(ChatInputError, match="columns with dictionaries can't be read"):
        read(tmp_path / "x.arrow")


_CHILD = """
import sys
from neve_chat.input_files import InputFile
from neve_chat.rows import Columns, Piece, read_rows
import os, re
path = sys.argv[1]
file = InputFile(os.path.basename(path), path, os.path.getsize(path))
num_rows = sum(1 for _ in read_rows(Piece(file), Columns(is_all=True)))
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]
print(num_rows, int(peak) // 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("suffix", ["jsonl", "json", "jsonl.zst", "parquet"])
def test_memory_does_not_grow_with_the_file(suffix: str, tmp_path: Path) -> None:
    """
    A file of about 100 MB is read in less than 100 MB more than the imports take.
    """
    draw = random.Random(0)
    path = tmp_path / f"x.{suffix}"
    texts = [draw.randbytes(5_000).hex() for _ in range(100)]
    rows = [{"n": n, "text": texts[n % 100][n % 50 :]} for n in range(10_000)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1_000, use_dictionary=False)
    else:
        data = lines.encode()
        path.write_bytes(zstandard.compress(data) if suffix.endswith("zst") else data)

    words = [sys.executable, "-c", _CHILD, str(path)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)

    num_rows, megabytes = map(int, done.stdout.split())
    assert num_rows == 10_000
    assert megabytes < (220 if suffix == "parquet" else 130)
