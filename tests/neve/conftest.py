"""Fixtures for tests of the engine: a prefix, and recipes that run in processes of their own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)


sys.path.insert(0, HERE)  # sample_steps must be importable by name, also in workers


@pytest.fixture
def start_recipe(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `python -m recipe` with a body that defines `steps`; ended after the test."""
    started: list[subprocess.Popen[str]] = []

    def start(body: str, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        module = tmp_path / "recipe.py"
        module.write_text(
            "from neve import *\nfrom sample_steps import *\n"
            f"{body}\nif __name__ == '__main__':\n    executor_main(steps)\n"
        )
        clean = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "MARIN_PREFIX")}
        clean |= {
            "PYTHONPATH": f"{tmp_path}:{HERE}", "MARIN_PREFIX": str(tmp_path / "prefix"),
            **(env or {}),
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "recipe", *words],
            env=clean, cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run_recipe(
    start_recipe: Callable[..., subprocess.Popen[str]],
) -> Callable[..., tuple[int, str]]:
    """Run a recipe to its end; return its exit code and what it printed."""

    def run(body: str, *words: str, env: dict[str, str] | None = None) -> tuple[int, str]:
        process = start_recipe(body, *words, env=env)
        output, _ = process.communicate(timeout=60)
        return process.returncode, output

    return run
