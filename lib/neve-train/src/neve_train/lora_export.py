"""From trained adapters to a Hugging Face folder: merged weights, and the adapters alone for PEFT."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jrandom
from levanter.tokenizers import load_tokenizer
from neve import storage

from neve_train import devices, lora
from neve_train.base_model import load_weights
from neve_train.config import LoraConfig
from neve_train.families import hf_converter, read_model_config
from neve_train.mesh import export_axes
from neve_train.tokenizer_files import (
    end_token_ids,
    write_config_files,
    write_tokenizer_files,
)

__all__ = ["ADAPTER_FOLDER", "export_adapters"]

ADAPTER_FOLDER = "adapter"
"""Folder below the merged one that holds the adapters as PEFT reads them."""


def export_adapters(
    checkpoint: str,
    adapter: LoraConfig,
    model_path: str,
    tokenizer_path: str,
    template_text: str,
    output_path: str,
    *,
    initial_checkpoint: Any = None,
    eos_token_ids: tuple[int, ...] = (),
    dtype: str = "bfloat16",
    repo: str = "",
    revision: str = "",
    on_message: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The output path is the Hugging Face folder of the merged model; adapter/ is the PEFT folder.

    Merged in float32 and rounded once.

    Args:
        checkpoint: Output of the training with adapters.
        adapter: Its adapters.
        model_path: Folder with the base model's config.json, and its weights.
        tokenizer_path: Folder with the tokenizer's files.
        template_text: The training template.
        output_path: Where the folder is written.
        initial_checkpoint: Levanter checkpoint that has the base model's weights instead.
        eos_token_ids: Further ids at which generation stops.
        dtype: Type of the merged weights.
        repo: Hub repository of the base model, which the PEFT folder names; empty if it has none.
        revision: Its commit.
        on_message: Told which checkpoint is exported.

    Returns:
        train_step (completed), parameters, adapter_parameters, eos_token_ids, dtype.
    """
    devices.initialize()
    config = read_model_config(model_path)
    end_ids = end_token_ids(tokenizer_path, model_path, template_text, eos_token_ids)
    axes = export_axes(jax.device_count(), None)
    explicit = config.requires_explicit_mesh_axes
    with devices.on_mesh(devices.base_trainer_config(axes, explicit_axes=explicit)):
        base = load_weights(
            model_path, initial_checkpoint, tokenizer_path, config, jnp.float32, on_message
        )
        model = lora.adapted(base, adapter, jrandom.PRNGKey(0))
        model, step = lora.load_adapters(model, checkpoint, on_message)
        num_adapters = lora.write_adapter_folder(
            model,
            adapter,
            storage.join(output_path, ADAPTER_FOLDER),
            repo=repo,
            revision=revision,
        )
        whole = lora.merged(model)
        converter = hf_converter(config, load_tokenizer(tokenizer_path), model_path)
        converter.save_pretrained(
            whole,
            output_path,
            save_reference_code=False,
            save_tokenizer=False,
            dtype=jnp.dtype(dtype),
        )
        parameters = sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(whole, eqx.is_array)))
    if jax.process_index() == 0:
        write_tokenizer_files(tokenizer_path, output_path, template_text)
        write_config_files(model_path, output_path, tokenizer_path, end_ids, dtype)
    return {
        "train_step": step,
        "parameters": int(parameters),
        "adapter_parameters": num_adapters,
        "eos_token_ids": end_ids,
        "dtype": dtype,
    }
