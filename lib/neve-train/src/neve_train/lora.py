"""Low-rank adapters through Levanter: put on, trained alone, merged, written for PEFT."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import haliax as hax
import haliax.nn as hnn
import jax
import numpy as np
from levanter.adaptor import lora as levanter_lora
from levanter.checkpoint import load_checkpoint
from neve import storage
from safetensors.numpy import save

from neve_train.config import LoraConfig
from neve_train.errors import TrainInputError
from neve_train.export import read_newest

__all__ = ["adapted", "load_adapters", "merged", "trainable", "write_adapter_folder"]


def adapted(model: Any, config: LoraConfig, key: Any) -> Any:
    """Returns the model with adapters that change nothing yet, on the current mesh.

    As in the paper and in PEFT, A is random and B zero.

    Args:
        model: Base model; the adapters' weights are float32 whatever its type.
        config: Rank and target modules.
        key: PRNG key of A.

    Raises:
        TrainInputError: A target is no linear layer of the model.
    """
    names = _linear_layers(model)
    unknown = sorted(set(config.target_modules) - names)
    if unknown or not names:
        raise TrainInputError(
            f"adapter: target_modules must be among this model's {', '.join(sorted(names)) or 'none'}, "
            f"got {', '.join(unknown) or 'all'}. Correct them."
        )
    make = hax.named_jit(
        lambda base: levanter_lora.loraize(base, _levanter_config(config), key),
        axis_resources=hax.partitioning.current_thread_local_mapping(),
    )
    return make(model)


def trainable(model: Any) -> Any:
    """Returns Levanter's filter tree: True for adapters, False for everything else."""
    return levanter_lora.lora_trainable_params_filter(model)


def load_adapters(
    model: Any, checkpoint_path: str, on_message: Callable[[str], None]
) -> tuple[Any, int]:
    """Returns the model with the adapters of the newest checkpoint, and its train steps.

    Args:
        model: What `adapted` returns, with the base model that the training used.
        checkpoint_path: Output of training, its checkpoints folder, or one step-N.
        on_message: Told which checkpoint is read.

    Raises:
        CheckpointError: The newest checkpoint can't be read, or there is none.
    """
    saved = eqx.filter(eqx.filter(model, trainable(model)), eqx.is_array)

    def load(folder: str) -> Any:
        return load_checkpoint(
            saved,
            folder,
            subpath="model",
            axis_mapping=hax.partitioning.current_thread_local_mapping(),
            mesh=None,
        )

    loaded, step = read_newest(checkpoint_path, load, on_message)
    return eqx.combine(loaded, model), step


def merged(model: Any) -> Any:
    """Returns the base model with every adapter added to the weights it stands beside."""
    return levanter_lora.merge_lora_modules(model)


def write_adapter_folder(
    model: Any, config: LoraConfig, output_path: str, *, repo: str = "", revision: str = ""
) -> int:
    """The folder holds adapter_config.json and adapter_model.safetensors (float32), as PEFT reads them.

    Args:
        model: Model with adapters.
        config: Of the training.
        output_path: Local or remote folder.
        repo: Hub repository of the base model; empty if it has none.
        revision: Its commit.

    Returns:
        Number of the adapters' parameters.
    """
    state: Mapping[str, np.ndarray] = levanter_lora.lora_state_dict(model)
    targets = sorted({name.split(".")[-3] for name in state})
    facts = levanter_lora.to_hf_config(
        _levanter_config(config), base_model_name_or_path=repo or None, target_modules=targets
    )
    facts |= {"revision": revision or None}
    if jax.process_index() == 0:
        tensors = {
            name: np.ascontiguousarray(value, dtype=np.float32) for name, value in state.items()
        }
        data = save(tensors, metadata={"format": "pt"})
        storage.write_bytes(storage.join(output_path, "adapter_model.safetensors"), data)
        text = json.dumps(facts, indent=2, sort_keys=True) + "\n"
        storage.write_bytes(storage.join(output_path, "adapter_config.json"), text.encode())
    return sum(value.size for value in state.values())


def _levanter_config(config: LoraConfig) -> levanter_lora.LoraConfig:
    return levanter_lora.LoraConfig(
        target_modules=list(config.target_modules) or None,
        r=config.rank,
        alpha=config.alpha,
        dropout=config.dropout,
        zero_init_b=True,
        a_init_mode="random",
    )


def _linear_layers(model: Any) -> set[str]:
    """Returns the names of the linear layers that Levanter puts adapters on."""

    def is_linear(node: Any) -> bool:
        return isinstance(node, hnn.Linear)

    found = {
        path[-1].name
        for path, node in jax.tree_util.tree_leaves_with_path(model, is_leaf=is_linear)
        if is_linear(node)
    }
    return found - {"lm_head"}  # Levanter's models read its weight directly
