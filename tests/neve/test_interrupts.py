"""What a run does when its code is edited, and when it is told to stop."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., tuple[int, str]]
Start = Callable[..., subprocess.Popen[str]]

SLEEPY = "steps = [ExecutorStep(name='s', fn=write_files, config=SampleConfig(seconds=60))]"
STUBBORN = """
import signal, time
def sleep(config, out):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(out + "/ready", "w").close()
    time.sleep(60)
"""
SELF_EDIT = """
def edit(config, out):
    text = open(__file__).read()
    open(out + "/made", "w").write("made from v1")
    open(__file__, "w").write(f"EDIT_{len(text)} = 1\\n" + text)
"""


def state(prefix: Path) -> dict[str, Any]:
    """Return the only state below a prefix, or an empty one."""
    return next((json.loads(p.read_text()) for p in prefix.rglob("state.json")), {})


def wait_for(condition: Callable[[], Any]) -> None:
    """Wait for a condition for at most 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "condition must become true within 20 s"
        time.sleep(0.02)


def test_code_edited_while_running_keeps_the_digest_from_before(
    run_recipe: Run, tmp_path: Path
) -> None:
    """Case 009: the record tells the code that ran, a warning names the file, a rerun is told."""
    (tmp_path / "edited.py").write_text(SELF_EDIT)
    body = "import edited\nsteps = [ExecutorStep(name='e', fn=edited.edit)]"

    def record() -> dict[str, Any]:
        path = next((tmp_path / "prefix").glob("e-*/.neve/record.json"))
        return json.loads(path.read_text())["code"]

    code, output = run_recipe(body)
    first = record()
    assert (code, "edited.py changed while step e ran" in output) == (0, True), output
    assert "code changed since (edited.py" in run_recipe(body)[1]

    code, output = run_recipe(body, "--force", "e")
    assert (code, "changed while step" in output) == (0, True), output
    assert record()["module_digest"] != first["module_digest"]
    assert record()["source_digest"] == first["source_digest"]


def test_executor_stops_on_terminate_and_releases(start_recipe: Start, tmp_path: Path) -> None:
    """SIGTERM stops the workers, releases leases and exits 143; the next run starts at once."""
    prefix = tmp_path / "prefix"
    process = start_recipe(SLEEPY)
    wait_for(lambda: state(prefix).get("state") == "RUNNING")
    worker = state(prefix)["owner"]["pid"]

    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=20)

    assert process.returncode == 143, output
    assert state(prefix)["state"] == "FAILED"
    assert not os.path.exists(f"/proc/{worker}")
    assert "Traceback" not in output


def test_second_interrupt_kills(start_recipe: Start, tmp_path: Path) -> None:
    """A worker that ignores SIGTERM is killed by a second SIGINT and its lease is released."""
    prefix = tmp_path / "prefix"
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    process = start_recipe("import stubborn\nsteps = [ExecutorStep(name='s', fn=stubborn.sleep)]")
    wait_for(lambda: list(prefix.rglob("ready")))
    worker = state(prefix)["owner"]["pid"]

    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)

    assert process.returncode == 130, output
    assert time.monotonic() - began < 5
    assert not os.path.exists(f"/proc/{worker}")
    assert state(prefix)["state"] == "FAILED"
