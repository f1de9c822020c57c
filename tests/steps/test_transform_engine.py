"""
The transform as the engine runs it: killed with everything below it, then resumed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_RECIPE = """
from neve import ExecutorStep, executor_main, unhashed
from steps.transform_conversations import TransformConversationsConfig, transform_conversations

config = TransformConversationsConfig(input={source!r}, num_processes=unhashed({processes}))
steps = [ExecutorStep(name="conversations/x", fn=transform_conversations, config=config, resumable=True)]
if __name__ == "__main__":
    executor_main(steps)
"""


def start(folder: Path, source: Path, prefix: str, processes: int) -> subprocess.Popen[str]:
    (folder / "recipe.py").write_text(_RECIPE.format(source=str(source), processes=processes))
    env = {**os.environ, "MARIN_PREFIX": str(folder / prefix), "PYTHONPATH": f"{folder}:{ROOT}"}
    return subprocess.Popen(
        [sys.executable, "-m", "recipe"],
        env=env, cwd=folder, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def data_files(prefix: Path) -> dict[str, bytes]:
    [output] = (prefix / "conversations").iterdir()
    files = (path for path in output.rglob("*") if path.is_file())
    names = {path.relative_to(output).as_posix(): path for path in files}
    return {name: path.read_bytes() for name, path in names.items() if ".neve/" not in name}


@pytest.mark.full
def test_a_killed_step_is_resumed_by_the_engine(tmp_path: Path) -> None:
    """
    Four units of 32 MB: after kill -9 of the whole run the rest is done, with the same bytes.
    """
    turns = [{"role": "user", "content": "q" * 500}, {"role": "assistant", "content": "a" * 500}]
    lines = [json.dumps({"messages": turns, "n": n}) + "\n" for n in range(3_000)]
    with (tmp_path / "in.jsonl").open("w") as file:
        for _ in range(40):
            file.write("".join(lines))
    whole = start(tmp_path, tmp_path / "in.jsonl", "whole", 1)
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output

    killed = start(tmp_path, tmp_path / "in.jsonl", "killed", 2)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("conversations/*/.parts/*.json")):
        assert time.monotonic() < deadline
        assert killed.poll() is None, killed.communicate()[0]
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    again = start(tmp_path, tmp_path / "in.jsonl", "killed", 2)
    output, _ = again.communicate(timeout=300)

    assert again.returncode == 0, output
    assert data_files(tmp_path / "killed") == data_files(tmp_path / "whole")
