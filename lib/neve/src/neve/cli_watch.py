"""`neve status` and `neve logs`: what a run is doing, and what a step wrote."""

import datetime
import os
import socket
import time
from typing import Any

import click

from neve import display_text as say
from neve import storage
from neve.artifacts import Artifact, last_progress_at, read_artifact, required_prefix, resolve
from neve.cli import json_option, prefix_option, print_json, print_text
from neve.cli_inspect import is_colored, state_cell
from neve.errors import InputError
from neve.lease import process_started
from neve.records import attempt_path, log_path, read_document, strip_ansi

_QUIET_SECONDS = 120.0
_FOLLOW_SECONDS = 0.3


@click.command("status", short_help="Show the steps of the latest run.")
@click.argument("run", required=False)
@prefix_option
@json_option
def status_command(run: str | None, prefix: str | None, as_json: bool) -> None:
    """Show the steps of the latest RUN: states, seconds and last progress.

    RUN is the beginning of a run id; the files are in <prefix>/.neve/runs.
    """
    base = required_prefix(prefix)
    document = _find_run(base, run)
    rows = [_step_row(base, step) for step in _steps_of(document)]
    if as_json:
        print_json({"run": document, "steps": rows})
        return
    print_text(_run_line(document))
    cells = [
        [row["name"], state_cell(row["state"]), row["took"], row["progress"], row["path"]]
        for row in rows
    ]
    head = ["step", "state", "seconds", "last progress", "path"]
    print_text("\n".join(say.table(cells, head, is_colored())))
    for row in rows:
        if row["hint"]:
            print_text(f"{row['name']}: {row['hint']}")


def _find_run(prefix: str, wanted: str | None) -> dict[str, Any]:
    folder = storage.join(prefix, ".neve", "runs")
    ids = [n.removesuffix(".json") for n in storage.list_names(folder) if n.endswith(".json")]
    matches = [one for one in ids if wanted is None or one.startswith(wanted)]
    if not matches or (wanted and len(matches) > 1 and wanted not in matches):
        found = f"{len(matches)} runs" if ids else "no runs"
        latest = f" The latest are {', '.join(sorted(ids)[-3:])}." if ids else ""
        raise InputError(
            f"run {wanted or ''}: must name a run under {prefix}, got {found}.{latest}"
        )
    chosen = wanted if wanted in matches else _latest(folder, matches)
    document = read_document(storage.join(folder, f"{chosen}.json"))
    return {"run_id": chosen, **document}


def _latest(folder: str, ids: list[str]) -> str:
    def written(one: str) -> tuple[float, str]:
        path = storage.join(folder, f"{one}.json")
        return (os.stat(storage.local_path(path)).st_mtime if storage.is_local(path) else 0.0), one

    return max(ids, key=written)


def _steps_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    steps = document.get("steps") or []
    if isinstance(steps, dict):
        return [{"name": key, **value} for key, value in steps.items()]
    return steps


def _run_line(document: dict[str, Any]) -> str:
    parts = [f"Run {document['run_id']}"]
    what = document.get("description") or document.get("recipe")
    if what:
        parts.append(str(what))
    began = document.get("started_at")
    if isinstance(began, str):
        parts.append(f"started {say.age_text(datetime.datetime.fromisoformat(began).timestamp())}")
    code = document.get("exit_code")
    if code is not None:
        word = {0: "done", 1: "failed", 2: "failed"}.get(code, "stopped")
        parts.append(f"{word} after {say.seconds_text(document.get('seconds'))}")
    elif _is_gone(document):
        parts.append("its process is gone; run the recipe again to go on")
    else:
        parts.append("running")
    return ", ".join(parts)


def _is_gone(document: dict[str, Any]) -> bool:
    pid = document.get("pid")
    here = document.get("host") == socket.gethostname()
    return bool(here and pid and process_started(pid) is None)


def _step_row(prefix: str, step: dict[str, Any]) -> dict[str, Any]:
    path = step.get("output_path") or step.get("path") or ""
    home = path if not path or path.startswith("/") or "://" in path else storage.join(prefix, path)
    artifact = read_artifact(home, prefix) if home else None
    told = step.get("status") or step.get("action") or "?"
    row = {
        "name": step.get("name", "?"), "state": told, "took": "-", "progress": "-",
        "path": home, "hint": "",
    }  # fmt: skip
    if artifact is None:
        return row
    done = step.get("status") or step.get("action")
    row["state"] = "hit" if done == "hit" else artifact.state_text
    record = artifact.record() if artifact.is_complete else None
    if record:
        row["took"] = say.seconds_text(record.get("seconds"))
        return row
    heard = last_progress_at(artifact)
    row["progress"] = say.age_text(heard)
    row["hint"] = _hint(artifact, heard)
    return row


def _hint(artifact: Artifact, heard: float | None) -> str:
    if artifact.state_text == "STALLED":
        return "its process is gone; run the recipe again to take it over."
    if artifact.state_text == "RUNNING" and heard and time.time() - heard > _QUIET_SECONDS:
        return f"no output since {say.age_text(heard)}; see `neve logs {artifact.relative}`."
    if artifact.state_text == "FAILED":
        return f"see `neve logs {artifact.relative}`."
    return ""


@click.command("logs")
@click.argument("output")
@click.option("-f", "--follow", is_flag=True, help="Go on until the attempt ends.")
@click.option("--attempt", type=int, help="Number of the attempt [default: the last].")
@prefix_option
def logs_command(output: str, follow: bool, attempt: int | None, prefix: str | None) -> None:
    """Print the log of an OUTPUT's last attempt."""
    artifact = resolve(output, prefix)
    last = artifact.state.get("attempt", 1)
    number = attempt or last
    path = log_path(artifact.path, number)
    if not storage.exists(path):
        folder = attempt_path(artifact.path, 1).rpartition("/")[0]
        there = sorted(int(n) for n in storage.list_names(folder) if n.isdigit())
        have = f"attempts {', '.join(map(str, there))}" if there else "no attempts"
        raise InputError(
            f"log of {artifact.relative}: must be of an attempt that ran, got attempt {number}. "
            f"It has {have}."
        )
    _copy_log(artifact, path, follow and number == last, number)


def _copy_log(artifact: Artifact, path: str, follow: bool, attempt: int) -> None:
    offset, pending = 0, b""
    while True:
        running = follow and _is_running(artifact.path, attempt)
        data = storage.read_bytes(path)
        *lines, pending = (pending + data[offset:]).split(b"\n")
        offset = len(data)
        if not running and pending:
            lines, pending = [*lines, pending], b""
        for line in lines:
            print_text(strip_ansi(line.decode(errors="replace")))
        if not running:
            return
        time.sleep(_FOLLOW_SECONDS)


def _is_running(path: str, attempt: int) -> bool:
    now = read_artifact(path)
    return bool(now and now.state_text == "RUNNING" and now.state.get("attempt") == attempt)
