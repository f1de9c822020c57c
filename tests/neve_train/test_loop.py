"""The training loop: sums over a whole step, one program, a stop that is announced, what is kept."""

import json
import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

PROGRAM = Path(__file__).with_name("loop_run.py")
ROOT = Path(__file__).resolve().parents[2]


def of_step(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Returns rows by train step."""
    return {row["step"]: row for row in rows}


def exact(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows without times and speeds, which differ from run to run."""
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


@pytest.mark.parametrize("num_devices", [1, 2])
def test_every_trained_token_of_a_step_weighs_the_same(run_toy: Run, num_devices: int) -> None:
    """Case 053: (10 + 9 * 1) / 10 trained tokens, for any split into microbatches and devices."""
    found = run_toy("sums", num_devices, PROGRAM)

    splits = [n for n in (1, 2, 4) if n * num_devices <= 4]
    for num_microbatches in splits:
        row = found[f"case, {num_microbatches}"]
        assert row["loss"] == pytest.approx(1.9, rel=1e-6)
        # The loss is scale * 1.9 at scale 1: so is its gradient, and the step of SGD at 0.5.
        assert row["gradient_norm"] == pytest.approx(1.9, rel=1e-6)
        assert row["scale"] == pytest.approx(1 - 0.5 * 1.9, rel=1e-5)
        assert (row["trained_tokens"], row["counted"], row["real_tokens"]) == (10, 10, 13)
        empty = found[f"nothing trained, {num_microbatches}"]
        assert (empty["loss"], empty["gradient_norm"], empty["scale"]) == (0, 0, 1)
        assert (empty["trained_tokens"], empty["step"]) == (0, 1)
        # What is no number in one part alone is none in the whole.
        broken = found[f"no number, {num_microbatches}"]
        assert math.isnan(broken["loss"])
        assert math.isnan(broken["gradient_norm"])


@pytest.mark.full
def test_microbatches_train_like_one_big_batch(run_toy: Run) -> None:
    """Packed rows of unequal trained tokens, in float32, whole and row by row: the same losses.

    Sums of float32 in another order differ by some 1e-7 of the loss, which eight train steps of
    Adam amplify; a mean of means would differ by several percent.
    """
    found = run_toy("microbatched", 1, PROGRAM)
    whole, cut = (of_step(found[name]) for name in ("whole", "cut"))

    assert list(whole) == list(cut)
    for step in range(1, 9):
        assert cut[step]["loss"] == pytest.approx(whole[step]["loss"], rel=1e-4), step
        for name in ("trained_tokens", "real_tokens", "padding_fraction", "assignments"):
            assert cut[step].get(name) == whole[step].get(name), (step, name)
    assert cut[1]["gradient_norm"] == pytest.approx(whole[1]["gradient_norm"], rel=1e-4)


@pytest.fixture(scope="module")
def whole(run_toy: Run, toy: Path) -> list[dict[str, Any]]:
    """Rows of the run that was left alone."""
    path = toy / "whole" / "loss.jsonl"
    if not path.exists():
        run_toy("whole")
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def stopped(run_toy: Run, whole: list[dict[str, Any]]) -> dict[str, Any]:
    """The run that was told to stop, and went on."""
    return run_toy("stopped", 1, PROGRAM)


@pytest.mark.full
def test_training_told_to_stop_saves_the_train_step_and_says_preempted(
    stopped: dict[str, Any],
) -> None:
    """SIGUSR1 during train step 4: that step is done and saved, and the exit code is 75."""
    message, code = stopped["preempted"]

    assert code == 75
    assert "received SIGUSR1; stopped after train step 4 of 8, saved" in message
    # Every third train step is kept; Levanter counts from 0.
    assert stopped["checkpoints"] == ["step-2", "step-3"]
    assert [row["step"] for row in stopped["rows_when_stopped"]] == [0, 1, 2, 3, 4]


@pytest.fixture(scope="module")
def cold(stopped: dict[str, Any], run_toy: Run) -> dict[str, Any]:
    """The run that went on without compiled programs."""
    return run_toy("cold", 1, PROGRAM)


def compilation_keys(messages: list[str]) -> list[str]:
    """Returns under which key the train step was looked for, each time."""
    return [
        found[1] for text in messages if (found := re.search(r"key (jit_train_step\S+)\)", text))
    ]


@pytest.mark.full
def test_training_goes_on_to_the_bit_with_warm_and_cold_compilation_cache(
    stopped: dict[str, Any], cold: dict[str, Any], whole: list[dict[str, Any]]
) -> None:
    """All numbers but times are those of the run that was left alone, each train step once."""
    assert stopped["resumed"]["resumed_from"] == cold["results"]["resumed_from"] == 4
    assert exact(stopped["rows"]) == [row for row in exact(whole) if row["step"] != 2]
    assert exact(cold["rows"]) == exact(whole)
    # Both attempts found the program that another process had compiled.
    assert sum("its program was read from" in text for text in stopped["messages"]) == 2
    assert not compilation_keys(stopped["messages"])
    assert len(compilation_keys(cold["messages"])) == 1
    assert cold["results"]["compilation_cache_misses"] > 0


@pytest.mark.full
def test_training_compiles_its_train_step_once(
    stopped: dict[str, Any], cold: dict[str, Any]
) -> None:
    """One program for all train steps, and one for all evaluations; an attempt after it has it."""
    assert cold["train_step_programs"] == ["jit(train_step)"]
    assert len(cold["evaluation_programs"]) == 1
    assert stopped["train_step_programs"] == []


@pytest.mark.full
def test_training_refuses_to_go_on_with_another_batch(stopped: dict[str, Any]) -> None:
    """Case 055: the position of a checkpoint counts rows of another batch; both values are told."""
    assert "batch_size must be that of the checkpoints in" in stopped["changed_batch"]
    assert ", 4, got 2." in stopped["changed_batch"]
    assert "optimizer learning_rate must be that of the checkpoints in" in stopped["changed_rate"]


@pytest.mark.full
def test_training_refuses_a_checkpoint_whose_parts_disagree_on_the_train_step(
    stopped: dict[str, Any],
) -> None:
    """Rows would be read from another place than the one where the state stopped."""
    assert "must be of the same train step, got 4 and 6." in stopped["disagreeing"]


@pytest.mark.full
def test_training_goes_on_where_a_line_of_the_metrics_was_cut(stopped: dict[str, Any]) -> None:
    """Train step 2 is named, and is the only one without a row."""
    message = "loss.jsonl lacks 1 of the 4 train steps that are done, such as 2"
    assert any(message in text for text in stopped["messages"])
    assert [row["step"] for row in stopped["rows"]] == [0, 1, 3, 4, 5, 6, 7, 8]


@pytest.mark.full
def test_every_train_step_tells_true_numbers(whole: list[dict[str, Any]], toy: Path) -> None:
    """Tokens of each kind are those of the plan's rows, and the speeds are theirs by the time."""
    import numpy as np
    from neve_chat.cache_reader import CacheReader
    from neve_chat.row_plan import RowPlan

    plan = RowPlan.load(str(toy / "plan-separate" / "train"))
    reader = CacheReader(str(toy / "cache" / "train"))
    for step, row in of_step(whole).items():
        if step == 0:
            continue
        segments = [plan.row(number)[0] for number in range(4 * (step - 1), 4 * step)]
        real = sum(int(segment["length"]) for segment in segments)
        masks = [reader.read(int(segment["row"]))[1] for segment in segments]
        trained = sum(int(np.sum(mask[1:])) for mask in masks)
        assert (row["real_tokens"], row["trained_tokens"]) == (real, trained)
        assert row["padding_fraction"] == pytest.approx(1 - real / (4 * 128), abs=1e-6)
        seconds = row["step_seconds"] + row["data_seconds"]
        assert row["trained_tokens_per_second"] == pytest.approx(trained / seconds, rel=1e-4)
        assert row["gradient_norm"] > 0
        assert row["model_flops"] > 0
        assert "mfu" not in row  # a CPU has no peak to compare with
        assert {"eval_seconds", "checkpoint_seconds"} <= set(row)


@pytest.mark.full
def test_training_that_diverges_keeps_the_rows_of_the_train_step(run_toy: Run) -> None:
    """The step's rows are kept with tokens and origin; nothing of it is saved as a checkpoint."""
    found = run_toy("diverged", 1, PROGRAM)
    name, kept = found["kept"]

    step = kept["train_step"]
    assert f"train step {step}: loss and gradient norm must be finite" in found["error"]
    assert name == f"diverged-step-{step}.json"
    assert [row["row"] for row in kept["rows"]] == list(range(4 * (step - 1), 4 * step))
    for row in kept["rows"]:
        (conversation,) = row["conversations"]
        assert conversation["dataset"] == "a"
        assert len(row["token_ids"]) == len(row["loss_weights"]) == conversation["num_tokens"]
    assert not found["checkpoints"]
    assert [row["step"] for row in found["rows"]] == list(range(step))
    # Loss and gradient of train step 1 are finite, the weights that it leaves are of no use.
    assert "held-out loss after train step 1: must be finite" in found["ruined"]
    assert not found["ruined_checkpoints"]


def test_checkpoints_are_kept_as_the_execution_says(run_toy: Run) -> None:
    """By train step, by time, the newest few, those that stay, the last one always."""
    found = run_toy("policies", 1, PROGRAM)

    assert found["all"][-1] == [5, 10, 12]
    # Saved every 2, the newest 2 are kept until one that stays (every 6) replaces them.
    newest = [
        [],
        [2],
        [2],
        [2, 4],
        [2, 4],
        [6],
        [6],
        [6, 8],
        [6, 8],
        [6, 8, 10],
        [6, 8, 10],
        [6, 12],
    ]
    assert found["newest"] == newest
    assert found["by time"] == [[], *([n] for n in range(2, 13))]
    assert found["stopped"][0] == [1]
    decayed = found["decayed"]
    kept_from_decay = {name for name, touched in decayed.items() if not touched}
    norms = {name for name in decayed if "rms_" in name or "_norm.weight" in name}
    assert len(norms) > 2
    assert norms | {name for name in decayed if name.endswith("router_bias")} == kept_from_decay


@pytest.mark.full
def test_two_processes_train_like_one(toy: Path) -> None:
    """Over loopback: the same losses, and each process reads the rows of its own device alone."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(count: int, index: int, name: str) -> subprocess.Popen[str]:
        num_devices = 2 // count
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices} "
            "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
            "WANDB_MODE": "disabled",
            "TASK_COUNT": str(count),
            "TASK_INDEX": str(index),
            "OUTPUT_NAME": name,
            "COORDINATOR": f"127.0.0.1:{port}",
        }
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), str(toy), "together"],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(process: subprocess.Popen[str]) -> dict[str, Any]:
        output, errors = process.communicate(timeout=400)
        assert process.returncode == 0, errors[-4000:]
        return json.loads(output.strip().splitlines()[-1])

    alone = result(start(1, 0, "alone"))
    pair = [start(2, index, "pair") for index in range(2)]
    first, second = (result(process) for process in pair)
    again = [result(process) for process in [start(2, index, "pair-again") for index in range(2)]]

    assert (alone["num_devices"], first["num_devices"], first["num_local_devices"]) == (2, 2, 1)
    assert [row["step"] for row in first["rows"]] == [row["step"] for row in alone["rows"]]
    for ours, theirs in zip(first["rows"], alone["rows"], strict=True):
        assert set(ours) == set(theirs)
        for name in {"loss", "gradient_norm", "heldout_loss"} & set(theirs):
            # The same sums on the same two devices, added up by another transport.
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5), (ours["step"], name)
    assert second["results"]["final_loss"] == first["results"]["final_loss"]
    # Each process has a program of its own, and finds it again.
    for process in again:
        assert sum("its program was read from" in text for text in process["messages"]) == 1
        assert exact(process["rows"]) == exact(first["rows"])
    # Rows 0 and 1 of every 4 lie on the first device; row 0 is also everybody's example of a row.
    train_rows = [range(0, 32, 4), range(1, 32, 4), range(2, 32, 4), range(3, 32, 4)]
    mine = {number for rows in train_rows[2:] for number in rows if number >= 5}
    assert mine <= set(second["read"])
    assert not {number for rows in train_rows[:2] for number in rows if number >= 5} & set(
        second["read"]
    )
