"""Padding takes no expert's capacity, what capacity drops is counted, and packing changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("routing_run.py")
ROUNDING = 1e-5
"""Nats. Losses are about 6, where one unit in the last place of a float32 is 5e-7; sums of another
order through three layers differ by a few of them, another expert for one token by 1e-2 and more."""


@pytest.fixture(scope="module")
def run() -> dict[str, Any]:
    """What routing_run.py measured on 8 virtual devices, context 2 x expert 4."""
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        # Less optimized programs compile in half the time and are as deterministic.
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 "
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    if done.returncode:
        pytest.fail(done.stderr[-4000:])
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.full
def test_padding_takes_no_capacity(run: dict[str, Any]) -> None:
    """With 90 % of padding no real token is dropped at 1.25; as real tokens the zeros crowd experts.

    Nothing that padding holds reaches the loss or the counts.
    """
    padded = run["padding_and_drops"]

    assert padded["padded"] == {
        "assignments": padded["padded_assignments"],
        "dropped_assignments": 0,
    }
    assert padded["unmarked"]["dropped_assignments"] > 1000
    assert padded["loss_sums"][0] == padded["loss_sums"][1]
    assert padded["other_padding"] == padded["dropping"]


@pytest.mark.full
def test_dropped_assignments_are_counted_exactly(run: dict[str, Any]) -> None:
    """Scan, remat, gradient and mesh report what numpy counts from the router's choices."""
    counted = run["padding_and_drops"]

    assert counted["counted"] > 1000
    assert counted["dropping"] == {
        "assignments": counted["dropping_assignments"],
        "dropped_assignments": counted["counted"],
    }
    assert counted["is_finite"] == [True, True]


@pytest.mark.full
def test_counts_have_room_for_the_largest_train_steps(run: dict[str, Any]) -> None:
    """16 M tokens x 8 experts x 48 layers are 6 G assignments: int32 would call them negative."""
    assert run["padding_and_drops"]["types"] == ["float32"]


@pytest.mark.full
def test_held_out_loss_is_that_of_its_trained_tokens_alone(run: dict[str, Any]) -> None:
    """10 rows of unequal length in batches of 8, all or 3 of each set; the rest is padding.

    Levanter's own padding are rows of zeros, which would take the experts' capacity from the last rows.
    """
    found, by_hand = run["held_out"]["found"], run["held_out"]["by_hand"]

    for limit in ("None", "3"):
        assert found[limit] == pytest.approx(by_hand[limit], abs=ROUNDING)


@pytest.mark.full
def test_packed_losses_equal_separate_ones(run: dict[str, Any]) -> None:
    """Each token's loss is the same in a shared row as in a row of its own, nothing dropped."""
    results = run["apart_and_together"]

    assert results["packed_against_separate"] < ROUNDING < results["spread"] / 100
    assert results["sum"] == pytest.approx(results["separate_sum"], rel=1e-6)
    (whole, *_), parts = results["facts"], results["separate_facts"]
    assert whole == {"assignments": results["assignments"], "dropped_assignments": 0}
    assert sum(part["assignments"] for part in parts) == results["assignments"]
    assert sum(part["dropped_assignments"] for part in parts) == 0


@pytest.mark.full
def test_eight_devices_compute_what_one_does(run: dict[str, Any]) -> None:
    """Context 2 x expert 4, or x expert 2 x model 2, gives the losses of one device, packed.

    A vocabulary split over model would give each part a softmax of its own: losses are about
    ln 2 smaller then.
    """
    results = run["apart_and_together"]

    assert results["one_device_against_8"] < ROUNDING
    assert results["one_device_against_model_axis"] < ROUNDING
    assert results["facts"][0] == results["facts"][1] == results["facts"][2]


@pytest.mark.full
def test_loss_sums_add_levanters_losses(run: dict[str, Any]) -> None:
    """The sums hold Levanter's loss of each position, z-loss included, and its weight.

    Weights count the tokens that are predicted: all but the first of each conversation.
    """
    results = run["apart_and_together"]

    assert results["sum"] == pytest.approx(results["positions_sum"], rel=1e-6)
    counted, predicted = results["weight_sum"]
    assert counted == predicted


@pytest.mark.full
def test_tokens_without_a_mask_are_all_real(run: dict[str, Any]) -> None:
    """Generation gives no mask: the forward pass traces on the mesh with every position served."""
    assert run["apart_and_together"]["unmasked"] == [8, 128, 64]


@pytest.mark.full
def test_counting_leaves_the_model_levanters(run: dict[str, Any]) -> None:
    """Checkpoints and Hugging Face folders have the leaves and names of Levanter's Snowball."""
    assert run["trees"]["is_same"]
    assert run["trees"]["num_leaves"] > 50
