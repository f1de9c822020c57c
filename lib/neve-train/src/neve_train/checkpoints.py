"""Levanter's native checkpoints: which one to resume from, and writing them.

A checkpoint is `step-N` with N = completed train steps - 1, as Levanter names them. It was committed
if it holds metadata.json, which is written last.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import equinox as eqx
import jax
from levanter.checkpoint import (
    CheckpointCandidate,
    Checkpointer,
    CheckpointRetention,
    discover_checkpoint_candidates,
    load_checkpoint,
)
from levanter.trainer import TrainerConfig
from levanter.trainer_state import saveable_training_mask
from neve import storage

from neve_train.config import ExecutionConfig
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
    """Levanter's checkpointer that counts completed train steps and tells before each save.

    Writing goes on behind the next train steps; by time and by train step, as the execution says.
    """

    def __init__(
        self, path: str, execution: ExecutionConfig, *, before_save: Callable[[], None]
    ) -> None:
        """Saves nothing yet.

        Args:
            path: Folder of step-N folders.
            execution: Cadence of checkpoints, and which are kept.
            before_save: Called before anything is written.
        """
        super().__init__(
            path,
            timedelta(seconds=max(execution.checkpoint_every_seconds, 1e-6)),  # 0 would be never
            [],
            keep_last_temporary_checkpoints=execution.keep_last_checkpoints,
        )
        self._every = execution.checkpoint_every_train_steps
        self._keep_every = execution.keep_every_train_steps or self._every
        self._before_save = before_save

    def after_step(self, state: Any, completed: int, *, is_last: bool, is_stopping: bool) -> None:
        """Saves if it is time to, if training ends here, or if it is about to be stopped.

        Args:
            state: TrainerState after `completed` train steps.
            completed: Number of train steps done.
            is_last: Save, and never remove.
            is_stopping: Save, if only until the next one.
        """
        if is_last or _divides(self._keep_every, completed):
            wanted = CheckpointRetention.PERMANENT
        elif is_stopping or _divides(self._every, completed):
            wanted = CheckpointRetention.TEMPORARY
        else:
            wanted = None
        if wanted is not None:
            self.request_checkpoint(wanted)
        is_first = wanted is not None and completed == 1  # Levanter only saves step 0 when forced
        self.on_step(tree=state.saveable_state, step=completed - 1, force=is_first)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Saves, after before_save."""
        self._before_save()
        super().save_checkpoint(*args, **kwargs)


def _divides(every: int | None, completed: int) -> bool:
    return every is not None and completed % every == 0


def without_step(
    candidates: list[CheckpointCandidate], completed: int
) -> list[CheckpointCandidate]:
    """Removes the unreadable checkpoint of a train step that was just done again, if any."""
    for candidate in candidates:
        if candidate.step == completed - 1 and jax.process_index() == 0:
            storage.remove_tree(candidate.path)
    return [candidate for candidate in candidates if candidate.step != completed - 1]


def restored(shape: Any, path: str, trainer_config: TrainerConfig, fresh: Callable[[], Any]) -> Any:
    """Returns the TrainerState of one checkpoint, on the config's mesh.

    Args:
        shape: The state's shapes, from eqx.filter_eval_shape on the mesh.
        path: One step-N folder.
        trainer_config: Mesh, and how axes map to it.
        fresh: Makes a fresh state, for the weights that aren't trained and so aren't saved.
    """
    mask = saveable_training_mask(shape, shape.is_trainable)
    saved, rest = eqx.partition(shape, mask)
    loaded = load_checkpoint(
        saved,
        path,
        axis_mapping=trainer_config.parameter_axis_mapping,
        mesh=trainer_config.device_mesh,
    )
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(rest)):
        rest = eqx.partition(fresh(), mask)[1]
    return eqx.combine(loaded, rest)
