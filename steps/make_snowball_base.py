"""Step: draw the weights of a small Snowball from a seed, in the published Hugging Face layout.

Needs numpy and safetensors only. Tensor names, shapes and the initial distribution are Levanter's;
the numbers themselves aren't, since they come from another generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neve.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_GATED_NORM_RANK = 128  # a constant of the architecture
_TRUNCATION = 3.0  # standard deviations, as Levanter's initializer
_WEIGHTS = "model.safetensors"
_COPIED = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, kw_only=True)
class MakeSnowballBaseConfig:
    """What to draw."""

    input: Any
    """Folder with config.json and tokenizer files: a path, or a make_tokenizer step."""
    seed: int = 0
    """Seed of the weights, 0 or more."""

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise InputError(
                f"model: seed must be 0 or more, got {self.seed}. Pass another number."
            )


def make_snowball_base(config: MakeSnowballBaseConfig, output_path: str) -> dict[str, Any]:
    """The output is a Hugging Face folder: config, tokenizer files and float32 model.safetensors.

    Returns:
        Counts: parameters, active_parameters (per token, without both embedding tables), tensors.

    Raises:
        InputError: The input folder lacks a file.
    """
    from neve import storage
    from safetensors.numpy import save  # heavy optional dependency

    source = str(config.input)
    for name in _COPIED:
        path = storage.join(source, name)
        if not storage.exists(path):
            raise InputError(
                f"model folder {source}: must hold {name}, got none. Pass make_tokenizer's output."
            )
        storage.write_bytes(storage.join(output_path, name), storage.read_bytes(path))
    hf_config = storage.read_json(storage.join(source, "config.json"))
    tensors = draw_tensors(hf_config, config.seed)
    storage.write_bytes(
        storage.join(output_path, _WEIGHTS), save(tensors, metadata={"format": "pt"})
    )
    num_parameters = sum(tensor.size for tensor in tensors.values())
    return {
        "parameters": int(num_parameters),
        "active_parameters": int(num_parameters - _num_inactive(hf_config)),
        "tensors": len(tensors),
    }


def draw_tensors(hf_config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return every tensor of the model; each depends on the seed, its name and its shape alone.

    Norm weights are 1, attention gates and router biases 0, all others truncated normal with the
    config's initializer_range as the scale.

    Args:
        hf_config: Content of config.json.
        seed: 0 or more.

    Returns:
        Name -> float32 array; a linear layer is [output, input], experts are stacked in front.
    """
    import numpy as np  # planning reads this module

    scale = hf_config["initializer_range"]
    tensors: dict[str, np.ndarray] = {}
    for name, shape in tensor_shapes(hf_config):
        if len(shape) == 1 and not name.endswith(".bias"):
            tensors[name] = np.ones(shape, np.float32)
        elif name.endswith((".bias", ".attn_gate.weight")):
            tensors[name] = np.zeros(shape, np.float32)
        else:
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            tensors[name] = _truncated_normal(rng, shape, scale)
    return tensors


def tensor_shapes(hf_config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of the published layout."""
    vocab, hidden = hf_config["vocab_size"], hf_config["hidden_size"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.embed_norm.weight", (hidden,)
    yield from _gated_norm("model.embed_gated_norm", hidden)
    for layer in range(hf_config["num_hidden_layers"]):
        yield from _layer_shapes(f"model.layers.{layer}", hf_config)
    yield "model.norm.weight", (hidden,)
    yield from _gated_norm("model.final_gated_norm", hidden)
    yield "lm_head.weight", (vocab, hidden)


def _layer_shapes(prefix: str, hf_config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, head_dim = hf_config["hidden_size"], hf_config["head_dim"]
    num_heads = hf_config["num_attention_heads"]
    heads, kv_heads = num_heads * head_dim, hf_config["num_key_value_heads"] * head_dim
    experts, width = hf_config["num_experts"], hf_config["moe_intermediate_size"]
    shared = hf_config["shared_expert_intermediate_size"]
    yield f"{prefix}.input_layernorm.weight", (hidden,)
    yield from _gated_norm(f"{prefix}.attn_gated_norm", hidden)
    yield f"{prefix}.self_attn.q_proj.weight", (heads, hidden)
    yield f"{prefix}.self_attn.k_proj.weight", (kv_heads, hidden)
    yield f"{prefix}.self_attn.v_proj.weight", (kv_heads, hidden)
    yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads)
    yield f"{prefix}.self_attn.attn_gate.weight", (num_heads, hidden)
    yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield from _gated_norm(f"{prefix}.mlp_gated_norm", hidden)
    yield f"{prefix}.mlp.router.weight", (experts, hidden)
    yield f"{prefix}.mlp.router.bias", (experts,)
    yield f"{prefix}.mlp.experts.gate_proj.weight", (experts, width, hidden)
    yield f"{prefix}.mlp.experts.up_proj.weight", (experts, width, hidden)
    yield f"{prefix}.mlp.experts.down_proj.weight", (experts, hidden, width)
    yield f"{prefix}.shared_expert.gate_proj.weight", (shared, hidden)
    yield f"{prefix}.shared_expert.up_proj.weight", (shared, hidden)
    yield f"{prefix}.shared_expert.down_proj.weight", (hidden, shared)


def _gated_norm(prefix: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.down_proj.weight", (_GATED_NORM_RANK, hidden)
    yield f"{prefix}.up_proj.weight", (hidden, _GATED_NORM_RANK)


def _truncated_normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray:
    import numpy as np  # planning reads this module

    values = rng.standard_normal(shape)
    outside = np.abs(values) > _TRUNCATION
    while outside.any():
        values[outside] = rng.standard_normal(int(outside.sum()))
        outside = np.abs(values) > _TRUNCATION
    return (scale * values).astype(np.float32)


def _num_inactive(hf_config: dict[str, Any]) -> int:
    """Parameters that one token does not meet: other experts, and both embedding tables."""
    idle = hf_config["num_experts"] - hf_config["num_experts_per_tok"]
    expert = 3 * hf_config["hidden_size"] * hf_config["moe_intermediate_size"]
    tables = 2 * hf_config["vocab_size"] * hf_config["hidden_size"]
    return hf_config["num_hidden_layers"] * idle * expert + tables
