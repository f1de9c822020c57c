"""Levanter's native checkpoints: which one to resume from, and writing them.

A checkpoint is `step-N` with N = completed train steps - 1, as Levanter names them. It was committed
if it holds metadata.json, which is written last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from levanter.checkpoint import (
    CheckpointCandidate,
    Checkpointer,
    CheckpointRetention,
    discover_checkpoint_candidates,
)
from neve import storage

from neve_train.errors import CheckpointError

__all__ = [
    "NotingCheckpointer",
    "committed_checkpoints",
    "missing_part",
    "restore_newest",
    "restored",
    "without_step",
]


def committed_checkpoints(path: str) -> list[CheckpointCandidate]:
    """Returns the checkpoints below path that were committed, newest first."""
    return discover_checkpoint_candidates(path)[::-1] if storage.is_dir(path) else []


def missing_part(checkpoint: str) -> str | None:
    """Returns what a committed checkpoint lacks, or None if all of it seems to be there."""
    for name in ("manifest.json", "manifest.ocdbt"):
        if not storage.exists(storage.join(checkpoint, name)):
            return name
    return None if storage.is_dir(storage.join(checkpoint, "d")) else "d/"


def restore_newest(
    path: str, load: Callable[[str], Any], message: Callable[[str], None]
) -> tuple[Any, CheckpointCandidate | None, list[CheckpointCandidate]]:
    """Returns the newest state that can be read, where it came from, and the unreadable ones.

    Args:
        path: Folder of step-N folders.
        load: Reads the state of one of them.
        message: Shown to the user for every one that is skipped.

    Returns:
        (None, None, []) if nothing was ever committed.

    Raises:
        CheckpointError: Some were committed and none can be read. Nothing is changed.
    """
    torn: list[CheckpointCandidate] = []
    reasons: list[str] = []
    candidates = committed_checkpoints(path)
    for candidate in candidates:
        lacking = missing_part(candidate.path)
        try:
            if lacking is not None:
                raise FileNotFoundError(f"missing {lacking}")
            return load(candidate.path), candidate, torn
        except Exception as error:  # noqa: BLE001  tensorstore, JSON and file errors all mean torn
            reason = str(error).strip().partition("\n")[0][:300]
            torn.append(candidate)
            reasons.append(f"step-{candidate.step} is unreadable ({reason})")
            message(
                f"checkpoint {candidate.path} is unreadable ({reason}); looking at an older one."
            )
    if candidates:
        raise CheckpointError(
            f"checkpoints exist under {path} but none can be loaded: {'; '.join(reasons)}. "
            "Restore one of them, or remove the folder to train from the start."
        )
    return None, None, []


class NotingCheckpointer(Checkpointer):
    """Levanter's checkpointer that counts completed train steps and tells before each save."""

    def __init__(self, *args: Any, before_save: Callable[[], None], **kwargs: Any) -> None:
        """Args: those of Checkpointer, and before_save, called before anything is written."""
        super().__init__(*args, **kwargs)
        self._before_save = before_save

    def after_step(self, state: Any, completed: int, *, keep: bool, force: bool = False) -> None:
        """Saves if it is time to, or if the checkpoint is to be kept.

        Args:
            state: TrainerState after `completed` train steps.
            completed: Number of train steps done.
            keep: Save, and never remove.
            force: Save although this step was saved.
        """
        if keep:
            self.request_checkpoint(CheckpointRetention.PERMANENT)
        is_first = keep and completed == 1  # Levanter saves its step 0 only when forced
        self.on_step(tree=state.saveable_state, step=completed - 1, force=force or is_first)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Saves, after before_save."""
        self._before_save()
        super().save_checkpoint(*args, **kwargs)


def without_step(
    candidates: list[CheckpointCandidate], completed: int
) -> list[CheckpointCandidate]:
    """Removes the unreadable checkpoint of a train step that was just done again, if any."""
    for candidate in candidates:
        if candidate.step == completed - 1:
            storage.remove_tree(candidate.path)
    return [candidate for candidate in candidates if candidate.step != completed - 1]


def restored(trainer: Any, training_key: Any, model_init: Callable[[], Any], path: str) -> Any:
    """Returns the TrainerState of one checkpoint, on the trainer's mesh."""
    trainer.config = dataclasses.replace(
        trainer.config, load_checkpoint=True, load_checkpoint_path=path
    )
    return trainer.initial_state(training_key, model_init=model_init)
