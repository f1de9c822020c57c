"""
A schema that reads nothing is refused before the work, with what to write instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from neve_chat.checks import RowPolicies
from neve_chat.errors import ChatInputError
from neve_chat.parts import Tasks
from neve_chat.schemas import ConversationSchema
from neve_chat.transform import transform_conversations

SHAREGPT = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
MESSAGES = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
BOT = {"messages": [{"role": "me", "content": "q"}, {"role": "bot", "content": "a"}]}


def write(file: Path, *rows: dict[str, Any]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(folder: Path, **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "output_path": str(folder / "out"),
        "schema": ConversationSchema(),
        "tasks": Tasks(num_processes=1),
    }
    return transform_conversations(
        input_path=str(folder / "in"), files=("*.jsonl",), **{**usual, **fields}
    )


def test_wrong_columns_are_refused_before_any_unit(tmp_path: Path) -> None:
    """
    Nothing is written, and the error names the columns, the roles in them and the schema that fits.
    """
    write(tmp_path / "in/a.jsonl", *[SHAREGPT] * 150)

    with pytest.raises(ChatInputError) as refusal:
        run(tmp_path)

    said = str(refusal.value)
    assert "got 128 refused rows from the beginnings of 1 units (missing column x128)" in said
    assert "Columns: conversations (list of objects with from, value; from has 'human' x20" in said
    assert "What fits: ConversationSchema(kind='sharegpt')" in said
    assert not (tmp_path / "out").exists()


def test_wrong_roles_are_refused_with_the_tags_to_pass(tmp_path: Path) -> None:
    """
    Role values outside the schema are listed with where they go.
    """
    write(tmp_path / "in/a.jsonl", *[BOT] * 150)

    with pytest.raises(ChatInputError, match=r"Not mapped: 'me', 'bot'. Pass each under what"):
        run(tmp_path)


def test_one_good_row_in_any_looked_at_unit_lets_the_work_begin(tmp_path: Path) -> None:
    """
    What is refused then is counted over all rows; the threshold decides as ever.
    """
    write(tmp_path / "in/a.jsonl", *[SHAREGPT] * 300)
    write(tmp_path / "in/b.jsonl", *[MESSAGES] * 10_000)

    results = run(tmp_path, unit_bytes=30_000)

    assert results["rejected"] == {"missing column": 300}
    assert results["rows_out"] == 10_000


def test_small_and_tolerant_inputs_are_left_to_the_work(tmp_path: Path) -> None:
    """
    Their rows go into quarantine first; the error has the same advice.
    """
    write(tmp_path / "in/a.jsonl", *[SHAREGPT] * 99)

    with pytest.raises(ChatInputError, match=r"all 99 rows were refused.*What fits: Conv"):
        run(tmp_path)

    assert (tmp_path / "out/rejected/part-00000.jsonl").exists()
    write(tmp_path / "in/a.jsonl", *[SHAREGPT] * 300, MESSAGES)
    assert (
        run(tmp_path, max_rejected_fraction=1.0, output_path=str(tmp_path / "b"))["rows_out"] == 1
    )


def test_a_policy_of_error_stops_at_the_same_row(tmp_path: Path) -> None:
    """
    The first row with a fault that isn't allowed is named, by whoever sees it first.
    """
    write(tmp_path / "in/a.jsonl", *[BOT] * 150)

    with pytest.raises(ChatInputError, match=r"row a.jsonl@0: unknown role is not allowed"):
        run(tmp_path, policies=RowPolicies(unknown_role="error"))
