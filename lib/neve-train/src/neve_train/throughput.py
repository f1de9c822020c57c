"""How fast training is: tokens, model FLOPs and the time of each phase. No jax."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from neve_train.accelerators import ACCELERATORS

if TYPE_CHECKING:
    from neve_chat.row_plan import RowPlan

__all__ = [
    "PHASES",
    "PhaseClock",
    "peak_flops_of",
    "snowball_active_parameters",
    "snowball_flops",
    "step_flops",
]

PHASES: tuple[str, ...] = ("data", "step", "eval", "checkpoint")
"""Waiting for rows, the optimizer update, held-out loss, and saving as far as it blocks."""

FULL_ATTENTION_EVERY = 4
"""Of Snowball's layers every fourth and the last attend to the whole conversation."""

GATED_NORM_RANK = 128


class PhaseClock:
    """Seconds of each phase, since the start and since the last look."""

    def __init__(self) -> None:
        """Starts at 0."""
        self.totals = dict.fromkeys(PHASES, 0.0)
        self._seen = dict(self.totals)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the block to a phase."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.totals[name] += time.perf_counter() - started

    def lap(self, *names: str) -> dict[str, float]:
        """Returns `<phase>_seconds` since the last lap of each of these phases."""
        values = {name: self.totals[name] - self._seen[name] for name in names}
        self._seen |= {name: self.totals[name] for name in names}
        return {f"{name}_seconds": round(value, 6) for name, value in values.items()}


def snowball_active_parameters(config: Any) -> int:
    """Returns the weights that one token meets, without the input embedding, which is looked up.

    Args:
        config: SnowballConfig, or anything with its sizes.
    """
    d, heads, kv = config.hidden_dim, config.num_heads, config.num_kv_heads
    head_dim = config.inferred_head_dim
    gated = 2 * d * GATED_NORM_RANK
    attention = 2 * d * heads * head_dim + 2 * d * kv * head_dim + d * heads
    experts = 3 * d * config.intermediate_dim * config.num_experts_per_token
    router = d * config.num_experts + config.num_experts
    layer = (
        2 * d + 2 * gated + attention + experts + router
        + 3 * d * config.shared_expert_intermediate_dim
    )  # fmt: skip
    return config.num_layers * layer + 2 * (d + gated) + d * config.vocab_size


def step_flops(config: Any, plan: RowPlan, batch_size: int) -> np.ndarray | None:
    """Returns the model FLOPs of every train step, float64[train step]; None for unknown models.

    Forward and backward pass of what the conversations need: padding, recomputation and unused
    capacity of experts don't count.

    Args:
        config: Levanter's config of the model.
        plan: Rows of the training.
        batch_size: Rows per train step.
    """
    lengths, places = np.unique(plan.segments["length"], return_inverse=True)
    if hasattr(config, "shared_expert_intermediate_dim"):
        flops = snowball_flops(config, lengths)
    else:
        per_token = [config.flops_per_token(config.vocab_size, int(n)) for n in lengths]
        if None in per_token:
            return None
        flops = (
            3.0 * lengths * np.array(per_token, np.float64)
        )  # Levanter's are of the forward pass
    totals = np.append(0.0, np.cumsum(flops[places]))[np.append(0, plan.row_ends)]
    return np.diff(totals[::batch_size])


def snowball_flops(config: Any, lengths: np.ndarray) -> np.ndarray:
    """Returns the FLOPs, forward and backward, of conversations of these lengths, float64.

    6 for each active weight and token, and 12 * heads * head_dim for each pair of a token and one
    that it attends to in each layer.

    Args:
        config: SnowballConfig, or anything with its sizes.
        lengths: Tokens of each conversation.
    """
    num_long = sum(
        index % FULL_ATTENTION_EVERY == FULL_ATTENTION_EVERY - 1 or index == config.num_layers - 1
        for index in range(config.num_layers)
    )
    lengths = np.asarray(lengths, np.float64)
    windows = np.minimum(lengths, config.sliding_window)
    full = lengths * (lengths + 1) / 2
    windowed = windows * (windows + 1) / 2 + (lengths - windows) * windows
    pairs = num_long * full + (config.num_layers - num_long) * windowed
    flops = 6.0 * snowball_active_parameters(config) * lengths
    return flops + 12.0 * config.num_heads * config.inferred_head_dim * pairs


def peak_flops_of(device_kind: str) -> float | None:
    """Returns the dense bfloat16 FLOP/s of one device, None where it is unknown, as for a CPU.

    Args:
        device_kind: jax's name of it, such as "NVIDIA H100 80GB HBM3" or "TPU v5p".
    """
    text = device_kind.lower().replace(" lite", "e").replace(" ", "")
    text = "v5p" if text == "tpuv5" else text  # jax's name of a TPU v5p
    known = sorted(ACCELERATORS.values(), key=lambda each: -len(each.name))
    for accelerator in known:
        if accelerator.peak_flops is not None and accelerator.name.lower().split("-")[0] in text:
            return accelerator.peak_flops
    return None
