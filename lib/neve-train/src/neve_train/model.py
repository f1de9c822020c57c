"""Snowball with the expert capacity factor as a field; Levanter pins it to a module constant."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import equinox as eqx
from haliax import Axis
from levanter.models.snowball import SnowballConfig, SnowballLMHeadModel
from neve import storage

from neve_train.errors import TrainInputError

__all__ = ["NeveSnowballConfig", "NeveSnowballLMHeadModel", "read_model_config"]


@dataclasses.dataclass(frozen=True)
class NeveSnowballConfig(SnowballConfig):
    """Levanter's config with the one choice that it has as a constant."""

    capacity_factor: float = 1.25
    """Rows that an expert shard accepts over its even share; more are dropped."""

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


def read_model_config(folder: str, capacity_factor: float = 1.25) -> NeveSnowballConfig:
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
    return dataclasses.replace(config, capacity_factor=capacity_factor)
