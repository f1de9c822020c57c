"""The mixture's plan and the token caches it points into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from neve import storage
from neve_chat.cache_ledger import split_path
from neve_chat.cache_reader import CacheReader
from neve_chat.row_plan import RowPlan

from neve_train.config import TrainSftConfig
from neve_train.errors import TrainInputError
from neve_train.planned_rows import PlannedRows, check_plan

if TYPE_CHECKING:
    from haliax import Axis

__all__ = ["TrainingData", "read_data", "read_plan"]

PLAN_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class TrainingData:
    """Rows to train on and rows to measure on, in the plan's order."""

    train: PlannedRows
    """num_train_steps * batch_size rows."""
    validation: list[tuple[PlannedRows, list[str]]]
    """Held-out rows and name of each data set that has any."""


def read_plan(config: TrainSftConfig) -> dict[str, Any]:
    """Returns plan.json of mix_datasets.

    Raises:
        TrainInputError: It was made for another batch, length or number of data sets.
    """
    path = storage.join(str(config.plan), "plan.json")
    if not storage.exists(path):
        raise TrainInputError(
            f"mixture {config.plan}: must hold plan.json, got none. Mix the data sets first."
        )
    plan = storage.read_json(path)
    if plan.get("format") != PLAN_FORMAT:
        raise TrainInputError(
            f"mixture {config.plan}: plan.json must have format {PLAN_FORMAT}, got "
            f"{plan.get('format')!r}. Mix the data sets again."
        )
    wanted = [(name, getattr(config, name), plan[name]) for name in ("seq_len", "batch_size")]
    wanted.append(("number of caches", len(config.caches), len(plan["sources"])))
    for name, value, planned in wanted:
        if value != planned:
            raise TrainInputError(
                f"training: {name} must be the one of the mixture {config.plan}, got {value} and "
                f"{planned} there. Mix the data sets again."
            )
    return plan


def read_data(config: TrainSftConfig, plan: dict[str, Any], Pos: Axis) -> TrainingData:
    """Returns the planned rows, checked against the caches.

    Raises:
        TrainInputError: The plan doesn't fit the caches.
        ChatInputError: A cache is unfinished or damaged, or the plan's arrays are.
    """
    train = _planned(config, "train", Pos)
    wanted = plan["num_train_steps"] * config.batch_size
    if train.plan.num_rows != wanted:
        raise TrainInputError(
            f"mixture {config.plan}: train must hold {wanted:,} rows for {plan['num_train_steps']:,} "
            f"train steps, got {train.plan.num_rows:,}. Mix the data sets again."
        )
    held_out, sources = _planned(config, "validation", Pos), plan["validation"]["sources"]
    ends = np.cumsum([source["num_rows"] for source in sources]).tolist()
    return TrainingData(
        train=train,
        validation=[
            (
                PlannedRows(
                    held_out.plan.rows(end - source["num_rows"], end), held_out.readers, Pos
                ),
                [plan["sources"][source["source"]]["name"]],
            )
            for source, end in zip(sources, ends, strict=True)
            if source["num_rows"]
        ],
    )


def _planned(config: TrainSftConfig, split: str, Pos: Axis) -> PlannedRows:
    path = storage.join(str(config.plan), split)
    plan = RowPlan.load(path)
    used = set(np.unique(plan.segments["source"]).tolist())
    readers = _readers(config, split, used)
    check_plan(path, plan, readers, config.seq_len)
    return PlannedRows(plan, readers, Pos)


def _readers(config: TrainSftConfig, split: str, used: set[int]) -> list[Any]:
    """Returns a reader per cache; a data set that the plan doesn't use may lack the split."""
    return [
        CacheReader(split_path(str(cache), split)) if index in used else None
        for index, cache in enumerate(config.caches)
    ]
