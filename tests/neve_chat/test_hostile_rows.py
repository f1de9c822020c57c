"""
Odd but plausible files: the right conversations, or a clear refusal that is counted.
"""

from __future__ import annotations

import codecs
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from neve_chat.errors import ChatInputError
from neve_chat.parts import Tasks
from neve_chat.schemas import ConversationSchema
from neve_chat.transform import iter_conversations, transform_conversations

GOOD = '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}'
NUMBER = (
    '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":\
[{"function":{"name":"f","arguments":%s}}]}]%s}'
)
PAIR = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def run(folder: Path, **fields: Any) -> dict[str, Any]:
    """
    Transform everything in a folder; most of it may be refused.
    """
    usual: dict[str, Any] = {
        "output_path": str(folder / "out"),
        "schema": ConversationSchema(),
        "max_rejected_fraction": 0.9,
    }
    return transform_conversations(
        input_path=str(folder / "in"),
        files=("**/*",),
        tasks=Tasks(num_processes=1),
        **{**usual, **fields},
    )


def kept(folder: Path) -> list[list[dict[str, Any]]]:
    return [row["messages"] for row in iter_conversations(str(folder / "out"))]


def write(folder: Path, name: str, content: bytes | str | pa.Table) -> None:
    file = folder / "in" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, pa.Table):
        pq.write_table(content, file)
    else:
        file.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.mark.parametrize(
    "content",
    [
        codecs.BOM_UTF8 + f"{GOOD}\n{GOOD}\n".encode(),
        f"{GOOD}\r\n{GOOD}\r\n".encode(),
        f"\n{GOOD}\n  \n\n{GOOD}".encode(),
        f"{GOOD}\n".encode() + codecs.BOM_UTF8 + GOOD.encode(),  # two files, joined
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_marks_ends_and_blanks_of_lines_change_nothing(
    content: bytes, name: str, tmp_path: Path
) -> None:
    """
    A byte order mark, CRLF, blank lines and a last line without an end.
    """
    write(tmp_path, name, gzip.compress(content) if name.endswith("gz") else content)

    assert run(tmp_path)["rejected"] == {}
    assert kept(tmp_path) == [PAIR, PAIR]


def test_empty_files_among_others_are_no_error_but_empty_packed_ones_are(tmp_path: Path) -> None:
    """
    Nothing is a valid JSON lines file, and no valid gzip file: that one was cut off.
    """
    write(tmp_path, "a.jsonl", "")
    write(tmp_path, "b.jsonl", GOOD)
    write(tmp_path, "c.jsonl.gz", gzip.compress(b""))
    assert run(tmp_path)["rows_in"] == 1

    write(tmp_path, "d.jsonl.gz", b"")
    with pytest.raises(ChatInputError, match=r"d.jsonl.gz: must be readable .* an empty file"):
        run(tmp_path, output_path=str(tmp_path / "again"))


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (NUMBER % ('{"x": NaN}', ""), "not writable as JSON", "NaNOrInfinity"),
        (NUMBER % ('{"x": -1e999}', ""), "not writable as JSON", "NaNOrInfinity"),
        (NUMBER % ("{}", ',"tools":[{"x":NaN}]'), "not writable as JSON", "NaNOrInfinity"),
        (NUMBER % ('"{\\"x\\": 1e999}"', ""), "bad tool arguments", "1e999 is no finite number"),
        (NUMBER % ('"{\\"x\\": NaN}"', ""), "bad tool arguments", "NaN is no JSON number"),
        (NUMBER % ('{"x": 18446744073709551616}', ""), "not writable as JSON", "64-bit"),
        (NUMBER % ('"{\\"x\\": -9223372036854775809}"', ""), "not writable as JSON", "64-bit"),
        (NUMBER % (f'{{"x":{"[" * 300}{"]" * 300}}}', ""), "not writable as JSON", "Recursion"),
        (f'{{"x":{"[" * 100_000}{"]" * 100_000}}}', "unreadable row", "nested too deeply"),
        (GOOD.replace('"a"', '"\\ud800"'), "not writable as JSON", "surrogates"),
        (GOOD + ",", "unreadable row", 'it begins \'{"messages":[{'),
        (GOOD.replace('"user"', "null"), "malformed turn", "null under the key 'role'"),
        ('{"messages":{"role":"user"}}', "malformed turn", "must hold a list of turns"),
    ],
)
def test_what_cannot_be_kept_exactly_is_refused_with_its_reason(
    line: str, reason: str, detail: str, tmp_path: Path
) -> None:
    """
    No number becomes another one or null, and no line stops the work.
    """
    write(tmp_path, "a.jsonl", f"{GOOD}\n{line}\n")

    assert run(tmp_path)["rejected"] == {reason: 1}
    assert kept(tmp_path) == [PAIR]
    (told,) = (tmp_path / "out/rejected/part-00000.jsonl").read_text().splitlines()
    assert detail in json.loads(told)["detail"]


