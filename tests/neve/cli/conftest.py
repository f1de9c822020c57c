"""A prefix with complete and failed outputs, and the `neve` command in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECRET = "very-secret-value"

Neve = Callable[..., subprocess.CompletedProcess[str]]


def _environment(prefix: Path | None) -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if k != "MARIN_PREFIX"}
    environment |= {"TOY_TOKEN": SECRET, "PYTHONPATH": str(HERE)}
    return environment | ({"MARIN_PREFIX": str(prefix)} if prefix else {})


@pytest.fixture(scope="session")
def toy_prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prefix after three runs of the toy recipe, the last one failed; read only."""
    prefix = tmp_path_factory.mktemp("prefix")
    subprocess.run(
        [sys.executable, "run_toys.py"],
        cwd=HERE, env=_environment(prefix), check=True, capture_output=True,
    )  # fmt: skip
    return prefix


@pytest.fixture
def neve() -> Neve:
    """Run `neve` with arguments; `prefix` sets MARIN_PREFIX."""

    def call(*words: str, prefix: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "neve.cli", *words],
            cwd=HERE, env=_environment(prefix), capture_output=True, text=True, check=False,
        )  # fmt: skip

    return call
