"""Fixtures of the training room: programs that train, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.neve_train.toy_run import make_inputs

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("toy_run.py")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the inputs of the toy run."""
    folder = tmp_path_factory.mktemp("toy")
    make_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def run_toy(toy: Path) -> Callable[..., Any]:
    """Runs a mode of toy_run.py or its like; returns what it printed last, None where a signal ends it."""

    def run(
        mode: str, num_devices: int = 1, program: Path = PROGRAM, ended_by: int | None = None
    ) -> Any:
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            # Less optimized programs compile in half the time and are as deterministic.
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices} "
            "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
            "WANDB_MODE": "disabled",
        }
        done = subprocess.run(
            [sys.executable, str(program), str(toy), mode],
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode != -(ended_by or 0):
            pytest.fail(
                f"{program.name} {mode} ended with {done.returncode}: {done.stderr[-4000:]}"
            )
        return json.loads(done.stdout.splitlines()[-1]) if ended_by is None else None

    return run
