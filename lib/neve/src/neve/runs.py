"""`$MARIN_PREFIX/.neve/runs/<run id>.json`: one document per invocation."""

import datetime
import os
import socket
import sys
from typing import Any

from neve import records, storage
from neve.code import commit_facts
from neve.executor import RunSummary
from neve.plan import Plan
from neve.secrets import Redactor


def new_run_id() -> str:
    """Return an id that sorts by time and is unique."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{os.urandom(3).hex()}"


def run_path(prefix: str, run_id: str) -> str:
    """Return the path of a run's document."""
    return storage.join(prefix, ".neve", "runs", f"{run_id}.json")


def list_runs(prefix: str) -> list[str]:
    """Return the ids of all runs under a prefix, oldest first."""
    names = storage.list_names(storage.join(prefix, ".neve", "runs"))
    return [name.removesuffix(".json") for name in names if name.endswith(".json")]


def recipe_name() -> str:
    """Return the module or file that runs as the main program."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else getattr(main, "__file__", None) or "interactive"


def write_run(
    plan: Plan, summary: RunSummary | None, *, run_id: str, started_at: str, description: str
) -> None:
    """Publish the document of a run, at its start (no summary) and at its end."""
    redactor = Redactor()
    statuses = summary.statuses if summary else {}
    document: dict[str, Any] = {
        "format": records.FORMAT,
        "run_id": run_id,
        "recipe": recipe_name(),
        "description": description,
        "argv": [redactor.text(word) for word in sys.orig_argv],
        "cwd": os.getcwd(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started_at": started_at,
        "seconds": summary.seconds if summary else None,
        "exit_code": summary.exit_code if summary else None,
        "steps": [
            {
                "name": row.name,
                "fingerprint": row.fingerprint,
                "output_path": row.output_path,
                "action": row.action,
                "why": row.why,
                "status": statuses.get(row.fingerprint),
            }
            for row in plan.rows
        ],
        "failures": [
            {"name": f.name, "reason": redactor.text(f.reason), "log_path": f.log_path}
            for f in (summary.failures if summary else ())
        ],
    }
    if any(row.action != "hit" for row in plan.rows):
        document |= commit_facts(os.getcwd())
    storage.write_json(run_path(plan.prefix, run_id), document, indent=None)
