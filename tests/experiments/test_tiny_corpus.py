"""The conversations that ship with the tiny recipe, and the program that wrote them."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from experiments.sft.data.make_terminal_conversations import (
    DATA_PATH,
    NUM_CONVERSATIONS,
    make_rows,
    write_rows,
)


def committed_rows() -> list[dict[str, Any]]:
    return pq.read_table(DATA_PATH).to_pylist()


def test_committed_rows_come_from_the_generator() -> None:
    """Running every command again gives the first committed conversations, word for word."""
    count = 42  # three of each of the 14 kinds; the `full` test runs all of them

    rows = make_rows(count)

    assert rows == committed_rows()[:count]


@pytest.mark.full
def test_all_committed_rows_come_from_the_generator(tmp_path: Path) -> None:
    """The whole committed file is what the generator writes."""
    path = tmp_path / "rows.parquet"

    write_rows(make_rows(), path)

    assert pq.read_table(path).to_pylist() == committed_rows()
    assert len(committed_rows()) == NUM_CONVERSATIONS


def test_rows_do_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locale, time zone and the caller's PATH leave the conversations as they are."""
    for name, value in (("LC_ALL", "C.UTF-8"), ("TZ", "Asia/Tokyo"), ("PATH", "/nowhere")):
        monkeypatch.setenv(name, value)

    assert make_rows(14) == committed_rows()[:14]


def test_conversations_are_distinct_and_alternate() -> None:
    """No conversation occurs twice; user and assistant alternate, and the assistant closes."""
    rows = committed_rows()

    texts = {json.dumps(row["conversations"]) for row in rows}
    assert len(texts) == len(rows) == NUM_CONVERSATIONS
    for row in rows:
        roles = [turn["role"] for turn in row["conversations"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert 2 <= roles.count("assistant") <= 4


def test_assistant_turns_are_json_actions_and_outputs_follow() -> None:
    """Every answer parses; its command stands at the top of the next turn; the last one is done."""
    for row in committed_rows():
        turns = row["conversations"]
        actions = [json.loads(turn["content"]) for turn in turns[1::2]]
        assert [action["task_complete"] for action in actions] == [False] * (len(actions) - 1) + [
            True
        ]
        for action, reply in zip(actions, turns[2::2], strict=False):
            assert reply["content"].startswith(f"/app$ {action['commands'][0]}\n")


def test_answers_follow_from_the_files() -> None:
    """A sum in an answer is the sum of the numbers that the terminal showed."""
    checked = 0
    for row in committed_rows():
        if row["task"] != "sum_column":
            continue
        shown = row["conversations"][2]["content"].splitlines()[2:-1]
        total = sum(int(line.split(",")[1]) for line in shown)
        answer = json.loads(row["conversations"][-1]["content"])["analysis"]
        assert answer == f"The sum of the price column is {total}."
        checked += 1
    assert checked == 26  # 360 conversations over 14 kinds, this one is the third


def test_data_file_is_small() -> None:
    """The committed file stays far below a megabyte."""
    assert DATA_PATH.stat().st_size < 200_000


def test_command_line_writes_a_file(tmp_path: Path) -> None:
    """`python -m` with --out and --count writes that many conversations."""
    path = tmp_path / "few.parquet"

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "experiments.sft.data.make_terminal_conversations",
            "--out",
            str(path),
            "--count",
            "3",
        ],
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.startswith("3 conversations, ")
    assert pq.read_table(path).num_rows == 3
