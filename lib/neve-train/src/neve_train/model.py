"""Levanter's Snowball, with masks, padding and the capacity of experts taken seriously."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import equinox as eqx
import haliax as hax
import jax
import jax.numpy as jnp
from haliax import Axis
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard
from levanter.grug.attention import AttentionMask
from levanter.models.snowball import (
    _BATCH_AXES,
    SnowballConfig,
    SnowballLMHeadModel,
    SnowballTransformer,
    _context_axis,
    _token_spec,
)

__all__ = ["NeveSnowballConfig", "NeveSnowballLMHeadModel"]


@dataclasses.dataclass(frozen=True)
class NeveSnowballConfig(SnowballConfig):
    """Levanter's config with the one choice that it has as a constant."""

    capacity_factor: float = 1.25
    """Rows that an expert shard accepts over its even share; more are dropped."""

    uses_segments: bool = False
    """Whether a conversation attends to itself alone, as rows that hold several need."""

    @property
    def model_type(self) -> type[NeveSnowballLMHeadModel]:
        """The model class that honors capacity_factor."""
        return NeveSnowballLMHeadModel


class NeveSnowballLMHeadModel(SnowballLMHeadModel):
    """Levanter's model; every place that builds one keeps this class and the capacity factor."""

    @classmethod
    def init(cls, Vocab: Axis, config: SnowballConfig, *, key: Any) -> NeveSnowballLMHeadModel:
        """Returns a fresh model."""
        model = SnowballLMHeadModel.init(Vocab, config, key=key)
        return _adopt(model)

    def activations(
        self, input_ids: Any, attn_mask: Any = None, *, key: Any = None, pos_ids: Any = None
    ) -> Any:
        """Returns the hidden states; padding and, where uses_segments, other conversations are unseen."""
        return self.activations_with_facts(input_ids, attn_mask, key=key, pos_ids=pos_ids)[0]

    def activations_with_facts(
        self, input_ids: Any, attn_mask: Any = None, *, key: Any = None, pos_ids: Any = None
    ) -> tuple[Any, dict[str, jax.Array]]:
        """Returns the hidden states and counts of assignments of tokens to experts.

        Positions of segment -1 are padding: they take no expert's capacity and count nowhere.
        Levanter's own model passes over the mask altogether.

        Returns:
            hidden: NamedArray[..., position, embed].
            facts: assignments (real tokens x experts per token x layers) and dropped_assignments
                (those beyond an expert shard's capacity), f32 scalars over all devices: int32 would
                overflow at some 10 M tokens, f32 rounds from 16 M assignments on.
        """
        del key, pos_ids  # no dropout, and positions are those of the row
        config = cast("NeveSnowballConfig", self.config)
        tokens = _rows(input_ids)
        mask = AttentionMask.causal()
        segments = getattr(attn_mask, "segment_ids", None)
        if segments is None:
            real = jnp.ones_like(tokens, dtype=jnp.bool_)
        else:
            ids = _rows(segments[0] if isinstance(segments, tuple) else segments)
            real = ids >= 0
            if config.uses_segments:
                mask = mask.with_segment_ids(ids)
        flat = jnp.reshape(real, (real.size,), out_sharding=_token_spec())
        transformer: Any = _counting(self.transformer, flat)
        hidden, dropped = transformer(tokens, mask)
        per_token = config.num_experts_per_token * config.num_layers
        facts = {
            "assignments": jnp.sum(flat, dtype=jnp.int32).astype(jnp.float32) * per_token,
            "dropped_assignments": dropped,
        }
        shape = (*input_ids.array.shape, self.Embed.size)
        return hax.named(hidden.reshape(shape), (*input_ids.axes, self.Embed)), facts

    def get_lm_head(self) -> Any:
        """Returns the output weights, whole on each device.

        Levanter's own splits the vocabulary over model, and its fused loss would then take the softmax
        over each part alone.
        """
        weights = reshard(self.transformer.output_proj, P(None, None))
        return hax.named(weights, (self.Embed, self.Vocab))

    def resize_vocab(self, new_size: int, key: Any = None) -> NeveSnowballLMHeadModel:
        """Returns the model with another number of embeddings."""
        return _adopt(super().resize_vocab(new_size, key=key))

    def from_state_dict(
        self, state_dict: Any, prefix: str | None = None
    ) -> NeveSnowballLMHeadModel:
        """Returns the model with the weights of a Hugging Face state dict."""
        return _adopt(super().from_state_dict(state_dict, prefix=prefix))


def _counting(transformer: SnowballTransformer, token_valid: jax.Array) -> SnowballTransformer:
    """Returns a transformer for one call, which returns (hidden states, dropped assignments).

    The count, an f32 scalar over layers and devices, travels beside the hidden states through
    Levanter's own forward pass and scan; the parts that meet it are wrapped, none is rewritten.

    Args:
        transformer: The model's; it stays as it is.
        token_valid: bool[batch * position], sharded as the tokens; False: no expert serves the
            token, and it counts neither for capacity nor as dropped.
    """
    blocks = tuple(_CountingBlock(block, token_valid) for block in transformer.blocks)
    return dataclasses.replace(
        transformer,
        embed_gated_norm=_StartCount(transformer.embed_gated_norm),
        blocks=blocks,
        final_norm=_KeepCount(transformer.final_norm),
        final_gated_norm=_KeepCount(transformer.final_gated_norm),
    )


class _StartCount(eqx.Module):
    inner: Any

    def __call__(self, hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self.inner(hidden), jnp.zeros((), jnp.float32)


class _KeepCount(eqx.Module):
    inner: Any

    def __call__(self, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        hidden, dropped = carried
        return self.inner(hidden), dropped


class _CountingBlock(eqx.Module):
    inner: Any
    token_valid: jax.Array  # a leaf, as the scan over layers stacks leaves

    def __call__(
        self, carried: tuple[jax.Array, jax.Array], *args: Any
    ) -> tuple[jax.Array, jax.Array]:
        hidden, dropped = carried
        mlp, counts = self.inner.mlp, []

        def experts(*inputs: Any, **options: Any) -> jax.Array:
            options |= {"token_valid": self.token_valid, "report_capacity_overflow": True}
            output, omitted = mlp.expert_mlp(*inputs, **options)
            counts.append(omitted.dropped)
            return output

        counted = dataclasses.replace(mlp, expert_mlp=experts)
        hidden = dataclasses.replace(self.inner, mlp=counted)(hidden, *args)
        return hidden, dropped + sum(counts)


def _rows(values: Any) -> jax.Array:
    """Returns [..., position] as [row, position], laid out as Snowball lays out its tokens."""
    array = values.array
    return reshard(array.reshape(-1, array.shape[-1]), P(_BATCH_AXES, _context_axis()))


def _adopt(model: SnowballLMHeadModel) -> NeveSnowballLMHeadModel:
    factor = cast("NeveSnowballConfig", model.config).capacity_factor
    experts = [
        dataclasses.replace(block.mlp.expert_mlp, capacity_factor=factor)
        for block in model.transformer.blocks
    ]
    transformer = eqx.tree_at(
        lambda tree: [block.mlp.expert_mlp for block in tree.blocks], model.transformer, experts
    )
    return NeveSnowballLMHeadModel(transformer, model.config)
