"""The next-token loss as sums, so that a train step divides once, by all its trained tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import haliax as hax
import jax
import jax.numpy as jnp
from levanter.models.lm_model import split_activations
from levanter.models.loss import maybe_fused_next_token_loss, next_token_loss_weight

__all__ = ["LossSums", "loss_sums"]


class LossSums(NamedTuple):
    """What a part of a train step adds to its loss; parts are added field by field.

    The loss is loss_sum / weight_sum of the whole step, and 0 where weight_sum is 0.
    """

    loss_sum: jax.Array
    """Sum of weight * loss over all positions, f32 scalar."""
    weight_sum: jax.Array
    """Sum of the weights, f32 scalar: the number of trained tokens where weights are 0 and 1."""
    facts: dict[str, jax.Array]
    """Counts that the model reports, int32 scalars; empty if it reports none."""


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
    weight = example.loss_weight.astype(jnp.float32)
    add: Any = hax.sum  # a function where Levanter declares a protocol
    total: Any = maybe_fused_next_token_loss(
        model.Pos,
        model.Embed,
        model.Vocab,
        hidden,
        model.get_lm_head(),
        example.tokens,
        loss_weight=weight,
        reduction=add,
        logsumexp_weight=z_loss or None,
    )
    Pos = example.tokens.resolve_axis(model.Pos.name)
    weight_sum = _scalar(hax.sum(next_token_loss_weight(Pos, weight)))
    return LossSums(_scalar(total) + _scalar(auxiliary) * weight_sum, weight_sum, facts)


def _scalar(value: Any) -> jax.Array:
    return jnp.asarray(value.array if isinstance(value, hax.NamedArray) else value, jnp.float32)
