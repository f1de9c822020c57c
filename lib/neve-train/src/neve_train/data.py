"""Token caches as Levanter's data config."""

from __future__ import annotations

from typing import Any, Literal

from levanter.data.text.datasets import (
    DatasetComponent,
    DatasetComponentBase,
    LmDataConfig,
    UrlDatasetSourceConfig,
)
from levanter.data.text.formats import ChatLmDatasetFormat
from neve import storage

from neve_train.config import TrainSftConfig
from neve_train.errors import TrainInputError

__all__ = ["data_config", "num_train_steps", "read_plan"]

_SLICES: dict[str, Literal["left", "right", "raise", "drop"]] = {
    "drop": "drop",
    "truncate": "left",  # keeps the start
    "error": "raise",
}


def read_plan(config: TrainSftConfig) -> dict[str, Any]:
    """Returns plan.json of mix_datasets.

    Raises:
        TrainInputError: It was made for another batch or length.
    """
    plan = storage.read_json(storage.join(str(config.plan), "plan.json"))
    for name in ("seq_len", "batch_size"):
        if name in plan and plan[name] != getattr(config, name):
            raise TrainInputError(
                f"training: {name} must be the one of the mixture {config.plan}, got "
                f"{getattr(config, name)} and {plan[name]} there. Mix the data sets again."
            )
    if plan["long_conversations"] not in _SLICES:
        raise TrainInputError(
            f"mixture {config.plan}: long_conversations must be one of {', '.join(_SLICES)}, got "
            f"{plan['long_conversations']!r}. Mix the data sets again."
        )
    return plan


_MAX_SEGMENTS = {"separate": 1, "packed": 64}  # conversations per row; 64 is Levanter's own limit


def num_train_steps(config: TrainSftConfig, plan: dict[str, Any]) -> int:
    """Returns the optimizer updates of a run: the config's, else the plan's.

    Raises:
        TrainInputError: Neither says it, or both do and differ.
    """
    chosen, planned = config.num_train_steps, plan.get("num_train_steps")
    amount = planned if chosen is None else chosen
    if amount is None:
        raise TrainInputError(
            "training: num_train_steps must stand in the config or in the mixture's plan, got none. "
            "Set it, or num_train_epochs of the mixture."
        )
    if None not in (chosen, planned) and chosen != planned:
        raise TrainInputError(
            f"training: num_train_steps must be the one of the mixture's plan, got {chosen} and "
            f"{planned} there. Leave one of them None."
        )
    return int(amount)


def data_config(config: TrainSftConfig, plan: dict[str, Any]) -> LmDataConfig:
    """Returns Levanter's config: rows of one or more conversations, in a seeded order.

    The empty URL source makes a missing validation split a skipped one; `source=None` would raise.
    """
    form = ChatLmDatasetFormat(
        chat_template=config.template_text,
        pack=_MAX_SEGMENTS[config.packing],
        slice_strategy=_SLICES[plan["long_conversations"]],
    )
    components: dict[str, DatasetComponentBase] = {
        name: DatasetComponent(
            source=UrlDatasetSourceConfig(),
            cache_dir=str(cache),
            format=form,
            pack=_MAX_SEGMENTS[config.packing],
            tags=[name],
        )
        for name, cache in zip(config.names, config.caches, strict=True)
    }
    return LmDataConfig(
        tokenizer=str(config.tokenizer),
        cache_dir=None,
        auto_build_caches=False,
        shuffle=True,
        components=components,
        train_weights=dict(zip(config.names, config.weights, strict=True)),
    )
