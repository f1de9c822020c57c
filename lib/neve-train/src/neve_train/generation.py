"""Greedy answers, with one compiled program of fixed shape: for a handful of samples, not serving."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
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

from neve_train import devices
from neve_train.errors import TrainInputError
from neve_train.export import has_checkpoint, load_checkpoint_model, load_hf_model
from neve_train.families import family_of, read_model_config
from neve_train.mesh import export_axes

__all__ = ["Answer", "generate"]

_ROUND = 64  # lengths are rounded up so that another prompt rarely means another compilation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model said to one prompt."""

    ids: tuple[int, ...]
    """Generated tokens, with the end-of-turn one if there is any."""
    has_stopped: bool
    """Whether the model ended its turn itself."""


def generate(
    model_path: str,
    config_path: str,
    tokenizer_path: str,
    prompts: Sequence[Sequence[int]],
    end_ids: Sequence[int],
    max_new_tokens: int,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Answer]:
    """Returns the greedy answer to each prompt, up to an end id or max_new_tokens.

    Args:
        model_path: Hugging Face folder with weights, output of a training, or one step-N.
        config_path: Folder with its config.json.
        tokenizer_path: Folder with its tokenizer files.
        prompts: Token ids, one or more each.
        end_ids: Ids that end an answer.
        max_new_tokens: Longest answer, 1 or more.
        on_progress: Told (tokens done, max_new_tokens).

    Raises:
        TrainInputError: A prompt and its answer don't fit into the model.
    """
    devices.initialize()
    config = read_model_config(config_path)
    num_devices = jax.device_count()
    can_split_experts = "expert" in family_of(config_path).mesh_axes
    axes = export_axes(num_devices, config.num_experts if can_split_experts else None)
    longest = max(len(prompt) for prompt in prompts)
    if longest + max_new_tokens > config.max_seq_len:
        raise TrainInputError(
            f"samples: prompt and answer must fit in the model's {config.max_seq_len} positions, "
            f"got {longest} + {max_new_tokens}. Lower max_new_tokens."
        )
    length = min(-(-(longest + max_new_tokens) // _ROUND) * _ROUND, config.max_seq_len)
    num_rows = -(-len(prompts) // num_devices) * num_devices
    tokens = np.zeros((num_rows, length), np.int32)
    ends = np.ones(num_rows, np.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
        ends[row] = len(prompt)
    trainer_config = devices.base_trainer_config(
        axes, explicit_axes=config.requires_explicit_mesh_axes
    )
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    with devices.on_mesh(trainer_config):
        model = _load(model_path, config, tokenizer_path, dtype)
        choose = _chooser(config.max_Pos.resize(length), num_rows, trainer_config)
        has_stopped = _decode(
            functools.partial(choose, model),
            tokens,
            ends,
            len(prompts),
            end_ids,
            max_new_tokens,
            on_progress,
        )
    return [
        Answer(
            ids=tuple(int(token) for token in tokens[row, len(prompt) : ends[row]]),
            has_stopped=bool(has_stopped[row]),
        )
        for row, prompt in enumerate(prompts)
    ]


def _load(path: str, config: Any, tokenizer_path: str, dtype: Any) -> Any:
    """Returns the model of a native checkpoint if there is one, or else of the folder."""
    if not has_checkpoint(path):
        return load_hf_model(config, path, tokenizer_path, dtype)
    model, _ = load_checkpoint_model(path, config, lambda message: None)
    cast = jmp.Policy(dtype, dtype, dtype).cast_to_param
    return named_jit(cast, hax.partitioning.current_thread_local_mapping())(model)


def _decode(
    choose: Callable[[np.ndarray, np.ndarray], np.ndarray],
    tokens: np.ndarray,
    ends: np.ndarray,
    num_prompts: int,
    end_ids: Sequence[int],
    max_new_tokens: int,
    on_progress: Callable[[int, int], None],
) -> np.ndarray:
    """Fills tokens and ends in place; returns bool[row], whether the row ended its turn."""
    has_stopped = np.zeros(len(tokens), bool)
    rows = np.arange(num_prompts)
    for done in range(max_new_tokens):
        running = rows[~has_stopped[:num_prompts]]
        if not len(running):
            break
        chosen = choose(tokens, ends)
        tokens[running, ends[running]] = chosen[running]
        ends[running] += 1
        has_stopped[running] = np.isin(chosen[running], list(end_ids))
        on_progress(done + 1, max_new_tokens)
    return has_stopped


def _chooser(Pos: Axis, num_rows: int, trainer_config: Any) -> Callable[..., np.ndarray]:
    """Returns choose(model, tokens, ends) -> int32[row], the likeliest next token of each row."""
    Batch = Axis("batch", num_rows)

    @named_jit(axis_resources=trainer_config.compute_axis_mapping)
    def step(model: Any, tokens: Any, ends: Any) -> Any:
        mask = AttentionMask.causal()
        hidden, _ = split_activations(model.activations(hax.named(tokens, (Batch, Pos)), mask))
        hidden = hidden.rearrange((Batch, Pos, model.Embed)).array
        rows = devices.replicated(hidden, trainer_config)
        last = jnp.take_along_axis(rows, (ends - 1)[:, None, None], axis=1)[:, 0]
        head = model.get_lm_head().rearrange((model.Embed, model.Vocab)).array
        head = devices.replicated(head, trainer_config)
        return jnp.argmax((last @ head).astype(jnp.float32), axis=-1)

    def choose(model: Any, tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
        return np.asarray(step(model, jnp.asarray(tokens), jnp.asarray(ends)))

    return choose
