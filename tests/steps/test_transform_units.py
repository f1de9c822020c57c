"""
The transform in units: the same bytes on any number of processes and tasks, after any kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from neve_chat.checks import RowPolicies
from neve_chat.errors import ChatInputError
from neve_chat.parts import Tasks
from neve_chat.schemas import ConversationSchema
from neve_chat.shards import ShardWriter, iter_conversations, list_shards, read_shard
from neve_chat.transform import transform_conversations

FILES = ("**/*.jsonl*", "**/*.parquet", "**/*.arrow")
ROOT = Path(__file__).parents[2]


def conversation(text: str) -> dict[str, Any]:
    answer = {"role": "assistant", "content": text[::-1]}
    return {"messages": [{"role": "user", "content": text}, answer]}


def write_source(folder: Path, rows: int = 300, seed: int = 0) -> list[str]:
    """
    Writes files of every format and returns the users' texts in order.
    """
    draw = random.Random(seed)
    texts = [f"{i} é " + "x" * draw.randrange(1, 600) for i in range(rows)]
    folder.mkdir(parents=True, exist_ok=True)
    a, b, _, d = (texts[i * rows // 4 : (i + 1) * rows // 4] for i in range(4))
    lines = [json.dumps(conversation(text), ensure_ascii=False) + "\n" for text in texts]
    (folder / "a.jsonl").write_text("".join(lines[: len(a)]).rstrip("\n"))
    table = pa.Table.from_pylist([conversation(text) for text in b])
    pq.write_table(table, folder / "b.parquet", row_group_size=10)
    (folder / "c.jsonl.zst").write_bytes(
        zstandard.compress("".join(lines[rows // 2 : rows * 3 // 4]).encode())
    )
    table = pa.Table.from_pylist([conversation(text) for text in d])
    with pa.ipc.new_stream(str(folder / "d.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=7)
    return texts


def run(source: Path, output: Path, *, unit_bytes: int = 9_000, **options: Any) -> dict[str, Any]:
    options = {"files": FILES, "tasks": Tasks(num_processes=1), **options}
    schema = options.pop("schema", ConversationSchema())
    return transform_conversations(
        input_path=str(source),
        output_path=str(output),
        schema=schema,
        unit_bytes=unit_bytes,
        **options,
    )


def tree(folder: Path) -> dict[str, bytes]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def users_texts(output: Path) -> list[str]:
    return [row["messages"][0]["content"] for row in iter_conversations(str(output))]


def test_output_is_the_same_for_any_number_of_processes_and_tasks(tmp_path: Path) -> None:
    """
    One process, two processes and three tasks write the same files, byte for byte.
    """
    texts = write_source(tmp_path / "in")

    one = run(tmp_path / "in", tmp_path / "one")
    run(tmp_path / "in", tmp_path / "two", tasks=Tasks(num_processes=2))
    for index in (2, 1, 0):
        tasks = Tasks(index=index, count=3, num_processes=1)
        results = run(tmp_path / "in", tmp_path / "three", tasks=tasks)
        assert bool(results) == (index == 0)

    assert len(one["shards"]) >= 20
    assert tree(tmp_path / "one") == tree(tmp_path / "two") == tree(tmp_path / "three")
    assert users_texts(tmp_path / "one") == texts


@pytest.mark.parametrize("unit_bytes", [30, 200, 777, 10**9])
def test_every_row_is_read_once_however_the_input_is_cut(unit_bytes: int, tmp_path: Path) -> None:
    """
    Units smaller than a row or larger than a file give the same rows, places and ids.
    """
    texts = write_source(tmp_path / "in", rows=100)
    (tmp_path / "in/c.jsonl.zst").unlink()
    expected = texts[:25] + texts[25:50] + texts[75:]

    run(tmp_path / "in", tmp_path / "whole", unit_bytes=10**9)
    run(tmp_path / "in", tmp_path / "cut", unit_bytes=unit_bytes)

    assert users_texts(tmp_path / "cut") == expected
    whole = list(iter_conversations(str(tmp_path / "whole")))
    assert list(iter_conversations(str(tmp_path / "cut"))) == whole
    assert [whole[i]["source"] for i in (0, 25, 49, 50, 74)] == [
        "a.jsonl@0", "b.parquet:0", "b.parquet:24", "d.arrow:0", "d.arrow:24",
    ]  # fmt: skip


def test_place_of_a_json_line_is_the_byte_where_it_starts(tmp_path: Path) -> None:
    """
    The offset in `source` finds the row in the file again.
    """
    texts = write_source(tmp_path / "in", rows=40)
    data = (tmp_path / "in/a.jsonl").read_bytes()

    run(tmp_path / "in", tmp_path / "out", unit_bytes=300, files=("a.jsonl",))

    for row, text in zip(iter_conversations(str(tmp_path / "out")), texts, strict=False):
        line = data[int(row["source"].removeprefix("a.jsonl@")) :].split(b"\n")[0]
        assert json.loads(line) == conversation(text)


def test_summary_tells_rows_and_bytes_of_each_shard(tmp_path: Path) -> None:
    """
    The shards of the summary are those on disk, with their rows and sizes.
    """
    write_source(tmp_path / "in")

    summary = run(tmp_path / "in", tmp_path / "out")

    paths = [Path(path) for path in list_shards(str(tmp_path / "out"))]
    assert summary["shards"] == [
        {"name": p.name, "rows": len(list(read_shard(str(p)))), "bytes": p.stat().st_size}
        for p in paths
    ]
    assert summary["num_shards"] == len(paths)
    assert json.loads((tmp_path / "out/summary.json").read_text()) == summary


def test_a_long_unit_is_split_into_shards_in_order(tmp_path: Path) -> None:
    """
    Rows of one unit that outgrow a shard go on in further ones, listed in the order of the rows.
    """
    lines = [json.dumps({"n": n, "pad": os.urandom(40_000).hex()}).encode() for n in range(60)]

    with ShardWriter(str(tmp_path), 3, shard_bytes=1_000_000) as writer:
        for line in lines:
            writer.write(line)
    with ShardWriter(str(tmp_path), 4) as last:
        last.write(b'{"n": 60}')

    assert [shard["name"] for shard in writer.shards[:3]] == [
        "shard-00003.jsonl.zst", "shard-00003_001.jsonl.zst", "shard-00003_002.jsonl.zst",
    ]  # fmt: skip
    assert [row["n"] for row in iter_conversations(str(tmp_path))] == list(range(61))
    assert sum(shard["rows"] for shard in writer.shards) == 60


def test_nothing_is_published_of_a_shard_that_fails(tmp_path: Path) -> None:
    """
    An exception while a shard is written leaves no file.
    """

    def fail() -> None:
        with ShardWriter(str(tmp_path), 0) as writer:
            writer.write(b"{}")
            raise ChatInputError("stop here")

    with pytest.raises(ChatInputError, match="stop here"):
        fail()

    assert list(tmp_path.iterdir()) == []


_CHILD = """
import sys
from neve_chat.parts import Tasks
from neve_chat.schemas import ConversationSchema
from neve_chat.transform import transform_conversations
if __name__ == "__main__":
    source, output = sys.argv[1:]
    transform_conversations(
        input_path=source, output_path=output, schema=ConversationSchema(), files=("**/*",),
        unit_bytes=9_000, tasks=Tasks(num_processes=2),
        on_progress=lambda done, total, facts: print(done, flush=True),
    )
