"""How much memory a train step takes on each device, and how much it computes: arithmetic, no jax.

The state (weights, optimizer) is counted from the shape and sharding of every array. The rest is
estimated for attention that never holds a score matrix, as the kernels of accelerators do:

- the copy of the weights in the compute type, which a model with one module per layer also stacks,
- gradients, in the compute type as the layers produce them and in the parameters' type for the update,
- hidden states between layers, kept for the backward pass, which computes each layer again,
- the values of one layer and of its backward pass, with the buffers of its experts,
- a tile of logits with its gradient.

Three moments can be the fullest: the loss, the backward pass of a layer, the update.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

__all__ = ["ArrayLeaf", "Memory", "ModelShape", "Workload", "estimate", "flops_per_token"]

LOSS_TILE_ROWS = 8192
"""Positions whose logits over the whole vocabulary exist at once, at most: Levanter's tile on a GPU."""

_F32 = 4
_GATED_NORM_VALUES = 3  # normalized, gate, product


@dataclass(frozen=True, kw_only=True)
class ArrayLeaf:
    """One array of the training state."""

    part: str
    """weights or optimizer."""
    is_layer: bool
    """Whether it belongs to the repeated layers, rather than to embeddings and head."""
    is_trained: bool = True
    """Whether it gets a gradient."""
    shape: tuple[int, ...]
    """Global shape."""
    itemsize: int
    """Bytes of one element."""
    axes: tuple[tuple[str, ...], ...]
    """Mesh axes that split each dimension."""

    @property
    def size(self) -> int:
        """Elements of the whole array."""
        return math.prod(self.shape)

    def size_on_device(self, sizes: Mapping[str, int]) -> int:
        """Elements of the part that one device holds, on a mesh with these axis sizes."""
        return math.prod(
            -(-length // math.prod(sizes.get(axis, 1) for axis in axes))
            for length, axes in zip(self.shape, self.axes, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The numbers of a decoder that memory and speed depend on."""

    hidden_size: int
    """Width of the residual stream."""
    num_layers: int
    """Layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads."""
    head_size: int
    """Width of one head."""
    mlp_size: int
    """Inner width of the dense MLP or of the shared expert; 0: none."""
    num_experts: int = 0
    """Routed experts of a layer; 0: none."""
    num_experts_per_token: int = 0
    """Routed experts that see each token."""
    expert_size: int = 0
    """Inner width of a routed expert."""
    vocab_size: int
    """Rows of the embedding."""
    has_tied_embeddings: bool = False
    """Whether the head is the embedding."""
    max_seq_len: int
    """Longest row, tokens."""
    window: int = 0
    """Positions that a windowed layer looks back; 0: every layer sees the whole row."""
    num_full_layers: int
    """Layers that see the whole row."""
    stacks_layers: bool
    """Whether each train step copies the layers' weights into a stack to scan over."""
    num_attention_branches: int = 1
    """Kinds of attention that a layer chooses from as it runs: jax keeps the values of each."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a train step is given."""

    sizes: Mapping[str, int]
    """Mesh axis sizes."""
    seq_len: int
    """Positions of a row."""
    batch_size: int
    """Rows of a train step over all devices."""
    per_device_batch_size: int | None = None
    """Rows of a device and microbatch; None: its whole share."""
    compute_itemsize: int = 2
    """Bytes of an activation."""
    capacity_factor: float = 1.25
    """Rows that an expert shard accepts over its even share."""
    score_block: int | None = 0
    """Edge of the square of attention scores that exists at once; 0: in registers; None: all of them."""
    loss_tile_vocab: int | None = None
    """Columns of the logits that exist at once; None: the whole vocabulary."""

    @property
    def rows(self) -> int:
        """Rows of a device and microbatch."""
        share = self.batch_size // (self.sizes.get("data", 1) * self.sizes.get("expert", 1))
        return min(self.per_device_batch_size or share, share)

    @property
    def num_microbatches(self) -> int:
        """Microbatches of a train step."""
        parts = self.sizes.get("data", 1) * self.sizes.get("expert", 1)
        return self.batch_size // (parts * self.rows)

    @property
    def num_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.sizes.values())


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on each device."""

    weights: int
    """Parameters."""
    optimizer: int
    """Moments of the optimizer."""
    gradients: int
    """Gradients in the parameters' type: for the update, and while microbatches add to them."""
    compute_copy: int
    """Weights in the compute type, stacked over the layers."""
    layer_gradients: int
    """Gradients in the compute type, as the backward pass leaves them."""
    hidden_states: int
    """Inputs of all layers, kept for the backward pass."""
    layer: int
    """Values of one layer and of its backward pass."""
    loss: int
    """Logits, their gradient, and the head with its gradient."""
    num_microbatches: int
    """Microbatches, which need accumulated gradients if more than one."""

    @property
    def state(self) -> int:
        """What is there all the time."""
        return self.weights + self.optimizer

    @property
    def moments(self) -> dict[str, int]:
        """Bytes beyond the state at the moments that can be the fullest."""
        kept = self.compute_copy + self.hidden_states
        accumulated = self.gradients if self.num_microbatches > 1 else 0
        return {
            "loss": kept + self.loss + accumulated,
            "backward pass of a layer": kept + self.layer_gradients + self.layer + accumulated,
            "update": self.layer_gradients + self.gradients,
        }

    @property
    def fullest(self) -> str:
        """Name of the moment with the most memory."""
        return max(self.moments, key=lambda name: self.moments[name])

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment, state included."""
        return self.state + self.moments[self.fullest]

    def to_dict(self) -> dict[str, int | str]:
        """Returns every part, the peak and the moment of it."""
        parts = dataclasses.asdict(self)
        del parts["num_microbatches"]
        return {**parts, "peak": self.peak, "fullest_moment": self.fullest}


def estimate(leaves: Iterable[ArrayLeaf], shape: ModelShape, work: Workload) -> Memory:
    """Returns the memory of a train step on each device."""
    sizes, compute = work.sizes, work.compute_itemsize
    on_device = {"weights": 0, "optimizer": 0}
    gradients, trained, copied = 0, 0, 0
    for leaf in leaves:
        size = leaf.size_on_device(sizes)
        on_device[leaf.part] += size * leaf.itemsize
        if leaf.part == "weights":
            gradients += size * leaf.itemsize if leaf.is_trained else 0
            trained += size if leaf.is_trained else 0
            is_stacked = leaf.is_layer and shape.stacks_layers
            copied += size if is_stacked or leaf.itemsize != compute else 0
    tokens = work.rows * work.seq_len // sizes.get("context", 1)
    return Memory(
        weights=on_device["weights"],
        optimizer=on_device["optimizer"],
        gradients=gradients,
        compute_copy=compute * copied,
        layer_gradients=compute * trained,
        hidden_states=compute * tokens * shape.hidden_size * shape.num_layers,
        layer=_layer(shape, work, tokens),
        loss=_loss(shape, work, tokens),
        num_microbatches=work.num_microbatches,
    )


def _layer(shape: ModelShape, work: Workload, tokens: int) -> int:
    """Returns the bytes of a layer's values, and of the larger of its two backward halves."""
    compute, hidden = work.compute_itemsize, shape.hidden_size
    split = work.sizes.get("model", 1)
    keys = work.rows * work.seq_len  # each device sees the keys of whole rows
    query_width = shape.num_heads * shape.head_size // split
    key_width = max(1, shape.num_kv_heads * shape.head_size // split)

    attention = 6 * query_width + 3 * key_width  # before and after norms, gates and the kernel
    attention = tokens * (shape.num_attention_branches * attention + _GATED_NORM_VALUES * hidden)
    attention += 2 * keys * key_width
    attention_back = tokens * (2 * query_width * compute + query_width * _F32)
    attention_back += 2 * keys * key_width * _F32
    block = work.seq_len if work.score_block is None else min(work.score_block, work.seq_len)
    block_rows = block if work.score_block else tokens // work.rows
    scores = work.rows * shape.num_heads * block * block_rows * _F32 // split
    attention_back += 4 * scores  # scores and probabilities, and their gradients

    mlp = tokens * ((_GATED_NORM_VALUES + 1) * hidden + 3 * shape.mlp_size // split)
    mlp_back = compute * tokens * (hidden + 3 * shape.mlp_size // split)
    experts, experts_back = _experts(shape, work, tokens)
    weights = compute * _gathered_weights(shape, work)
    forward = compute * (attention + mlp + tokens * hidden) + experts + weights
    return forward + max(attention_back, mlp_back + experts_back) + weights


def _experts(shape: ModelShape, work: Workload, tokens: int) -> tuple[int, int]:
    """Returns the bytes of routed values, forward and backward."""
    if not shape.num_experts:
        return 0, 0
    compute, hidden, inner = work.compute_itemsize, shape.hidden_size, shape.expert_size
    shards, topk = work.sizes.get("expert", 1), shape.num_experts_per_token
    gathered = tokens * shards  # every shard sees the tokens of its ring
    accepted = gathered * topk
    if shards > 1:
        accepted = min(accepted, math.ceil(work.capacity_factor * accepted / shards))
    routing = 3 * tokens * shape.num_experts * _F32 + 4 * gathered * topk * _F32
    rows = compute * accepted * (2 * hidden + 3 * inner)
    combined = gathered * hidden * (_F32 + compute)
    return routing + rows + combined, rows + combined


def _gathered_weights(shape: ModelShape, work: Workload) -> int:
    """Returns the elements of one layer's matrices as they are multiplied with, all in one place."""
    split = work.sizes.get("model", 1)
    heads = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size
    dense = shape.hidden_size * (heads + 3 * shape.mlp_size)
    routed = 3 * shape.hidden_size * shape.expert_size * shape.num_experts
    return (dense + routed // work.sizes.get("expert", 1)) // split


def _loss(shape: ModelShape, work: Workload, tokens: int) -> int:
    """Returns the bytes of a tile of logits with its gradient, and of the whole head with its own."""
    columns = min(work.loss_tile_vocab or shape.vocab_size, shape.vocab_size)
    tile = min(tokens, LOSS_TILE_ROWS) * columns * _F32
    head = shape.hidden_size * shape.vocab_size * work.compute_itemsize
    hidden = tokens * shape.hidden_size * work.compute_itemsize
    return 2 * tile + 2 * head + 2 * hidden


def flops_per_token(shape: ModelShape, num_parameters: int, seq_len: int) -> tuple[int, float]:
    """Returns the parameters that multiply with each token, and the FLOPs of training on one.

    6 FLOPs for each of those parameters (the input embedding is a lookup, of the routed experts
    only the chosen ones count), and 12 * heads * head_size for each pair of a token and one that it
    attends to in each layer, in a row that one conversation fills. What the backward pass computes
    again isn't counted.
    """
    idle = shape.num_experts - shape.num_experts_per_token
    active = num_parameters - shape.num_layers * idle * 3 * shape.hidden_size * shape.expert_size
    if not shape.has_tied_embeddings:
        active -= shape.vocab_size * shape.hidden_size
    window = min(seq_len, shape.window)
    full = (seq_len + 1) / 2
    windowed = (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len
    num_windowed = shape.num_layers - shape.num_full_layers
    pairs = shape.num_full_layers * full + num_windowed * windowed
    return active, 6.0 * active + 12.0 * shape.num_heads * shape.head_size * pairs
