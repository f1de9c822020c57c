"""Runs of whole recipes: hits, failures, force, signals and two executors."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., tuple[int, str]]
Start = Callable[..., subprocess.Popen[str]]

JOIN = """
def build(text="b"):
    calls = unhashed({calls!r})
    def step(name, fn, *inputs, text=""):
        config = SampleConfig(text=text, inputs=inputs, calls=calls)
        return ExecutorStep(name=name, fn=fn, config=config, outputs=("out.txt",))
    src, again = step("src", write_files, text="x"), step("src", write_files, text="x")
    a = step("a", write_files, src / "out.txt", text={text!r})
    b = step("b", write_files, again / "out.txt")
    return [src, again, step("join", fail_first, a / "out.txt", b / "out.txt")]
steps = build()
"""


def states(prefix: Path) -> dict[str, str]:
    """Return the state of every step by name."""
    found = {}
    for path in prefix.rglob("state.json"):
        found[path.parent.parent.name.rpartition("-")[0]] = json.loads(path.read_text())["state"]
    return found


def wait_for(condition: Callable[[], Any]) -> Any:
    """Return the first true value of a condition within 20 seconds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("condition must become true within 20 s")


def test_executor_second_run_is_noop_and_failed_steps_rerun(
    run_recipe: Run, tmp_path: Path
) -> None:
    """Case 011: only what failed or changed runs, on a clean output path, equal steps once."""
    calls = tmp_path / "calls.txt"

    def run(text: str) -> tuple[int, list[str]]:
        calls.write_text(calls.read_text() if calls.exists() else "")
        before = len(calls.read_text().splitlines())
        code, _ = run_recipe(JOIN.format(calls=str(calls), text=text))
        return code, sorted(calls.read_text().splitlines()[before:])

    assert run("a") == (1, ["a", "b", "join", "src"])
    assert run("a") == (0, ["join"])
    assert run("a") == (0, [])
    assert run("changed") == (0, ["a", "join"])


def test_executor_checks_declared_outputs(run_recipe: Run, tmp_path: Path) -> None:
    """Case 010: missing and empty outputs fail by name; what was written is never a hit."""
    body = """
def step(name, writes, declared, text="x"):
    config = SampleConfig(text=text, writes=writes)
    return ExecutorStep(name=name, fn=write_files, config=config, outputs=declared)
steps = [
    step("prints_only", (), ("out.txt",)),
    step("one_of_two", ("foo.txt",), ("foo.txt", "bar.txt")),
    step("empty_file", ("rows.jsonl",), ("rows.jsonl",), text=""),
    step("fine", ("a.txt", "b.txt"), ("*.txt",)),
]
"""
    code, output = run_recipe(body)

    assert code == 1
    assert "missing declared output out.txt" in output
    assert "missing declared output bar.txt" in output
    assert "empty declared output rows.jsonl" in output
    assert states(tmp_path / "prefix") == {
        "prints_only": "FAILED", "one_of_two": "FAILED", "empty_file": "FAILED",
        "fine": "SUCCEEDED",
    }  # fmt: skip


def test_executor_isolates_a_killed_worker(run_recipe: Run, tmp_path: Path) -> None:
    """A worker killed by SIGKILL fails its step and its dependents; others go on."""
    body = """
dead = ExecutorStep(name="dead", fn=kill_self, config=SampleConfig())
after = ExecutorStep(name="after", fn=write_files, config=SampleConfig(inputs=(dead / "x",)))
steps = [after, ExecutorStep(name="fine", fn=write_files, config=SampleConfig(seconds=0.3))]
"""
    code, output = run_recipe(body)

    assert code == 1
    assert "killed by SIGKILL" in output
    assert "before the kill" in output
    assert "log.txt" in output
    assert states(tmp_path / "prefix") == {"dead": "FAILED", "fine": "SUCCEEDED"}


