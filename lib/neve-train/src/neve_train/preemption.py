"""The end that a machine announces: a signal that is noted, so that the train step is finished and saved."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

__all__ = ["SIGNALS", "StopRequest", "noting_signals"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""SIGTERM from a cloud or an executor, SIGUSR1 from Slurm ahead of a time limit."""


class StopRequest:
    """Whether training is to stop, and why; asked after every train step."""

    def __init__(self) -> None:
        """Starts without a request."""
        self.reason: str | None = None

    def is_set(self) -> bool:
        """Returns True on every process once one of them was told; all must call it together."""
        import jax
        import numpy as np

        if jax.process_count() == 1:
            return self.reason is not None
        from jax.experimental import multihost_utils

        told = multihost_utils.process_allgather(np.array(self.reason is not None))
        if bool(np.any(told)) and self.reason is None:
            self.reason = "another process was told to stop"
        return self.reason is not None


@contextlib.contextmanager
def noting_signals(request: StopRequest) -> Iterator[None]:
    """Notes SIGNALS in the request instead of ending; nothing is changed outside the main thread.

    Repeated ones are noted as well: where a whole job is told to stop, a process hears it from the
    machine and from its executor. SIGKILL ends it at once, SIGINT raises KeyboardInterrupt as ever.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _frame: Any) -> None:
        request.reason = request.reason or f"received {signal.Signals(number).name}"

    before = {number: signal.signal(number, note) for number in SIGNALS}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: Any) -> None:
    """What Python does by itself. But where it does, asyncio.run puts its own handler in place, and
    describes that, the task and the task's result in an error that nobody sees: after a checkpoint
    was read, the numbers of every array, fetched from the devices.
    """
    signal.default_int_handler(number, frame)
