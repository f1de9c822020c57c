"""Metrics rows over restarts, and a tracker that fails."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from neve_train.metrics import MetricsFile
from neve_train.tracking import Tracking, start_tracking, tracking_mode

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("tracking_run.py")


class FailingRun:
    """A tracker's run that refuses rows from some train step on, and may hang at the end."""

    def __init__(self, fails_at: int | None = None, finish_seconds: float = 0.0) -> None:
        self.fails_at = fails_at
        self.finish_seconds = finish_seconds
        self.rows: list[int] = []
        self.exit_code: int | None = None

    def log(self, values: dict[str, Any]) -> None:
        """Records a row, or fails."""
        if self.fails_at is not None and values["train_step"] >= self.fails_at:
            raise RuntimeError("quota exceeded")
        self.rows.append(values["train_step"])

    def finish(self, exit_code: int) -> None:
        """Takes its time."""
        time.sleep(self.finish_seconds)
        self.exit_code = exit_code


def test_metrics_keep_the_last_value_of_every_train_step(tmp_path: Path) -> None:
    """Rows after the checkpoint that a restart resumes from are those of the restart.

    Source: wandb#4624, where the rows of a killed attempt stayed in the curve.
    """
    path = str(tmp_path / "loss.jsonl")
    killed = MetricsFile(path)
    for step, loss in enumerate([2.0, 1.9, 1.8, 1.7], 1):
        killed.add(step, loss=loss)
    killed.write()

    resumed = MetricsFile(path)
    resumed.forget_after(2)
    for step, loss in enumerate([1.81, 1.71, 1.6, 1.5], 3):
        resumed.add(step, loss=loss)
    resumed.write()

    expected = [(1, 2.0), (2, 1.9), (3, 1.81), (4, 1.71), (5, 1.6), (6, 1.5)]
    assert MetricsFile(path).series("loss") == expected


def test_metrics_that_were_cut_off_are_missed_not_fatal(tmp_path: Path) -> None:
    """Lines cut in the middle or mangled are left out, and the train steps they were of are known."""
    path = tmp_path / "loss.jsonl"
    lines = [f'{{"step": {step}, "loss": {step}.5}}' for step in range(1, 6)]
    path.write_bytes(
        "\n".join([*lines[:2], lines[2][:9], "3", "\0\0", lines[4]]).encode() + b"\xff"
    )

    metrics = MetricsFile(str(path))

    assert metrics.series("loss") == [(1, 1.5), (2, 2.5)]
    assert metrics.lacking(5) == [3, 4, 5]
    assert metrics.lacking(2) == []


def test_a_tracker_that_fails_is_told_once_and_left_alone() -> None:
    """An error at train step 3 is one message; later rows and the end say nothing. marin#5329"""
    run, messages = FailingRun(fails_at=3), []
    tracking = Tracking(run, messages.append)

    for step in range(1, 7):
        tracking.log(step, {"loss": 1.0})
    tracking.finish(exit_code=0)

    assert run.rows == [1, 2]
    assert len(messages) == 1
    assert "quota exceeded" in messages[0]


def test_a_tracker_that_hangs_at_the_end_does_not_hold_the_run() -> None:
    """finish returns after its timeout, with a message."""
    messages: list[str] = []
    tracking = Tracking(FailingRun(finish_seconds=5), messages.append)

    started = time.monotonic()
    tracking.finish(exit_code=0, timeout=0.1)

    assert time.monotonic() - started < 3
    assert "no answer within 0.1 seconds" in messages[0]


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "disabled"),
        ({"WANDB_API_KEY": "k"}, "online"),
        ({"WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "k"}, "disabled"),
    ],
)
def test_tracking_mode_is_what_the_environment_says(environ: dict[str, str], mode: str) -> None:
    """Without a key and a mode nothing is sent."""
    assert tracking_mode(environ) == mode


def test_an_unreachable_service_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client against a closed port: a message, and a tracker that takes rows in silence."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_SILENT", "true")
    messages: list[str] = []

    tracking = start_tracking("away", "project", (), {}, str(tmp_path), messages.append, timeout=5)
    tracking.log(1, {"loss": 1.0})
    tracking.finish(exit_code=0)

    assert len(messages) == 1
    assert "could not start" in messages[0]
    assert "a" * 40 not in messages[0]


def test_offline_tracking_keeps_the_run_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client, offline: the rows are in the folder of the run, and nothing is said."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    messages: list[str] = []

    tracking = start_tracking(
        "offline", "project", ("x",), {"a": 1}, str(tmp_path), messages.append
    )
    tracking.log(1, {"loss": 1.0})
    tracking.finish(exit_code=0)

    assert messages == []
    (stored,) = tmp_path.rglob("run-offline.wandb")
    assert stored.stat().st_size > 0


@pytest.mark.parametrize("is_remote", [False, True])
def test_tensorboard_and_trackio_keep_what_is_logged(
    tmp_path: Path, s3_bucket: str, is_remote: bool
) -> None:
    """Case 071: an attempt that was killed after 4 and one from 2 on are one curve, also on S3.

    trackio has the rows of both under their train steps; it can't take any back.
    """
    output_path = f"{s3_bucket}/out" if is_remote else str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), output_path, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found = json.loads(line)

    again = [[3, 1.81], [4, 1.71], [5, 1.6], [6, 1.5]]
    assert found["messages"] == []
    assert found["tensorboard"] == [[1, 2.0], [2, 1.9], *again]
    assert found["trackio"] == [[1, 2.0], [2, 1.9], [3, 1.8], [4, 1.7], *again]
    assert "tracker tensorboard: needs the package tensorboardX" in found["refusal"]
