"""Runs a worker by hand: forks it, shows its output and keeps its attempt's files."""

import contextlib
import json
import os
import selectors
import signal
import sys
from typing import Any

from neve import lease as leases
from neve import records
from neve.attempt import AttemptFiles
from neve.errors import InputError
from neve.secrets import Redactor

USAGE = "usage: python -m neve.worker [--force] <output path>"


def main(argv: list[str]) -> int:
    """Run the step at an output path; return its exit code."""
    paths = [word for word in argv if word != "--force"]
    if len(paths) != 1 or paths[0].startswith("-"):
        raise InputError(f"arguments: must be one output path, got {argv}. {USAGE}")
    home = paths[0].rstrip("/")
    home = home if "://" in home else os.path.abspath(home)
    try:
        records.read_step(home)
    except FileNotFoundError as error:
        raise InputError(
            f"output path {home}: must hold .neve/step.json, got none. Run its recipe once."
        ) from error
    view = leases.read_view(home)
    request: dict[str, Any] = {"home": home}
    if view is not None and view.state["state"] == leases.SUCCEEDED:
        if "--force" not in argv:
            sys.stdout.write(f"{home} is complete; --force runs it again.\n")
            return 0
        request["replace_version"] = view.version
    return supervise(request)


def supervise(request: dict[str, Any]) -> int:
    """Fork a worker for one request, keep its files and return its exit code."""
    from neve.child import run_child  # loads the worker, which the page of usage doesn't need

    output_read, output_write = os.pipe()
    event_read, event_write = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(output_read)
        os.close(event_read)
        run_child(request, output_write, event_write, parent)
    os.close(output_write)
    os.close(event_write)

    def forward(number: int, _frame: Any) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, forward)
    files = AttemptFiles(request["home"], Redactor())
    words = _drain(files, output_read, event_read)
    _, status = os.waitpid(pid, 0)
    files.close()
    code = os.waitstatus_to_exitcode(status)
    if code < 0 and words & {"finished", "complete"}:
        sys.stderr.write(f"complete, and its process then ended by {signal.Signals(-code).name}\n")
        return 0
    if "held" in words:
        sys.stderr.write(f"{request['home']} is being written by another process.\n")
    if code < 0:
        leases.mark_dead(request["home"], pid)
        sys.stderr.write(f"killed by {signal.Signals(-code).name}\n")
        return 128 - code
    return code


def _drain(files: AttemptFiles, output_read: int, event_read: int) -> set[str]:
    """Copy output and events until both pipes end; return the kinds of events that came."""
    words: set[str] = set()
    pending = b""
    with selectors.DefaultSelector() as selector:
        for fd in (output_read, event_read):
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                elif key.fd == output_read:
                    sys.stdout.buffer.write(files.write_output(data))
                    sys.stdout.buffer.flush()
                else:
                    *lines, pending = (pending + data).split(b"\n")
                    for event in map(json.loads, lines):
                        words.add(event["event"])
                        _keep(files, event)
    return words


def _keep(files: AttemptFiles, event: dict[str, Any]) -> None:
    if event["event"] == "started":
        files.open(event["attempt"])
    event = files.write_event(event)
    if event["event"] == "message":
        sys.stdout.write(event["text"] + "\n")
        sys.stdout.flush()
