"""Runs a plan: ready steps start in workers of their own, failures stay with their dependents."""

import contextlib
import dataclasses
import os
import signal
import time
from collections import deque
from typing import Any

from neve import lease as leases
from neve import records, storage
from neve.attempt import TAIL_LINES
from neve.backends.local import LocalBackend, Worker
from neve.code import commit_facts
from neve.errors import InputError
from neve.plan import Plan, PlannedStep, state_home
from neve.stepdoc import make_step_document
from neve.worker import PREEMPTED_EXIT_CODE

GRACE_SECONDS = 10.0
RESUMABLE_GRACE_SECONDS = 120.0  # such a step saves what it did before it ends
GRACE_VARIABLE = "NEVE_GRACE_SECONDS"
_WAIT_SECONDS = 0.3
PREEMPTION_LIMIT = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """Why one step failed."""

    name: str
    """Step name."""
    reason: str
    """One line."""
    kind: str
    """failed, input, interrupted, preempted, lease lost or killed."""
    last_lines: tuple[str, ...]
    """Last lines of its log."""
    log_path: str | None
    """Path of its log.txt."""
    output_path: str
    """Its output path."""
    exit_code: int
    """2 where the user's input is wrong, else 1."""


@dataclasses.dataclass(kw_only=True)
class RunSummary:
    """What came of a run."""

    run_id: str
    """Name of its file under .neve/runs/."""
    seconds: float = 0.0
    """Wall time."""
    statuses: dict[str, str] = dataclasses.field(default_factory=dict)
    """hit, SUCCEEDED, FAILED, DEP_FAILED, INTERRUPTED, PENDING or "not needed" by fingerprint."""
    failures: list[Failure] = dataclasses.field(default_factory=list)
    """One per failed step."""
    blocked: list[str] = dataclasses.field(default_factory=list)
    """Names of steps that did not start because one before them failed."""
    exit_code: int = 0
    """0, 1, 2; stopped: 75 if a step can go on where it was and it wasn't Ctrl-C, else 128 + signal."""


