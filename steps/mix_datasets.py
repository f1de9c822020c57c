"""Step: the exact rows of a training, in their order: mixed, cut or dropped, packed, shuffled.

Reads lengths and masks only. Refuses here, before weights are fetched, what training could not do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neve.errors import InputError
from neve_chat.mixture_rules import (
    LONG_CONVERSATIONS,
    MIXINGS,
    PACKINGS,
    check_mixture,
    resolve_mixing,
)

if TYPE_CHECKING:
    from neve_chat.fitting import FittedRows
    from neve_chat.row_plan import PlannedTraining, RowPlan

__all__ = [
    "LONG_CONVERSATIONS",
    "MIXINGS",
    "PACKINGS",
    "MixDatasetsConfig",
    "MixedDataset",
    "check_mixture",
    "mix_datasets",
    "resolve_mixing",
]


@dataclass(frozen=True, kw_only=True)
class MixedDataset:
    """One data set of a mixture."""

    name: str
    """Name in the plan; seeds the order of its rows."""
    cache: Any
    """Token cache with train/ and maybe validation/: a path, or a tokenize_chat step."""
    weight: float | None = None
    """Share (weighted, any scale) or probability (interleave), above 0; None with concat."""
    repeat: float = 1.0
    """Times that an epoch of concat holds each conversation, above 0."""
    max_conversations: int | None = None
    """Conversations that are used at most, 1 or more, the first of a seeded order; None: all."""
    long_conversations: str = "drop"
    """Longer than seq_len: drop, truncate (its end), error, or first_turns, last_turns, windows,
    which the tokenize step has carried out."""


@dataclass(frozen=True, kw_only=True)
class MixDatasetsConfig:
    """Data sets, how they are mixed, and the shape of a batch."""

    datasets: tuple[MixedDataset, ...]
    """Data sets, one or more, of different names."""
    mixing: str | None = None
    """concat, weighted, interleave_under or interleave_over; None: weighted if a data set has a
    weight, else concat."""
    seq_len: int
    """Positions per row, tokens."""
    batch_size: int
    """Rows per train step over all devices, 1 or more."""
    num_train_steps: int | None = None
    """Optimizer updates, 1 or more; this or num_train_epochs."""
    num_train_epochs: float | None = None
    """Epochs, above 0; this or num_train_steps."""
    packing: str = "separate"
    """Conversations per row: separate (one) or packed (best fit, up to 64)."""
    data_seed: int = 0
    """Seed of every order, 0 or more."""
    model_config: Any
    """Folder with the model's config.json and tokenizer.json: a path or a step."""

    def __post_init__(self) -> None:
        check_mixture(
            "mixture",
            names=[dataset.name for dataset in self.datasets],
            mixing=self.mixing,
            weights=[dataset.weight for dataset in self.datasets],
            repeats=[dataset.repeat for dataset in self.datasets],
            max_conversations=[dataset.max_conversations for dataset in self.datasets],
        )
        choices = [("packing", self.packing, PACKINGS)]
        choices += [
            (
                f"long_conversations of {dataset.name!r}",
                dataset.long_conversations,
                LONG_CONVERSATIONS,
            )
            for dataset in self.datasets
        ]
        for field, value, allowed in choices:
            if value not in allowed:
                raise InputError(
                    f"mixture: {field} must be one of {', '.join(allowed)}, got {value!r}. "
                    "Pass one of them."
                )
        _check_amounts(self)


def mix_datasets(config: MixDatasetsConfig, output_path: str) -> dict[str, Any]:
    """The output holds plan.json and the rows of training (train/) and held-out rows (validation/).

    Each folder has segments.npy and row_ends.npy (neve_chat.row_plan); row r of the training is row
    r of train/, train step s takes the batch_size rows from s * batch_size on.

    Returns:
        The content of plan.json: counts per data set, rows, fill, train steps.

    Raises:
        InputError: seq_len or a token id is beyond the model.
        ChatInputError: a cache is unfinished, no row is left of a data set, none of it is drawn, or
            a row is too long for its rule.
    """
    from neve import progress, storage
    from neve_chat.cache_ledger import split_path
    from neve_chat.cache_reader import CacheReader  # lazy like the rest: numpy, tensorstore
    from neve_chat.mixing import MixtureSource
    from neve_chat.mixture_report import mixture_facts, mixture_table, rows_facts
    from neve_chat.row_plan import plan_training

    _check_model(config)
    mixing = resolve_mixing(config.mixing, [dataset.weight for dataset in config.datasets])
    fitted = []
    for dataset in config.datasets:
        reader = CacheReader(split_path(str(dataset.cache), "train"))
        fitted.append(_fit(reader, dataset, config, dataset.name, dataset.max_conversations))
        _check_some_left(dataset, fitted[-1], config.seq_len)
    planned = plan_training(
        [
            MixtureSource(
                name=dataset.name,
                num_rows=len(used.rows),
                weight=dataset.weight,
                repeat=dataset.repeat,
            )
            for dataset, used in zip(config.datasets, fitted, strict=True)
        ],
        fitted,
        mixing=mixing,
        packing=config.packing,
        seq_len=config.seq_len,
        batch_size=config.batch_size,
        num_train_steps=config.num_train_steps,
        num_train_epochs=config.num_train_epochs,
        seed=config.data_seed,
    )
    held_out, held_out_counts = _held_out(config)
    plan = {
        "format": 2,
        "seq_len": config.seq_len,
        "batch_size": config.batch_size,
        "packing": config.packing,
        "mixing": mixing,
        "data_seed": config.data_seed,
        **_lengths(planned),
        **rows_facts(planned.rows, config.seq_len),
        "sources": mixture_facts(planned, fitted),
        "validation": {**rows_facts(held_out, config.seq_len), "sources": held_out_counts},
    }
    planned.rows.save(storage.join(output_path, "train"))
    held_out.save(storage.join(output_path, "validation"))
    storage.write_json(storage.join(output_path, "plan.json"), plan)
    progress.message(mixture_table(plan))
    return plan


