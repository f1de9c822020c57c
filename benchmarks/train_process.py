"""Starts benchmarks.train_run and reads what it prints."""

import dataclasses
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WARMUP_STEPS = 3


@dataclasses.dataclass
class Done:
    """What a process printed."""

    started: float
    """When it was started, seconds since the epoch."""
    step_ends: list[float] = dataclasses.field(default_factory=list)
    """When each train step was done, seconds since the epoch."""
    processor_seconds: list[float] = dataclasses.field(default_factory=list)
    """What the process had used of all processors by then."""
    facts: dict[str, float] = dataclasses.field(default_factory=dict)
    """FLOPS of a train step and MEMORY, as far as they are known; RESULT and GRADIENT of attention."""


def run(
    mode: str,
    inputs: Path,
    output: Path | str,
    log: Path,
    cache: Path | None = None,
    *,
    until_step: int | None = None,
    num_devices: int = 1,
    platform: str = "cpu",
) -> Done:
    """Run a mode to its end, or until it has done that many train steps.

    Args:
        mode: Of benchmarks.train_run.
        inputs: Folder that its mode prepare fills.
        output: Where it writes.
        log: File for what it says.
        cache: Folder of compiled programs; None: as the program has it.
        until_step: Train steps after which it is killed.
        num_devices: Virtual devices of a CPU.
        platform: JAX_PLATFORMS.
    """
    environ = {**os.environ, "JAX_PLATFORMS": platform, "WANDB_MODE": "disabled"}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    if platform == "cpu":
        environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={num_devices}"
    if cache is not None:
        environ["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    print(f"{mode}{'' if until_step is None else ', restarted'} ...", flush=True)
    command = [sys.executable, "-m", "benchmarks.train_run", str(inputs), mode, str(output)]
    done = Done(time.time())
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, cwd=log.parent, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            name, _, rest = line.partition(" ")
            if name == "STEP":
                _, end, used = map(float, rest.split())
                done.step_ends.append(end)
                done.processor_seconds.append(used)
            elif name in ("FLOPS", "MEMORY", "RESULT", "GRADIENT"):
                done.facts[name] = float(rest)
            if len(done.step_ends) == until_step:
                process.kill()
                break
        code = process.wait()
    if (code and until_step is None) or len(done.step_ends) < (until_step or 0):
        raise SystemExit(f"{mode} ended with exit code {code}:\n{log.read_text()[-3000:]}")
    return done


def step_seconds(ends: list[float]) -> float:
    """Return the median between the ends of two train steps, after the first ones."""
    steps = [second - first for first, second in itertools.pairwise(ends)]
    return statistics.median(steps[WARMUP_STEPS - 1 :])


def forget_newer(checkpoints: Path) -> None:
    """Remove all checkpoints but the oldest, so that there is training to go on with."""
    found = sorted(checkpoints.glob("step-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert len(found) > 1, f"{checkpoints} must hold two checkpoints"
    for path in found[1:]:
        shutil.rmtree(path)
