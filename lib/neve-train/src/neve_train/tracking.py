"""Weights & Biases, which may fail at any time after the start without stopping training."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from neve_train.errors import TrainInputError

__all__ = ["FINISH_SECONDS", "START_SECONDS", "Tracking", "start_tracking", "tracking_mode"]

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

        thread = threading.Thread(target=end, daemon=True)
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