"""


def test_a_killed_transform_goes_on_where_it_was(tmp_path: Path) -> None:
    """
    After kill -9 in the middle the same bytes come out, and finished shards are not touched.
    """
    write_source(tmp_path / "in", rows=2_000)
    (tmp_path / "in/c.jsonl.zst").unlink()
    run(tmp_path / "in", tmp_path / "whole", files=("**/*",))
    (tmp_path / "child.py").write_text(_CHILD)
    out = tmp_path / "out"
    words = [sys.executable, str(tmp_path / "child.py"), str(tmp_path / "in"), str(out)]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=env, start_new_session=True) as child:
        assert child.stdout is not None
        for _ in range(5):
            child.stdout.readline()
        os.killpg(child.pid, signal.SIGKILL)
    finished = [path.stem for path in (out / ".parts").glob("*.json")]
    before = {name: (out / f"shard-{name}.jsonl.zst").stat() for name in finished}
    assert 5 <= len(finished) < len(list((tmp_path / "whole/.parts").glob("*.json")))
    assert not (out / "summary.json").exists()

    subprocess.run(words, check=True, env=env, stdout=subprocess.DEVNULL)

    for left in out.rglob("*.neve-tmp"):  # the engine removes these
        left.unlink()
    assert tree(out) == tree(tmp_path / "whole")
    for name, old in before.items():
        now = (out / f"shard-{name}.jsonl.zst").stat()
        assert (now.st_ino, now.st_mtime_ns) == (old.st_ino, old.st_mtime_ns)


def test_finished_units_of_another_input_are_refused(tmp_path: Path) -> None:
    """
    An input that changed between two attempts is an error, never a mixture.
    """
    write_source(tmp_path / "in")
    run(tmp_path / "in", tmp_path / "out")
    with (tmp_path / "in/a.jsonl").open("a") as file:
        file.write("\n" + json.dumps(conversation("one more")))

    with pytest.raises(ChatInputError, match="The input changed since it was done"):
        run(tmp_path / "in", tmp_path / "out")


def test_a_finished_shard_that_was_damaged_since_is_refused(tmp_path: Path) -> None:
    """
    Facts that say more than what is on disk never lead to fewer rows in silence.
    """
    write_source(tmp_path / "in")
    run(tmp_path / "in", tmp_path / "out")
    shard = tmp_path / "out/shard-00003.jsonl.zst"
    shard.write_bytes(shard.read_bytes()[:-1])

    with pytest.raises(ChatInputError, match=r"shard-00003.jsonl.zst: must have the .* bytes"):
        run(tmp_path / "in", tmp_path / "out")
    shard.unlink()
    with pytest.raises(ChatInputError, match=r"got no file\. Remove the output"):
        run(tmp_path / "in", tmp_path / "out")


def test_quarantine_keeps_the_first_rows_of_each_reason(tmp_path: Path) -> None:
    """
    Of each reason a thousand rows of a unit are kept and all of them are counted.
    """
    rows = [{"messages": []}] * 1_200 + [{"other": 1}] * 3 + [conversation("x")] * 3_000
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    summary = run(
        tmp_path / "in.jsonl", tmp_path / "out", unit_bytes=10**9, max_rejected_fraction=0.5
    )

    assert summary["rejected"] == {"empty conversation": 1_200, "missing column": 3}
    text = (tmp_path / "out/rejected/part-00000.jsonl").read_text()
    kept = Counter(json.loads(line)["reason"] for line in text.splitlines())
    assert kept == {"empty conversation": 1_000, "missing column": 3}


def write_duplicates(path: Path) -> list[int]:
    """
    Writes conversations that repeat across units and returns their numbers without the repeats.
    """
    draw = random.Random(1)
    numbers = [draw.randrange(60) for _ in range(200)] + [60, 60]
    lines = [json.dumps(conversation(f"{n} " + "y" * 50 * (n % 7))) + "\n" for n in numbers]
    with_tools = {**conversation("60 "), "tools": [{"type": "function"}]}
    with_tools["messages"] = conversation(f"60 {'y' * 50 * 4}")["messages"]
    path.write_text("".join(lines) + json.dumps(with_tools) + "\n")
    return [*dict.fromkeys(numbers), 60]


@pytest.mark.parametrize("unit_bytes", [500, 4_000, 10**9])
def test_duplicates_are_dropped_over_all_units(unit_bytes: int, tmp_path: Path) -> None:
    """
    The first of equal conversations stays, counts add up, and other tools are another conversation.
    """
    expected = write_duplicates(tmp_path / "in.jsonl")
    policies = RowPolicies(duplicate_rows="drop")

    summary = run(tmp_path / "in.jsonl", tmp_path / "out", unit_bytes=unit_bytes, policies=policies)

    assert [int(text.split()[0]) for text in users_texts(tmp_path / "out")] == expected
    dropped = 203 - len(expected)
    assert summary["rejected"] == {"duplicate row": dropped}
    assert (summary["rows_in"], summary["rows_out"]) == (203, len(expected))
    assert sum(shard["rows"] for shard in summary["shards"]) == len(expected)
    assert len(list_shards(str(tmp_path / "out"))) == summary["num_shards"]
    kept = (tmp_path / "out/rejected/duplicates.jsonl").read_text().splitlines()
    assert len(kept) == dropped


def test_dropping_duplicates_may_be_killed_and_repeated(tmp_path: Path) -> None:
    """
    Where some shards are already without their duplicates, the rest follows with the same bytes.
    """
    write_duplicates(tmp_path / "in.jsonl")
    policies = RowPolicies(duplicate_rows="drop")
    run(tmp_path / "in.jsonl", tmp_path / "kept", unit_bytes=2_000)
    first = run(tmp_path / "in.jsonl", tmp_path / "out", unit_bytes=2_000, policies=policies)
    whole = tree(tmp_path / "out")
    (tmp_path / "out/summary.json").unlink()
    for shard in list((tmp_path / "out").glob("shard-*"))[::2]:  # as the units left them
        shard.write_bytes((tmp_path / "kept" / shard.name).read_bytes())

    again = run(tmp_path / "in.jsonl", tmp_path / "out", unit_bytes=2_000, policies=policies)

    assert again == first
    assert tree(tmp_path / "out") == whole


def test_duplicates_that_are_kept_are_counted(tmp_path: Path) -> None:
    """
    Under keep nothing is dropped and the note tells how many repeat an earlier row.
    """
    expected = write_duplicates(tmp_path / "in.jsonl")

    summary = run(tmp_path / "in.jsonl", tmp_path / "out", unit_bytes=2_000)

    assert summary["notes"] == {"duplicate row": 203 - len(expected)}
    assert summary["rows_out"] == 203


def test_duplicates_can_be_an_error_that_names_both_rows(tmp_path: Path) -> None:
    """
    Under error the first duplicate and the row that it repeats are named.
    """
    rows = [conversation(text) for text in ("a", "b", "a")]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    policies = RowPolicies(duplicate_rows="error")

    with pytest.raises(
        ChatInputError,
        match=rf"row in.jsonl@{len(lines[0]) * 2}: must not repeat .* that of row in.jsonl@0 again",
    ):
        run(tmp_path / "in.jsonl", tmp_path / "out", unit_bytes=1, policies=policies)
