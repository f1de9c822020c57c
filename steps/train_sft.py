"""Step: fine-tune a model on token caches with Levanter; resumable after any kind of end."""

from __future__ import annotations

import math
from typing import Any

from neve_train.config import ExecutionConfig, OptimizerConfig, TrainSftConfig
from neve_train.mesh import check_mesh

__all__ = ["ExecutionConfig", "OptimizerConfig", "TrainSftConfig", "train_sft"]


def train_sft(config: TrainSftConfig, output_path: str) -> dict[str, Any]:
    """The output holds checkpoints/step-N (Levanter's native form), loss.jsonl and loss.png.

    Run again after it was stopped or killed, it goes on from the newest checkpoint that can be
    read, and gives the losses of a run that was never stopped.

    Returns:
        final_loss, heldout_loss_first, heldout_loss (nats per trained token, None without held-out
        rows), num_train_steps, positions (padding included), positions_per_second, seconds, resumed_from, checkpoint.

    Raises:
        TrainInputError: Config, model, caches and mesh don't fit together.
        CheckpointError: Saved before, and nothing saved can be read.
    """
    from neve import progress

    _check_mesh_of_model(config)
    from neve_train.training import Callbacks, train  # heavy: jax and Levanter

    callbacks = Callbacks(
        on_progress=lambda done, total, **facts: progress.report(
            done, total, "train steps", **facts
        ),
        on_metrics=progress.metric,
        on_message=progress.message,
    )
    return train(config, output_path, callbacks)


def _check_mesh_of_model(config: TrainSftConfig) -> None:
    """Refuses a mesh that can't fit before anything heavy is imported."""
    from neve import storage
    from neve_train.families import family_of

    sizes = dict(config.execution.mesh)
    allowed = family_of(str(config.model)).mesh_axes
    if not sizes or -1 in sizes.values():
        return
    path = storage.join(str(config.model), "config.json")
    num_experts = storage.read_json(path).get("num_experts") if "expert" in allowed else None
    num_devices = math.prod(sizes.values())
    check_mesh(num_devices, sizes, config.batch_size, config.seq_len, num_experts, allowed)
