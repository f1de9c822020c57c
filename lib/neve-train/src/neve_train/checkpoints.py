"""Levanter's native checkpoints: which one to resume from, and writing them.

A checkpoint is `step-N` with N = completed train steps - 1, as Levanter names them. It was committed
if it holds metadata.json, which is written last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import equinox as eqx
import jax
from haliax.util import is_named_array
from levanter.checkpoint import (
    CheckpointCandidate,
    Checkpointer,
    CheckpointRetention,
    discover_checkpoint_candidates,
    load_checkpoint,
)
from levanter.checkpoint_manifest import read_manifest
from levanter.trainer import TrainerConfig
from levanter.trainer_state import saveable_training_mask
from levanter.utils.jax_utils import leaf_key_paths
from neve import storage

from neve_train import devices
from neve_train.config import ExecutionConfig
from neve_train.errors import CheckpointError

__all__ = [
    "NotingCheckpointer",
    "array_paths",
    "check_arrays",
    "committed_checkpoints",
    "read_checkpoint",
    "restore_newest",
    "restored",
    "without_step",
]

_SECONDS_TO_READ_AGAIN = 5.0


def committed_checkpoints(path: str) -> list[CheckpointCandidate]:
    """Returns the checkpoints below path that were committed, newest first.

    One whose metadata.json can't be read, which Levanter passes over, is among them, without metadata:
    where it is the only one, a training isn't to begin anew.
    """
    if not storage.is_dir(path):
        return []
    found = discover_checkpoint_candidates(path)
    known = {_name(candidate.path) for candidate in found}
    for name in storage.list_names(path):
        number, folder = name.removeprefix("step-"), storage.join(path, name)
        if not number.isdecimal() or name in known:
            continue
        if storage.exists(storage.join(folder, "metadata.json")):
            found.append(CheckpointCandidate(folder, int(number), datetime.min, {}))
    return sorted(found, key=lambda candidate: candidate.step, reverse=True)


def read_checkpoint(candidate: CheckpointCandidate, load: Callable[[str], Any]) -> Any:
    """Returns what load gives for the folder of a committed checkpoint.

    Raises:
        FileNotFoundError: It lacks a part; whatever load raises for other faults.
    """
    folder = candidate.path
    parts = (storage.join(folder, name) for name in ("manifest.json", "manifest.ocdbt"))
    missing = next((_name(part) for part in parts if not storage.exists(part)), None)
    if not candidate.metadata:
        missing = "a metadata.json that can be read"
    elif missing is None and not storage.is_dir(storage.join(folder, "d")):
        missing = "d/"
    if missing is not None:
        raise FileNotFoundError(f"missing {missing}")
    return load(folder)


def _read_together(
    candidate: CheckpointCandidate, load: Callable[[str], Any]
) -> tuple[Any, str | None]:
    """Returns what load gives, and why not all processes could read it, or None."""
    for is_again in (False, True):
        loaded, reason, is_missing = None, None, False
        try:
            loaded = read_checkpoint(candidate, load)
        except Exception as error:  # noqa: BLE001  tensorstore, JSON and file errors all mean torn
            reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
            is_missing = isinstance(error, FileNotFoundError)
        if devices.everywhere(reason is None):
            return loaded, None
        if is_again or not devices.everywhere(not is_missing):
            break
        time.sleep(_SECONDS_TO_READ_AGAIN)
    return None, reason or "by another process"


def restore_newest(
    path: str, load: Callable[[str], Any], message: Callable[[str], None]
) -> tuple[Any, CheckpointCandidate | None, list[CheckpointCandidate]]:
    """Returns the newest state that every process can read, where it came from, and the unreadable ones.

    One that is whole by its files and can't be read is read once more: a store that failed for a moment
    is not to cost the training since the checkpoint before.

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
        loaded, reason = _read_together(candidate, load)
        if reason is None:
            return loaded, candidate, torn
        torn.append(candidate)
        reasons.append(f"step-{candidate.step} is unreadable ({reason})")
        message(f"checkpoint {candidate.path} is unreadable ({reason}); looking at an older one.")
    if candidates:
        raise CheckpointError(
            f"checkpoints exist under {path} but none can be loaded: {'; '.join(reasons)}. "
            "Restore one of them, or remove the folder to train from the start."
        )
    return None, None, []


