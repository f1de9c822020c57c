"""Which tokens Snowball's experts serve, and how many of their assignments they turn away.

An expert shard takes at most capacity_factor times its even share of a batch's assignments, tokens
times experts per token, and drops the others: those tokens get nothing from that expert.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from levanter.models.snowball import SnowballTransformer

from neve_train.errors import TrainInputError

__all__ = ["check_dropped", "counting"]


def counting(transformer: SnowballTransformer, token_valid: jax.Array) -> SnowballTransformer:
    """Returns a transformer for one call, which returns (hidden states, dropped assignments).

    The count, an int32 scalar over layers and devices, travels beside the hidden states through
    Levanter's own forward pass and scan; the parts that meet it are wrapped, none is rewritten.

    Args:
        transformer: The model's; it stays as it is.
        token_valid: bool[batch * position], sharded as the tokens; False: no expert serves the
            token, and it counts neither for capacity nor as dropped.
    """
    blocks = tuple(_CountingBlock(block, token_valid) for block in transformer.blocks)
    return dataclasses.replace(
        transformer,
        embed_gated_norm=_StartCount(transformer.embed_gated_norm),
        blocks=blocks,
        final_norm=_KeepCount(transformer.final_norm),
        final_gated_norm=_KeepCount(transformer.final_gated_norm),
    )


class _StartCount(eqx.Module):
    inner: Any

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.inner(hidden), jnp.zeros((), jnp.int32)


class _KeepCount(eqx.Module):
    inner: Any

    def __call__(self, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden, dropped = carried
        return self.inner(hidden), dropped


class _CountingBlock(eqx.Module):
    inner: Any
    token_valid: jax.Array  # a leaf, as the scan over layers stacks leaves

    def __call__(
        self, carried: tuple[jax.Array, jax.Array], *args: Any
    ) -> tuple[jax.Array, jax.Array]:
        hidden, dropped = carried
        mlp, counts = self.inner.mlp, []

        def experts(*inputs: Any, **options: Any) -> jax.Array:
            options |= {"token_valid": self.token_valid, "report_capacity_overflow": True}
            output, omitted = mlp.expert_mlp(*inputs, **options)
            counts.append(omitted.dropped)
            return output

        counted = dataclasses.replace(mlp, expert_mlp=experts)
        hidden = dataclasses.replace(self.inner, mlp=counted)(hidden, *args)
        return hidden, dropped + sum(counts)


def check_dropped(
    train_step: int,
    dropped: int,
    assignments: int,
    *,
    max_dropped_fraction: float,
    capacity_factor: float,
    num_expert_shards: int,
) -> float:
    """Returns the share of a train step's assignments that were dropped, 0 to 1.

    Args:
        train_step: Completed train steps, for the message.
        dropped: Assignments of real tokens that were dropped, over layers, devices, microbatches.
        assignments: All assignments of real tokens.
        max_dropped_fraction: Largest share that is allowed, 0 to 1.
        capacity_factor: The factor that the train step ran with.
        num_expert_shards: Size of the mesh axis expert.

    Raises:
        TrainInputError: More than the allowed share was dropped.
    """
    fraction = dropped / assignments if assignments else 0.0
    if fraction > max_dropped_fraction:
        proposed = min(2 * capacity_factor, num_expert_shards)
        raise TrainInputError(
            f"train step {train_step}: dropped expert assignments must be at most "
            f"{max_dropped_fraction:.4%} (max_dropped_fraction), got {fraction:.4%}, {dropped:,} of "
            f"{assignments:,}, at capacity_factor {capacity_factor:g}. Raise capacity_factor to "
            f"{proposed:g}; at {num_expert_shards}, the expert shards, nothing is ever dropped."
        )
    return fraction
