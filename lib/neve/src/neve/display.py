"""What a run shows: the plan, running steps, failures and a summary.

On a terminal running steps have live lines (rich, imported when the first one starts). Anywhere
else the output is plain and quiet: a line on start and finish, and progress at most every ten
seconds.
"""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

from neve import display_text as say
from neve.display_progress import Meter
from neve.records import strip_ansi
from neve.secrets import Redactor

_PROGRESS_SECONDS = 10.0
_LAST_LINES = 12
_FEW_PATHS = 12
_ACTION_COLORS = {
    "hit": "green", "run": "yellow", "resume": "yellow", "wait": "blue", "not needed": "dim",
}  # fmt: skip
_ACTION_TOTALS = {
    "hit": "complete", "run": "to run", "resume": "to resume", "wait": "to wait for",
    "not needed": "not needed",
}  # fmt: skip

_observed: list[Any] | None = None


@contextlib.contextmanager
def observed_plans() -> Iterator[list[Any]]:
    """Collect plans in the list that is given instead of showing them."""
    global _observed
    _observed = []
    try:
        yield _observed
    finally:
        _observed = None


def fact(source: Any, *names: str, default: Any = None) -> Any:
    """Return the first of some keys or attributes that is there and not None."""
    for name in names:
        value = source.get(name) if isinstance(source, dict) else getattr(source, name, None)
        if value is not None:
            return value
    return default


def retry_command(argv: list[str] | None = None) -> str:
    """Return the command line that started this process, ready to paste."""
    argv = list(sys.orig_argv if argv is None else argv)
    if argv and os.path.isabs(argv[0]) and os.path.basename(argv[0]).startswith("python"):
        argv[0] = "python"
    if len(argv) > 1 and argv[0] == "python" and os.path.basename(argv[1]) == "neve":
        argv = ["neve", *argv[2:]]
    return Redactor().text(shlex.join(argv))


class Display:
    """Shows one run of the executor; every call comes from the executor's own thread."""

    def __init__(
        self,
        stream: IO[str] | None = None,
        *,
        is_terminal: bool | None = None,
        width: int | None = None,
        progress_seconds: float = _PROGRESS_SECONDS,
    ) -> None:
        """Show on a stream, by default standard output.

        Args:
            stream: Where text goes.
            is_terminal: Live lines and colors; by default whether the stream is a terminal.
            width: Columns of the terminal; by default what it has.
            progress_seconds: Least time between two progress lines of a step without a terminal.
        """
        self._stream = sys.stdout if stream is None else stream
        self.is_terminal = self._stream.isatty() if is_terminal is None else is_terminal
        self._color = self.is_terminal and "NO_COLOR" not in os.environ
        self._width = width
        self._progress_seconds = progress_seconds
        self._redactor = Redactor()
        self._meters: dict[str, Meter] = {}
        self._last_line: dict[str, float] = {}
        self._live: Any = None
        self._plan: Any = None
        self._ran: list[str] = []
        self._failed: list[str] = []
        self._began = time.monotonic()

    def plan(self, plan: Any) -> None:
        """Show every step with action, reason and path, and the totals."""
        self._plan = plan
        if _observed is not None:
            _observed.append(plan)
            return
        rows = list(plan.rows)
        self._print("\n".join(plan_lines(rows, plan.prefix, self._color, self._columns())))

    def started(self, row: Any) -> None:
        """Show that a step runs now."""
        now = time.monotonic()
        self._meters[row.name] = meter = Meter(now)
        self._last_line[row.name] = now
        if not self.is_terminal:
            self._print(f"started   {row.name}")
            return
        if self._live is None:
            from neve.display_live import LiveLines  # rich: 60 ms, only for terminals

            self._live = LiveLines(self._stream)
        self._live.set(row.name, meter)

    def progress(self, row: Any, event: dict[str, Any]) -> None:
        """Take a progress event of a running step."""
        meter = self._meters.setdefault(row.name, Meter())
        meter.add(event)
        if self.is_terminal:
            return
        now = time.monotonic()
        if now - self._last_line.setdefault(row.name, meter.started) >= self._progress_seconds:
            self._last_line[row.name] = now
            self._print(f"progress  {row.name}: {meter.text()}")

    def message(self, row: Any, text: str) -> None:
        """Show a text of a step above the live lines."""
        name = fact(row, "name", default="")
        if name and len(self._meters) > 1:
            self._print(say.paint(f"{name}:", "dim", self._color))
        self._print(text.rstrip("\n"))

    def finished(self, row: Any, record: Any) -> None:
        """Show that a step succeeded, how long it took and its key results."""
        self._end(row.name)
        self._ran.append(row.name)
        seconds = say.seconds_text(fact(record, "seconds"))
        results = say.key_results(fact(record, "results", default={}))
        done = say.paint("finished", "green", self._color)
        self._print(f"{done}  {row.name}  {seconds}  {results}".rstrip())

    def failed(self, row: Any, failure: Any) -> None:
        """Show that a step failed; the details come with the summary."""
        self._end(row.name)
        self._failed.append(row.name)
        why = failure_reason(failure)
        if fact(failure, "kind") == "interrupted":
            self._print(f"{say.paint('stopped', 'yellow', self._color)}   {row.name}  {why}")
            return
        self._print(f"{say.paint('failed', 'red', self._color)}    {row.name}  {why}")

    def summary(self, run: Any) -> None:
        """Show every failure with its last lines and log, the counts, and the output paths."""
        self.close()
        rows = list(self._plan.rows) if self._plan is not None else []
        failures = fact(run, "failures", default=())
        failures = failures.values() if isinstance(failures, dict) else failures
        for failure in failures:
            self._failure(failure)
        self._totals(run, rows)
        if self._failed or fact(run, "exit_code", default=0):
            self._print(f"To retry: {retry_command()}")
            return
        sinks = sink_rows(rows)
        for row in sinks[:_FEW_PATHS]:
            self._print(f"  {row.output_path}")
        if len(sinks) > _FEW_PATHS:
            self._print(f"  and {len(sinks) - _FEW_PATHS} more")

    def _totals(self, run: Any, rows: list[Any]) -> None:
        statuses = list(fact(run, "statuses", default={}).values())
        hits = statuses.count("hit") if statuses else sum(row.action == "hit" for row in rows)
        stopped = statuses.count("INTERRUPTED")
        waiting = statuses.count("DEP_FAILED") + statuses.count("PENDING")
        counts = [f"{hits} hit", f"{len(self._ran)} ran", f"{len(self._failed) - stopped} failed"]
        counts += [
            f"{n} {word}" for n, word in ((stopped, "stopped"), (waiting, "not started")) if n
        ]
        seconds = fact(run, "seconds", default=time.monotonic() - self._began)
        is_stopped = fact(run, "exit_code", default=0) > 2
        word = "Stopped" if is_stopped else "Failed" if self._failed else "Done"
        line = f"{word}: {', '.join(counts)} in {say.seconds_text(seconds)}."
        color = "green" if word == "Done" else "red"
        self._print(say.paint(line, color, self._color))

    def close(self) -> None:
        """Free the terminal; may be called at any time, also twice."""
        if self._live is not None:
            self._live.close()

    def _end(self, name: str) -> None:
        self._meters.pop(name, None)
        if self._live is not None:
            self._live.remove(name)

    def _failure(self, failure: Any) -> None:
        name = fact(failure, "name", default="step")
        self._print("")
        self._print(say.paint(f"Step {name} failed: {failure_reason(failure)}", "red", self._color))
        for line in failure_tail(failure):
            self._print(f"    {line}")
        log = fact(failure, "log_path", "log")
        if log:
            self._print(f"  log: {log}")

    def _columns(self) -> int | None:
        if self._width is None and self.is_terminal:
            import shutil  # only terminals have a width

            self._width = shutil.get_terminal_size((120, 40)).columns
        return self._width

    def _print(self, text: str) -> None:
        text = self._redactor.text(text)
        if not self._color:
            text = strip_ansi(text)
        if self._live is not None:
            self._live.print(text)
            return
        self._stream.write(text + "\n")
        self._stream.flush()


