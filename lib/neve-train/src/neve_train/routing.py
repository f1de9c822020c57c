"""How many assignments of tokens to experts a training may lose. Arithmetic only, no jax."""

from __future__ import annotations

from neve_train.errors import TrainInputError

__all__ = ["check_dropped"]


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
