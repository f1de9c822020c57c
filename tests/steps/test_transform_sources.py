"""
Data sets as they come: saved by `datasets`, laid out as on the hub, of an unknown schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from neve_chat.checks import RowPolicies
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema
from neve_chat.shards import iter_conversations

from steps.transform_conversations import TransformConversationsConfig, transform_conversations


def conversation(number: int) -> dict[str, Any]:
    turns = [
        {"role": "user", "content": f"q{number}"},
        {"role": "assistant", "content": f"a{number}"},
    ]
    return {"conversations": turns, "task": f"t{number}"}


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(source: Path, output: Path, **fields: Any) -> dict[str, Any]:
    config = {"schema": ConversationSchema(conversation_column="conversations"), **fields}
    return transform_conversations(
        TransformConversationsConfig(input=str(source), **config), str(output)
    )


def questions(output: Path) -> list[str]:
    return [row["messages"][0]["content"] for row in iter_conversations(str(output))]


def test_transform_reads_what_datasets_saved(tmp_path: Path) -> None:
    """
    A folder of save_to_disk gives its rows in order, without the caches that lie beside them, and
    a dictionary of splits asks for one.
    """
    import datasets  # imports pandas, which takes a second

    train = datasets.Dataset.from_list([conversation(i) for i in range(10)])
    test = datasets.Dataset.from_list([conversation(i) for i in range(90, 93)])
    train.save_to_disk(str(tmp_path / "one"), num_shards=3)
    test.save_to_disk(str(tmp_path / "other"))
    cache = next((tmp_path / "other").glob("*.arrow")).read_bytes()
    (tmp_path / "one/cache-0123456789abcdef.arrow").write_bytes(cache)
    both = datasets.DatasetDict({"train": train, "held_out": test})
    both.save_to_disk(str(tmp_path / "both"))

    results = run(tmp_path / "one", tmp_path / "out")
    run(tmp_path / "both", tmp_path / "held_out", split="held_out")

    assert questions(tmp_path / "out") == [f"q{i}" for i in range(10)]
    assert results["num_files"] == 3
    assert questions(tmp_path / "held_out") == ["q90", "q91", "q92"]
    with pytest.raises(ChatInputError, match="one split must be chosen, got held_out, train"):
        run(tmp_path / "both", tmp_path / "none")
    (tmp_path / "one/data-00001-of-00003.arrow").unlink()
    with pytest.raises(ChatInputError, match="must be there, got none for data-00001-of-00003"):
        run(tmp_path / "one", tmp_path / "less")


def test_transform_reads_one_subset_and_split_of_a_hub_layout(tmp_path: Path) -> None:
    """
    Only the files asked for are read.
    """
    for number, name in enumerate(("a/train", "a/test", "b/train")):
        write_lines(tmp_path / f"in/{name}.jsonl", [conversation(number)])

    run(tmp_path / "in", tmp_path / "out", subset="b", split="train")

    assert questions(tmp_path / "out") == ["q2"]


@pytest.mark.parametrize("is_resolved", [False, True])
def test_transform_finds_the_schema(
    is_resolved: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Kind auto says what it chose, records it, and gives what the written schema gives.
    """
    write_lines(tmp_path / "in.jsonl", [conversation(i) for i in range(5)])
    schema = ConversationSchema(kind="auto", id_column="task")
    schema = schema.resolved() if is_resolved else schema

    found = run(tmp_path / "in.jsonl", tmp_path / "auto", schema=schema)

    written = ConversationSchema(conversation_column="conversations", id_column="task")
    run(tmp_path / "in.jsonl", tmp_path / "written", schema=written)
    rows = list(iter_conversations(str(tmp_path / "auto")))
    assert rows == list(iter_conversations(str(tmp_path / "written")))
    assert rows[3]["id"] == "t3"
    assert "is read as messages: " in capsys.readouterr().out
    assert found["schema"]["conversation_column"] == "conversations"
    assert json.loads((tmp_path / "auto/summary.json").read_text())["schema"] == json.loads(
        json.dumps(found["schema"])
    )


def test_transform_does_not_guess_a_schema(tmp_path: Path) -> None:
    """
    Where two schemas fit, both are named and nothing is written.
    """
    row = {**conversation(0), "messages": conversation(1)["conversations"]}
    write_lines(tmp_path / "in.jsonl", [row])

    with pytest.raises(ChatInputError, match="exactly one schema must fit the rows, got 2"):
        run(tmp_path / "in.jsonl", tmp_path / "out", schema=ConversationSchema(kind="auto"))

    assert not (tmp_path / "out").exists()


def test_transform_stops_at_a_fault_whose_policy_is_error(tmp_path: Path) -> None:
    """
    The first such row is named by file and place.
    """
    rows = [conversation(0), {"conversations": [{"role": "bot", "content": "x"}]}]
    write_lines(tmp_path / "in.jsonl", rows)
    place = len(json.dumps(rows[0])) + 1

    with pytest.raises(ChatInputError, match=rf"row in.jsonl@{place}: unknown role"):
        run(tmp_path / "in.jsonl", tmp_path / "out", policies=RowPolicies(unknown_role="error"))

    assert not list((tmp_path / "out").glob("shard-*"))


def test_config_refuses_what_makes_no_sense(tmp_path: Path) -> None:
    """
    A share outside 0 to 1 and a form that isn't written are told at once.
    """
    with pytest.raises(ChatInputError, match=r"must be between 0 and 1, got 1\.5"):
        TransformConversationsConfig(input="x", max_rejected_fraction=1.5)
    with pytest.raises(ChatInputError, match=r"layout must be 4, .* got 1"):
        TransformConversationsConfig(input="x", layout=1)
    with pytest.raises(ChatInputError, match="num_processes must be at least 1, got 0"):
        TransformConversationsConfig(input="x", num_processes=0)