def failure_reason(failure: Any) -> str:
    """Return why a step failed in one line."""
    if isinstance(failure, str):
        return failure.strip().splitlines()[-1] if failure.strip() else "no reason given"
    reason = str(fact(failure, "why", "reason", "message", "error", default="no reason given"))
    return reason.strip().splitlines()[0] if reason.strip() else "no reason given"


def failure_tail(failure: Any) -> list[str]:
    """Return the last lines that a failed step wrote."""
    lines = fact(failure, "tail", "last_lines", "lines", default=())
    lines = lines.splitlines() if isinstance(lines, str) else list(lines)
    return [str(line).rstrip() for line in lines][-_LAST_LINES:]


def plan_lines(rows: list[Any], prefix: str, color: bool, width: int | None) -> list[str]:
    """Return the plan as a table with its totals in the first line.

    Paths are whole, except on a terminal that is too narrow for them.
    """
    counts = {action: sum(row.action == action for row in rows) for action in _ACTION_TOTALS}
    totals = ", ".join(f"{n} {_ACTION_TOTALS[action]}" for action, n in counts.items() if n)
    lines = [f"Plan for {prefix}: {len(rows)} steps, {totals or 'nothing to do'}."]

    def cells(whole: bool) -> list[list[say.Cell | str]]:
        cut = prefix.rstrip("/") + "/"
        return [
            [
                row.name,
                say.Cell(text=row.action, color=_ACTION_COLORS.get(row.action, "")),
                row.why,
                row.output_path if whole else row.output_path.removeprefix(cut),
            ]
            for row in rows
        ]

    head = ["step", "action", "why", "output path"]
    drawn = say.table(cells(whole=True), head, color)
    if width is not None and max(len(strip_ansi(line)) for line in drawn) > width:
        drawn = say.table(cells(whole=False), head, color)
    return lines + drawn


def sink_rows(rows: list[Any]) -> list[Any]:
    """Return the rows that no other row of the plan depends on."""
    used = {fingerprint for row in rows for fingerprint in row.deps}
    return [row for row in rows if row.fingerprint not in used]
