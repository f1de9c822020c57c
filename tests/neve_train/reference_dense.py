"""Llama, Mistral, Qwen2 and Qwen3 in numpy, from their papers' formulas and a Hugging Face folder alone."""

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


def rotated(x: np.ndarray, theta: float) -> np.ndarray:
    """Turns [row, position, head, size]: pair (i, i + size/2) by position * theta^(-2i/size)."""
    size = x.shape[-1]
    angles = np.outer(np.arange(x.shape[1]), theta ** (-np.arange(0, size, 2) / size))
    cos, sin = (np.tile(f(angles), 2)[None, :, None] for f in (np.cos, np.sin))
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

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return rms_norm(x, eps, weights[f"{name}.weight"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)

    hidden = weights["model.embed_tokens.weight"][ids]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        x = norm(hidden, f"{layer}.input_layernorm")
        q, k, v = (
            linear(x, f"{layer}.self_attn.{name}_proj").reshape(*ids.shape, -1, size)
            for name in "qkv"
        )
        if f"{layer}.self_attn.q_norm.weight" in weights:
            q, k = norm(q, f"{layer}.self_attn.q_norm"), norm(k, f"{layer}.self_attn.k_norm")
        mixed = attention(rotated(q, theta), rotated(k, theta), v).reshape(*ids.shape, -1)
        hidden = hidden + linear(mixed, f"{layer}.self_attn.o_proj")
        x = norm(hidden, f"{layer}.post_attention_layernorm")
        gate, up = (linear(x, f"{layer}.mlp.{name}_proj") for name in ("gate", "up"))
        hidden = hidden + linear(silu(gate) * up, f"{layer}.mlp.down_proj")
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    return norm(hidden, "model.norm") @ weights[f"{head}.weight"].T
