"""Llama, Mistral, Olmo 3, Qwen2 and Qwen3 in numpy, from their papers' formulas and a Hugging Face folder alone."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


def read_folder(folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Returns the tensors as float64, and config.json."""
    weights: dict[str, np.ndarray] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= {name: value.astype(np.float64) for name, value in load_file(file).items()}
    return weights, json.loads((folder / "config.json").read_text())


def rms_norm(x: np.ndarray, eps: float, scale: np.ndarray | float = 1.0) -> np.ndarray:
    """Divides by the root of the mean square of the last axis."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def silu(x: np.ndarray) -> np.ndarray:
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


def frequencies(size: int, theta: float, scaling: dict | None = None) -> np.ndarray:
    """theta^(-2i/size) per pair i; YaRN divides those that turn slowly by its factor, with a ramp between."""
    plain = theta ** (-np.arange(0, size, 2) / size)
    if not scaling:
        return plain
    length = scaling["original_max_position_embeddings"]

    def pair_of(turns: float) -> float:  # that turns so often over the original length
        return size * np.log(length / (turns * 2 * np.pi)) / (2 * np.log(theta))

    first = max(np.floor(pair_of(scaling.get("beta_fast", 32))), 0)
    last = min(np.ceil(pair_of(scaling.get("beta_slow", 1))), size - 1)
    slow = np.clip((np.arange(size // 2) - first) / (last - first), 0, 1)
    return plain / scaling["factor"] * slow + plain * (1 - slow)


def rotated(x: np.ndarray, theta: float, scaling: dict | None = None) -> np.ndarray:
    """Turns [row, position, head, size]: pair (i, i + size/2) by position * its frequency."""
    angles = np.outer(np.arange(x.shape[1]), frequencies(x.shape[-1], theta, scaling))
    length = 0.1 * np.log(scaling["factor"]) + 1 if scaling else 1.0
    cos, sin = (length * np.tile(f(angles), 2)[None, :, None] for f in (np.cos, np.sin))
    first, second = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-second, first], axis=-1) * sin


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int | None = None) -> np.ndarray:
    """Causal, over the last `window` positions with one's own; [row, position, head, size] each."""
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    back = np.subtract.outer(np.arange(q.shape[1]), np.arange(q.shape[1]))
    seen = (back >= 0) & (back < (window or len(back)))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    scores = np.where(seen, scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return np.einsum("bhqk,bkhd->bqhd", shares, v)


def logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Returns float64[row, position, vocab]."""
    weights, config = read_folder(folder)
    heads, eps = config["num_attention_heads"], config["rms_norm_eps"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    is_olmo = config["model_type"] == "olmo3"

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, eps, weights[f"{name}.weight"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    def attended(x: np.ndarray, number: int) -> np.ndarray:
        block = f"model.layers.{number}.self_attn"
        q, k, v = (linear(x, f"{block}.{name}_proj") for name in "qkv")
        if is_olmo:  # over all heads at once
            q, k = norm(q, f"{block}.q_norm"), norm(k, f"{block}.k_norm")
        q, k, v = (part.reshape(*ids.shape, -1, size) for part in (q, k, v))
        if not is_olmo and f"{block}.q_norm.weight" in weights:
            q, k = norm(q, f"{block}.q_norm"), norm(k, f"{block}.k_norm")
        has_window = is_olmo and config["layer_types"][number] == "sliding_attention"
        scaling = None if has_window else config.get("rope_scaling")
        window = config["sliding_window"] if has_window else None
        q, k = rotated(q, theta, scaling), rotated(k, theta, scaling)
        return linear(attention(q, k, v, window).reshape(*ids.shape, -1), f"{block}.o_proj")

    def fed(x: np.ndarray, number: int) -> np.ndarray:
        block = f"model.layers.{number}.mlp"
        gate, up = (linear(x, f"{block}.{name}_proj") for name in ("gate", "up"))
        return linear(silu(gate) * up, f"{block}.down_proj")

    hidden = weights["model.embed_tokens.weight"][ids]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        if is_olmo:  # normalizes what a block gives, not what it gets
            hidden = hidden + norm(attended(hidden, number), f"{layer}.post_attention_layernorm")
            hidden = hidden + norm(fed(hidden, number), f"{layer}.post_feedforward_layernorm")
        else:
            hidden = hidden + attended(norm(hidden, f"{layer}.input_layernorm"), number)
            hidden = hidden + fed(norm(hidden, f"{layer}.post_attention_layernorm"), number)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return norm(hidden, "model.norm") @ weights[f"{head}.weight"].T
