"""What an SFTSpec may be: names, choices, ranges, and fields that exclude each other."""

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from neve import InputError

from experiments.sft.cache_source import TokenCache
from experiments.sft.dataset import DatasetSpec
from experiments.sft.sources import ModelSource, TrainedModel
from steps.mix_datasets import LONG_CONVERSATIONS, PACKINGS, check_mixture
from steps.tokenize_chat import TURN_POLICIES, LossOptions

if TYPE_CHECKING:
    from experiments.sft.spec import SFTSpec

WHOLE, SHARE, NUMBER = "a whole number", "a share", "a number"

RANGES: dict[str, tuple[str, float, float]] = {
    "validation_fraction": (SHARE, 0, 0.5),
    "seq_len": (WHOLE, 2, 2**24),
    "batch_size": (WHOLE, 1, 2**20),
    "num_train_steps": (WHOLE, 1, 2**40),
    "num_train_epochs": (NUMBER, 1e-9, 10**6),
    "seed": (WHOLE, 0, 2**31 - 1),
    "data_seed": (WHOLE, 0, 2**31 - 1),
    "capacity_factor": (NUMBER, 1, 10**6),
    "max_dropped_fraction": (SHARE, 0, 1),
    "z_loss": (NUMBER, 0, 10**6),
    "num_samples": (WHOLE, 1, 64),
    "sample_max_tokens": (WHOLE, 1, 2**20),
    "per_device_batch_size": (WHOLE, 1, 2**20),
    "checkpoint_every_train_steps": (WHOLE, 1, 2**40),
    "checkpoint_every_seconds": (WHOLE, 1, 10**9),
    "keep_every_train_steps": (WHOLE, 1, 2**40),
    "keep_last_checkpoints": (WHOLE, 1, 1000),
    "export_every_train_steps": (WHOLE, 1, 2**40),
    "eval_every_train_steps": (WHOLE, 1, 2**40),
    "num_data_processes": (WHOLE, 1, 4096),
}
"""Kind, least and largest value of each number of a spec; None too where it is the default."""

_TYPE = r"(half|f16|float16|bf16|bfloat16|full|f32|float32|f64|float64)"
_PART = rf"(p|params|c|compute|o|output)={_TYPE}"
_PRECISION = re.compile(rf"{_TYPE}|{_PART}(,{_PART})*")  # what jmp takes, without importing jax


def check_spec(spec: "SFTSpec") -> None:
    """Refuses a spec that can be known to be wrong without its surroundings.

    Raises:
        InputError: It names the field, its rule and its value.
    """
    what = f"spec {spec.name!r}"
    _check_names(spec, what)
    _check_choices(spec, what)
    _check_numbers(spec, what)
    if (spec.num_train_steps is None) == (spec.num_train_epochs is None):
        raise InputError(
            f"{what}: give one of num_train_steps and num_train_epochs, got "
            f"{spec.num_train_steps} and {spec.num_train_epochs}. Set the other one to None."
        )
    if spec.adapter is not None and spec.export_every_train_steps is not None:
        raise InputError(
            f"{what}: export_every_train_steps must be None where adapters are trained, got "
            f"{spec.export_every_train_steps}. Keep checkpoints with keep_every_train_steps instead."
        )


def _check_names(spec: "SFTSpec", what: str) -> None:
    if not spec.name:
        raise InputError("spec: name must not be empty, got ''. Give it a short name.")
    if not isinstance(spec.model, ModelSource | TrainedModel):
        raise InputError(
            f"{what}: model must be a source of one, got {spec.model!r}. "
            "Write for example HubModel(repo=..., revision=...)."
        )
    found = spec.datasets if isinstance(spec.datasets, tuple) else ()
    if not found or not all(isinstance(dataset, DatasetSpec) for dataset in found):
        raise InputError(
            f"{what}: datasets must be a tuple of one or more DatasetSpec, got {spec.datasets!r:.80}. "
            "Write (DatasetSpec(...),)."
        )
    names = [dataset.name for dataset in spec.datasets]
    if len(set(names)) < len(names):
        raise InputError(f"{what}: dataset names must differ, got {', '.join(names)}. Rename one.")
    check_mixture(
        what,
        names=names,
        mixing=spec.mixing,
        weights=[dataset.weight for dataset in spec.datasets],
        repeats=[dataset.repeat for dataset in spec.datasets],
        max_conversations=[dataset.max_conversations for dataset in spec.datasets],
    )
    for dataset in spec.datasets:  # what only tokenization could do where the tokens exist already
        policy = dataset.long_conversations or spec.long_conversations
        fits = spec.loss == LossOptions() and policy not in TURN_POLICIES
        if isinstance(dataset.source, TokenCache) and not fits:
            raise InputError(
                f"dataset {dataset.name!r}: loss and long_conversations at turn borders are fixed in a "
                f"token cache, got {spec.loss} and {policy!r}. Leave loss out, and drop or truncate."
            )


def _check_choices(spec: "SFTSpec", what: str) -> None:
    choices = [
        ("packing", spec.packing, PACKINGS),
        ("long_conversations", spec.long_conversations, LONG_CONVERSATIONS),
    ]
    choices += [
        (f"long_conversations of {dataset.name!r}", dataset.long_conversations, LONG_CONVERSATIONS)
        for dataset in spec.datasets
        if dataset.long_conversations is not None
    ]
    for field, value, allowed in choices:
        if value not in allowed:
            raise InputError(
                f"{what}: {field} must be one of {', '.join(allowed)}, got {value!r}. Pick one of them."
            )
    ids = spec.model.eos_token_ids
    if any(token_id < 0 for token_id in ids):
        raise InputError(
            f"{what}: eos_token_ids of the model must be ids of its tokenizer, 0 or more, got {ids}. "
            "Correct them."
        )
    if not _PRECISION.fullmatch(spec.precision):
        raise InputError(
            f"{what}: precision must be a jmp policy such as p=f32,c=bfloat16, got "
            f"{spec.precision!r}. Change it."
        )


def _check_numbers(spec: "SFTSpec", what: str) -> None:
    optional = {field.name for field in dataclasses.fields(spec) if field.default is None}
    for field, (kind, low, high) in RANGES.items():
        value = getattr(spec, field)
        if value is None and field in optional:
            continue
        if not _is_inside(value, kind, low, high):
            raise InputError(
                f"{what}: {field} must be {kind} from {low:,} to {high:,}, got {value!r}. "
                f"Change it in the recipe or with --spec.{field}."
            )


def _is_inside(value: Any, kind: str, low: float, high: float) -> bool:
    kinds = (int,) if kind == WHOLE else (int, float)  # and never bool, which is an int
    return type(value) in kinds and low <= value <= high
