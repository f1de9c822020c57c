"""The model that a training starts from, and which of its weights are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haliax as hax
import jmp
from haliax.partitioning import named_jit

from neve_train import lora
from neve_train.config import TrainSftConfig
from neve_train.export import load_checkpoint_model, load_hf_model

__all__ = ["load_weights", "starting_model", "trained_part"]


def starting_model(
    config: TrainSftConfig,
    model_config: Any,
    policy: jmp.Policy,
    key: Any,
    on_message: Callable[[str], None],
) -> Any:
    """Returns the base model on the current mesh, with fresh adapters if the config asks for them.

    Weights that are trained have the policy's type of parameters, frozen ones that of compute.

    Args:
        config: Where the weights are, and the adapters.
        model_config: What read_model_config gives.
        policy: Types of parameters and compute.
        key: PRNG key of the adapters.
        on_message: Told which checkpoint is read, if it is one.

    Raises:
        TrainInputError: Adapters don't fit the model.
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    dtype = policy.param_dtype if config.adapter is None else policy.compute_dtype
    model = load_weights(
        str(config.model),
        config.initial_checkpoint,
        str(config.tokenizer),
        model_config,
        dtype,
        on_message,
    )
    return model if config.adapter is None else lora.adapted(model, config.adapter, key)


def trained_part(config: TrainSftConfig, model: Any) -> Any:
    """Returns Levanter's filter of what is trained, and is in checkpoints: True for all of it."""
    return True if config.adapter is None else lora.trainable(model)


def load_weights(
    folder: str,
    checkpoint: Any,
    tokenizer: str,
    model_config: Any,
    dtype: Any,
    on_message: Callable[[str], None],
) -> Any:
    """Returns the model of a Levanter checkpoint, or else of a Hugging Face folder, on the current mesh.

    Args:
        folder: Hugging Face folder; only read without a checkpoint.
        checkpoint: Output of a training, or Levanter checkpoint; None if there is none.
        tokenizer: Folder of the model's tokenizer.
        model_config: What read_model_config gives.
        dtype: Floating type of the weights.
        on_message: Told which checkpoint is read, if it is one.

    Raises:
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    if checkpoint is None:
        model = load_hf_model(model_config, folder, tokenizer, dtype)
    else:
        model, _ = load_checkpoint_model(str(checkpoint), model_config, on_message)
    cast = jmp.Policy(dtype, dtype, dtype).cast_to_param
    return named_jit(cast, hax.partitioning.current_thread_local_mapping())(model)