class NotingCheckpointer(Checkpointer):
    """Levanter's checkpointer that counts completed train steps and tells before each save.

    Writing goes on behind the next train steps; by time and by train step, as the execution says. One
    that fails is a CheckpointError at the next train step, not at the next save, which can be an hour
    later. What an attempt that was killed left of a checkpoint is removed before that one is saved again.
    """

    def __init__(
        self,
        path: str,
        execution: ExecutionConfig,
        *,
        before_save: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Saves nothing yet.

        Args:
            path: Folder of step-N folders.
            execution: Cadence of checkpoints, and which are kept.
            before_save: Called before anything is written.
            clock: Seconds since anything; the time of day jumps, which would put checkpoints off.
        """
        for candidate in committed_checkpoints(path):
            if not candidate.metadata:  # Levanter reads that of all
                _remove(candidate.path)
        super().__init__(
            path,
            timedelta(seconds=max(execution.checkpoint_every_seconds, 1e-6)),  # 0 would be never
            [],
            dt_now_injection=lambda: datetime.min + timedelta(seconds=clock()),
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
        with self._explained():
            self._manager.check_for_errors()
            self.on_step(tree=state.saveable_state, step=completed - 1, force=is_first)

    def wait_until_finished(self) -> None:
        """Waits for what is being written and removed."""
        with self._explained():
            super().wait_until_finished()

    def save_checkpoint(
        self, tree: Any, step: int, destination: str, *args: Any, **kwargs: Any
    ) -> None:
        """Saves, after before_save; arrays that are left there may be cut for another mesh."""
        self._before_save()
        folder = storage.join(self.base_path, destination)
        if not storage.exists(storage.join(folder, "metadata.json")):
            _remove(folder)
        devices.everywhere(True)  # until it is gone
        super().save_checkpoint(tree, step, destination, *args, **kwargs)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever the store raises: told with what to do
            reason = str(error).strip().partition("\n")[0][:500] or type(error).__name__
            raise CheckpointError(
                f"a checkpoint could not be written to {self.base_path} ({reason}), so training stops "
                "before more is lost. Free some space or mend what the reason names, and run it again: "
                "it goes on from the newest whole one."
            ) from error


def _name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def _remove(folder: str) -> None:
    """Removes a folder, if it is there, in the one process that writes."""
    if jax.process_index() == 0 and storage.is_dir(folder):
        storage.remove_tree(folder)


def _divides(every: int | None, completed: int) -> bool:
    return every is not None and completed % every == 0


def without_step(
    candidates: list[CheckpointCandidate], completed: int
) -> list[CheckpointCandidate]:
    """Removes the unreadable checkpoint of a train step that was just done again, if any."""
    for candidate in candidates:
        if candidate.step == completed - 1:
            _remove(candidate.path)
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
    check_arrays(path, saved)
    loaded = load_checkpoint(
        saved,
        path,
        axis_mapping=trainer_config.parameter_axis_mapping,
        mesh=trainer_config.device_mesh,
    )
    if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(rest)):
        rest = eqx.partition(fresh(), mask)[1]
    return eqx.combine(loaded, rest)


def array_paths(tree: Any, below: str = "") -> dict[str, tuple[int, ...]]:
    """Returns path -> shape of every array of a tree as checkpoints name them, in the tree's order.

    Args:
        tree: Tree with jax.ShapeDtypeStruct for its arrays.
        below: Part of Levanter's TrainerState that it is; empty: all of it.
    """
    arrays = eqx.filter(tree, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    keys = jax.tree.leaves(leaf_key_paths(arrays, is_leaf=is_named_array))
    prefix = f"{below}/" if below else ""
    return {
        f"{prefix}{key.replace('.', '/')}": tuple(array.shape)
        for key, leaf in zip(keys, jax.tree.leaves(arrays, is_leaf=is_named_array), strict=True)
        for array in jax.tree.leaves(leaf)  # none in what an adapter leaves frozen
    }


def check_arrays(checkpoint: str, tree: Any, below: str = "") -> None:
    """Refuses a checkpoint of something else: Levanter reads any shape, and leaves arrays over.

    Args:
        checkpoint: A step-N folder.
        tree: What is to be read, with jax.ShapeDtypeStruct for its arrays.
        below: Part of Levanter's TrainerState that it is; empty: all of it.

    Raises:
        CheckpointError: An array is missing, has another shape, or is in the checkpoint alone.
    """
    manifest = read_manifest(checkpoint)
    if manifest is None:
        raise CheckpointError(
            f"checkpoint {checkpoint}: must hold Levanter's manifest.json, got none. Train with this "
            "version, or resume once to write it anew."
        )
    prefix, wanted = f"{below}/" if below else "", array_paths(tree, below)
    stored = {array.path: tuple(array.shape) for array in manifest.arrays}
    faults = [f"no {path}" for path in wanted if path not in stored]
    faults += [
        f"{path} of shape {stored[path]} for {shape}"
        for path, shape in wanted.items()
        if path in stored and stored[path] != shape
    ]
    faults += [
        f"{path} besides"
        for path, shape in stored.items()
        if shape
        and path not in wanted
        and path.startswith(prefix)  # numbers of a module stand alone
    ]
    if faults:
        raise CheckpointError(
            f"checkpoint {checkpoint}: must hold the {len(wanted)} arrays of this model and training, got "
            f"{len(faults)} differences, such as {', '.join(faults[:2])}. Pass the config.json and the "
            "config it was trained with."
        )
