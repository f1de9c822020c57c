"""Runs recipes as a user does: the command, in a process of its own, with a prefix of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
H100 = "experiments.sft.configs.snowball_h100"
TINY = "experiments.sft.configs.snowball_tiny"


def environment(prefix: Path | None, **extra: str) -> dict[str, str]:
    """Returns the environment of a new user: no credentials, no tracker, this prefix."""
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("WANDB", "HF_", "NEVE_", "XLA_", "JAX_", "MARIN_"))
    }
    if prefix is not None:
        env["MARIN_PREFIX"] = str(prefix)
    return env | extra


def run(
    module: str, *args: str, env: dict[str, str], timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m module args` to its end and returns what it printed."""
    return subprocess.run(
        [sys.executable, "-m", module, *args],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


def output_path(prefix: Path, name: str) -> Path:
    """Returns the one complete output of a step's name."""
    found = [
        path
        for path in (prefix / name).parent.glob(f"{(prefix / name).name}-*")
        if is_complete(path)
    ]
    assert len(found) == 1, f"{name}: {found}"
    return found[0]


def is_complete(path: Path) -> bool:
    """Whether an output path's state says SUCCEEDED."""
    state = path / ".neve" / "state.json"
    return state.exists() and json.loads(state.read_text())["state"] == "SUCCEEDED"


def record(path: Path) -> dict:
    """Returns an output path's record."""
    return json.loads((path / ".neve" / "record.json").read_text())


def losses(path: Path) -> dict[int, float]:
    """Returns {train step: loss} of a training output over all its attempts, the last write winning."""
    rows: dict[int, float] = {}
    attempts = sorted((path / ".neve" / "attempts").iterdir(), key=lambda folder: int(folder.name))
    for attempt in attempts:
        metrics = attempt / "metrics.jsonl"
        for line in metrics.read_text().splitlines() if metrics.exists() else []:
            row = json.loads(line)
            if "loss" in row:
                rows[row["step"]] = row["loss"]
    return rows
