"""Snowball with the expert capacity factor as a field; Levanter pins it to a module constant."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import equinox as eqx
import haliax as hax
from haliax import Axis
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard
from levanter.grug.attention import AttentionMask
from levanter.models.snowball import (
    _BATCH_AXES,
    SnowballConfig,
    SnowballLMHeadModel,
    _context_axis,
)
from neve import storage

from neve_train.errors import TrainInputError

__all__ = ["NeveSnowballConfig", "NeveSnowballLMHeadModel", "read_model_config"]


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
        """Returns the hidden states; Levanter's own model passes over the mask's segments."""
        segments = getattr(attn_mask, "segment_ids", None)
        if segments is None or not cast("NeveSnowballConfig", self.config).uses_segments:
            return super().activations(input_ids, attn_mask, key=key, pos_ids=pos_ids)
        queries = segments[0] if isinstance(segments, tuple) else segments
        position = input_ids.resolve_axis(self.Pos.name)
        ids = queries.array.reshape(-1, position.size)
        ids = reshard(ids, P(_BATCH_AXES, _context_axis()))
        tokens = input_ids.array.reshape(-1, position.size)
        mask = AttentionMask.causal().with_segment_ids(ids)
        hidden = self.transformer(tokens, mask)
        return hax.named(
            hidden.reshape(*input_ids.array.shape, self.Embed.size), (*input_ids.axes, self.Embed)
        )

    def resize_vocab(self, new_size: int, key: Any = None) -> NeveSnowballLMHeadModel:
        """Returns the model with another number of embeddings."""
        return _adopt(super().resize_vocab(new_size, key=key))

    def from_state_dict(
        self, state_dict: Any, prefix: str | None = None
    ) -> NeveSnowballLMHeadModel:
        """Returns the model with the weights of a Hugging Face state dict."""
        return _adopt(super().from_state_dict(state_dict, prefix=prefix))


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


def read_model_config(
    folder: str, capacity_factor: float = 1.25, uses_segments: bool = False
) -> NeveSnowballConfig:
    """Returns the config of a Hugging Face folder.

    Raises:
        TrainInputError: No config.json, or not a Snowball that this version knows.
    """
    from levanter.models.snowball import GrugMoeHfConfig

    path = storage.join(folder, "config.json")
    if not storage.exists(path):
        raise TrainInputError(
            f"model {folder}: must hold config.json, got none. Pass a Hugging Face folder."
        )
    values = storage.read_json(path)
    if values.get("model_type") != GrugMoeHfConfig.model_type:
        raise TrainInputError(
            f"model {folder}: model_type must be {GrugMoeHfConfig.model_type}, got "
            f"{values.get('model_type')!r}. Pass a Snowball."
        )
    try:
        hf_config = GrugMoeHfConfig(**values)
        config = cast("NeveSnowballConfig", NeveSnowballConfig.from_hf_config(hf_config))
    except ValueError as error:
        raise TrainInputError(f"model {folder}: {error}") from error
    return dataclasses.replace(config, capacity_factor=capacity_factor, uses_segments=uses_segments)
