"""
The transform as a step: files in, shards out, everything counted, the same bytes each time.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema
from neve_chat.transform import iter_conversations

from steps.transform_conversations import TransformConversationsConfig, transform_conversations

QA = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def numbered(number: int) -> dict[str, Any]:
    answer = {"role": "assistant", "content": f"<think>t</think>{number}"}
    return {"conversations": [{"role": "user", "content": "é"}, answer]}


def write_lines(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    if path.suffix == ".gz":
        data = gzip.compress(data)
    elif path.suffix == ".zst":
        data = zstandard.compress(data)
    path.write_bytes(data)


def tree(folder: Path) -> dict[str, bytes]:
    """
    Name -> bytes of all files below a folder, in the order of their names.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def run(
    source: Path, output: Path, *, column: str = "conversations", **fields: Any
) -> dict[str, Any]:
    schema = fields.pop("schema", ConversationSchema(conversation_column=column))
    config = TransformConversationsConfig(input=str(source), schema=schema, **fields)
    return transform_conversations(config, str(output))


def test_transform_reads_every_format_in_name_order(tmp_path: Path) -> None:
    """
    Parquet, JSON lines (plain, gz, zst) and a JSON array give the same kind of rows, by file name.
    """
    source = tmp_path / "in"
    write_lines(source / "a.jsonl", [numbered(0)])
    write_lines(source / "b/b.jsonl.gz", [numbered(1)])
    write_lines(source / "c.jsonl.zst", [numbered(2)])
    (source / "d.json").write_text(json.dumps([numbered(3), numbered(4)], indent=1))
    pq.write_table(pa.Table.from_pylist([numbered(5)]), source / "e.parquet")
    (source / "README.md").write_text("not data")

    results = run(source, tmp_path / "out", files=("**/*.json*", "*.parquet"))

    rows = list(iter_conversations(str(tmp_path / "out")))
    assert [row["messages"][1]["content"][-1] for row in rows] == list("012345")
    assert [row["source"] for row in rows][2:5] == ["c.jsonl.zst:0", "d.json:0", "d.json:1"]
    assert (results["rows_in"], results["rows_out"], results["num_files"]) == (6, 6, 5)