def test_numbers_at_the_edges_are_kept_exactly(tmp_path: Path) -> None:
    """
    The largest integers of 64 bits, floats beyond them, and huge integers in columns nobody reads.
    """
    arguments = '{"a":18446744073709551615,"b":-9223372036854775808,"c":6.022e23,"d":null}'
    write(tmp_path, "a.jsonl", NUMBER % (arguments, ',"other":123456789012345678901234567890'))

    assert run(tmp_path)["rejected"] == {}
    assert kept(tmp_path)[0][1]["tool_calls"][0]["function"]["arguments"] == {
        "a": 2**64 - 1, "b": -(2**63), "c": 6.022e23, "d": None,
    }  # fmt: skip


def test_a_huge_integer_as_id_is_kept(tmp_path: Path) -> None:
    """
    It is text from there on, not a rounded float.
    """
    write(tmp_path, "a.jsonl", GOOD.replace("{", '{"id":123456789012345678901234567890,', 1))

    run(tmp_path, schema=ConversationSchema(id_column="id"))

    (row,) = iter_conversations(str(tmp_path / "out"))
    assert row["id"] == "123456789012345678901234567890"


def test_nan_in_a_parquet_column_of_tools_is_refused(tmp_path: Path) -> None:
    """
    Columnar files hold NaN without any text that says so.
    """
    tools = [[{"name": "f", "default": float("nan")}], [{"name": "f", "default": 1.5}], None]
    write(tmp_path, "a.parquet", pa.table({"messages": [PAIR] * 3, "tools": tools}))

    results = run(tmp_path)

    assert results["rejected"] == {"not writable as JSON": 1}
    assert results["rows_out"] == 2


def test_columnar_types_of_text_and_lists_make_no_difference(tmp_path: Path) -> None:
    """
    large_string, large_list, dictionaries, null columns and padding by null structs.
    """
    text = pa.large_string()
    call = pa.struct([("id", text), ("function", pa.struct([("name", text), ("arguments", text)]))])
    turn = pa.struct([("role", text), ("content", text), ("tool_calls", pa.large_list(call))])
    rows = [PAIR, [PAIR[0], {**PAIR[1], "tool_calls": []}], None]
    table = pa.table({"messages": pa.array(rows, pa.large_list(turn)), "tools": pa.nulls(3)})
    write(tmp_path, "a.parquet", table)
    instructions = pa.table({name: pa.array([name]).dictionary_encode() for name in ("q", "a")})
    write(tmp_path / "two", "b.parquet", instructions)

    assert run(tmp_path)["rejected"] == {"empty conversation": 1}
    assert kept(tmp_path) == [PAIR, PAIR]
    schema = ConversationSchema(kind="instruction", instruction_column="q", response_column="a")
    run(tmp_path / "two", schema=schema)
    assert kept(tmp_path / "two") == [PAIR]


def test_one_list_for_each_key_is_read_as_turns(tmp_path: Path) -> None:
    """
    The form in which sequences of objects are stored by some libraries.
    """
    columns = {"from": ["human", "gpt"], "value": ["q", "a"], "weight": None}
    uneven = {"from": ["human", "gpt"], "value": ["q"]}
    write(tmp_path, "a.parquet", pa.table({"conversations": [columns, uneven]}))

    results = run(tmp_path, schema=ConversationSchema(kind="sharegpt"))

    assert kept(tmp_path) == [PAIR]
    assert results["rejected"] == {"malformed turn": 1}


@pytest.mark.parametrize("content", [None, "text"])
def test_the_function_call_of_older_apis_is_a_tool_call(
    content: str | None, tmp_path: Path
) -> None:
    """
    Dropped, the model would learn an answer that follows from nothing.
    """
    call = {"name": "f", "arguments": '{"x": 1}'}
    turns = [
        PAIR[0],
        {"role": "assistant", "content": content, "function_call": call},
        {"role": "function", "name": "f", "content": "r"},
        PAIR[1],
    ]
    write(tmp_path, "a.jsonl", json.dumps({"messages": turns}))

    results = run(tmp_path)

    assert results["notes"] == {}
    ((_, asked, _, _),) = kept(tmp_path)
    assert asked == {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}],
    }


def test_files_of_one_name_in_two_folders_stay_apart(tmp_path: Path) -> None:
    """
    Each row tells which of the two it came from.
    """
    write(tmp_path, "x/data.jsonl", GOOD)
    write(tmp_path, "y/data.jsonl", GOOD.replace('"a"', '"b"'))

    run(tmp_path)

    sources = [row["source"] for row in iter_conversations(str(tmp_path / "out"))]
    assert sources == ["x/data.jsonl@0", "y/data.jsonl@0"]
