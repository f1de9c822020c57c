"""Time the executor on many trivial steps: `python -m benchmarks.executor [steps]`.

The last line is JSON: cold milliseconds per step (each in a process of its own), and the seconds
that a second run over complete steps takes, with and without the start of Python.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from neve import ExecutorStep


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrivialConfig:
    """What tells one trivial step from the next."""

    index: int
    """Number of the step."""


def do_nothing(config: TrivialConfig, output_path: str) -> dict[str, int]:
    """Return at once."""
    return {"index": config.index}


def make_steps(count: int) -> list[ExecutorStep]:
    """Return that many steps without dependencies."""
    return [
        ExecutorStep(name=f"trivial/{i}", fn=do_nothing, config=TrivialConfig(index=i))
        for i in range(count)
    ]


def time_run(count: int, prefix: str) -> float:
    """Return the seconds of one whole run in a process of its own."""
    root = str(Path(__file__).parents[1])
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = (
        "import neve; from benchmarks import executor; "
        f"neve.executor_main(executor.make_steps({count}))"
    )
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", command], check=True, stdout=subprocess.DEVNULL, cwd=root,
        env={**clean, "MARIN_PREFIX": prefix, "PYTHONPATH": root},
    )  # fmt: skip
    return time.monotonic() - began


def main(count: int) -> None:
    """Run cold, then over complete steps, and print both."""
    with tempfile.TemporaryDirectory(prefix="neve-bench-") as prefix:
        cold = time_run(count, prefix)
        noop = min(time_run(count, prefix) for _ in range(3))
    print(f"{count} steps: {cold:.2f} s cold, {noop:.3f} s when all is done")
    print(json.dumps({
        "steps": count, "cold_ms_per_step": round(1000 * cold / count, 2),
        "noop_seconds": round(noop, 3), "cpus": os.cpu_count(),
    }))  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
