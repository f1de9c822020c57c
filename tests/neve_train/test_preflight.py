"""Preflight: bytes and FLOPs worked out by hand, verdicts, and XLA's own analysis as referee."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fray.device_flops import device_flops
from neve_train.accelerators import ACCELERATORS, parse_accelerator
from neve_train.errors import TrainInputError
from neve_train.preflight_fit import Planned, would_fit
from neve_train.preflight_memory import (
    ArrayLeaf,
    ModelShape,
    Workload,
    estimate,
    flops_per_token,
)
from neve_train.preflight_report import make_report, report_text
from neve_train.throughput import snowball_active_parameters, snowball_flops

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("preflight_run.py")

SNOWBALL = ModelShape(
    hidden_size=2560, num_layers=26, num_heads=20, num_kv_heads=5, head_size=128, mlp_size=2560,
    num_experts=256, num_experts_per_token=4, expert_size=1280, vocab_size=128_256,
    max_seq_len=262_144, window=2048, num_full_layers=7, stacks_layers=True,
)  # fmt: skip
SNOWBALL_PARAMETERS = 67_078_882_816

ONE_LAYER = ModelShape(
    hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_size=4, mlp_size=16,
    vocab_size=32, max_seq_len=65_536, num_full_layers=1, stacks_layers=False,
)  # fmt: skip


def leaf(shape: tuple[int, ...], axes: tuple[tuple[str, ...], ...], **fields: Any) -> ArrayLeaf:
    """Returns a float32 array of the weights."""
    values = {"part": "weights", "is_layer": True, "itemsize": 4} | fields
    return ArrayLeaf(shape=shape, axes=axes, **values)


def planned(num_parameters: int, accelerator: str, **work: Any) -> Planned:
    """Returns a training of a model whose weights are one array, split over expert and context."""
    count, kind = parse_accelerator(accelerator)
    sizes = {"data": 1, "expert": count, "context": 1, "model": 1}
    weights = leaf((num_parameters,), (("expert", "context", "data"),))
    moments = dataclasses.replace(weights, part="optimizer")
    return Planned(
        name="x", family="snowball", accelerator=kind, leaves=(weights, moments, moments),
        shape=SNOWBALL,
        work=Workload(**({"sizes": sizes, "seq_len": 32_768, "batch_size": count} | work)),
        num_train_steps=10, host_bytes={"program": 10**9},
    )  # fmt: skip


def test_leaf_counts_the_part_of_one_device() -> None:
    """A dimension is split by the product of its axes, rounded up; None splits nothing."""
    sizes = {"data": 2, "expert": 8, "context": 4}

    matrix = leaf((64, 10, 6), (("expert",), ("data", "context"), ()))

    # 64 / 8 = 8; 10 / (2 * 4) rounds up to 2; 6 stays.
    assert matrix.size_on_device(sizes) == 8 * 2 * 6
    assert matrix.size == 64 * 10 * 6


def test_state_is_the_sum_over_the_arrays() -> None:
    """Weights and moments count with their own types; frozen weights have no gradient."""
    leaves = [
        leaf((1000,), (("data",),)),
        leaf((500,), ((),), is_trained=False, itemsize=2),
        leaf((1000,), (("data",),), part="optimizer"),
        leaf((), (), part="optimizer"),
    ]

    memory = estimate(leaves, ONE_LAYER, Workload(sizes={"data": 2}, seq_len=16, batch_size=2))

    assert memory.weights == 500 * 4 + 500 * 2
    assert memory.optimizer == 500 * 4 + 4
    assert memory.gradients == 500 * 4
    assert memory.layer_gradients == 500 * 2
    assert memory.compute_copy == 500 * 2  # what is in the compute type already isn't copied


def test_hidden_states_are_one_for_each_layer() -> None:
    """tokens of a device x width x layers x bytes of the compute type."""
    work = Workload(
        sizes={"expert": 8, "context": 4}, seq_len=32_768, batch_size=16, per_device_batch_size=1
    )

    memory = estimate([], SNOWBALL, work)

    # 1 of 2 rows at a time, 32,768 / 4 positions of it.
    assert (work.rows, work.num_microbatches) == (1, 2)
    assert memory.hidden_states == 8192 * 2560 * 26 * 2


def test_microbatches_keep_their_gradients_through_the_backward_pass() -> None:
    """Accumulated gradients are there while a layer is differentiated; otherwise they aren't."""
    leaves = [leaf((10**6,), ((),))]
    whole = Workload(sizes={}, seq_len=64, batch_size=4)
    halves = dataclasses.replace(whole, per_device_batch_size=2)

    one, two = (estimate(leaves, ONE_LAYER, work) for work in (whole, halves))

    moment = "backward pass of a layer"
    kept = two.compute_copy + two.hidden_states + two.layer_gradients + two.layer
    assert two.moments[moment] - kept == 4 * 10**6
    assert one.moments[moment] == (
        one.compute_copy + one.hidden_states + one.layer_gradients + one.layer
    )