def test_finished_work_counts_though_its_process_aborts_as_it_ends(
    run_recipe: Run, tmp_path: Path
) -> None:
    """Whoever started the worker reads what is recorded, not how the process ended."""
    body = """
config = SampleConfig(text="x")
steps = [ExecutorStep(name="a", fn=abort_at_the_end, config=config, outputs=("out.txt",))]
"""

    code, output = run_recipe(body)
    assert (code, states(tmp_path / "prefix")) == (0, {"a": "SUCCEEDED"}), output

    (output_path,) = (tmp_path / "prefix").glob("a-*")
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parent}"}
    done = subprocess.run(
        [sys.executable, "-m", "neve.worker", "--force", str(output_path)],
        env=environ, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, states(tmp_path / "prefix")) == (0, {"a": "SUCCEEDED"}), done.stderr
    assert "complete, and its process then ended by SIGABRT" in done.stderr


def test_executor_ends_user_errors_with_one_sentence(run_recipe: Run) -> None:
    """A step that refuses its input exits with 2 and no traceback."""
    code, output = run_recipe("steps = [ExecutorStep(name='r', fn=refuse, config=SampleConfig())]")

    assert code == 2
    assert "max_tokens: must be positive" in output
    assert "Traceback" not in output


def test_executor_force_reruns_downstream_only(run_recipe: Run, tmp_path: Path) -> None:
    """--force NAME runs that step and all downstream, and bypasses every hit."""
    calls = tmp_path / "calls.txt"
    body = f"""
def step(name, *inputs):
    config = SampleConfig(text=name, inputs=inputs, calls=unhashed({str(calls)!r}))
    return ExecutorStep(name=name, fn=write_files, config=config)
a = step("a"); b = step("b", a / "out.txt"); c = step("c", b / "out.txt")
steps = [c]
"""
    assert run_recipe(body)[0] == 0
    calls.write_text("")
    assert run_recipe(body, "--force", "b")[0] == 0

    assert calls.read_text().splitlines() == ["b", "c"]
    assert "Did you mean 'b'?" in run_recipe(body, "--force", "bb")[1]


def test_executor_resumes_resumable_steps(run_recipe: Run, tmp_path: Path) -> None:
    """A resumable step finds its own earlier files; every attempt keeps its log."""
    body = """
steps = [ExecutorStep(name="r", fn=count_resumes, config=SampleConfig(), resumable=True)]
"""
    assert [run_recipe(body)[0] for _ in range(4)] == [1, 1, 0, 0]

    home = next((tmp_path / "prefix").glob("r-*"))
    assert json.loads((home / ".neve/record.json").read_text())["results"] == {"count": 3}
    assert sorted(p.name for p in (home / ".neve/attempts").iterdir()) == ["1", "2", "3"]


def test_executor_keeps_secrets_out_of_every_file(run_recipe: Run, tmp_path: Path) -> None:
    """Case 069: no stored or shown text holds the value of a secret variable."""
    secret = "hf_XXXXSECRETXXXX"
    body = "steps = [ExecutorStep(name='t', fn=tell_secret, config=SampleConfig())]"
    env = {"HF_TOKEN": secret, "TOKENIZERS_PARALLELISM": "false"}

    code, output = run_recipe(body, env=env)

    assert code == 1
    assert secret not in output
    files = [p for p in (tmp_path / "prefix").rglob("*") if p.is_file()]
    assert [p for p in files if secret in p.read_text()] == []
    log = next(p for p in files if p.name == "log.txt").read_text()
    assert "token is ***" in log
    assert "message ***" in log


def test_executor_refuses_a_secret_in_a_config(run_recipe: Run) -> None:
    """A config that holds the value of a secret variable is refused."""
    body = "steps = [ExecutorStep(name='t', fn=write_files, config={'k': 'hf_XXXXSECRETXXXX'})]"

    code, output = run_recipe(body, env={"HF_TOKEN": "hf_XXXXSECRETXXXX"})

    assert code == 2
    assert "must not hold a secret" in output


