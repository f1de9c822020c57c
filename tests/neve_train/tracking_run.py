"""A program of the tests of trackers: python tracking_run.py OUTPUT_PATH SCRATCH.

Logs twice as one run, as a training does that was killed after train step 4 and goes on from 2; reads
back what TensorBoard and trackio keep below SCRATCH and OUTPUT_PATH.
"""

import os
import struct
import sys
import time
from pathlib import Path
from typing import Any

from neve import storage

from tests.neve_train.results import tell


def events(data: bytes) -> list[Any]:
    """Returns the events of a file of TensorBoard: each has its length, 4 bytes, itself, 4 bytes."""
    from tensorboardX.proto.event_pb2 import Event

    found, start = [], 0
    while start < len(data):
        (length,) = struct.unpack_from("<Q", data, start)
        found.append(Event.FromString(data[start + 12 : start + 12 + length]))
        start += 16 + length
    return found


def curve(folder: str) -> list[tuple[int, float]]:
    """Returns (step, loss) as TensorBoard shows it: a start hides what is of its step and later."""
    shown: list[tuple[int, float]] = []
    for file in sorted(storage.list_files(folder), key=lambda file: file.name):
        for event in events(storage.read_bytes(storage.join(folder, file.name))):
            if event.HasField("session_log"):
                shown = [row for row in shown if row[0] < event.step]
            shown += [
                (event.step, round(value.simple_value, 4))
                for value in event.summary.value
                if value.tag == "loss"
            ]
    return shown


def main(output_path: str, scratch: Path) -> Any:
    """Logs the rows of both attempts, and reads them back."""
    os.environ["TRACKIO_DIR"] = str(scratch / "trackio")
    from neve_train.config import ExecutionConfig
    from neve_train.tracking import start_trackers

    execution = ExecutionConfig(trackers=("tensorboard", "trackio"), tracker_project="toys")
    messages: list[str] = []
    losses = ([2.0, 1.9, 1.8, 1.7], [1.81, 1.71, 1.6, 1.5])
    for first, values in zip((1, 3), losses, strict=True):
        local = scratch / f"from-{first}"
        local.mkdir()
        trackers = start_trackers(
            "run-1", execution, {}, output_path, str(local), messages.append
        )  # fmt: skip
        for step, loss in enumerate(values, first):
            trackers.log(step, {"loss": loss})
        trackers.finish(exit_code=0)
        time.sleep(1.1)  # names of TensorBoard's files count seconds
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("toys", "run-1")
    sys.modules["tensorboardX"] = None  # pyright: ignore  as if it weren't installed
    try:
        start_trackers("run-2", execution, {}, output_path, str(scratch), messages.append)
        refusal = "none"
    except ValueError as error:
        refusal = str(error)
    return {
        "messages": messages,
        "tensorboard": curve(storage.join(output_path, "tensorboard", "run-1")),
        "trackio": [(row["step"], row["loss"]) for row in rows],
        "refusal": refusal,
    }


if __name__ == "__main__":
    tell(main(sys.argv[1], Path(sys.argv[2])))