def test_no_score_matrix_with_the_kernel_of_an_accelerator() -> None:
    """Twice the row is twice the memory of a layer; with full scores it would be more than thrice."""
    short = Workload(sizes={}, seq_len=8192, batch_size=1)
    long = dataclasses.replace(short, seq_len=16_384)

    kernel = [estimate([], ONE_LAYER, work).layer for work in (short, long)]
    full = [
        estimate([], ONE_LAYER, dataclasses.replace(work, score_block=None)).layer
        for work in (short, long)
    ]

    assert kernel[1] < 2 * kernel[0]
    assert full[1] > 3 * full[0]


def test_flops_are_those_that_training_reports() -> None:
    """The same formula as the MFU of a run: 6 per active weight, 12 heads x width per pair."""
    config = SimpleNamespace(
        hidden_dim=2560, num_layers=26, num_heads=20, num_kv_heads=5, inferred_head_dim=128,
        intermediate_dim=1280, shared_expert_intermediate_dim=2560, num_experts=256,
        num_experts_per_token=4, vocab_size=128_256, sliding_window=2048,
    )  # fmt: skip
    for seq_len in (1000, 2048, 32_768):
        active, flops = flops_per_token(SNOWBALL, SNOWBALL_PARAMETERS, seq_len)

        assert active == snowball_active_parameters(config) == 2_341_766_656
        row = snowball_flops(config, np.array([seq_len]))[0]
        assert flops * seq_len == pytest.approx(row, rel=1e-12)


def test_peak_speeds_agree_with_the_table_of_a_library() -> None:
    """Dense bfloat16 FLOP/s, within 1 %; the library's B200 is the GB200 of ours."""
    theirs = {"v5e": "v5litepod", "GH200": "H100", "GB200": "B200"}
    for accelerator in ACCELERATORS.values():
        if accelerator.name == "B200":
            continue
        known = device_flops(theirs.get(accelerator.name, accelerator.name))
        assert accelerator.peak_flops == pytest.approx(known, rel=0.01), accelerator.name


@pytest.mark.parametrize(
    ("text", "rule"), [("H100", "<count>x<kind>"), ("0xH100", "<count>x"), ("8xM40", "one of A100")]
)
def test_unknown_accelerators_are_refused(text: str, rule: str) -> None:
    """The error names the form or the kinds there are."""
    with pytest.raises(TrainInputError, match=rule):
        parse_accelerator(text)


def test_what_fits_says_so_and_tries_nothing() -> None:
    """2e9 parameters a device: 24 GB of state, well below what an H100 has."""
    report = make_report(planned(16 * 10**9, "8xH100"))

    assert report["fits"]
    assert report["would_fit"] == []
    assert report["bytes_per_device"]["weights"] == 8 * 10**9
    assert report["bytes_per_device"]["usable"] == 73_600_000_000
    assert report["bytes_on_storage"] == {"checkpoint": 192 * 10**9, "export": 32 * 10**9}
    assert "fits 8xH100" in report_text(report)


def test_long_rows_that_do_not_fit_name_the_first_length_that_does() -> None:
    """Half the row, and half again, until it fits; the table says the same."""
    too_long = planned(16 * 10**9, "8xH100", seq_len=262_144, batch_size=8)

    report = make_report(too_long)

    assert not report["fits"]
    first = next(row for row in report["would_fit"] if row["what"] == "row length")
    length = int(first["change"].rpartition(" ")[2])
    table = {row["seq_len"]: row["fits"] for row in report["contexts"]}
    assert first["fits"]
    assert table[length]
    assert not table[2 * length]
    changed = too_long.with_work(seq_len=length)
    assert changed is not None
    assert first["peak"] == changed.memory().peak <= 73_600_000_000


def test_context_axis_takes_devices_from_the_experts() -> None:
    """With half the experts' shards and twice the context axis, the devices stay the same."""
    changes = would_fit(planned(16 * 10**9, "8xH100", seq_len=262_144, batch_size=8))

    context = next(row for row in changes if row["what"] == "context axis")
    assert context["fits"]
    assert context["change"].startswith("--spec.mesh.context ")


