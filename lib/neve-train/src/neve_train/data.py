"""The mixture's plan and the token caches it points into."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
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

__all__ = ["TrainingData", "read_data", "read_plan", "save_rows"]

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
        TrainInputError: It was made for another batch, length or number of data sets, or a cache
            with another tokenizer.
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
    _check_tokenizer(config)
    return plan


def read_data(config: TrainSftConfig, plan: dict[str, Any], Pos: Axis) -> TrainingData:
    """Returns the planned rows, checked against the caches.

    Raises:
        TrainInputError: The plan doesn't fit the caches.
        ChatInputError: A cache is unfinished or damaged, or the plan's arrays are.
    """
    train = _planned(config, "train", Pos)
    _check_sources(config, plan, train.readers)
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


def save_rows(
    path: str,
    rows: PlannedRows,
    plan: dict[str, Any],
    completed: int,
    batch_size: int,
    values: dict[str, float],
) -> None:
    """Writes the rows of one train step as JSON: where they come from, their tokens and weights.

    Args:
        path: The file.
        rows: Rows of the training.
        plan: plan.json, for the names of the data sets.
        completed: Number of the train step, from 1.
        batch_size: Rows per train step.
        values: Further facts of the step; numbers that aren't finite become text.
    """
    numbers = range((completed - 1) * batch_size, completed * batch_size)
    examples = rows.as_sync_dataset().get_batch(numbers)
    kept = []
    for number, example in zip(numbers, examples, strict=True):
        segments = [
            {
                "dataset": plan["sources"][int(segment["source"])]["name"],
                "cache_row": int(segment["row"]),
                "start": int(segment["start"]),
                "num_tokens": int(segment["length"]),
            }
            for segment in rows.plan.row(number)
        ]
        size = sum(segment["num_tokens"] for segment in segments)
        kept.append(
            {
                "row": number,
                "conversations": segments,
                "token_ids": example.tokens.array[:size].tolist(),
                "loss_weights": example.loss_weight.array[:size].tolist(),
            }
        )
    facts = {name: value if math.isfinite(value) else str(value) for name, value in values.items()}
    storage.write_json(path, {"train_step": completed, "values": facts, "rows": kept})


def _check_tokenizer(config: TrainSftConfig) -> None:
    """Refuses token ids of another tokenizer, as far as the caches tell theirs."""
    digests: dict[str, str] = {}
    for cache in config.caches:
        path = storage.join(str(cache), "stats.json")
        noted = storage.read_json(path).get("tokenizer_digest") if storage.exists(path) else None
        if noted is None:
            continue
        file = storage.join(str(config.tokenizer), "tokenizer.json")
        if file not in digests:
            digests[file] = hashlib.sha256(storage.read_bytes(file)).hexdigest()
        if digests[file] != noted:
            raise TrainInputError(
                f"training: the tokenizer must be the one of the tokens in {cache}, got sha256 "
                f"{digests[file][:12]} for {noted[:12]} there. Pass that one, or tokenize again."
            )


def _check_sources(config: TrainSftConfig, plan: dict[str, Any], readers: Sequence[Any]) -> None:
    """Refuses caches in another order, or made anew since the rows were planned."""
    for source, cache, reader in zip(plan["sources"], config.caches, readers, strict=True):
        if reader is None:
            continue
        planned = source["conversations"], source["longest"]
        found = len(reader.lengths), int(reader.lengths.max(initial=0))
        if found != planned:
            raise TrainInputError(
                f"mixture {config.plan}: cache {cache} must be the one of data set {source['name']!r}, "
                f"with {planned[0]:,} rows of up to {planned[1]:,} tokens, got {found[0]:,} of up to "
                f"{found[1]:,}. Put the caches in the plan's order, or mix the data sets again."
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
