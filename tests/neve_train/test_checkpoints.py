"""Checkpoints that are torn, left over, of something else, or that could not be saved."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("checkpoint_run.py")


@pytest.fixture(scope="module")
def torn(run_toy: Run) -> dict[str, Any]:
    """What became of small states."""
    return run_toy("torn", 1, PROGRAM)


def test_a_training_without_checkpoints_begins(torn: dict[str, Any]) -> None:
    """Neither an absent folder nor a save that was killed is a checkpoint."""
    assert torn["nothing"] is None
    assert torn["uncommitted"] is None


def test_a_checkpoint_whose_metadata_cannot_be_read_is_passed_over(torn: dict[str, Any]) -> None:
    """Empty, cut off or without its step: an older one is read, and it is saved anew."""
    assert torn["unmarked"] == [[1.0] * 3] * 3
    assert "step-1 is unreadable (missing a metadata.json" in torn["unmarked_message"]
    assert torn["unmarked_again"] == [2.0] * 3


def test_training_never_begins_anew_where_the_only_metadata_is_broken(torn: dict[str, Any]) -> None:
    """Case 054: checkpoints exist, so that beginning at step 0 would overwrite days of work."""
    assert torn["only_unmarked"].startswith("CheckpointError: checkpoints exist under")
    assert "none can be loaded: step-1 is unreadable" in torn["only_unmarked"]


def test_an_export_never_takes_an_older_checkpoint_for_the_newest(torn: dict[str, Any]) -> None:
    """It names the newest, which can't be read, and the one that may be passed instead."""
    refusal = torn["unmarked_export"]

    assert refusal.startswith("CheckpointError")
    assert "step-1: must be readable, got missing a metadata.json" in refusal
    assert "step-0 for an older one." in refusal


def test_what_a_killed_save_left_does_not_stop_the_next_one(torn: dict[str, Any]) -> None:
    """Its arrays are cut otherwise, as those of another mesh are."""
    assert torn["leftover"] == [1.0] * 3


def test_a_save_that_failed_is_told_and_not_listed(torn: dict[str, Any]) -> None:
    """The one before stays, and the same train step can be saved later. Source: maxtext PR 5260."""
    assert not torn["failed"].startswith("none")
    assert torn["after_failed"] == [1.0] * 3
    assert torn["saved_again"] == [2.0] * 3


def test_a_checkpoint_that_cannot_be_written_stops_training_at_the_next_train_step(
    run_toy: Run,
) -> None:
    """Behind the train steps or as the last one: told, the one before stays, and it goes on from there.

    The kernel refuses the bytes, as on a full disk; Levanter would train on to the next save.
    """
    found = run_toy("unwritten", 1, PROGRAM)
    behind, last, whole = found["behind"], found["last"], found["whole"]

    assert (behind["done"], behind["committed"]) == ([1, 2, 3, 4, 5, 6, 7], ["step-2"])
    assert behind["rows"] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (last["done"], last["committed"]) == ([4, 5, 6, 7, 8], ["step-2", "step-5"])
    for attempt in (behind, last):
        assert "a checkpoint could not be written to" in attempt["error"]
        assert "goes on from the newest whole one" in attempt["error"]
    assert whole["resumed_from"] == 6
    assert (whole["done"], whole["committed"]) == ([7, 8], ["step-2", "step-5", "step-7"])
    assert whole["rows"] == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_checkpoints_by_time_do_not_follow_the_time_of_day(torn: dict[str, Any]) -> None:
    """Every 60 seconds of a clock that only goes forward: at 61 and 122, the newest stays."""
    assert torn["by_clock"] == ["step-4"]


def test_a_checkpoint_of_something_else_is_refused(torn: dict[str, Any]) -> None:
    """Levanter would read an array of any shape, and leave arrays unread."""
    assert "x of shape (8,) for (3,)" in torn["shape"]
    assert "1 differences, such as y besides" in torn["more"]


def test_the_vocabulary_has_one_size_from_model_to_export(run_toy: Run) -> None:
    """A model padded beyond its tokenizer: embedding, optimizer and export have the model's size.

    Source: marin PR 7234, where the optimizer had the tokenizer's.
    """
    found = run_toy("padded", 1, PROGRAM)

    assert found["size"] == found["num_tokens"] + 64
    assert found["axis_sizes"] == [found["size"]]
    assert found["resumed_step"] == 1
    assert found["exported"] == [found["size"]]
    assert found["exported_config"] == found["size"]
    assert "the tokenizer must have at most the model's" in found["refusal"]


def test_all_processes_go_on_from_the_same_checkpoint(tmp_path: Path) -> None:
    """One of two can't read the newest: both take the one before, not each its own."""
    for step in (3, 6):
        folder = tmp_path / "agreed" / "checkpoints" / f"step-{step}"
        (folder / "d").mkdir(parents=True)
        metadata = {"step": step, "timestamp": "2026-01-01T00:00:00", "is_temporary": False}
        (folder / "metadata.json").write_text(json.dumps(metadata))
        for name in ("manifest.json", "manifest.ocdbt"):
            (folder / name).write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "COORDINATOR": address,
    }
    pair = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path), "agreed"],
            env={**environ, "TASK_INDEX": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [process.communicate(timeout=200) for process in pair]

    assert [process.returncode for process in pair] == [0, 0], outputs[0][1][-4000:]
    first, second = (json.loads(output.strip().splitlines()[-1]) for output, _ in outputs)
    assert first["found"] == second["found"] == "step-3"
    assert first["torn"] == second["torn"] == [6]
    assert first["reads"] == second["reads"] == ["step-6", "step-6", "step-3", "step-3"]
    assert len(first["messages"]) == len(second["messages"]) == 1  # step-3 was read the second time
    assert "is unreadable (by another process)" in first["messages"][0]
    assert "is unreadable (connection reset)" in second["messages"][0]
