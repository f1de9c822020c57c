"""What a freshly forked worker process does before and after its step."""

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

from neve import worker

_PR_SET_PDEATHSIG = 1


def _load_prctl() -> Any:
    if not sys.platform.startswith("linux"):
        return None
    import ctypes  # Linux only: ends the worker with its parent

    return getattr(ctypes.CDLL(None), "prctl", None)


PRCTL = _load_prctl()


class EventPipe:
    """Sends events as JSON lines; a reader that is gone ends the step."""

    def __init__(self, fd: int) -> None:
        """Write to a pipe's write end."""
        self._fd = fd
        self._lock = threading.Lock()

    def __call__(self, event: dict[str, Any]) -> None:
        """Send one event, in one piece."""
        data = memoryview(json.dumps(event, default=_plain).encode() + b"\n")
        try:
            with self._lock:
                while data:
                    data = data[os.write(self._fd, data) :]
        except BrokenPipeError:
            os.kill(os.getpid(), signal.SIGTERM)


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


def run_child(request: dict[str, Any], output_fd: int, event_fd: int, parent: int) -> NoReturn:
    """Become the worker of one request and end the process with its exit code.

    Args:
        request: Keyword arguments of `run_step`, with "home".
        output_fd: Write end that becomes stdout and stderr.
        event_fd: Write end for events.
        parent: Process whose death ends this one.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        if PRCTL is not None:
            PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        if output_fd > 2:
            os.close(output_fd)
        os.environ["NEVE_TASK_INDEX"], os.environ["NEVE_TASK_COUNT"] = "0", "1"
        worker.interrupt_on_signals()
        pipe = EventPipe(event_fd)
        try:
            code = worker.run_step(emit=pipe, **request)
        except Exception as error:  # noqa: BLE001  before the lease: told to the supervisor
            code = 2 if getattr(type(error), "exit_code", None) == 2 else 1
            why = str(error) if code == 2 else f"{type(error).__name__}: {error}"
            if code == 1:
                traceback.print_exc()
            pipe({"event": "failed", "why": why, "kind": "failed", "exit_code": code})
    except worker.StepInterrupted:
        code = worker.INTERRUPTED_EXIT_CODE
    except BaseException:  # noqa: BLE001  nothing may climb into the server's loop
        traceback.print_exc()
    finally:
        _finish(code)


def _finish(code: int) -> NoReturn:
    """End like the interpreter does, without its slow teardown."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(BaseException):
        threading._shutdown()  # pyright: ignore  waits for threads of the step
        atexit._run_exitfuncs()  # pyright: ignore  flushes what the step registered
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
