"""A machine that is taken away: the recipe's command, told to stop while it trains, and run again."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import recipes

pytestmark = pytest.mark.full  # five trainings of a small Snowball
STEP = "checkpoints/snowball-tiny-terminal-sft"
NUM_TRAIN_STEPS = 24
ARGS = (
    "--only", STEP, "--spec.num_train_steps", str(NUM_TRAIN_STEPS), "--spec.batch_size", "2",
    "--spec.validation_fraction", "0.02", "--spec.eval_every_train_steps", "2",
    "--spec.model.shape.hidden_size", "64",
)  # fmt: skip
GRACE_SECONDS = 60
"""Stands for the machine's: what its owner gives a job between the first signal and the last."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """A prefix on which the recipe is run again and again."""

    prefix: Path
    compiled: Path

    def env(self) -> dict[str, str]:
        """Returns the environment of a run; compiled programs are shared between prefixes."""
        return recipes.environment(
            self.prefix,
            JAX_COMPILATION_CACHE_DIR=str(self.compiled),
            NEVE_GRACE_SECONDS=str(GRACE_SECONDS),
            # Less optimized programs compile in half the time and are as deterministic.
            XLA_FLAGS="--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
            WANDB_MODE="disabled",
        )

    @property
    def home(self) -> Path:
        """Output path of the training."""
        (found,) = self.prefix.glob(f"{STEP}-*")
        return found

    def state(self) -> dict[str, Any]:
        """Returns the training's state.json."""
        return json.loads((self.home / ".neve" / "state.json").read_text())

    def rows(self) -> list[dict[str, Any]]:
        """Returns the rows of loss.jsonl without times and speeds, which differ from run to run."""
        lines = (self.home / "loss.jsonl").read_text().splitlines()
        return [
            {name: value for name, value in json.loads(line).items() if "second" not in name}
            for line in lines
        ]

    def checkpoints(self) -> set[int]:
        """Returns the numbers of train steps after which something complete was saved."""
        found = (self.home / "checkpoints").glob("step-*/metadata.json")
        return {int(path.parent.name.removeprefix("step-")) + 1 for path in found}


class Running:
    """The recipe's command in a session of its own, as a scheduler starts it."""

    def __init__(self, machine: Machine) -> None:
        """Starts it; what it prints is read line by line."""
        self.machine = machine
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", recipes.TINY, *ARGS],
            cwd=recipes.ROOT, env=machine.env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.limit = threading.Timer(400, self.kill)
        self.limit.start()

    @property
    def output(self) -> str:
        """What it printed so far."""
        return "".join(self.lines)

    def wait_for(self, text: str) -> None:
        """Reads until a line holds the text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"{text!r} must be printed, got {self.output[-4000:]}")

    def end(self) -> tuple[int, float]:
        """Returns exit code, and seconds until it ended."""
        began = time.monotonic()
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(), time.monotonic() - began

    def worker(self) -> int:
        """Returns the process that trains."""
        return self.machine.state()["owner"]["pid"]

    def tell_all(self, number: int) -> None:
        """Signals every process of the job, as Slurm does."""
        worker = self.worker()
        server = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        assert server != self.process.pid
        os.killpg(self.process.pid, number)
        os.kill(server, number)
        os.kill(worker, number)

    def kill(self) -> None:
        """Ends it at once; its worker notices."""
        self.process.kill()

    def close(self) -> None:
        """Leaves nothing behind."""
        self.limit.cancel()
        if self.process.poll() is None:
            self.kill()
            self.process.communicate()
        elif self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of compiled programs."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def undisturbed(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A run that was left alone."""
    machine = Machine(tmp_path_factory.mktemp("undisturbed"), compiled)
    running = Running(machine)
    code, _ = running.end()
    running.close()
    assert code == 0, running.output
    return machine


@pytest.fixture
def machine(compiled: Path, tmp_path: Path) -> Machine:
    """A prefix that nothing was run on."""
    return Machine(tmp_path / "prefix", compiled)


@pytest.fixture
def start(machine: Machine) -> Iterator[Any]:
    """Starts the command; ended after the test."""
    started: list[Running] = []

    def begin() -> Running:
        started.append(Running(machine))
        return started[-1]

    yield begin
    for running in started:
        running.close()


def check_preempted(machine: Machine, running: Running) -> int:
    """Checks how a stopped run ended and what it left; returns the train steps that were done."""
    code, seconds = running.end()
    assert code == 75, running.output
    assert seconds < GRACE_SECONDS
    assert "Traceback" not in running.output
    state = machine.state()
    assert (state["state"], state["ended"]) == ("FAILED", "preempted")
    error = json.loads(
        (machine.home / ".neve" / "attempts" / str(state["attempt"]) / "error.json").read_text()
    )
    assert (error["kind"], error["exit_code"], error["traceback"]) == ("preempted", 75, "")
    rows = machine.rows()
    done = rows[-1]["step"]
    assert [row["step"] for row in rows] == list(range(done + 1))
    assert done in machine.checkpoints()
    assert f"stopped after train step {done} of {NUM_TRAIN_STEPS}, saved" in running.output
    assert f"stopped   {STEP}" in running.output
    return done


def test_stopped_recipe_says_preempted_and_goes_on_to_the_bit(
    undisturbed: Machine, machine: Machine, start: Any
) -> None:
    """SIGTERM to the command's process group, then SIGUSR1 and SIGTERM to all, then to the worker.

    The command ends within the grace time with 75, the step is preempted and saved, and the same
    command goes on. SIGUSR1 to the worker alone ends nothing: the command starts it again. In the
    end loss.jsonl is that of a run that was left alone.
    """
    running = start()
    running.wait_for("train step 4: held-out loss")
    os.killpg(running.process.pid, signal.SIGTERM)
    first = check_preempted(machine, running)
    plan = recipes.run(recipes.TINY, *ARGS, "--dry_run", env=machine.env())
    assert "attempt 1 was preempted" in plan.stdout

    running = start()
    running.wait_for(f"resuming after train step {first} ")
    running.wait_for("held-out loss")
    running.tell_all(signal.SIGUSR1)
    running.tell_all(signal.SIGTERM)
    second = check_preempted(machine, running)
    assert second > first

    running = start()
    running.wait_for(f"resuming after train step {second} ")
    running.wait_for("held-out loss")
    os.kill(running.worker(), signal.SIGUSR1)
    running.wait_for("Starting it again.")
    assert "received SIGUSR1; stopped after train step" in running.lines[-1]
    code, _ = running.end()

    assert code == 0, running.output
    assert machine.state()["state"] == "SUCCEEDED"
    assert machine.state()["attempt"] == 4
    assert machine.rows() == undisturbed.rows()
    assert [row["step"] for row in machine.rows()] == list(range(NUM_TRAIN_STEPS + 1))


def test_recipe_stopped_while_its_training_starts_is_preempted_too(
    undisturbed: Machine, machine: Machine, start: Any
) -> None:
    """Told before it can save anything, the step goes on later all the same, and 75 says so."""
    running = start()
    running.wait_for(f"started   {STEP}")
    os.killpg(running.process.pid, signal.SIGTERM)
    code, seconds = running.end()

    assert code == 75, running.output
    assert seconds < GRACE_SECONDS
    assert "Traceback" not in running.output
    assert machine.state()["ended"] == "preempted"
    again = start()
    assert again.end()[0] == 0, again.output
    assert machine.rows() == undisturbed.rows()
