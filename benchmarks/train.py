"""Train the same conversations packed and one per row, and restart with and without a cache.

    python -m benchmarks.train [--json] [--folder DIR]

Some ten minutes on two cores. Lengths as in benchmarks/lengths.py, at 1/128 of their size; a
small Snowball, for restarts one with Snowball's 26 layers on 8 virtual devices (context 2 x expert 4);
each training is a process of its own, one after the other. Printed, and with --json the last line is
one object of them:

    packed_over_separate    trained tokens per second in packed rows over one conversation per row
    packed_over_levanter    the same over Levanter's own program, one conversation per row
    restart_speedup         seconds from the start of the process to the first train step after the
                            checkpoint: without compiled programs over with those of the first run
    restart_over_levanter   the same of Levanter's own program, over ours with the compiled programs
    fill                    share of positions that hold a token, packed

The same ratios `_by_processor` compare seconds of the processors, which other programs on the machine
change little.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.train_process import forget_newer, run, step_seconds
from benchmarks.train_run import ANSWER_FRACTION, SIZES


def main() -> None:
    """Run everything and print it."""
    parser = argparse.ArgumentParser(description="Packed against separate rows, and restarts.")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--folder", type=Path, help="where inputs and outputs stay")
    options = parser.parse_args()
    if options.folder:
        facts = measure(options.folder)
    else:
        with tempfile.TemporaryDirectory(prefix="neve-bench-") as folder:
            facts = measure(Path(folder))
    print(
        f"\ntrained tokens per second: packed {facts['packed_tokens_per_second']:,.0f} "
        f"(rows {facts['fill']:.1%} full), one per row {facts['separate_tokens_per_second']:,.0f} "
        f"({facts['separate_fill']:.1%}), Levanter one per row "
        f"{facts['levanter_tokens_per_second']:,.0f}\n"
        f"packed over separate {facts['packed_over_separate']:.2f}, over Levanter "
        f"{facts['packed_over_levanter']:.2f}\n"
        f"seconds to the first resumed train step: {facts['warm_restart_seconds']:.1f} with compiled "
        f"programs, {facts['cold_restart_seconds']:.1f} without, Levanter "
        f"{facts['levanter_restart_seconds']:.1f}"
    )
    if options.json:
        print(json.dumps(facts))


def measure(folder: Path) -> dict[str, Any]:
    """Return all numbers of one run."""
    inputs, size = folder / "inputs", SIZES["cpu"]
    run("prepare", inputs, "cpu", folder / "prepare.log")
    compiled = folder / "compiled"
    trained: dict[str, float] = {}
    fills: dict[str, float] = {}
    for packing in ("separate", "packed"):
        plan = json.loads((inputs / packing / "plan.json").read_text())
        trained[packing] = plan["sources"][0]["drawn_trained_tokens"] / size.num_train_steps
        fills[packing] = plan["fill"]
    # Levanter draws the conversations in another order: the mean one stands for them.
    tokens = float(np.load(inputs / "lengths.npy").mean()) * size.batch_size
    trained["levanter"] = tokens * ANSWER_FRACTION
    rates, costs = {}, {}
    for mode, cache in (("separate", compiled), ("packed", compiled), ("levanter", None)):
        done = run(mode, inputs, folder / mode, folder / f"{mode}.log", cache)
        rates[mode] = trained[mode] / step_seconds(done.step_ends)
        costs[mode] = step_seconds(done.processor_seconds) / trained[mode]
    restarts = measure_restarts(folder / "restart")
    return {
        "packed_over_separate": rates["packed"] / rates["separate"],
        "packed_over_levanter": rates["packed"] / rates["levanter"],
        "restart_speedup": restarts["cold"][0] / restarts["warm"][0],
        "restart_over_levanter": restarts["levanter"][0] / restarts["warm"][0],
        "packed_over_separate_by_processor": costs["separate"] / costs["packed"],
        "packed_over_levanter_by_processor": costs["levanter"] / costs["packed"],
        "restart_speedup_by_processor": restarts["cold"][1] / restarts["warm"][1],
        "restart_over_levanter_by_processor": restarts["levanter"][1] / restarts["warm"][1],
        "fill": fills["packed"],
        "separate_fill": fills["separate"],
        **{f"{mode}_tokens_per_second": rate for mode, rate in rates.items()},
        **{f"{name}_restart_seconds": seconds for name, (seconds, _) in restarts.items()},
        "cpus": os.cpu_count(),
    }


def measure_restarts(folder: Path) -> dict[str, tuple[float, float]]:
    """Return (seconds, seconds of the processors) to the first train step after the checkpoint.

    On a model as deep as Snowball and a mesh of eight devices: with compiled programs, without, and
    by Levanter's own program, which has none.
    """
    inputs, devices = folder / "inputs", SIZES["restart"].num_devices
    run("prepare", inputs, "restart", folder / "prepare.log")
    caches = {"warm": folder / "compiled", "cold": folder / "compiled-anew", "levanter": None}
    modes = {"warm": "packed", "cold": "packed", "levanter": "levanter"}
    for name, states in (("warm", "checkpoints"), ("levanter", "run")):
        mode = modes[name]
        log = folder / f"{mode}.log"
        run(mode, inputs, folder / mode, log, caches[name], num_devices=devices)
        forget_newer(folder / mode / states)
    restarts = {}
    for name, mode in modes.items():
        log = folder / f"{name}-restart.log"
        done = run(
            mode, inputs, folder / mode, log, caches[name], until_step=1, num_devices=devices
        )
        restarts[name] = (done.step_ends[0] - done.started, done.processor_seconds[0])
    return restarts


if __name__ == "__main__":
    main()
