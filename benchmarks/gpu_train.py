"""Train a small Snowball on one GPU, packed against Levanter's own program, and check the kernel.

    python -m benchmarks.gpu_train [--json]          needs a GPU, some six minutes
    python -m benchmarks.gpu_train --self-check      the same at a tiny size on a CPU

Printed, and with --json the last line is one object of them:

    packed_over_levanter     trained tokens per second, packed rows over Levanter's one per row
    mfu, levanter_mfu        share of the peak speed, for what the conversations need
    memory_bytes             peak of the device, ours; levanter_memory_bytes, Levanter's
    predicted_bytes          preflight's prediction of ours
    attention_*              largest difference of the packed attention kernel to the reference, of
                             results and of gradients, relative to the largest value
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.train_process import ROOT, run, step_seconds
from benchmarks.train_run import ANSWER_FRACTION, SIZES, Size


def main() -> int:
    """Measure and print; exit code 2 without a GPU."""
    parser = argparse.ArgumentParser(description="Packed training on one GPU, beside Levanter.")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--self-check", action="store_true", help="a tiny size on a CPU")
    options = parser.parse_args()
    kind = "cpu" if options.self_check else gpu_kind()
    if kind is None:
        print(
            "benchmark gpu_train: needs a GPU that nvidia-smi lists, got none. Run it on a machine "
            "with one, or pass --self-check.",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="neve-bench-") as folder:
        facts = measure(Path(folder), kind)
    for name, value in facts.items():
        print(f"{name:26} {value:,.4g}" if isinstance(value, float) else f"{name:26} {value}")
    if options.json:
        print(json.dumps(facts))
    return 0


def gpu_kind() -> str | None:
    """Return the name of the first GPU, None where there is none."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    names = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return names[0] if names else None


def measure(folder: Path, kind: str) -> dict[str, Any]:
    """Return all numbers of one run on a device of this kind."""
    from neve_train.throughput import peak_flops_of

    size_name, platform = ("self_check", "cpu") if kind == "cpu" else ("gpu", "cuda")
    inputs, size = folder / "inputs", SIZES[size_name]
    run("prepare", inputs, size_name, folder / "prepare.log")
    attention = run(
        "attention", inputs, "kernel", folder / "attention.log", platform=platform
    ).facts
    packed = run("packed", inputs, folder / "packed", folder / "packed.log", platform=platform)
    levanter = run(
        "levanter", inputs, folder / "levanter", folder / "levanter.log", platform=platform
    )
    plan = json.loads((inputs / "packed" / "plan.json").read_text())
    trained = plan["sources"][0]["drawn_trained_tokens"] / size.num_train_steps
    tokens = float(np.load(inputs / "lengths.npy").mean()) * size.batch_size
    rate = trained / step_seconds(packed.step_ends)
    levanter_rate = tokens * ANSWER_FRACTION / step_seconds(levanter.step_ends)
    peak = peak_flops_of(kind)

    def mfu(done: Any) -> float | None:
        return None if peak is None else done.facts["FLOPS"] / step_seconds(done.step_ends) / peak

    return {
        "device": kind,
        "fill": plan["fill"],
        "tokens_per_second": rate,
        "levanter_tokens_per_second": levanter_rate,
        "packed_over_levanter": rate / levanter_rate,
        "mfu": mfu(packed),
        "levanter_mfu": mfu(levanter),
        "memory_bytes": packed.facts.get("MEMORY"),
        "levanter_memory_bytes": levanter.facts.get("MEMORY"),
        "predicted_bytes": predicted_bytes(inputs, size, kind),
        "attention_difference": attention["RESULT"],
        "attention_gradient_difference": attention["GRADIENT"],
    }


def predicted_bytes(inputs: Path, size: Size, kind: str) -> int | None:
    """Return preflight's prediction for one device, None for a kind that it doesn't know."""
    from neve_train.accelerators import ACCELERATORS

    names = [name for name in ACCELERATORS if name.lower() in kind.lower()]
    if not names:
        return None
    request = {
        "name": "benchmark",
        "model": str(inputs / "base"),
        "accelerator": f"1x{max(names, key=len)}",
        "mesh": {"data": 1},
        "seq_len": size.seq_len,
        "batch_size": size.batch_size,
    }
    done = subprocess.run(
        [sys.executable, "-m", "neve_train.preflight"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    if "error" in answer:
        raise SystemExit(answer["error"])
    return answer["report"]["bytes_per_device"]["total"]


if __name__ == "__main__":
    sys.exit(main())
