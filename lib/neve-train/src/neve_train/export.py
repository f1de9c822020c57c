"""From a native checkpoint to a Hugging Face folder, and back to a model on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import haliax as hax
import jax
import jax.random as jrandom
from haliax import Axis
from levanter.checkpoint import load_checkpoint
from neve import storage

from neve_train import checkpoints, devices
from neve_train.checkpoint_tensors import CheckpointTensors
from neve_train.errors import CheckpointError
from neve_train.families import family_of, hf_converter, read_model_config
from neve_train.hf_folder import MAX_SHARD_BYTES, write_weights
from neve_train.mesh import export_axes
from neve_train.resume import check_model
from neve_train.tokenizer_files import (
    check_template,
    end_token_ids,
    write_config_files,
    write_tokenizer_files,
)

__all__ = [
    "checkpoint_tensors",
    "export",
    "has_checkpoint",
    "load_checkpoint_model",
    "load_hf_model",
    "newest_checkpoint",
    "read_newest",
]


def export(
    checkpoint_path: str,
    model_path: str,
    tokenizer_path: str,
    template_text: str,
    output_path: str,
    *,
    caches: Sequence[str] = (),
    eos_token_ids: tuple[int, ...] = (),
    dtype: str = "bfloat16",
    max_shard_bytes: int = MAX_SHARD_BYTES,
    on_message: Callable[[str], None] = print,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """The output path is a Hugging Face folder of the newest checkpoint.

    The weights go from the checkpoint into the files one tensor at a time; neither a mesh nor memory
    for the model is needed. Run by one process.

    Args:
        checkpoint_path: Output of training, its checkpoints folder, or one step-N.
        model_path: Folder with the base model's config.json.
        tokenizer_path: Folder with the tokenizer's files.
        template_text: The training template.
        output_path: Where the folder is written.
        caches: Token caches of the training; their template must be this one.
        eos_token_ids: Further ids at which generation stops.
        dtype: Type of the exported weights.
        max_shard_bytes: Largest file of weights.
        on_message: Told which checkpoint is exported.
        on_progress: Told (bytes written, bytes of all weights).

    Returns:
        train_step (completed), parameters, eos_token_ids, dtype.

    Raises:
        CheckpointError: The newest checkpoint can't be read, or it isn't one of this model.
        TrainInputError: An end-of-turn id is no token, a cache was made with another template, or
            the training had another config.json.
    """
    check_template(template_text, caches)
    end_ids = end_token_ids(tokenizer_path, model_path, template_text, eos_token_ids)
    write_tokenizer_files(tokenizer_path, output_path, template_text)
    tensors, step = checkpoint_tensors(checkpoint_path, model_path, on_message)
    parameters = write_weights(
        tensors,
        {name: shape.cast(dtype) for name, shape in tensors.shapes.items()},
        output_path,
        max_shard_bytes=max_shard_bytes,
        on_progress=on_progress,
    )
    write_config_files(model_path, output_path, tokenizer_path, end_ids, dtype)
    return {
        "train_step": step,
        "parameters": parameters,
        "eos_token_ids": end_ids,
        "dtype": dtype,
    }


def checkpoint_tensors(
    path: str, model_path: str, on_message: Callable[[str], None]
) -> tuple[CheckpointTensors, int]:
    """Returns the tensors of the newest checkpoint and its completed train steps.

    Args:
        path: Output of training, its checkpoints folder, or one step-N.
        model_path: Folder with the model's config.json.
        on_message: Told which checkpoint it is.

    Raises:
        CheckpointError: It can't be read, or isn't one of this model.
        TrainInputError: The training had another config.json.
    """
    check_model(path, model_path)
    devices.initialize()
    config = read_model_config(model_path)
    can_split_experts = "expert" in family_of(model_path).mesh_axes
    axes = export_axes(jax.device_count(), config.num_experts if can_split_experts else None)
    explicit = config.requires_explicit_mesh_axes
    with devices.on_mesh(devices.base_trainer_config(axes, explicit_axes=explicit)):
        shape = _model_shape(config)
    return read_newest(path, lambda folder: CheckpointTensors(folder, shape), on_message)


def has_checkpoint(path: str) -> bool:
    """Returns whether there is a checkpoint in a training output, a checkpoints folder, or a step-N."""
    return bool(_committed(path))


def newest_checkpoint(path: str) -> list[Any]:
    """Returns the committed checkpoints of a training output, newest first.

    Raises:
        CheckpointError: None was committed.
    """
    if found := _committed(path):
        return found
    raise CheckpointError(
        f"checkpoint {path}: must hold a checkpoint step-N with metadata.json, got none. Train first."
    )


def _committed(path: str) -> list[Any]:
    inside = checkpoints.committed_checkpoints(storage.join(path, "checkpoints"))
    return inside or checkpoints.committed_checkpoints(path)


def load_checkpoint_model(
    path: str, config: Any, on_message: Callable[[str], None]
) -> tuple[Any, int]:
    """Returns the model and the completed train steps of the newest checkpoint.

    Must be called on a mesh.

    Raises:
        CheckpointError: It can't be read, or isn't one of this model.
    """
    shape = _model_shape(config)
    arrays, rest = eqx.partition(shape, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))

    def load(checkpoint: str) -> Any:
        checkpoints.check_arrays(checkpoint, arrays, "model")
        return load_checkpoint(
            arrays,
            checkpoint,
            subpath="model",
            axis_mapping=hax.partitioning.current_thread_local_mapping(),
            mesh=None,
        )

    loaded, step = read_newest(path, load, on_message)
    return eqx.combine(loaded, rest), step


def read_newest(
    path: str, load: Callable[[str], Any], on_message: Callable[[str], None]
) -> tuple[Any, int]:
    """Returns what load gives for the newest checkpoint, and its train steps.

    Unlike a training that goes on, it doesn't fall back: an older model would pass for the newest.

    Raises:
        CheckpointError: The newest can't be read.
    """
    newest, *older = newest_checkpoint(path)
    try:
        loaded = checkpoints.read_checkpoint(newest, load)
    except CheckpointError:
        raise
    except Exception as error:  # tensorstore, JSON and file errors all mean torn
        reason = str(error).strip().partition("\n")[0][:300]
        other = f"{older[0].path} for an older one" if older else "another training"
        raise CheckpointError(
            f"checkpoint {newest.path}: must be readable, got {reason}. Train on from it, or pass {other}."
        ) from error
    on_message(f"model after train step {newest.step + 1} from {newest.path}")
    return loaded, newest.step + 1


def _model_shape(config: Any) -> Any:
    """Returns the model with shapes for arrays."""
    key = jrandom.PRNGKey(0)
    return eqx.filter_eval_shape(config.build, Axis("vocab", config.vocab_size), key=key)


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
