"""A step that says it was preempted is no failure: it is told, recorded and started again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., tuple[int, str]]

PREEMPTED_ONCE = """
class Preempted(RuntimeError):
    exit_code = 75

def train(config, out):
    path = os.path.join(out, "saved")
    if not os.path.exists(path):
        open(path, "w").write("half")
        raise Preempted("told to stop, saved.")
    return {"found": open(path).read()}
"""

KILLED_SOFTLY = """
import os, signal, time
def train(config, out):
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(60)
"""


def read_json(path: Path) -> Any:
    """Return a JSON file."""
    return json.loads(path.read_text())


def test_preempted_step_is_started_again_and_finds_what_it_saved(
    run_recipe: Run, tmp_path: Path
) -> None:
    """Exit code 75 of a step's error: the attempt is preempted, and the same run resumes it."""
    (tmp_path / "pre.py").write_text("import os\n" + PREEMPTED_ONCE)
    body = "import pre\nsteps = [ExecutorStep(name='p', fn=pre.train, resumable=True)]"

    code, output = run_recipe(body)

    home = next((tmp_path / "prefix").glob("p-*"))
    error = read_json(home / ".neve/attempts/1/error.json")
    assert (code, "told to stop, saved." in output) == (0, True), output
    assert (error["kind"], error["exit_code"], error["traceback"]) == ("preempted", 75, "")
    assert read_json(home / ".neve/record.json")["results"] == {"found": "half"}
    assert read_json(home / ".neve/record.json")["attempt"] == 2


def test_step_that_does_not_catch_a_warning_signal_is_interrupted(
    run_recipe: Run, tmp_path: Path
) -> None:
    """SIGUSR1, Slurm's warning, ends a step like SIGTERM does, and the plan says so."""
    (tmp_path / "soft.py").write_text(KILLED_SOFTLY)
    body = "import soft\nsteps = [ExecutorStep(name='s', fn=soft.train)]"

    code, _ = run_recipe(body)
    state = read_json(next((tmp_path / "prefix").glob("s-*/.neve/state.json")))
    _, plan = run_recipe(body, "--dry_run")

    assert (code, state["state"], state["ended"]) == (1, "FAILED", "interrupted")
    assert "attempt 1 was interrupted" in plan
