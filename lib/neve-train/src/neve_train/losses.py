"""The next-token loss as sums, so that a train step divides once, by all its trained tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import haliax as hax
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard
from levanter.models.lm_model import split_activations
from levanter.models.loss import (
    fused_cross_entropy_loss_and_logsumexp_penalty,
    next_token_loss_weight,
)
from levanter.sharding import partition_spec_of

__all__ = ["LossSums", "loss_sums", "weighted_losses"]


class LossSums(NamedTuple):
    """What a part of a train step adds to its loss; parts are added field by field.

    The loss is loss_sum / weight_sum of the whole step, and 0 where weight_sum is 0.
    """

    loss_sum: jax.Array
    """Sum of weight * loss over all positions, f32 scalar."""
    weight_sum: jax.Array
    """Sum of the weights, f32 scalar: the number of trained tokens where weights are 0 and 1."""
    facts: dict[str, jax.Array]
    """Counts that the model reports, scalars; empty if it reports none."""


def loss_sums(
    model: Any, example: Any, *, z_loss: float = 0.0, key: jax.Array | None = None
) -> LossSums:
    """Returns the sums of one batch or microbatch, over all devices that hold it.

    Both sums use the same weights: Levanter's, in which the last position of a row never counts. A
    model's auxiliary loss, a mean over its batch, counts once per trained token.

    Args:
        model: Any LmHeadModel; one with activations_with_facts also reports counts.
        example: LmExample of the batch, on the current mesh.
        z_loss: Weight of the squared log-partition that is added to each position's loss, 0 or more.
        key: Randomness of dropout; None where the model has none.
    """
    with_facts = getattr(model, "activations_with_facts", None)
    if with_facts is None:
        outputs, facts = model.activations(example.tokens, example.attn_mask, key=key), {}
    else:
        outputs, facts = with_facts(example.tokens, example.attn_mask, key=key)
    hidden, auxiliary = split_activations(outputs)
    weight = _weight(model, example)
    total = _weighted(model, example, hidden, weight, hax.sum, z_loss)
    weight_sum = _scalar(hax.sum(weight))
    return LossSums(_scalar(total) + _scalar(auxiliary) * weight_sum, weight_sum, facts)


def weighted_losses(model: Any, example: Any) -> hax.NamedArray:
    """Returns weight * loss of each position, f32[batch, position], without anything auxiliary.

    Args:
        model: Any LmHeadModel, in inference mode.
        example: LmExample of a batch, on the current mesh.
    """
    hidden, _ = split_activations(model.activations(example.tokens, example.attn_mask))
    return _weighted(model, example, hidden, _weight(model, example), None, 0.0)


def _weight(model: Any, example: Any) -> hax.NamedArray:
    Pos = example.tokens.resolve_axis(model.Pos.name)
    return next_token_loss_weight(Pos, example.loss_weight.astype(jnp.float32))


def _weighted(
    model: Any, example: Any, hidden: Any, weight: hax.NamedArray, reduction: Any, z_loss: float
) -> Any:
    Pos = example.tokens.resolve_axis(model.Pos.name)
    head = model.get_lm_head()
    return fused_cross_entropy_loss_and_logsumexp_penalty(
        hidden,
        head,
        Contract=model.Embed,
        Label=head.resolve_axis(model.Vocab.name),
        target_y=_next_tokens(example.tokens, Pos),
        reduction=reduction,
        reduction_axis=None if reduction else (),
        weight=weight,
        logsumexp_weight=z_loss or None,
        dtype=jnp.float32,
    )


def _next_tokens(tokens: hax.NamedArray, Pos: hax.Axis) -> hax.NamedArray:
    """Returns the token after each position, 0 after the last one, which never counts.

    Levanter rolls the tokens instead; jax can't where one row is all of an explicit mesh.
    """
    index = tokens.axes.index(Pos)
    ids, spec = tokens.array, partition_spec_of(tokens.array) or P()
    is_split = index < len(spec) and spec[index] is not None
    if is_split:
        whole = (None if place == index else name for place, name in enumerate(spec))
        ids = reshard(ids, P(*whole))
    shift = [(-1, 1, 0) if place == index else (0, 0, 0) for place in range(ids.ndim)]
    ids = jax.lax.pad(ids, jnp.zeros((), ids.dtype), shift)
    return hax.named(reshard(ids, spec) if is_split else ids, tokens.axes)


def _scalar(value: Any) -> jax.Array:
    return jnp.asarray(value.array if isinstance(value, hax.NamedArray) else value, jnp.float32)
