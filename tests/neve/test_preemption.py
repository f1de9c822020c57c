"""A step that says it was preempted is no failure: it is told, recorded and started again."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str]]
Start = Callable[..., subprocess.Popen[str]]

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

SLEEPY = """
import os, time
def train(config, out):
    open(out + "/ready", "w").close()
    time.sleep(60)
"""

SLOW_TO_SAVE = """
import os, signal, time
class Preempted(RuntimeError):
    exit_code = 75

def train(config, out):
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    open(out + "/ready", "w").close()
    while len(told) < 2 or not os.path.exists(out + "/go"):
        time.sleep(0.01)
    raise Preempted("saved.")
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


def wait_for(path: Path, pattern: str) -> Path:
    """Return the one path that matches, once it is there, for at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not (found := list(path.glob(pattern))):
        assert time.monotonic() < deadline, f"{pattern} must appear within 20 s"
        time.sleep(0.02)
    return found[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_stopped_recipe_with_a_resumable_step_says_preempted(
    start_recipe: Start, run_recipe: Run, tmp_path: Path, number: signal.Signals
) -> None:
    """Exit code 75 says that the same command goes on; the step needn't listen for that."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    body = "import sleepy\nsteps = [ExecutorStep(name='s', fn=sleepy.train, resumable=True)]"
    process = start_recipe(body)
    home = wait_for(tmp_path, "prefix/s-*/ready").parent

    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    _, plan = run_recipe(body, "--dry_run")

    assert process.returncode == 75, output
    assert "stopped   s  received SIGTERM; goes on later." in output
    assert read_json(home / ".neve/state.json")["ended"] == "preempted"
    assert "attempt 1 was preempted" in plan


def test_saving_is_not_cut_short_by_another_signal(start_recipe: Start, tmp_path: Path) -> None:
    """Every process of the job is told, some twice: the step still ends as it wants to."""
    (tmp_path / "slow.py").write_text(SLOW_TO_SAVE)
    process = start_recipe(
        "import slow\nsteps = [ExecutorStep(name='s', fn=slow.train, resumable=True)]"
    )
    home = wait_for(tmp_path, "prefix/s-*/ready").parent
    worker = read_json(home / ".neve/state.json")["owner"]["pid"]
    server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])

    process.send_signal(signal.SIGUSR1)
    for number in (signal.SIGUSR1, signal.SIGTERM):
        os.kill(server, number)
        process.send_signal(number)
    os.kill(worker, signal.SIGTERM)
    (home / "go").touch()
    output, _ = process.communicate(timeout=20)

    assert process.returncode == 75, output
    assert "stopped   s  saved." in output
    assert "Traceback" not in output


def test_grace_that_is_no_number_is_refused(run_recipe: Run, tmp_path: Path) -> None:
    """Before anything runs, not when it is needed."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    body = "import sleepy\nsteps = [ExecutorStep(name='s', fn=sleepy.train)]"

    code, output = run_recipe(body, env={"NEVE_GRACE_SECONDS": "soon"})

    assert code == 2
    assert "NEVE_GRACE_SECONDS must be seconds, 0 or more, got 'soon'" in output
    assert not list(tmp_path.glob("prefix/s-*/ready"))
