"""
Progress of files that can't be cut is told by the bytes that were read of them.
"""

from __future__ import annotations

import gzip
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from neve_chat.parts import Tasks
from neve_chat.schemas import ConversationSchema
from neve_chat.transform import transform_conversations


def write_gz(file: Path, num_rows: int, seed: int) -> None:
    """
    Rows of about 50 kB of random letters, which hardly get smaller.
    """
    letters = random.Random(seed)
    file.parent.mkdir(exist_ok=True)
    with gzip.open(file, "wt", compresslevel=1) as out:
        for _ in range(num_rows):
            text = letters.randbytes(25_000).hex()
            turns = [{"role": "user", "content": text}, {"role": "assistant", "content": "a"}]
            out.write(json.dumps({"messages": turns}) + "\n")


def progress_of(folder: Path, num_processes: int) -> list[tuple[int, int, Any]]:
    told: list[tuple[int, int, Any]] = []
    transform_conversations(
        input_path=str(folder / "in"),
        output_path=str(folder / f"out-{num_processes}"),
        schema=ConversationSchema(),
        files=("*.gz",),
        tasks=Tasks(num_processes=num_processes),
        unit_bytes=1_000_000,
        on_progress=lambda done, total, facts: told.append((done, total, facts)),
    )
    return told


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_file_that_cannot_be_cut_shows_progress(tmp_path: Path, num_processes: int) -> None:
    """
    It only grows, and ends at the size of all files with all rows.
    """
    write_gz(tmp_path / "in/a.jsonl.gz", 200, seed=0)
    write_gz(tmp_path / "in/b.jsonl.gz", 200, seed=1)
    size = sum(file.stat().st_size for file in (tmp_path / "in").iterdir())

    told = progress_of(tmp_path, num_processes)

    done = [each[0] for each in told]
    assert all(before <= after for before, after in pairwise(done))
    assert told[-1] == (size, size, {"rows": 400})
    if num_processes == 1:  # others are asked twice a second, by when they may have ended
        first = (tmp_path / "in/a.jsonl.gz").stat().st_size
        assert sum(1 for each in set(done) if 0 < each < first) >= 3


def test_progress_leaves_no_trace_in_the_output(tmp_path: Path) -> None:
    """
    The same bytes with one process and with two.
    """
    write_gz(tmp_path / "in/a.jsonl.gz", 20, seed=0)
    write_gz(tmp_path / "in/b.jsonl.gz", 20, seed=1)

    for count in (1, 2):
        progress_of(tmp_path, count)

    one, two = (
        {
            file.relative_to(tmp_path / f"out-{count}"): file.read_bytes()
            for file in (tmp_path / f"out-{count}").rglob("*")
            if file.is_file()
        }
        for count in (1, 2)
    )
    assert one == two
