"""Olmo 3 as it was trained: rotary angles are only scaled in the layers that attend to everything."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from levanter.layers.attention import AttentionConfig
from levanter.layers.rotary import DefaultRotaryEmbeddingsConfig
from levanter.models.olmo3 import Olmo3Config

__all__ = ["NeveOlmo3Config", "with_one_rope"]


@dataclasses.dataclass(frozen=True)
class NeveOlmo3Config(Olmo3Config):
    """Levanter's, which would scale them in the layers with a window, too."""

    def attention_config_for_layer(self, layer_idx: int) -> AttentionConfig:
        """Returns the attention of a layer, by its number."""
        config = super().attention_config_for_layer(layer_idx)
        if config.sliding_window is None:
            return config
        theta, _ = self.rope.to_hf_config()
        return dataclasses.replace(config, rope=DefaultRotaryEmbeddingsConfig(theta=theta))


def with_one_rope(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a config.json with the rotary parameters of full attention, where it has those of each kind.

    Only if the layers with a window have the same angles unscaled, as this config computes them; any
    other is left as it is, and so refused.
    """
    kinds = values.get("rope_parameters") or {}
    full, sliding = kinds.get("full_attention"), kinds.get("sliding_attention")
    if not full or not sliding or sliding.get("rope_type", "default") != "default":
        return values
    if full.get("rope_theta") != sliding.get("rope_theta"):
        return values
    return {**values, "rope_parameters": full}