class Executor:
    """Runs one plan on a backend."""

    def __init__(
        self, plan: Plan, display: Any, *, run_id: str, max_concurrent: int | None = None
    ) -> None:
        """Prepare; nothing starts before `run`."""
        self.plan = plan
        self.display = display
        self.summary = RunSummary(run_id=run_id)
        self._limit = max_concurrent or max(2, os.cpu_count() or 1)
        self._rows = {row.fingerprint: row for row in plan.rows}
        self._pending: dict[str, int] = {}
        self._children: dict[str, list[str]] = {}
        self._ready: deque[str] = deque()
        self._waiting: dict[str, float] = {}
        self._running: dict[int, PlannedStep] = {}
        self._preemptions: dict[str, int] = {}
        self._observer = leases.Observer()
        self._backend = LocalBackend()
        self._commit: dict[str, Any] | None = None
        self._stopped: int | None = None
        self._has_preempted = False
        self._grace_seconds = _wanted_grace()
        self._kill_at = float("inf")

    def run(self) -> RunSummary:
        """Run every step of the plan that needs it; return what came of it."""
        began = time.monotonic()
        self._order()
        if self._ready:
            self._backend.launch()
            self._commit = commit_facts(os.getcwd())
        try:
            with self._signals():
                self._loop()
        finally:
            self._backend.close()
        for key in self._rows:
            self.summary.statuses.setdefault(key, "PENDING")
        self.summary.seconds = time.monotonic() - began
        if self._stopped is not None:
            is_preempted = self._has_preempted and self._stopped != signal.SIGINT
            code = PREEMPTED_EXIT_CODE if is_preempted else 128 + self._stopped
            self.summary.exit_code = code
        elif self.summary.failures:
            codes = {failure.exit_code for failure in self.summary.failures}
            self.summary.exit_code = 2 if codes == {2} else 1
        return self.summary

    def _order(self) -> None:
        active = {key for key, row in self._rows.items() if row.action in ("run", "resume", "wait")}
        for key, row in self._rows.items():
            if key not in active:
                self.summary.statuses[key] = row.action
                continue
            before = [dep for dep in row.deps if dep in active]
            self._pending[key] = len(before)
            for dep in before:
                self._children.setdefault(dep, []).append(key)
            if not before:
                self._ready.append(key)

    def _loop(self) -> None:
        while self._running or self._waiting or self._ready:
            if self._stopped is None:
                self._look_at_waiting()
                self._start_ready()
            elif not self._running:
                return
            if time.monotonic() > self._kill_at:
                self._signal_all(signal.SIGKILL)
                self._kill_at = float("inf")
            if not self._running and not self._waiting:
                continue
            timeout = _WAIT_SECONDS if self._waiting or self._stopped is not None else 5.0
            events, _ = self._backend.poll(timeout)
            for worker, event in events:
                self._take(worker, event)

    def _start_ready(self) -> None:
        for _ in range(len(self._ready)):
            if len(self._running) >= self._limit:
                return
            key = self._ready.popleft()
            row = self._rows[key]
            if _needs_devices(row) and any(_needs_devices(r) for r in self._running.values()):
                self._ready.append(key)  # one step at a time has this machine's accelerators
            elif row.action == "wait":
                self._waiting[key] = 0.0
                self.display.message(row, f"waiting for {row.name}: {row.why}")
            else:
                self._start(row)

    def _start(self, row: PlannedStep, stale_version: str | None = None) -> None:
        home = state_home(row.identity, self.plan.prefix)
        document = make_step_document(self.plan.graph, row.identity, row.code)
        storage.write_json(records.neve_path(home, "step.json"), document, indent=None)
        request = {
            "home": home, "replace_version": row.replace_version,
            "stale_version": stale_version, "commit": self._commit,
        }  # fmt: skip
        worker = self._backend.start(request)
        self._running[worker.id] = row

    def _take(self, worker: Worker, event: dict[str, Any]) -> None:
        row = self._running[worker.id]
        kind = event["event"]
        if kind == "started":
            self.display.started(row)
            if self._stopped is not None:
                self._backend.signal(worker, signal.SIGTERM)
        elif kind == "progress":
            self.display.progress(row, event)
        elif kind == "message":
            self.display.message(row, event["text"])
        elif kind == "ended":
            del self._running[worker.id]
            self._ended(worker, row)

    def _ended(self, worker: Worker, row: PlannedStep) -> None:
        last = worker.last_event or {}
        word = last.get("event")
        # What it said, not how it ended: it may be told again while it ends.
        is_preempted = last.get("kind") == "preempted"
        if word == "finished":
            record = records.read_record(state_home(row.identity, self.plan.prefix))
            self.display.finished(row, record)
            self._succeeded(row, "SUCCEEDED")
        elif word == "complete":
            self._succeeded(row, "hit")
        elif word == "held":
            self._waiting[row.fingerprint] = 0.0
        elif self._stopped is not None:
            self._mark_dead(worker, row)
            self.summary.statuses[row.fingerprint] = "INTERRUPTED"
            why = last.get("why") if is_preempted else None
            self._has_preempted |= is_preempted
            self.display.failed(
                row, self._failure(worker, row, why or "interrupted", "interrupted")
            )
        elif is_preempted and self._may_retry(row):
            row.action = "resume" if row.step.resumable else "run"
            self.display.message(row, f"{last.get('why') or 'preempted'} Starting it again.")
            self._ready.append(row.fingerprint)
        else:
            self._failed(worker, row, last)

    def _may_retry(self, row: PlannedStep) -> bool:
        count = self._preemptions.get(row.fingerprint, 0) + 1
        self._preemptions[row.fingerprint] = count
        return count <= PREEMPTION_LIMIT

    def _mark_dead(self, worker: Worker, row: PlannedStep) -> None:
        if worker.pid is not None:
            leases.mark_dead(state_home(row.identity, self.plan.prefix), worker.pid)

    def _failed(self, worker: Worker, row: PlannedStep, last: dict[str, Any]) -> None:
        reason, kind = last.get("why"), last.get("kind", "failed")
        if reason is None:
            reason, kind = _exit_reason(worker.exit_code), "killed"
            self._mark_dead(worker, row)
            self._write_error(worker, row, reason)
        failure = self._failure(worker, row, reason, kind)
        if last.get("exit_code") == 2:
            failure = dataclasses.replace(failure, exit_code=2, last_lines=())
        self.summary.failures.append(failure)
        self.summary.statuses[row.fingerprint] = "FAILED"
        self.display.failed(row, failure)
        todo = list(self._children.get(row.fingerprint, ()))
        while todo:
            key = todo.pop()
            if key not in self.summary.statuses:
                self.summary.statuses[key] = "DEP_FAILED"
                self.summary.blocked.append(self._rows[key].name)
                todo.extend(self._children.get(key, ()))

    def _failure(self, worker: Worker, row: PlannedStep, reason: str, kind: str) -> Failure:
        return Failure(
            name=row.name,
            reason=reason,
            kind=kind,
            last_lines=tuple(worker.files.tail)[-TAIL_LINES:],
            log_path=worker.files.log_path,
            output_path=row.output_path,
            exit_code=1,
        )

    def _write_error(self, worker: Worker, row: PlannedStep, reason: str) -> None:
        if worker.files.attempt is None:
            return
        code = worker.exit_code or 1
        error = {
            "format": records.FORMAT, "kind": "killed", "why": reason, "exit_code": code,
            "signal": signal.Signals(-code).name if code < 0 else None, "traceback": "",
        }  # fmt: skip
        home = state_home(row.identity, self.plan.prefix)
        storage.write_json(records.attempt_path(home, worker.files.attempt, "error.json"), error)

    def _succeeded(self, row: PlannedStep, status: str) -> None:
        self.summary.statuses[row.fingerprint] = status
        for key in self._children.get(row.fingerprint, ()):
            self._pending[key] -= 1
            if self._pending[key] == 0 and key not in self.summary.statuses:
                self._ready.append(key)

    def _look_at_waiting(self) -> None:
        """Look at steps that another executor runs; take over where it has gone."""
        now = time.monotonic()
        for key, next_look in list(self._waiting.items()):
            if now < next_look:
                continue
            self._waiting[key] = now + _WAIT_SECONDS
            row = self._rows[key]
            home = state_home(row.identity, self.plan.prefix)
            view = leases.read_view(home)
            status = view.state["state"] if view else None
            if status == leases.SUCCEEDED:
                del self._waiting[key]
                self._succeeded(row, "hit")
                continue
            is_free = (
                view is None or status != leases.RUNNING or self._observer.is_stale(home, view)
            )
            if is_free and len(self._running) < self._limit:
                del self._waiting[key]
                row.action = "resume" if row.step.resumable else "run"
                self._start(row, view.version if view else None)

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Stop the workers on the first SIGINT, SIGTERM or SIGUSR1, kill them on a second Ctrl-C.

        SIGTERM and SIGUSR1 may come again: where a whole job is told to stop, several tell it.
        """
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write):
            os.set_blocking(fd, False)

        def stop(number: int, _frame: Any) -> None:
            if self._stopped is None:
                self._stopped = number
                self._kill_at = time.monotonic() + self._grace()
                self._signal_all(signal.SIGTERM)
            elif number == signal.SIGINT:
                self._kill_at = 0.0
                self._signal_all(signal.SIGKILL)

        old_fd = signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        caught = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        old = {number: signal.signal(number, stop) for number in caught}
        self._backend.watch(wake_read)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)

    def _grace(self) -> float:
        if self._grace_seconds is not None:
            return self._grace_seconds
        saves = any(row.step.resumable for row in self._running.values())
        return RESUMABLE_GRACE_SECONDS if saves else GRACE_SECONDS

    def _signal_all(self, number: int) -> None:
        for worker in list(self._backend.workers.values()):
            self._backend.signal(worker, number)


def _wanted_grace() -> float | None:
    text = os.environ.get(GRACE_VARIABLE)
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:
        raise InputError(
            f"environment: {GRACE_VARIABLE} must be seconds, 0 or more, got {text!r}. Change it."
        )
    return seconds


def _needs_devices(row: PlannedStep) -> bool:
    accelerator = row.step.resources.accelerator
    return accelerator is not None and not accelerator.endswith("xcpu")


def _exit_reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exited with code {code} without a word"
    name = signal.Signals(-code).name
    return f"killed by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")
