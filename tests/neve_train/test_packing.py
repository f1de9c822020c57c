"""Several conversations in a row: each is computed as if it stood alone."""

from collections.abc import Callable
from typing import Any


def test_packed_conversations_equal_separate_ones(run_toy: Callable[..., tuple[int, Any]]) -> None:
    """Hidden states agree to float32 rounding, rows are counted as they are made, training learns.

    1e-5 is some hundred units in the last place of states of size 1; without the mask they differ
    at least a thousand times more.
    """
    results = run_toy("packed")[1]

    assert results["packed"] < 1e-5
    assert results["unmasked"] > 1e-2
    assert all(ours == levanters for ours, levanters in results["counts"])
    trained = results["trained"]
    assert trained["heldout_loss"] < trained["heldout_loss_first"]
