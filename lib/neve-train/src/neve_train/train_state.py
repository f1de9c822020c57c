"""The state that training starts from: the newest checkpoint that can be read, or the base model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.random as jrandom
from haliax import Axis
from levanter.tokenizers import load_tokenizer
from levanter.trainer import TrainerConfig
from levanter.trainer_state import TrainerState

from neve_train import checkpoints, lora
from neve_train.base_model import starting_model, trained_part
from neve_train.config import TrainSftConfig
from neve_train.errors import CheckpointError, TrainInputError
from neve_train.train_step import placed

__all__ = ["starting_state"]


def starting_state(
    config: TrainSftConfig,
    model_config: Any,
    trainer_config: TrainerConfig,
    optimizer: Any,
    checkpoints_path: str,
    message: Callable[[str], None],
) -> tuple[Any, str | None, list[Any]]:
    """Returns a TrainerState on the current mesh, laid out the same wherever it comes from.

    Args:
        config: Base model, adapters and seed.
        model_config: What read_model_config gives.
        trainer_config: Precision, mesh, and how axes map to it.
        optimizer: Built for the whole training.
        checkpoints_path: Folder of step-N folders.
        message: Told what was read, and what can't be.

    Returns:
        (state, checkpoint that it was read from, checkpoints that can't be read)

    Raises:
        TrainInputError: The tokenizer or the adapters don't fit the model.
        CheckpointError: Saved before, and nothing saved can be read, or its parts disagree on the
            train step.
    """
    mp = trainer_config.mp
    model_key, training_key, adapter_key = jrandom.split(jrandom.PRNGKey(config.seed), 3)
    Vocab = _vocab(config, model_config)

    def shapes() -> Any:
        model = model_config.build(Vocab, key=model_key)
        return model if config.adapter is None else lora.adapted(model, config.adapter, adapter_key)

    model_shape = eqx.filter_eval_shape(shapes)
    is_trainable = trained_part(config, model_shape)

    def initial(model: Any) -> Any:
        return TrainerState.init(
            optimizer, model, key=training_key, is_trainable=is_trainable, mp=mp
        )

    def fresh() -> Any:
        return initial(starting_model(config, model_config, mp, adapter_key, message))

    shape = eqx.filter_eval_shape(initial, model_shape)
    load = functools.partial(
        checkpoints.restored, shape, trainer_config=trainer_config, fresh=fresh
    )
    state, candidate, torn = checkpoints.restore_newest(checkpoints_path, load, message)
    if candidate is not None:
        if int(state.step) != candidate.step + 1:
            raise CheckpointError(
                f"checkpoint {candidate.path}: state and metadata.json must be of the same train step, "
                f"got {int(state.step)} and {candidate.step + 1}. Restore or remove it."
            )
        message(f"resuming after train step {int(state.step)} from {candidate.path}")
    else:
        state = fresh()
    path = None if candidate is None else candidate.path
    return placed(state, shape, trainer_config.device_mesh), path, torn


def _vocab(config: TrainSftConfig, model_config: Any) -> Axis:
    vocab_size = model_config.vocab_size
    num_tokens = len(load_tokenizer(str(config.tokenizer)))
    if num_tokens > vocab_size:
        raise TrainInputError(
            f"training: the tokenizer must have at most the model's {vocab_size} tokens, got "
            f"{num_tokens}. Use the tokenizer that belongs to the model."
        )
    return Axis("vocab", vocab_size)