def test_type_of_the_optimizer_is_tried() -> None:
    """5e9 parameters a device: 60 GB of state in float32 are too many, 30 GB in bfloat16 aren't."""
    changes = would_fit(planned(40 * 10**9, "8xH100", seq_len=4096))

    assert {
        row["what"]: row["fits"]
        for row in changes
        if row["what"] in ("type of weights and optimizer", "row length")
    } == {"type of weights and optimizer": True, "row length": False}


def test_more_devices_are_named_where_nothing_else_helps() -> None:
    """67e9 parameters on eight: each single change is told to be too little, then the count."""
    report = make_report(planned(67 * 10**9, "8xH100"))

    assert [row["fits"] for row in report["would_fit"]][:-1] == [False] * (
        len(report["would_fit"]) - 1
    )
    last = report["would_fit"][-1]
    assert last["what"] == "devices"
    assert last["change"].startswith("--accelerator 32xH100 ")
    text = report_text(report)
    assert "does not fit 8xH100" in text
    assert "--spec.precision p=bfloat16,c=bfloat16" in text


def test_a_row_beyond_the_model_is_a_reason() -> None:
    """Memory isn't the only limit; the table marks the lengths too."""
    small = planned(10**9, "8xH100", seq_len=8192)
    small = dataclasses.replace(small, shape=dataclasses.replace(SNOWBALL, max_seq_len=4096))

    report = make_report(small)

    assert report["reasons"] == ["seq_len must be at most the model's 4,096, got 8,192"]
    assert [row["fits"] for row in report["contexts"]] == [True] + [False] * 6
    shorter = next(row for row in report["would_fit"] if row["what"] == "row length")
    assert shorter["change"] == "--spec.seq_len 4096"


def test_memory_of_a_cpu_is_not_judged() -> None:
    """There is no limit and no speed to hold a CPU to, and the text says so."""
    report = make_report(planned(10**12, "8xcpu"))

    assert report["fits"]
    assert report["train_step"]["seconds_at_mfu"] is None
    assert "isn't judged" in report_text(report)


QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False,
    "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 12_288,
    "max_position_embeddings": 40_960, "num_attention_heads": 32, "num_hidden_layers": 36,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1_000_000,
    "tie_word_embeddings": False, "use_sliding_window": False, "vocab_size": 151_936,
}  # fmt: skip


@pytest.mark.full
def test_other_families_and_adapters_are_traced_too(tmp_path: Path) -> None:
    """Qwen3 8B with adapters: only they have gradients and moments, and are in checkpoints."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    request = {
        "name": "x", "model": str(tmp_path), "accelerator": "2xH100", "mesh": {"data": 2},
        "seq_len": 4096, "batch_size": 4, "adapter": {"rank": 16},
    }  # fmt: skip

    done = subprocess.run(
        [sys.executable, "-m", "neve_train.preflight"],
        input=json.dumps(request), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])["report"]
    # Of each layer, in and out of: q and o 4096 + 4096, k and v 4096 + 1024, three of 4096 + 12,288.
    adapters = 36 * 16 * (2 * 8192 + 2 * 5120 + 3 * 16_384)
    assert report["model"]["parameters"] == 8_190_735_360 + adapters
    assert report["bytes_on_storage"]["checkpoint"] == pytest.approx(12 * adapters, rel=1e-6)
    memory = report["bytes_per_device"]
    assert memory["gradients"] <= 4 * adapters
    assert memory["optimizer"] == pytest.approx(2 * memory["gradients"], rel=1e-6)
    assert memory["weights"] > 8_190_735_360  # half of the model, in bfloat16


def measured(num_devices: int) -> dict[str, dict[str, Any]]:
    """Runs the program that compiles train steps; returns bytes per case."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(num_devices)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.full
@pytest.mark.parametrize("num_devices", [1, 8])
def test_estimate_agrees_with_the_compiled_train_step(num_devices: int) -> None:
    """The state is exact; what comes on top is within 20 % of XLA's own analysis."""
    for name, case in measured(num_devices).items():
        arguments = case["state"] + case["batch"] / num_devices
        assert case["xla_arguments"] == pytest.approx(arguments, rel=1e-3), name
        ratio = case["beyond_state"] / case["xla_temporaries"]
        assert 0.8 < ratio < 1.2, (name, ratio, case)
