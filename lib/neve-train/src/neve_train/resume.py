"""training.json: what must stay the same for a training to go on from its checkpoints."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from neve import storage

from neve_train.config import TrainSftConfig
from neve_train.errors import TrainInputError

if TYPE_CHECKING:
    from neve_train.planned_rows import PlannedRows

__all__ = ["TRAINING_FILE", "check_model", "check_resumed", "describe_training"]

TRAINING_FILE = "training.json"
"""Beside the checkpoints."""

_CHOICES = ("batch_size", "seq_len", "seed", "precision", "z_loss", "capacity_factor")
_CHANGES_NOTHING = frozenset(
    (
        "_name_or_path",
        "architectures",
        "auto_map",
        "bos_token_id",
        "dtype",
        "eos_token_id",
        "initializer_range",
        "pad_token_id",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    )
)
"""Values of a config.json that may differ between a training and what goes on from it."""


def describe_training(config: TrainSftConfig, rows: PlannedRows) -> dict[str, Any]:
    """Returns what a checkpoint's numbers and its position among the rows rest on.

    Not how it runs: mesh, microbatches and cadences may change from one attempt to the next.
    """
    plan = rows.plan
    facts: dict[str, Any] = {name: getattr(config, name) for name in _CHOICES}
    facts |= {
        "num_rows": plan.num_rows,
        "rows_digest": _digest([plan.segments.tobytes(), plan.row_ends.tobytes()]),
        "caches_digest": _digest(
            part
            for reader, cache in zip(rows.readers, config.caches, strict=True)
            if reader is not None
            for part in (reader.lengths.tobytes(), _made_with(str(cache)))
        ),
        "optimizer": dataclasses.asdict(config.optimizer),
        "adapter": None if config.adapter is None else dataclasses.asdict(config.adapter),
        "model": _model_facts(str(config.model)),
    }
    return json.loads(json.dumps(facts))  # as it is read again


def check_resumed(output_path: str, facts: dict[str, Any]) -> None:
    """Refuses to go on from checkpoints of another training.

    Args:
        output_path: Of the training; one without training.json isn't checked.
        facts: From describe_training, of now.

    Raises:
        TrainInputError: A value differs.
    """
    path = storage.join(output_path, TRAINING_FILE)
    if not storage.exists(path):
        return
    for name, was, now in _differences(storage.read_json(path), facts):
        raise TrainInputError(
            f"training: {name} must be that of the checkpoints in {output_path}, {was}, got {now}. "
            "Set it back, or train into another output path."
        )


def check_model(checkpoint_path: str, model_path: str) -> None:
    """Refuses a config.json under which the weights of a checkpoint would be another model.

    Args:
        checkpoint_path: Output of training, its checkpoints folder, or one step-N; one without
            training.json isn't checked.
        model_path: Folder with config.json.

    Raises:
        TrainInputError: A value differs.
    """
    folders = [checkpoint_path.rstrip("/")]
    folders += [folders[0].rpartition("/")[0], folders[0].rpartition("/")[0].rpartition("/")[0]]
    files = (storage.join(folder, TRAINING_FILE) for folder in folders if folder)
    path = next((file for file in files if storage.exists(file)), None)
    saved = {} if path is None else storage.read_json(path).get("model") or {}
    if not saved:
        return
    for name, was, now in _differences({"model": saved}, {"model": _model_facts(model_path)}):
        raise TrainInputError(
            f"checkpoint {checkpoint_path}: {name} of {model_path}/config.json must be that of the "
            f"training, {was}, got {now}. Pass the config.json it was trained with."
        )


def _differences(saved: dict[str, Any], facts: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Returns (name, saved value, value of now) of what differs; parts of a value by their own name."""
    found: list[tuple[str, Any, Any]] = []
    for name, was in saved.items():
        now = facts.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            names = sorted({*was, *now})
            found += [
                (f"{name} {part}", was.get(part), now.get(part))
                for part in names
                if was.get(part) != now.get(part)
            ]
        elif was != now:
            found.append((name, was, now))
    return found


def _model_facts(folder: str) -> dict[str, Any]:
    values = storage.read_json(storage.join(folder, "config.json"))
    return {name: value for name, value in values.items() if name not in _CHANGES_NOTHING}


def _made_with(cache: str) -> bytes:
    path = storage.join(cache, "stats.json")
    noted = storage.read_json(path) if storage.exists(path) else {}
    return f"{noted.get('tokenizer_digest')} {noted.get('template_digest')}".encode()


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
