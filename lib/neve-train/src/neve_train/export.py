"""From a native checkpoint to a Hugging Face folder, and back to a model on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
import jax.random as jrandom
from haliax import Axis
from levanter.checkpoint import load_checkpoint
from neve import storage

from neve_train import checkpoints, devices
from neve_train.errors import CheckpointError
from neve_train.families import family_of, hf_converter, read_model_config
from neve_train.mesh import check_mesh, export_axes
from neve_train.tokenizer_files import (
    end_token_ids,
    write_generation_files,
    write_tokenizer_files,
)

__all__ = ["export", "load_checkpoint_model", "load_hf_model", "newest_checkpoint"]


def export(
    checkpoint_path: str,
    model_path: str,
    tokenizer_path: str,
    template_text: str,
    output_path: str,
    *,
    eos_token_ids: tuple[int, ...] = (),
    dtype: str = "bfloat16",
    axes: Mapping[str, int] | None = None,
    on_message: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The output path is a Hugging Face folder of the newest checkpoint that can be read.

    Args:
        checkpoint_path: Output of training, its checkpoints folder, or one step-N.
        model_path: Folder with the base model's config.json.
        tokenizer_path: Folder with the tokenizer's files.
        template_text: The training template.
        output_path: Where the folder is written.
        eos_token_ids: Further ids at which generation stops.
        dtype: Type of the exported weights.
        axes: Mesh axis sizes; None: weights in as many parts as there are devices.
        on_message: Told which checkpoint is exported.

    Returns:
        train_step (completed), parameters, eos_token_ids, dtype.
    """
    devices.initialize()
    config = read_model_config(model_path)
    end_ids = end_token_ids(tokenizer_path, model_path, template_text, eos_token_ids)
    sizes = _axes(axes, model_path, config)
    explicit = config.requires_explicit_mesh_axes
    with devices.on_mesh(devices.base_trainer_config(sizes, explicit_axes=explicit)):
        model, step = load_checkpoint_model(checkpoint_path, config, on_message)
        converter = hf_converter(config, _tokenizer(tokenizer_path), model_path)
        converter.save_pretrained(
            model,
            output_path,
            save_reference_code=False,
            save_tokenizer=False,
            dtype=jnp.dtype(dtype),
        )
        parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    if jax.process_index() == 0:
        write_tokenizer_files(tokenizer_path, output_path, template_text)
        write_generation_files(model_path, output_path, tokenizer_path, end_ids, dtype)
    return {
        "train_step": step,
        "parameters": int(parameters),
        "eos_token_ids": end_ids,
        "dtype": dtype,
    }


def newest_checkpoint(path: str) -> list[Any]:
    """Returns the committed checkpoints of a training output, newest first.

    Raises:
        CheckpointError: None was committed.
    """
    folders = [storage.join(path, "checkpoints"), path]
    for folder in folders:
        found = checkpoints.committed_checkpoints(folder)
        if found:
            return found
    raise CheckpointError(
        f"checkpoint {path}: must hold a checkpoint step-N with metadata.json, got none. Train first."
    )


def load_checkpoint_model(
    path: str, config: Any, on_message: Callable[[str], None]
) -> tuple[Any, int]:
    """Returns the model and the completed train steps of the newest readable checkpoint.

    Must be called on a mesh.
    """
    folder = newest_checkpoint(path)[0].path
    is_single = folder.rstrip("/") == path.rstrip("/")
    root = path if is_single else folder.rstrip("/").rpartition("/")[0]
    key = jrandom.PRNGKey(0)
    shape = eqx.filter_eval_shape(config.build, Axis("vocab", config.vocab_size), key=key)
    arrays, rest = eqx.partition(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def load(checkpoint: str) -> Any:
        return load_checkpoint(
            arrays,
            checkpoint,
            subpath="model",
            axis_mapping=hax.partitioning.current_thread_local_mapping(),
            mesh=None,
        )

    loaded, candidate, _ = checkpoints.restore_newest(root, load, on_message)
    assert candidate is not None
    on_message(f"model after train step {candidate.step + 1} from {candidate.path}")
    return eqx.combine(loaded, rest), candidate.step + 1


def load_hf_model(config: Any, folder: str, tokenizer_path: str, dtype: Any) -> Any:
    """Returns the model of a Hugging Face folder on the current mesh."""
    converter = hf_converter(config, _tokenizer(tokenizer_path), folder)
    return converter.load_pretrained(
        config.model_type,
        config=config,
        axis_mapping=hax.partitioning.current_thread_local_mapping(),
        dtype=dtype,
    )


def _tokenizer(path: str) -> Any:
    from levanter.tokenizers import load_tokenizer

    return load_tokenizer(path)


def _axes(axes: Mapping[str, int] | None, folder: str, config: Any) -> dict[str, int]:
    count = jax.device_count()
    allowed = family_of(folder).mesh_axes
    num_experts = config.num_experts if "expert" in allowed else None
    if not axes:
        return export_axes(count, num_experts)
    return check_mesh(count, axes, count, count, num_experts, allowed)
