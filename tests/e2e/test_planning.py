"""Planning a recipe: fast, light, writes nothing, and tells wrong inputs apart."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.recipes import H100, ROOT, TINY, environment, run

HEAVY = ("jax", "levanter", "haliax", "transformers", "datasets", "torch", "tensorflow", "pyarrow")

DRY_RUN = f"""
import runpy, sys
sys.argv = ["snowball_h100", "--accelerator", "32xH100", "--dry_run"]
try:
    runpy.run_module("{H100}", run_name="__main__", alter_sys=True)
except SystemExit as stop:
    assert stop.code == 0, stop.code
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print("LOADED", loaded)
"""


def test_dry_run_of_snowball_h100_imports_no_ml_library(tmp_path: Path) -> None:
    """A plan is printed without importing jax, levanter or any data library, and nothing is written."""
    prefix = tmp_path / "prefix"
    prefix.mkdir()

    done = subprocess.run(
        [sys.executable, "-c", DRY_RUN],
        cwd=ROOT, env=environment(prefix), capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert "LOADED []" in done.stdout
    assert "checkpoints/snowball-openthoughts-agent-sft" in done.stdout
    assert list(prefix.iterdir()) == []


WRONG = [
    (("--spec.seq_len", "0"), "seq_len"),
    (("--spec.sequence_len", "8192"), "Did you mean 'seq_len'"),
    (("--spec.optimizer.learning_rat", "1e-4"), "Did you mean 'learning_rate'"),
    (("--spec.model.revision", "058ecaf"), "revision"),
    (("--spec.batch_size", "9"), "batch_size must be divisible"),
    (("--spec.batch_size", "many"), "must be int"),
    (("--spec.chat_template", "tests/e2e/no_marks.jinja"), "generation"),
    (("--spec.chat_template", "marinn"), "Did you mean 'marin'"),
    (("--spec.num_train_epochs", "1"), "num_train_steps"),
    (("--dry_rum",), "dry_run"),
]


@pytest.mark.parametrize(("args", "sentence"), WRONG)
def test_wrong_input_is_one_sentence_and_exit_2(
    args: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    """What can be known at plan is refused there, without a traceback."""
    done = run(H100, "--accelerator", "32xH100", "--dry_run", *args, env=environment(tmp_path))

    assert done.returncode == 2, done.stdout + done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_unset_prefix_is_exit_2() -> None:
    """Without MARIN_PREFIX nothing is guessed."""
    done = run(TINY, env=environment(None))

    assert done.returncode == 2
    assert "MARIN_PREFIX" in done.stderr
    assert "Traceback" not in done.stderr


def test_unwritable_prefix_is_exit_2(tmp_path: Path) -> None:
    """A prefix below a file can't be written, which is said before any step starts."""
    (tmp_path / "file").write_text("x")

    done = run(TINY, env=environment(tmp_path / "file" / "prefix"))

    assert done.returncode == 2
    assert str(tmp_path / "file") in done.stderr
    assert "Traceback" not in done.stderr


def test_h100s_without_an_engine_are_exit_2(tmp_path: Path) -> None:
    """H100s asked for on a machine without any are never a silent CPU run."""
    done = run(H100, "--accelerator", "32xH100", env=environment(tmp_path))

    assert done.returncode == 2
    assert "H100" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != ".neve"] == []


def test_only_runs_one_step_and_its_inputs_and_ends_well(tmp_path: Path) -> None:
    """--only stops at the named step, is done with exit 0, and points at nothing that isn't there."""
    name = "raw/terminal-conversations"

    done = run(TINY, "--only", name, env=environment(tmp_path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stderr
    assert list(tmp_path.glob(f"{name}-*/*.parquet"))


def test_json_prints_one_document(tmp_path: Path) -> None:
    """With --json a program can read all of what a run prints."""
    args = ("--only", "raw/terminal-conversations", "--json")

    done = run(TINY, *args, env=environment(tmp_path))

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 0
