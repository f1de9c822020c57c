"""Step: fine-tune a model on token caches with Levanter; resumable after any kind of end."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

from neve_train.config import (
    TRACKERS,
    ExecutionConfig,
    LoraConfig,
    OptimizerConfig,
    TrainSftConfig,
)
from neve_train.errors import TrainInputError
from neve_train.mesh import check_mesh

__all__ = [
    "TRACKERS",
    "ExecutionConfig",
    "LoraConfig",
    "OptimizerConfig",
    "TrainSftConfig",
    "train_sft",
]


def train_sft(config: TrainSftConfig, output_path: str) -> dict[str, Any]:
    """The output holds checkpoints/step-N (Levanter's native form), loss.jsonl and loss.png.

    Run again after it was stopped or killed, it goes on from the newest checkpoint that can be
    read, and gives the losses of a run that was never stopped.

    Returns:
        What neve_train.training.train returns: final_loss, heldout_loss_first, heldout_loss (nats per
        trained token, None without held-out rows), counts and speeds of each kind of token, seconds
        of each phase, resumed_from, checkpoint.

    Raises:
        TrainInputError: Config, model, caches and mesh don't fit together, or too many assignments to
            experts were dropped.
        CheckpointError: Saved before, and nothing saved can be read.
        DivergedError: Loss or gradient became no finite number.
        PreemptedError: Told to stop by SIGTERM or SIGUSR1; saved, and to be run again.
    """
    from neve import progress

    _check_model(config)
    from neve_train.training import Callbacks, train  # heavy: jax and Levanter

    callbacks = Callbacks(
        on_progress=lambda done, total, **facts: progress.report(
            done, total, "train steps", **facts
        ),
        on_metrics=progress.metric,
        on_message=progress.message,
    )
    return train(_with_cache(config, output_path), output_path, callbacks)


def _with_cache(config: TrainSftConfig, output_path: str) -> TrainSftConfig:
    """Returns the config with compiled programs under the prefix of the step that is run.

    Unless the config or the environment names a folder, the step has no prefix, or that isn't local:
    jax would write there file by file.
    """
    from neve import records, storage
    from neve.stepdoc import prefix_of

    execution: ExecutionConfig = config.execution
    if execution.compilation_cache_dir or os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        return config
    if not storage.is_local(output_path):
        return config
    if not storage.exists(records.neve_path(output_path, "step.json")):
        return config
    prefix = prefix_of(records.read_step(output_path), output_path)
    folder = storage.join(storage.local_path(prefix), ".neve", "jax-cache")
    return dataclasses.replace(
        config, execution=dataclasses.replace(execution, compilation_cache_dir=folder)
    )


def _check_model(config: TrainSftConfig) -> None:
    """Refuses adapters and a mesh that can't fit the model before anything heavy is imported."""
    from neve_train.families import FAMILIES, family_of, model_split

    sizes = dict(config.execution.mesh)
    family = family_of(str(config.model))
    if config.adapter is not None and not family.takes_adapters:
        able = ", ".join(name for name, other in FAMILIES.items() if other.takes_adapters)
        raise TrainInputError(
            f"adapter: the model must be of a family with haliax's linear layers ({able}), got "
            f"{family.module}. Leave spec.adapter out to train the whole model."
        )
    if not sizes or -1 in sizes.values():
        return
    num_devices = math.prod(sizes.values())
    split = model_split(str(config.model))
    check_mesh(num_devices, sizes, config.batch_size, config.seq_len, split)