def test_transform_gives_the_same_bytes_twice(tmp_path: Path) -> None:
    """
    Two runs write identical files; the id is the digest of the messages before replacements.
    """
    write_lines(tmp_path / "in.jsonl", [numbered(i) for i in range(5)])
    pairs = (("<think>", "<|start_think|>"), ("</think>", "<|end_think|>"))

    for name in ("one", "two"):
        run(tmp_path / "in.jsonl", tmp_path / name, replacements=pairs)

    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    names = [name for name in tree(tmp_path / "one") if not name.startswith(".")]
    assert names == ["shard-00000.jsonl.zst", "summary.json"]
    first = next(iter_conversations(str(tmp_path / "one")))
    canonical = json.dumps(numbered(0)["conversations"], ensure_ascii=False, separators=(",", ":"))
    assert first["id"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert first["messages"][1]["content"] == "<|start_think|>t<|end_think|>0"


def test_transform_accounts_for_every_row(tmp_path: Path) -> None:
    """
    Kept and refused rows add up, and each refused row is kept with its place and reason.
    """
    rows = [{"messages": QA}, {"messages": []}, {"messages": QA[:1]}, 7, {"messages": QA}]
    write_lines(tmp_path / "in.jsonl", rows)
    with (tmp_path / "in.jsonl").open("a") as file:
        file.write("{broken\n")

    results = run(
        tmp_path / "in.jsonl", tmp_path / "out", column="messages", max_rejected_fraction=0.7
    )

    assert (results["rows_in"], results["rows_out"]) == (6, 2)
    assert results["rejected"] == {
        "empty conversation": 1,
        "no assistant turn": 1,
        "unreadable row": 2,
    }
    text = (tmp_path / "out/rejected/part-00000.jsonl").read_text()
    places = [json.loads(line)["row"] for line in text.splitlines()]
    lines = (tmp_path / "in.jsonl").read_bytes().splitlines(keepends=True)
    starts = [len(b"".join(lines[:index])) for index in (1, 2, 3, 5)]
    assert places == [f"in.jsonl@{start}" for start in starts]


def test_transform_stops_when_too_many_are_refused(tmp_path: Path) -> None:
    """
    Above the agreed share the step fails with counts, the quarantine's place and an example.
    """
    write_lines(tmp_path / "in.jsonl", [{"messages": QA}, {"messages": QA[:1]}])

    with pytest.raises(
        ChatInputError, match=r"at most 5.0% .* got 1 of 2 \(no assistant turn x1\)"
    ):
        run(tmp_path / "in.jsonl", tmp_path / "out", column="messages")

    assert (tmp_path / "out/rejected/part-00000.jsonl").exists()


def test_transform_tells_the_roles_when_nothing_fits(tmp_path: Path) -> None:
    """
    Data under other tags is answered with the roles seen, those expected and an example.
    """
    row = {"conversations": [{"from": "hummany", "value": "q"}, {"from": "bot", "value": "a"}]}
    write_lines(tmp_path / "in.jsonl", [row, row])

    with pytest.raises(ChatInputError) as caught:
        run(tmp_path / "in.jsonl", tmp_path / "out", schema=ConversationSchema(kind="sharegpt"))

    text = str(caught.value)
    assert "all 2 rows were refused (unknown role x2)" in text
    assert "'hummany' x2" in text
    assert "assistant=('assistant', 'gpt')" in text
    assert '"value": "q"' in text


def test_transform_lists_what_is_there_when_nothing_matches(tmp_path: Path) -> None:
    """
    A pattern without a match is an error that shows the files.
    """
    write_lines(tmp_path / "in/data/x.jsonl", [{"messages": QA}])

    with pytest.raises(ChatInputError, match=r"match \*\.parquet, got data/x.jsonl"):
        run(tmp_path / "in", tmp_path / "out", files=("*.parquet",))


def test_transform_names_the_columns_of_a_parquet_file(tmp_path: Path) -> None:
    """
    A missing column is answered with those that exist.
    """
    pq.write_table(pa.Table.from_pylist([{"chat": QA, "model": "m"}]), tmp_path / "in.parquet")

    with pytest.raises(ChatInputError, match="must have the column conversations, got chat, model"):
        run(tmp_path / "in.parquet", tmp_path / "out")


def test_transform_removes_arrow_padding(tmp_path: Path) -> None:
    """
    Struct keys that Arrow added to make the rows alike don't reach the messages.
    """
    rows = []
    for name in ("a", "b"):
        call = {
            "id": name,
            "type": "function",
            "function": {"name": name, "arguments": {name: "1"}},
        }
        rows.append(
            {"messages": [*QA, {"role": "assistant", "content": None, "tool_calls": [call]}]}
        )
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")

    run(tmp_path / "in.parquet", tmp_path / "out", column="messages")

    first = next(iter_conversations(str(tmp_path / "out")))
    assert first["messages"][0] == QA[0]
    assert first["messages"][2]["tool_calls"][0]["function"] == {
        "name": "a",
        "arguments": {"a": "1"},
    }


def test_transform_refuses_a_truncated_file(tmp_path: Path) -> None:
    """
    A file that ends too early fails the step instead of giving fewer rows.
    """
    write_lines(tmp_path / "in.jsonl.gz", [numbered(i) for i in range(2_000)])
    data = (tmp_path / "in.jsonl.gz").read_bytes()
    (tmp_path / "in.jsonl.gz").write_bytes(data[: len(data) // 2])

    with pytest.raises(ChatInputError, match="must be readable to its end"):
        run(tmp_path / "in.jsonl.gz", tmp_path / "out")


def test_transform_reads_a_large_json_array_item_by_item(tmp_path: Path) -> None:
    """
    Items that straddle the read buffer of 1 MiB are whole.
    """
    long = "x" * 700_000
    rows = [
        {"messages": [QA[0], {"role": "assistant", "content": long + str(i)}]} for i in range(4)
    ]
    (tmp_path / "in.json").write_text(json.dumps(rows))

    run(tmp_path / "in.json", tmp_path / "out", column="messages")

    ends = [row["messages"][1]["content"][-1] for row in iter_conversations(str(tmp_path / "out"))]
    assert ends == list("0123")


@pytest.mark.parametrize("kept", [0.3, 0.7, 0.99])
def test_transform_refuses_a_compressed_file_that_is_cut_off(kept: float, tmp_path: Path) -> None:
    """
    Rows behind the cut are never left out in silence, whichever frame the cut is in.
    """
    turn = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    lines = [json.dumps({**turn, "n": os.urandom(20).hex()}).encode() + b"\n" for _ in range(900)]
    frames = [zstandard.compress(b"".join(lines[i : i + 300])) for i in (0, 300, 600)]
    whole = b"".join(frames)
    config = TransformConversationsConfig(input=str(tmp_path / "chats.jsonl.zst"))
    (tmp_path / "chats.jsonl.zst").write_bytes(whole)
    assert transform_conversations(config, str(tmp_path / "out"))["rows_in"] == 900
    (tmp_path / "chats.jsonl.zst").write_bytes(whole[: int(len(whole) * kept)])

    with pytest.raises(ChatInputError, match="cut off"):
        transform_conversations(config, str(tmp_path / "cut"))