def _lengths(planned: PlannedTraining) -> dict[str, Any]:
    return {
        "num_train_steps": planned.num_train_steps,
        "num_train_epochs": round(planned.num_epochs, 6),
        "rows_per_epoch": planned.rows_per_epoch[0],
    }


def _fit(
    reader: Any, dataset: MixedDataset, config: MixDatasetsConfig, name: str, cap: int | None
) -> FittedRows:
    from neve_chat.fitting import fit_rows

    return fit_rows(
        reader,
        name,
        seq_len=config.seq_len,
        long_conversations=dataset.long_conversations,
        max_conversations=cap,
        seed=config.data_seed,
    )


def _held_out(config: MixDatasetsConfig) -> tuple[RowPlan, list[dict[str, Any]]]:
    """Return the held-out rows, data set after data set, and the counts of each that has any."""
    import numpy as np
    from neve import storage
    from neve_chat.cache_reader import CacheReader
    from neve_chat.row_plan import RowPlan, plan_rows

    plans, counts = [], []
    for index, dataset in enumerate(config.datasets):
        split = storage.join(str(dataset.cache), "validation")
        if not storage.exists(storage.join(split, "shard_ledger.json")):
            continue
        name = f"{dataset.name} (held out)"
        used = _fit(CacheReader(split), dataset, config, name, None)
        source = np.full(len(used.rows), index, dtype=np.int32)
        plans.append(
            plan_rows(
                source, used.rows, used.lengths, packing=config.packing, seq_len=config.seq_len
            )
        )
        counts.append(used.counts | {"source": index, "num_rows": plans[-1].num_rows})
    return RowPlan.joined(plans), counts


def _check_some_left(dataset: MixedDataset, used: FittedRows, seq_len: int) -> None:
    if len(used.rows):
        return
    dropped = ", ".join(f"{count:,} {why}" for why, count in used.counts["dropped"].items())
    raise InputError(
        f"mixture {dataset.name!r}: at least one conversation must be left, got "
        f"{used.counts['conversations']:,} rows of which {used.counts['too_long']:,} are longer "
        f"than seq_len {seq_len:,}, up to {used.counts['longest']:,} (dropped: {dropped}). "
        "Raise seq_len or leave the data set out."
    )


def _check_amounts(config: MixDatasetsConfig) -> None:
    for field, least in (("seq_len", 1), ("batch_size", 1), ("data_seed", 0)):
        if getattr(config, field) < least:
            raise InputError(
                f"mixture: {field} must be {least} or more, got {getattr(config, field)}. Raise it."
            )
    steps, epochs = config.num_train_steps, config.num_train_epochs
    if (steps is None) == (epochs is None):
        raise InputError(
            "mixture: one of num_train_steps and num_train_epochs must be given, got "
            f"{steps} and {epochs}. Set one and leave the other None."
        )
    if steps is not None and steps < 1:
        raise InputError(f"mixture: num_train_steps must be 1 or more, got {steps}. Raise it.")
    if epochs is not None and not (math.isfinite(epochs) and epochs > 0):
        raise InputError(
            f"mixture: num_train_epochs must be a number above 0, got {epochs}. Raise it."
        )


def _check_model(config: MixDatasetsConfig) -> None:
    from neve import storage

    folder = str(config.model_config)
    model = storage.read_json(storage.join(folder, "config.json"))
    longest = model.get("max_position_embeddings", model.get("max_seq_len"))
    if longest is not None and config.seq_len > longest:
        raise InputError(
            f"mixture: seq_len must be at most the model's max_position_embeddings {longest:,}, "
            f"got {config.seq_len:,}. Lower seq_len to {longest}."
        )
    path = storage.join(folder, "tokenizer.json")
    vocab_size = model.get("vocab_size")
    if vocab_size is None or not storage.exists(path):
        return
    tokenizer = storage.read_json(path)
    ids = [token["id"] for token in tokenizer.get("added_tokens", ())]
    vocab = tokenizer.get("model", {}).get("vocab", {})
    largest = max([*ids, *(vocab.values() if isinstance(vocab, dict) else (len(vocab) - 1,))])
    if largest >= vocab_size:
        raise InputError(
            f"mixture: every token id must be below the model's vocab_size {vocab_size:,}, got "
            f"{largest:,} in tokenizer.json. Use the tokenizer that belongs to the model."
        )
