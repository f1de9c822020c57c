"""How a program that ran jax, Levanter or tensorstore ends."""

import atexit
import os
import sys
import threading
from typing import Any, NoReturn

__all__ = ["end_program"]


def end_program(code: Any = 0) -> NoReturn:
    """Ends the process with an exit code, without the interpreter's own teardown.

    What is registered to run at the end runs, and threads that Python waits for are waited for. The
    rest of the teardown stops every thread that asks for Python's lock; done to a thread of native
    code, as those that read rows ahead are, it aborts a process whose work is complete
    ("FATAL: exception not rethrown", about one end in fifty on a loaded machine).
    """
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()  # pyright: ignore
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
