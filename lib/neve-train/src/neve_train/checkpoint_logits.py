"""Logits of a native checkpoint as Levanter computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import haliax as hax
import jax
import jax.numpy as jnp
import jmp
import numpy as np
from haliax import Axis
from haliax.partitioning import named_jit
from levanter.layers.attention import AttentionMask
from levanter.models.lm_model import split_activations
from levanter.utils.tree_utils import inference_mode
from neve import storage

from neve_train import devices
from neve_train.export import load_checkpoint_model
from neve_train.families import family_of, read_model_config
from neve_train.mesh import export_axes

__all__ = ["checkpoint_logits"]


def checkpoint_logits(
    checkpoint_path: str,
    folder: str,
    ids: np.ndarray,
    keep: int,
    on_message: Callable[[str], None] = print,
) -> tuple[np.ndarray, int]:
    """Returns Levanter's logits of the newest checkpoint cast to the folder's type.

    Args:
        checkpoint_path: Output of training, its checkpoints folder, or one step-N.
        folder: Exported folder, of which only config.json is read.
        ids: int32[row, position], 0 <= id < vocab_size.
        keep: Last positions of each row whose logits are wanted.
        on_message: Told which checkpoint it is.

    Returns:
        logits: float32[row, keep, vocab], computed in float32.
        train_step: Completed train steps.
    """
    devices.initialize()
    facts = storage.read_json(storage.join(folder, "config.json"))
    can_split_experts = "expert" in family_of(folder).mesh_axes
    num_experts = read_model_config(folder).num_experts if can_split_experts else None
    axes = export_axes(jax.device_count(), num_experts)
    # So many times its even share is all that a shard of experts can get: nothing is dropped.
    config = read_model_config(folder, capacity_factor=float(axes["expert"]))
    dtype = jnp.dtype(facts.get("dtype") or facts.get("torch_dtype") or "float32")
    num_rows = -(-len(ids) // jax.device_count()) * jax.device_count()
    rows = np.zeros((num_rows, ids.shape[1]), np.int32)
    rows[: len(ids)] = ids
    trainer_config = devices.base_trainer_config(
        axes, explicit_axes=config.requires_explicit_mesh_axes
    )
    with devices.on_mesh(trainer_config), jax.default_matmul_precision("highest"):
        model, step = load_checkpoint_model(checkpoint_path, config, on_message)
        # Two programs: within one, XLA may leave out a rounding that is undone at once.
        for kind in (dtype, jnp.float32):
            cast = jmp.Policy(kind, kind, kind).cast_to_param
            model = named_jit(cast, hax.partitioning.current_thread_local_mapping())(model)
        logits = _logits(inference_mode(model, True), rows, keep, trainer_config)
    return logits[: len(ids)], step


def _logits(model: Any, rows: np.ndarray, keep: int, trainer_config: Any) -> np.ndarray:
    axes = (Axis("batch", len(rows)), model.config.max_Pos.resize(rows.shape[1]))

    @named_jit(axis_resources=trainer_config.compute_axis_mapping)
    def run(model: Any, tokens: Any) -> Any:
        mask = AttentionMask.causal()
        hidden, _ = split_activations(model.activations(hax.named(tokens, axes), mask))
        last = devices.replicated(hidden.rearrange((*axes, model.Embed)).array, trainer_config)[
            :, -keep:
        ]
        head = model.get_lm_head().rearrange((model.Embed, model.Vocab)).array
        return last @ devices.replicated(head, trainer_config)

    return np.asarray(run(model, jnp.asarray(rows)), np.float32)
