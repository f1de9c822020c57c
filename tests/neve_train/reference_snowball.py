"""Snowball in numpy, from its published facts and an exported Hugging Face folder alone."""

from pathlib import Path

import numpy as np

from tests.neve_train.reference_dense import attention, read_folder, rms_norm, rotated, silu

ROUTING_SUM = 2.5  # of a token's weights over its experts
QK_EPS = 1e-6  # of the norm of queries and keys, which has no parameters


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Returns float64[row, position, vocab]; no expert ever refuses a token."""
    weights, config = read_folder(folder)
    num_layers = config["num_hidden_layers"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ weights[f"{name}.weight"].T

    def norm(x: np.ndarray, name: str, gate: str) -> np.ndarray:
        """An RMS norm, and a gate of low rank on what it gives."""
        x = rms_norm(x, config["rms_norm_eps"], weights[f"{name}.weight"])
        inner = silu(linear(x, f"{gate}.down_proj"))
        return x * sigmoid(linear(inner, f"{gate}.up_proj"))

    def mixed(x: np.ndarray, name: str, is_long: bool) -> np.ndarray:
        """Attention; long layers see all of the past and no positions."""
        size = config["head_dim"]
        q, k, v = (
            linear(x, f"{name}.{part}_proj").reshape(*x.shape[:2], -1, size) for part in "qkv"
        )
        q, k = rms_norm(q, QK_EPS), rms_norm(k, QK_EPS)
        if not is_long:  # half of each head turns, half knows no position
            q, k = (
                np.concatenate(
                    [rotated(y[..., : size // 2], config["rope_theta"]), y[..., size // 2 :]], -1
                )
                for y in (q, k)
            )
        window = None if is_long else config["sliding_window"]
        out = attention(q * config["qk_mult"], k, v, window)
        own = np.repeat(v, q.shape[2] // v.shape[2], axis=2)  # what a position says itself goes
        share = (out * own).sum(-1, keepdims=True) / ((own * own).sum(-1, keepdims=True) + 1e-6)
        out = (out - share * own) * 2 * sigmoid(linear(x, f"{name}.attn_gate"))[..., None]
        return linear(out.reshape(*x.shape[:2], -1), f"{name}.o_proj")

    def experts(x: np.ndarray, name: str) -> np.ndarray:
        """The best by biased logits, weighed by the sigmoid of the plain ones."""
        scores = x @ weights[f"{name}.router.weight"].T
        order = np.argsort(-(scores + weights[f"{name}.router.bias"]), axis=-1)
        chosen = order[:, : config["num_experts_per_tok"]]
        shares = sigmoid(np.take_along_axis(scores, chosen, axis=-1))
        shares *= ROUTING_SUM / shares.sum(-1, keepdims=True)
        parts = [weights[f"{name}.experts.{part}_proj.weight"] for part in ("gate", "up", "down")]
        out = np.zeros_like(x)
        for number, (gate, up, down) in enumerate(zip(*parts, strict=True)):
            tokens, places = np.nonzero(chosen == number)
            inner = silu(x[tokens] @ gate.T) * (x[tokens] @ up.T)
            out[tokens] += shares[tokens, places, None] * (inner @ down.T)
        return out

    hidden = weights["model.embed_tokens.weight"][ids]
    hidden = norm(hidden, "model.embed_norm", "model.embed_gated_norm")
    for number in range(num_layers):
        layer = f"model.layers.{number}"
        x = norm(hidden, f"{layer}.input_layernorm", f"{layer}.attn_gated_norm")
        is_long = number % 4 == 3 or number == num_layers - 1
        hidden = hidden + mixed(x, f"{layer}.self_attn", is_long)
        x = norm(hidden, f"{layer}.post_attention_layernorm", f"{layer}.mlp_gated_norm")
        shared = f"{layer}.shared_expert"
        inner = silu(linear(x, f"{shared}.gate_proj")) * linear(x, f"{shared}.up_proj")
        routed = experts(x.reshape(-1, x.shape[-1]), f"{layer}.mlp").reshape(x.shape)
        hidden = hidden + routed + linear(inner, f"{shared}.down_proj")
    return linear(norm(hidden, "model.norm", "model.final_gated_norm"), "lm_head")
