"""A dense model through the same command: adapters, a second training after them, a native checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import recipes
from tests.neve_train.toy_run import make_inputs

RECIPE = "tests.e2e.adapter_chain"
PROGRAM = recipes.ROOT / "tests" / "neve_train" / "family_run.py"
# Three trainings, two exports and samples: about four minutes of CPU.
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small random Qwen3."""
    folder = tmp_path_factory.mktemp("qwen3")
    make_inputs(folder)
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), "model"],
        env={**os.environ, "PYTHONPATH": str(recipes.ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "model"


@pytest.fixture(scope="module")
def chain(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs both trainings with one command; returns the prefix."""
    prefix = tmp_path_factory.mktemp("prefix")
    done = recipes.run(RECIPE, env=recipes.environment(prefix, TINY_QWEN3=str(qwen3)))
    assert done.returncode == 0, done.stdout + done.stderr
    return prefix


def results(prefix: Path, name: str) -> dict:
    """Returns what a step returned."""
    return recipes.record(recipes.output_path(prefix, name))["results"]


def test_a_second_training_goes_on_where_the_adapters_ended(chain: Path) -> None:
    """It starts from the merged folder: bfloat16 rounds each weight by up to one part in 256."""
    first, second = results(chain, "checkpoints/first"), results(chain, "checkpoints/second")

    assert first["heldout_loss"] < first["heldout_loss_first"]
    assert second["heldout_loss_first"] == pytest.approx(first["heldout_loss"], abs=0.02)
    assert second["heldout_loss"] < second["heldout_loss_first"]


def test_the_first_training_exports_merged_weights_and_adapters(chain: Path) -> None:
    """The merged folder has the base model's files, and the adapters are below it."""
    export = recipes.output_path(chain, "exports/first")

    config = json.loads((export / "config.json").read_text())
    facts = json.loads((export / "adapter" / "adapter_config.json").read_text())
    assert config["model_type"] == "qwen3"
    assert facts["target_modules"] == [
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    ]  # fmt: skip
    assert (recipes.output_path(chain, "samples/second") / "samples.txt").exists()


def test_a_training_starts_from_a_native_checkpoint_where_it_lies(
    chain: Path, qwen3: Path, tmp_path: Path
) -> None:
    """With the checkpoint of the second training as its base, the loss begins where that one ended."""
    checkpoint = recipes.output_path(chain, "checkpoints/second") / "checkpoints"
    before = sorted(checkpoint.rglob("*"))
    env = recipes.environment(tmp_path, TINY_QWEN3=str(qwen3), TINY_CHECKPOINT=str(checkpoint))

    done = recipes.run(RECIPE, env=env)

    assert done.returncode == 0, done.stdout + done.stderr
    ended = results(chain, "checkpoints/second")["heldout_loss"]
    assert results(tmp_path, "checkpoints/first")["heldout_loss_first"] == pytest.approx(
        ended, abs=1e-5
    )
    assert sorted(checkpoint.rglob("*")) == before