def test_executor_stops_on_interrupt_and_releases(start_recipe: Start, tmp_path: Path) -> None:
    """SIGINT stops the workers, releases leases and exits 130."""
    prefix = tmp_path / "prefix"
    process = start_recipe(
        "steps = [ExecutorStep(name='s', fn=write_files, config=SampleConfig(seconds=60))]"
    )
    wait_for(lambda: states(prefix).get("s") == "RUNNING")

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)

    assert process.returncode == 130
    assert states(prefix) == {"s": "FAILED"}


def test_workers_end_when_the_executor_is_killed(start_recipe: Start, tmp_path: Path) -> None:
    """A killed executor leaves no worker behind."""
    prefix = tmp_path / "prefix"
    process = start_recipe(
        "steps = [ExecutorStep(name='s', fn=write_files, config=SampleConfig(seconds=60))]"
    )
    wait_for(lambda: states(prefix).get("s") == "RUNNING")
    state = json.loads(next(prefix.rglob("state.json")).read_text())

    process.kill()

    wait_for(lambda: not os.path.exists(f"/proc/{state['owner']['pid']}"))


def test_two_executors_share_a_step(start_recipe: Start, tmp_path: Path) -> None:
    """The second executor waits for the first one's running step and then has a hit."""
    calls = tmp_path / "calls.txt"
    body = f"""
config = SampleConfig(seconds=1.5, calls=unhashed({str(calls)!r}))
steps = [ExecutorStep(name="s", fn=write_files, config=config)]
"""
    first = start_recipe(body)
    wait_for(calls.exists)
    second = start_recipe(body)
    outputs = [process.communicate(timeout=30)[0] for process in (first, second)]

    assert (first.returncode, second.returncode) == (0, 0), outputs
    assert calls.read_text() == "s\n"


def test_dry_run_writes_nothing(run_recipe: Run, tmp_path: Path) -> None:
    """--dry_run shows the plan and leaves the prefix alone."""
    body = "steps = [ExecutorStep(name='s', fn=write_files, config=SampleConfig())]"

    code, output = run_recipe(body, "--dry_run")

    assert code == 0
    assert "never ran" in output
    assert not (tmp_path / "prefix").exists()


def test_options_refuse_wrong_input(run_recipe: Run) -> None:
    """No prefix, unknown flags, absent engines and absent accelerators exit 2 in a sentence."""
    body = "steps = [ExecutorStep(name='s', fn=write_files, config=SampleConfig())]"
    tries = [
        ((), {"MARIN_PREFIX": ""}, "MARIN_PREFIX"),
        (("--dryrun",), {}, "Did you mean '--dry_run'?"),
        (("--backend", "slurm"), {}, "later release"),
        (("--accelerator", "32xH100"), {}, "32xH100"),
        (("--prefix", "/proc/x"), {}, "must be writable"),
    ]
    for words, env, text in tries:
        code, output = run_recipe(body, *words, env=env)
        assert (code, text in output, "Traceback" in output) == (2, True, False), output


def test_plan_tells_changed_code(run_recipe: Run, tmp_path: Path) -> None:
    """Case 004: a change in the module is told, a comment is not, strict mode refuses it."""
    module = tmp_path / "greeting.py"
    body = "import greeting\nsteps = [ExecutorStep(name='g', fn=greeting.greet)]"
    v1 = "PLANET = 'World'\ndef greet(config, out):\n    open(out + '/g', 'w').write(PLANET)\n"
    module.write_text(v1)
    assert run_recipe(body)[0] == 0

    module.write_text(v1 + "# a comment\n")
    assert "code changed" not in run_recipe(body)[1]
    module.write_text(v1.replace("World", "Mars"))
    assert "code changed since (greeting.py" in run_recipe(body)[1]
    code, output = run_recipe(body, env={"NEVE_STRICT_CODE": "1"})
    assert (code, "Bump its version" in output) == (2, True)
