"""
Tokenization in parts: the same bytes whoever does them, and nothing done twice after a kill.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from neve_chat.errors import ChatInputError
from neve_chat.parts import Tasks
from neve_chat.templates import load_template
from neve_chat.tokenization import TokenizeOptions, tokenize_conversations

from tests.neve_chat.tiny_tokenizer import build_tokenizer

NUM_SHARDS = 6


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """
    Six shards of canonical conversations with their summary.
    """
    return write_shards(tmp_path_factory.mktemp("conversations"), rows_per_shard=40, num_turns=3)


def write_shards(folder: Path, *, rows_per_shard: int, num_turns: int) -> Path:
    folder.mkdir(exist_ok=True)
    shards = []
    for shard in range(NUM_SHARDS):
        lines = []
        for row in range(rows_per_shard):
            number = shard * rows_per_shard + row
            messages: list[dict[str, Any]] = []
            for turn in range(num_turns):
                messages.append({"role": "user", "content": f"the abc {number} {turn} " * 5})
                messages.append({"role": "assistant", "content": f"ok the {turn} {number}" * 5})
            lines.append(json.dumps({"id": f"id-{number}", "messages": messages, "source": "x:0"}))
        name = f"shard-{shard:05d}.jsonl.zst"
        data = "".join(line + "\n" for line in lines).encode()
        (folder / name).write_bytes(zstandard.ZstdCompressor().compress(data))
        shards.append({"name": name, "rows": rows_per_shard, "bytes": len(data)})
    total = NUM_SHARDS * rows_per_shard
    (folder / "summary.json").write_text(json.dumps({"rows_out": total, "shards": shards}))
    return folder


def options(tokenizer_path: str) -> TokenizeOptions:
    return TokenizeOptions(
        tokenizer_path=tokenizer_path,
        template=load_template("marin").text,
        template_name="marin",
        validation_fraction=0.1,
    )


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_bytes_do_not_depend_on_processes_or_tasks(
    tmp_path: Path, conversations: Path, tokenizer_path: str
) -> None:
    """
    One process, two processes, and three tasks of which the first one waits for the others.
    """

    def run(name: str, tasks: Tasks) -> dict[str, Any]:
        return tokenize_conversations(
            input_path=str(conversations),
            output_path=str(tmp_path / name),
            options=options(tokenizer_path),
            tasks=tasks,
        )

    alone = run("alone", Tasks(num_processes=1))
    assert run("two", Tasks(num_processes=2)) == alone
    assert run("tasks", Tasks(index=2, count=3, num_processes=1)) == {}
    assert not (tmp_path / "tasks/train/shard_ledger.json").exists()
    assert run("tasks", Tasks(index=1, count=3, num_processes=1)) == {}
    assert run("tasks", Tasks(index=0, count=3, num_processes=1)) == alone

    expected = digests(tmp_path / "alone")
    assert (
        len(json.loads((tmp_path / "alone/train/shard_ledger.json").read_text())["shard_rows"]) == 6
    )
    assert digests(tmp_path / "two") == expected
    assert digests(tmp_path / "tasks") == expected


_CHILD = """
import json, sys
from neve_chat.parts import Tasks
from neve_chat.templates import load_template
from neve_chat.tokenization import TokenizeOptions, tokenize_conversations
source, output, tokenizer, processes = sys.argv[1:]
if __name__ == "__main__":
    options = TokenizeOptions(
        tokenizer_path=tokenizer, template=load_template("marin").text, template_name="marin",
        validation_fraction=0.1,
    )
    tokenize_conversations(
        input_path=source, output_path=output, options=options,
        tasks=Tasks(num_processes=int(processes)),
    )
"""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.full
def test_a_killed_run_goes_on_and_gives_the_same_bytes(
    processes: int, tmp_path: Path, tokenizer_path: str
) -> None:
    """
    SIGKILL when some parts are done: the next run keeps them, and workers end with their parent.
    """
    source = write_shards(tmp_path / "in", rows_per_shard=150, num_turns=20)
    script = tmp_path / "child.py"
    script.write_text(_CHILD)

    def command(output: Path) -> list[str]:
        return [
            sys.executable,
            str(script),
            str(source),
            str(output),
            tokenizer_path,
            str(processes),
        ]

    killed = tmp_path / "killed"
    process = subprocess.Popen(command(killed), start_new_session=True)
    done: list[Path] = []
    while not done and process.poll() is None:
        done = [path for path in killed.glob(".parts/*.json") if "example" not in path.name]
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = sorted(path for path in killed.glob(".parts/0000?.json"))
    assert 0 < len(finished) < NUM_SHARDS, "killed too late to show anything"
    assert not (killed / "train/shard_ledger.json").exists()
    stamps = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in finished}
    deadline = time.monotonic() + 20
    while _group_is_alive(process.pid):
        assert time.monotonic() < deadline, "a worker outlived its parent"
        time.sleep(0.05)

    subprocess.run(command(killed), check=True)

    assert {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in finished} == stamps
    subprocess.run(command(tmp_path / "undisturbed"), check=True)
    assert digests(killed) == digests(tmp_path / "undisturbed")


def _group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_part_of_another_input_is_refused(
    tmp_path: Path, conversations: Path, tokenizer_path: str
) -> None:
    """
    What an earlier attempt finished from other shards is never mixed in.
    """
    source = write_shards(tmp_path / "in", rows_per_shard=5, num_turns=1)

    def run(path: Path) -> None:
        tokenize_conversations(
            input_path=str(path),
            output_path=str(tmp_path / "out"),
            options=options(tokenizer_path),
            tasks=Tasks(num_processes=1),
        )

    run(conversations)
    with pytest.raises(ChatInputError, match="The input changed since it was done"):
        run(source)
