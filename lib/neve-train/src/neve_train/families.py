"""Model families: what a config.json means in Levanter, and what a mesh may split of such a model.

The table is read to plan and to check a mesh, so that Levanter is only imported by the functions that
need it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_train.errors import TrainInputError
from neve_train.mesh import AXES, ModelSplit

__all__ = ["FAMILIES", "Family", "family_of", "hf_converter", "model_split", "read_model_config"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """What differs between kinds of models; segment ids reach the attention of each of them."""

    module: str
    """Module below levanter.models."""
    config: str
    """Name of the config class in that module."""
    mesh_axes: tuple[str, ...] = ("data", "model")
    """Mesh axes that may be above 1: data splits the batch, model the weight matrices."""
    split: Mapping[tuple[str, ...], tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {
            ("data",): ("hidden_size",),
            ("model",): ("vocab_size", "num_attention_heads", "intermediate_size"),
        }
    )
    """By axes: what of a config.json they split, which must be in equal parts."""
    takes_adapters: bool = True
    """Whether its linear layers are haliax's, which low-rank adapters can be put on."""
    has_windows: bool = False
    """Whether sliding-window attention is carried out as config.json asks for it."""
    refused: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values of a config.json that Levanter's config takes, and its model computes otherwise."""


FAMILIES: dict[str, Family] = {
    "grug_moe": Family(
        module="snowball",
        config="SnowballConfig",
        mesh_axes=AXES,
        split={
            ("data", "context"): ("hidden_size",),
            ("expert",): ("num_experts",),
            ("model",): (
                "vocab_size",
                "num_attention_heads",
                "num_key_value_heads",
                "moe_intermediate_size",
                "shared_expert_intermediate_size",
            ),
        },
        takes_adapters=False,
        has_windows=True,
    ),
    "llama": Family(module="llama", config="LlamaConfig"),
    "mistral": Family(module="mistral", config="MistralConfig"),
    "olmo2": Family(module="olmo", config="Olmo2Config"),
    "olmo3": Family(module="olmo3", config="Olmo3Config", has_windows=True),
    "qwen2": Family(module="qwen", config="QwenConfig"),
    "qwen3": Family(module="qwen", config="Qwen3Config", refused={"attention_bias": True}),
    "qwen3_moe": Family(
        module="qwen3_moe",
        config="Qwen3MoeConfig",
        split={
            ("data",): ("hidden_size",),
            ("model",): ("vocab_size", "num_attention_heads", "moe_intermediate_size"),
        },
        refused={"attention_bias": True},
    ),
}
"""Families by the model_type of their config.json; grug_moe is Snowball."""

_LEFT_OUT = {
    "apertus": "would train the constants of its activation",
    "gemma": "can't read its rotary parameters",
    "gemma2": "computes another attention than its windows ask for",
    "gemma3": "computes another attention than its windows and rotary parameters ask for",
    "gemma3_text": "computes another attention than its windows and rotary parameters ask for",
    "mixtral": "writes its experts under names that nothing else reads",
}
"""What Levanter of this version does with other models that it has."""

_WITHOUT_EFFECT = frozenset(
    (
        "_name_or_path",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "initializer_range",
        "max_window_layers",
        "no_bias",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "router_jitter_noise",
        "use_cache",
    )
)
"""Values of a config.json that change nothing in what the model computes."""


def family_of(folder: str) -> Family:
    """Returns the family of a Hugging Face folder.

    Raises:
        TrainInputError: No config.json, or a model_type that isn't in FAMILIES.
    """
    return _family(folder, _read_config(folder))


def model_split(folder: str) -> ModelSplit:
    """Returns over which axes the model of a Hugging Face folder can be split.

    Raises:
        TrainInputError: No config.json, or a model_type that isn't in FAMILIES.
    """
    values = _read_config(folder)
    family = _family(folder, values)
    return ModelSplit(
        axes=family.mesh_axes,
        sizes={
            axes: {name: values[name] for name in names if isinstance(values.get(name), int)}
            for axes, names in family.split.items()
        },
    )


def read_model_config(
    folder: str, capacity_factor: float = 1.25, uses_segments: bool = False
) -> Any:
    """Returns Levanter's config of a Hugging Face folder, with vocab_size whatever the family.

    Args:
        folder: Folder with config.json.
        capacity_factor: Rows that an expert shard of a Snowball accepts over its even share.
        uses_segments: Whether rows hold several conversations; all families but Snowball honor the
            segments of a row anyway.

    Raises:
        TrainInputError: No config.json, an unknown model_type, or one that asks for what Levanter's
            model of that family doesn't compute.
    """
    from huggingface_hub.errors import StrictDataclassError  # heavy

    values = _read_config(folder)
    family = _family(folder, values)
    try:
        if family.config == "SnowballConfig":
            return _snowball_config(values, capacity_factor, uses_segments)
        return _plain_config(folder, values, family)
    except TrainInputError:
        raise
    except (  # what Levanter's config classes raise for values that they don't know
        ValueError,
        NotImplementedError,
        AssertionError,
        KeyError,
        AttributeError,
        StrictDataclassError,
    ) as error:
        raise TrainInputError(
            f"model {folder}: config.json must be one that Levanter's {family.config} reads, got "
            f"{error or type(error).__name__}. Use another model."
        ) from error


