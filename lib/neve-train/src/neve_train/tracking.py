"""Trackers, each of which may fail at any time after the start without stopping training."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, cast

from neve import storage

from neve_train.config import ExecutionConfig
from neve_train.errors import TrainInputError

__all__ = [
    "FINISH_SECONDS",
    "START_SECONDS",
    "Tracking",
    "Trackings",
    "start_trackers",
    "start_tracking",
    "tracking_mode",
]

START_SECONDS = 60.0
"""How long the start of a run waits for the service."""
FINISH_SECONDS = 60.0
"""How long the end of a run waits for the last rows to be sent."""


def tracking_mode(environ: Mapping[str, str] = os.environ) -> str:
    """Returns WANDB_MODE; where it is unset, online if there is a key and else disabled."""
    return environ.get("WANDB_MODE") or ("online" if environ.get("WANDB_API_KEY") else "disabled")


class Tracking:
    """One run of a tracker; the first error is told once and ends tracking, not training."""

    def __init__(self, run: Any, message: Callable[[str], None]) -> None:
        """Args: run has log(values) and finish(exit_code=); None tracks nothing."""
        self._run = run
        self._message = message

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends one row."""
        if self._run is None:
            return
        try:
            self._run.log({"train_step": step, **values})
        except Exception as error:  # noqa: BLE001  a tracker's failure must not stop training
            self._message(f"tracker: stopped at train step {step} ({error}); training goes on.")
            self._run = None

    def finish(self, *, exit_code: int, timeout: float = FINISH_SECONDS) -> None:
        """Ends the run, waiting at most timeout seconds."""
        if self._run is None:
            return
        run, self._run = self._run, None
        errors: list[str] = []

        def end() -> None:
            try:
                run.finish(exit_code=exit_code)
            except Exception as error:  # noqa: BLE001  a tracker's failure must not fail the run
                errors.append(str(error))

        context = contextvars.copy_context()  # trackio's run is in it
        thread = threading.Thread(target=context.run, args=(end,), daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            errors.append(f"no answer within {timeout:g} seconds")
        if errors:
            self._message(f"tracker: could not finish ({errors[0]}); metrics are in loss.jsonl.")


def start_tracking(
    run_id: str,
    project: str,
    tags: tuple[str, ...],
    config: Mapping[str, Any],
    directory: str,
    message: Callable[[str], None],
    timeout: float = START_SECONDS,
) -> Tracking:
    """Returns the tracker's run; the same run_id continues the same run.

    A service that can't be reached within timeout seconds is told and left alone: a restart at
    night must not depend on it.

    Raises:
        TrainInputError: The key or the settings are wrong; nothing has been spent yet.
    """
    mode = tracking_mode()
    if mode == "disabled":
        return Tracking(None, message)
    import wandb  # heavy optional dependency
    from wandb.errors import AuthenticationError, UsageError

    try:
        run = wandb.init(
            project=project,
            id=run_id,
            name=run_id,
            resume="allow",
            tags=list(tags),
            config=dict(config),
            mode=cast("Any", mode),
            dir=directory,
            settings=wandb.Settings(init_timeout=timeout),
        )
        run.define_metric("*", step_metric="train_step")
    except (AuthenticationError, UsageError) as error:
        raise TrainInputError(
            f"tracker: WANDB_API_KEY and WANDB_MODE must let W&B start, got: {error}. "
            "Correct them, or set WANDB_MODE=offline."
        ) from error
    except Exception as error:  # noqa: BLE001  a service that is away must not stop training
        message(f"tracker: could not start ({error}); training goes on, metrics are in loss.jsonl.")
        return Tracking(None, message)
    return Tracking(run, message)


class Trackings:
    """Several trackers of one run; one that fails is left, the others go on."""

    def __init__(self, trackings: Sequence[Tracking] = ()) -> None:
        """Args: trackings that were started."""
        self._trackings = trackings

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Sends one row to each."""
        for tracking in self._trackings:
            tracking.log(step, values)

    def finish(self, *, exit_code: int) -> None:
        """Ends the run of each."""
        for tracking in self._trackings:
            tracking.finish(exit_code=exit_code)


def start_trackers(
    run_id: str,
    execution: ExecutionConfig,
    config: Mapping[str, Any],
    output_path: str,
    scratch: str,
    message: Callable[[str], None],
) -> Trackings:
    """Returns the trackers that the execution asks for; the same run_id continues the same run.

    Args:
        run_id: Name of the run.
        execution: Which trackers, their project and tags.
        config: Kept beside the run.
        output_path: TensorBoard's files go to tensorboard/ below it.
        scratch: Local folder that lives as long as the run.
        message: Told what goes wrong.

    Raises:
        TrainInputError: A package is missing, or a key or setting is wrong; nothing is spent yet.
    """
    trackings = []
    for kind in execution.trackers:
        if kind == "wandb":
            trackings.append(
                start_tracking(
                    run_id,
                    execution.tracker_project,
                    execution.tracker_tags,
                    config,
                    scratch,
                    message,
                )
            )
        else:
            trackings.append(
                _start_levanters(kind, run_id, execution, output_path, scratch, message)
            )
    return Trackings(trackings)


class _LevantersRun:
    """One of Levanter's trackers as Tracking wants it."""

    def __init__(self, start: Callable[[int], Any]) -> None:
        self._start = start
        self._tracker: Any = None

    def log(self, values: dict[str, Any]) -> None:
        step = values["train_step"]
        self._tracker = self._tracker or self._start(step)
        row = {name: value for name, value in values.items() if name != "train_step"}
        self._tracker.log(row, step=step)

    def finish(self, exit_code: int) -> None:
        if self._tracker is not None:
            self._tracker.finish()


class _TensorBoardRun(_LevantersRun):
    """TensorBoard's files, begun with the first row: those of a killed attempt count up to there."""

    def __init__(self, folder: str, scratch: str) -> None:
        if find_spec("tensorboardX") is None:
            raise ModuleNotFoundError(name="tensorboardX")
        from levanter.tracker.tensorboard import TensorboardConfig

        self._folder = folder
        self._local = folder if storage.is_local(folder) else os.path.join(scratch, "tensorboard")
        super().__init__(lambda step: TensorboardConfig(self._local, purge_step=step).init(None))

    def finish(self, exit_code: int) -> None:
        super().finish(exit_code)
        if self._local != self._folder and os.path.isdir(self._local):
            for name in os.listdir(self._local):
                storage.upload_file(
                    os.path.join(self._local, name), storage.join(self._folder, name)
                )


def _trackio_run(project: str, run_id: str) -> _LevantersRun:
    from levanter.tracker.trackio import TrackioConfig

    # Levanter's thread in the background has no run: trackio keeps it in the context of this one.
    tracker = TrackioConfig(project=project, name=run_id, background=False).init(run_id)
    return _LevantersRun(lambda step: tracker)


def _start_levanters(
    kind: str,
    run_id: str,
    execution: ExecutionConfig,
    output_path: str,
    scratch: str,
    message: Callable[[str], None],
) -> Tracking:
    try:
        if kind == "tensorboard":
            folder = storage.join(output_path, "tensorboard", run_id)
            return Tracking(_TensorBoardRun(folder, scratch), message)
        return Tracking(_trackio_run(execution.tracker_project, run_id), message)
    except ModuleNotFoundError as error:
        raise TrainInputError(
            f"tracker {kind}: needs the package {error.name}, got none. Install it, or remove "
            f"{kind} from the trackers."
        ) from error
    except Exception as error:  # noqa: BLE001  a service that is away must not stop training
        message(f"tracker {kind}: could not start ({error}); training goes on without it.")
        return Tracking(None, message)
