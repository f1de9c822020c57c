"""snowball_h100 itself, its sources on a local hub, on 8 virtual CPU devices: context 2 x expert 4."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from neve_chat.templates import load_template, serving_template

from tests.e2e import recipes
from tests.e2e.toy_hub import add_h100_repositories
from tests.hub.server import LocalHub

pytestmark = pytest.mark.full  # minutes: eight virtual devices on a few cores
RUN = "snowball-openthoughts-agent-sft"
ON_CPU = (
    "--accelerator", "8xcpu", "--spec.mesh.context", "2", "--spec.seq_len", "512",
    "--spec.checkpoint_every_train_steps", "2", "--spec.num_samples", "2", "--spec.sample_max_tokens", "16",
    "--spec.capacity_factor", "4",  # the size of the expert axis: untrained routers drop more than 0.1 % at 1.25
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Served:
    """The recipe's repositories on a local hub, and what running it against them takes."""

    endpoint: str
    stops: tuple[int, ...]
    compiled: Path

    @property
    def args(self) -> tuple[str, ...]:
        """Options of the recipe."""
        return (*ON_CPU, "--spec.model.eos_token_ids", str(list(self.stops)))

    def env(self, prefix: Path, **extra: str) -> dict[str, str]:
        """Returns the environment of a run under `prefix`; compiled programs are shared between runs."""
        return recipes.environment(
            prefix,
            HF_ENDPOINT=self.endpoint,
            HF_HOME=str(prefix / "hf"),
            JAX_COMPILATION_CACHE_DIR=str(self.compiled),
            **extra,
        )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves the recipe's repositories."""
    hub = LocalHub(tokens=("hf_right",))
    stops = add_h100_repositories(hub, tmp_path_factory.mktemp("repositories"))
    with hub.serving() as endpoint:
        yield Served(endpoint, stops, tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def undisturbed(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs the recipe once to its end; returns the prefix."""
    prefix = tmp_path_factory.mktemp("undisturbed")
    done = recipes.run(recipes.H100, *served.args, env=served.env(prefix))
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix


def test_recipe_writes_checkpoint_folder_and_samples(undisturbed: Path, served: Served) -> None:
    """A native checkpoint, a bf16 HF folder with template and stop ids, and samples come out."""
    training = recipes.output_path(undisturbed, f"checkpoints/{RUN}")
    export = recipes.output_path(undisturbed, f"exports/{RUN}")
    samples = recipes.output_path(undisturbed, f"samples/{RUN}")

    last = training / "checkpoints" / "step-9"
    assert json.loads((last / "metadata.json").read_text())["step"] == 9
    assert sorted(recipes.losses(training)) == list(range(1, 11))
    generation = json.loads((export / "generation_config.json").read_text())
    assert set(served.stops) <= set(generation["eos_token_id"])
    template = load_template("marin").text
    assert (export / "training_chat_template.jinja").read_text() == template
    assert (export / "chat_template.jinja").read_text() == serving_template(template)
    assert len(json.loads((samples / "samples.json").read_text())) >= 1


def test_second_run_starts_no_step(undisturbed: Path, served: Served) -> None:
    """The same command again finds everything complete."""
    before = {
        path: recipes.record(path)["started_at"]
        for path in undisturbed.glob("*/*")
        if (path / ".neve").exists()
    }

    done = recipes.run(recipes.H100, *served.args, env=served.env(undisturbed))

    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: recipes.record(path)["started_at"] for path in before} == before


def test_killed_training_resumes_with_the_same_losses(
    undisturbed: Path, served: Served, tmp_path: Path
) -> None:
    """kill -9 of the training process, then the same command: the losses of an undisturbed run."""
    env = served.env(tmp_path)
    first = subprocess.Popen(
        [sys.executable, "-m", recipes.H100, *served.args],
        cwd=recipes.ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    pid = _wait_for_checkpoint(tmp_path, first)
    os.kill(pid, signal.SIGKILL)
    output, _ = first.communicate(timeout=300)
    assert first.returncode == 1, output
    assert "SIGKILL" in output

    again = recipes.run(recipes.H100, *served.args, env=env)

    assert again.returncode == 0, again.stdout + again.stderr
    training = recipes.output_path(tmp_path, f"checkpoints/{RUN}")
    expected = recipes.losses(recipes.output_path(undisturbed, f"checkpoints/{RUN}"))
    assert recipes.losses(training) == expected
    attempts = sorted((training / ".neve" / "attempts").iterdir(), key=lambda path: int(path.name))
    first_step = min(
        json.loads(line)["step"]
        for line in (attempts[-1] / "metrics.jsonl").read_text().splitlines()
        if "loss" in json.loads(line)
    )
    assert first_step > 1, "the second attempt began at the first train step"


def _wait_for_checkpoint(prefix: Path, process: subprocess.Popen) -> int:
    """Returns the training process's id once a checkpoint is complete."""
    deadline = time.monotonic() + 400
    while time.monotonic() < deadline:
        for metadata in prefix.glob(f"checkpoints/{RUN}-*/checkpoints/step-*/metadata.json"):
            state = json.loads((metadata.parents[2] / ".neve" / "state.json").read_text())
            return state["owner"]["pid"]
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.1)
    raise AssertionError("no checkpoint appeared")