def hf_converter(config: Any, tokenizer: Any, folder: str | None = None) -> Any:
    """Returns Levanter's converter between this config's models and Hugging Face folders.

    Made without the hub and without code from the folder, which the configs' own converters ask for.

    Args:
        config: Config with vocab_size.
        tokenizer: A loaded tokenizer.
        folder: Folder to read from, if any.
    """
    from levanter.compat.hf_checkpoints import HFCheckpointConverter, RepoRef

    return HFCheckpointConverter(
        type(config),
        reference_checkpoint=None if folder is None else RepoRef(folder),
        HfConfigClass=type(config.to_hf_config(config.vocab_size)),
        tokenizer=tokenizer,
    )


def _read_config(folder: str) -> dict[str, Any]:
    path = storage.join(folder, "config.json")
    if not storage.exists(path):
        raise TrainInputError(
            f"model {folder}: must hold config.json, got none. Pass a Hugging Face folder."
        )
    return storage.read_json(path)


def _family(folder: str, values: Mapping[str, Any]) -> Family:
    kind = values.get("model_type")
    if kind not in FAMILIES:
        why = f", which Levanter has but {_LEFT_OUT[kind]}" if kind in _LEFT_OUT else ""
        raise TrainInputError(
            f"model {folder}: model_type must be one of {', '.join(sorted(FAMILIES))}, got {kind!r}{why}. "
            "Use a model of one of these families."
        )
    return FAMILIES[kind]


def _snowball_config(values: dict[str, Any], capacity_factor: float, uses_segments: bool) -> Any:
    from levanter.models.snowball import GrugMoeHfConfig

    from neve_train.model import NeveSnowballConfig

    config = NeveSnowballConfig.from_hf_config(GrugMoeHfConfig(**values))
    return dataclasses.replace(
        config,  # pyright: ignore[reportArgumentType]  from_hf_config is typed as its parent's
        capacity_factor=capacity_factor,
        uses_segments=uses_segments,
    )


def _plain_config(folder: str, values: Mapping[str, Any], family: Family) -> Any:
    from transformers import AutoConfig

    kind = getattr(importlib.import_module(f"levanter.models.{family.module}"), family.config)
    ours = None
    if family.config == "Olmo3Config":
        from neve_train.olmo3 import NeveOlmo3Config, with_one_rope

        ours, values = NeveOlmo3Config, with_one_rope(values)
    known = {name: value for name, value in values.items() if name != "model_type"}
    wanted = AutoConfig.for_model(values["model_type"], **known)
    config = kind.from_hf_config(wanted)
    _check_faithful(folder, family, wanted, config.to_hf_config(wanted.vocab_size))
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return _sized(ours or type(config))(**fields, vocab_size=wanted.vocab_size)


@functools.cache
def _sized(kind: type) -> type:
    """Returns a config class with the one number that only Snowball's config has."""
    fields: Any = [("vocab_size", int, dataclasses.field(default=0))]
    return dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)


def _check_faithful(folder: str, family: Family, wanted: Any, carried_out: Any) -> None:
    """Refuses a config.json that Levanter would read, and then compute something else."""
    from transformers import PretrainedConfig

    ignored = {*PretrainedConfig().to_dict(), *_WITHOUT_EFFECT} - {"tie_word_embeddings"}
    asked, given = _shaping(wanted, ignored), _shaping(carried_out, ignored)
    lost = [name for name in asked if name in given and asked[name] != given[name]]
    lost += [name for name, value in family.refused.items() if asked.get(name) == value]
    if asked.get("head_dim") and "head_dim" not in given:
        is_implied = asked["head_dim"] * asked["num_attention_heads"] == asked["hidden_size"]
        lost += [] if is_implied else ["head_dim"]
    windows = "sliding_attention" in (asked.get("layer_types") or ())
    if not family.has_windows and (
        windows or (asked.get("sliding_window") and "layer_types" not in asked)
    ):
        lost = [*(name for name in lost if name != "layer_types"), "sliding_window"]
    if lost:
        got = ", ".join(f"{name}={asked[name]!r}" for name in sorted(set(lost)))
        raise TrainInputError(
            f"model {folder}: must ask for nothing that Levanter's {family.config} doesn't carry out, got "
            f"{got}. Use another model."
        )


def _shaping(config: Any, ignored: set[str]) -> dict[str, Any]:
    values = {name: value for name, value in config.to_dict().items() if name not in ignored}
    if isinstance(rope := values.get("rope_parameters"), dict):
        values["rope_parameters"] = _rope(rope)
    return values


def _rope(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the rotary parameters without those that say what holds anyway."""
    default = 0.1 * math.log(values.get("factor") or 1.0) + 1.0  # of YaRN's attention
    implied = {"attention_factor": default, "mscale": 1.0}
    if values.get("rope_type") == "yarn":
        implied |= {"beta_fast": 32.0, "beta_slow": 1.0}
    return {
        name: value
        for name, value in values.items()
        if not (name in implied and math.isclose(value or implied[name], implied[name]))
    }
