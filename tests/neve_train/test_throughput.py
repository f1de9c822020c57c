"""Model FLOPs, speeds of devices and the clock of phases: arithmetic, checked by hand."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from neve_chat.row_plan import SEGMENT, RowPlan
from neve_train.throughput import (
    PhaseClock,
    peak_flops_of,
    snowball_active_parameters,
    snowball_flops,
    step_flops,
)

SNOWBALL = {
    "vocab_size": 128_256,
    "hidden_dim": 2560,
    "intermediate_dim": 1280,
    "shared_expert_intermediate_dim": 2560,
    "num_experts": 256,
    "num_experts_per_token": 4,
    "num_layers": 26,
    "num_heads": 20,
    "num_kv_heads": 5,
    "inferred_head_dim": 128,
    "sliding_window": 2048,
}


def config(**changes: Any) -> Any:
    """Returns the sizes of the 67B model."""
    return SimpleNamespace(**(SNOWBALL | changes))


def test_active_parameters_are_those_of_the_published_model() -> None:
    """2,341,766,656 of the 67,078,882,816 parameters meet a token, the input embedding aside."""
    assert snowball_active_parameters(config()) == 2_341_766_656


def test_flops_grow_with_the_pairs_that_attention_sees() -> None:
    """7 layers see all pairs of a conversation, 19 those of their window."""
    # 12 * 20 * 128 = 30,720 per pair. 3 tokens: 6 pairs in each layer. 4 tokens and a window of 2:
    # 10 pairs in 7 layers, 1 + 2 + 2 + 2 = 7 in 19.
    weights = 6 * 2_341_766_656

    assert snowball_flops(config(), np.array([3]))[0] == 3 * weights + 30_720 * 6 * 26
    found = snowball_flops(config(sliding_window=2), np.array([4]))[0]
    assert found == 4 * weights + 30_720 * (7 * 10 + 19 * 7)


def test_flops_of_a_train_step_are_those_of_its_conversations() -> None:
    """Rows of (3), (4, 3), (5), (2) in train steps of 2 rows; packing adds no pairs."""
    segments = np.zeros(5, SEGMENT)
    segments["length"] = (3, 4, 3, 5, 2)
    plan = RowPlan(segments, np.array([1, 3, 4, 5], np.int64))
    one = {n: snowball_flops(config(), np.array([n]))[0] for n in (2, 3, 4, 5)}

    found = step_flops(config(), plan, 2)

    assert found == pytest.approx([2 * one[3] + one[4], one[5] + one[2]], rel=1e-12)


def test_flops_of_other_families_are_levanters_forward_flops_three_times() -> None:
    """A config without sizes of experts is asked itself; one that doesn't know gives None."""
    segments = np.zeros(2, SEGMENT)
    segments["length"] = (3, 4)
    plan = RowPlan(segments, np.array([1, 2], np.int64))
    known = SimpleNamespace(vocab_size=7, flops_per_token=lambda vocab, length: vocab * length)
    unknown = SimpleNamespace(vocab_size=7, flops_per_token=lambda *_: None)

    assert step_flops(known, plan, 1) == pytest.approx([3 * 3 * 21, 3 * 4 * 28])
    assert step_flops(unknown, plan, 1) is None


@pytest.mark.parametrize(
    ("kind", "flops"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("NVIDIA B200", 2250e12),
        ("TPU v4", 275e12),
        ("TPU v5 lite", 197e12),
        ("TPU v5", 459e12),
        ("TPU v5p", 459e12),
        ("TPU v6 lite", 918e12),
        ("cpu", None),
    ],
)
def test_peak_speed_is_found_by_the_name_that_jax_gives(kind: str, flops: float | None) -> None:
    """Names of drivers and jax; a CPU has none."""
    assert peak_flops_of(kind) == flops


def test_clock_gives_each_second_to_one_lap() -> None:
    """Laps of a phase add up to its total; a lap without time is 0."""
    clock = PhaseClock()
    laps = []
    for _ in range(3):
        with clock.phase("step"):
            sum(range(1000))
        laps.append(clock.lap("step", "eval"))

    assert sum(lap["step_seconds"] for lap in laps) == pytest.approx(clock.totals["step"], abs=1e-5)
    assert all(lap["step_seconds"] > 0 for lap in laps)
    assert [lap["eval_seconds"] for lap in laps] == [0, 0, 0]
