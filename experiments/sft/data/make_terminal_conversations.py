"""Write the terminal-agent conversations of the tiny recipe, by running their commands.

    python -m experiments.sft.data.make_terminal_conversations

The rows have the columns of open-thoughts/OpenThoughts-Agent-SFT-100K: `conversations`, a list of
{role, content} turns of user and assistant, and the columns that say where a trace came from.
Conversation `i` depends on the seed and `i` alone; no clock, host or locale enters.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from experiments.sft.data.terminal_tasks import BUILDERS, Task

SEED = 17
NUM_CONVERSATIONS = 360
DATA_PATH = Path(__file__).parent / "terminal_conversations" / "train-00000-of-00001.parquet"

_PROMPT = "/app$ "
_INSTRUCTION = "You work in a Linux terminal. Answer in JSON with your analysis and commands."
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_COMMAND_TIMEOUT_SECONDS = 20


def make_rows(count: int = NUM_CONVERSATIONS, seed: int = SEED) -> list[dict[str, Any]]:
    """Return the first `count` conversations, all different, with their commands' real output."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for index in range(count):
        row = _distinct_row(index, seed, seen)
        seen.add(_visible_text(row))
        rows.append(row)
    return rows


def write_rows(rows: list[dict[str, Any]], path: Path) -> None:
    """Write the rows as one zstd parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    turn = pa.struct([("role", pa.string()), ("content", pa.string())])
    text_columns = [name for name in rows[0] if name != "conversations"]
    schema = pa.schema(
        [("conversations", pa.list_(turn)), *((name, pa.string()) for name in text_columns)]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=schema)
    pq.write_table(table, path, compression="zstd", compression_level=19)


def _distinct_row(index: int, seed: int, seen: set[str]) -> dict[str, Any]:
    for attempt in range(100):
        rng = random.Random(f"{seed}-{index}-{attempt}")
        row = _row(index, BUILDERS[index % len(BUILDERS)](rng))
        if _visible_text(row) not in seen:
            return row
    raise RuntimeError(
        f"conversation {index}: no new task in 100 draws. Add values to its builder."
    )


def _row(index: int, task: Task) -> dict[str, Any]:
    outputs: list[str] = []
    turns = [_message("user", _first_turn(task))]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in task.files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="ascii")
        for turn in task.turns:
            turns.append(_message("assistant", _action(turn.analysis, [turn.command], done=False)))
            outputs.append(_run(turn.command, folder))
            turns.append(_message("user", f"{_PROMPT}{turn.command}\n{outputs[-1]}{_PROMPT}"))
    turns.append(_message("assistant", _action(task.answer(outputs), [], done=True)))
    return {
        "conversations": turns,
        "agent": "scripted-terminal",
        "model": "none",
        "model_provider": "script",
        "date": "2026-01-01T00:00:00",
        "task": task.kind,
        "episode": f"episode-{len(task.turns)}",
        "run_id": f"scripted-terminal-{SEED}",
        "trial_name": f"{task.kind}__{index:04d}",
    }


def _visible_text(row: dict[str, Any]) -> str:
    return json.dumps(row["conversations"])


def _first_turn(task: Task) -> str:
    names = " ".join(sorted(task.files))
    return f"{_INSTRUCTION}\n\nTask: {task.question}\nFiles: {names}\n\n{_PROMPT}"


def _action(analysis: str, commands: list[str], *, done: bool) -> str:
    """Return the agent's turn: the JSON block that terminal agents answer with."""
    action = {"analysis": analysis, "commands": commands, "task_complete": done}
    return json.dumps(action, indent=1)


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _run(command: str, folder: str) -> str:
    """Run the shell line in `folder` and return its output, without the padding BSD wc adds."""
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=_COMMAND_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0 or done.stderr:
        raise RuntimeError(f"{command!r} exited {done.returncode}: {done.stderr.strip()}")
    return "".join(f"{line.lstrip()}\n" for line in done.stdout.splitlines())


def main() -> None:
    """Write the committed file, or another one for `--out`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=DATA_PATH, help="parquet file to write")
    parser.add_argument("--count", type=int, default=NUM_CONVERSATIONS)
    options = parser.parse_args()
    rows = make_rows(options.count)
    write_rows(rows, options.out)
    print(f"{len(rows)} conversations, {options.out.stat().st_size:,} bytes: {options.out}")


if __name__ == "__main__":
    main()
