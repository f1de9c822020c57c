"""What a running step tells: progress, messages and metrics.

Inside a worker the three calls go to the attempt's files and to the executor. Outside one, report
and metric do nothing and message prints, so that step functions can be called by themselves.
"""

import time
from collections.abc import Callable
from typing import Any

Sink = Callable[[dict[str, Any]], None]

_MIN_SECONDS = 0.1
_sink: Sink | None = None
_last_report = -1.0e9


def set_sink(sink: Sink | None) -> None:
    """Send later events to `sink`; None restores the behavior outside a worker."""
    global _sink, _last_report
    _sink = sink
    _last_report = -1.0e9


def report(done: int, total: int | None = None, unit: str = "", **facts: Any) -> None:
    """Tell how far the step is; at most ten times a second go through, the last one always.

    Args:
        done: Units finished so far.
        total: Units in all, or None where that is unknown.
        unit: What is counted, such as "rows" or "steps".
        **facts: Numbers or short texts to show beside the bar, such as loss=2.31.
    """
    global _last_report
    if _sink is None:
        return
    now = time.monotonic()
    if now - _last_report < _MIN_SECONDS and (total is None or done < total):
        return
    _last_report = now
    _sink({"event": "progress", "done": done, "total": total, "unit": unit, "facts": facts})


def message(text: str) -> None:
    """Show a text to the user above the live lines and keep it in the log.

    Args:
        text: One or more lines; ANSI colors are stripped where there is no terminal.
    """
    if _sink is None:
        print(text, flush=True)  # noqa: T201  outside a worker the terminal is the only reader
    else:
        _sink({"event": "message", "text": text})


def metric(step: int, **values: float) -> None:
    """Add one row to the attempt's metrics.jsonl.

    Args:
        step: Train step or another counter that grows.
        **values: Numbers by name.
    """
    if _sink is not None:
        _sink({"event": "metric", "step": step, **values})
