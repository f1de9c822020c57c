"""A mesh changes where training computes, not what."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

PROGRAM = Path(__file__).with_name("mesh_run.py")


@pytest.fixture(scope="module")
def one_device(run_toy: Run) -> list[dict[str, Any]]:
    """Rows of the training on one device."""
    return run_toy("data=1", 1, PROGRAM)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mesh", "num_devices"),
    [("model=2,expert=2,context=2", 8), ("data=2,model=2", 4)],
)
def test_snowball_split_over_the_model_axis_trains_like_one_device(
    mesh: str, num_devices: int, one_device: list[dict[str, Any]], run_toy: Run
) -> None:
    """Heads, inner widths and vocabulary in halves, packed rows: losses, norms and counts of one device.

    Sums of float32 in another order differ by some 1e-7 of the loss, which eight train steps of Adam
    amplify; a softmax over half the vocabulary would differ by ln 2.
    """
    rows = run_toy(mesh, num_devices, PROGRAM)

    assert [row["step"] for row in rows] == [row["step"] for row in one_device] == list(range(9))
    for row, expected in zip(rows, one_device, strict=True):
        assert row.get("dropped_assignments", 0) == 0
        for name in ("trained_tokens", "real_tokens", "assignments"):
            assert row.get(name) == expected.get(name), (row["step"], name)
        for name in {"loss", "heldout_loss", "gradient_norm"} & set(expected):
            rel = 1e-3 if name == "gradient_norm" else 1e-4
            assert row[name] == pytest.approx(expected[name], rel=rel), (row["step"], name)
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
