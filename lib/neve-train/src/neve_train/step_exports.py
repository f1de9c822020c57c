"""Hugging Face folders of a training that goes on, made by a process beside it.

`exports/step-N` is made from `checkpoints/step-N`, on the processor and with memory for one tensor
at a time. It is whole if it holds export.json, which is written last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

from neve import storage

from neve_train.config import ExecutionConfig, TrainSftConfig
from neve_train.errors import TrainInputError
from neve_train.program_end import end_program

__all__ = ["MARK", "StepExports"]

MARK = "export.json"
_TAIL_CHARS = 600


class StepExports:
    """The folders that the execution asks for; used by the process that writes.

    One that fails is told and counted, and training goes on.
    """

    def __init__(
        self,
        config: TrainSftConfig,
        output_path: str,
        on_message: Callable[[str], None],
        *,
        is_writer: bool = True,
    ) -> None:
        """Removes folders that an earlier attempt left half made.

        Args:
            config: Model, tokenizer, caches and execution of the training.
            output_path: Its output.
            on_message: Told of folders that are done, and of those that failed.
            is_writer: This is the process that writes; others only ask what is due.

        Raises:
            TrainInputError: Folders are asked for, and no cache notes its template, or adapters are
                trained.
        """
        execution: ExecutionConfig = config.execution
        self._every = execution.export_every_train_steps
        self._output_path = output_path
        self._message = on_message
        self._running: tuple[int, subprocess.Popen[bytes], Any] | None = None
        self.done: list[int] = []
        """Completed train steps of the folders that are whole, ascending."""
        self.failed: list[int] = []
        """Completed train steps of those that this attempt couldn't make."""
        if self._every is None:
            return
        if config.adapter is not None:
            raise TrainInputError(
                "execution: export_every_train_steps must be None where adapters are trained, got "
                f"{self._every}. Keep checkpoints with keep_every_train_steps and export those."
            )
        self._job = {
            "model_path": str(config.model),
            "tokenizer_path": str(config.tokenizer),
            "template_text": _template_of(config),
            "eos_token_ids": list(execution.export_eos_token_ids),
        }
        self._look(is_writer)

    def is_due(self, completed: int) -> bool:
        """Returns whether the state after this many train steps is to be exported, and isn't yet."""
        return (
            self._every is not None and completed % self._every == 0 and completed not in self.done
        )

    def start(self, completed: int) -> None:
        """Begins with a folder.

        Args:
            completed: Train steps done, whose checkpoint was committed.
        """
        self.finish()
        name = f"step-{completed - 1}"
        job = self._job | {
            "checkpoint_path": storage.join(self._output_path, "checkpoints", name),
            "output_path": self._folder(completed),
        }
        log = tempfile.TemporaryFile()  # noqa: SIM115  closed by _end
        process = subprocess.Popen(
            [sys.executable, "-m", "neve_train.step_exports", json.dumps(job)],
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
            stdin=subprocess.PIPE,  # its end is this process's end
            stdout=log,
            stderr=log,
        )
        self._running = completed, process, log

    def finish(self) -> None:
        """Waits for the folder that is being made, if any: its checkpoint may be removed next."""
        if self._running is not None:
            self._end(self._running[1].wait())

    def cancel(self) -> None:
        """Gives up the folder that is being made, if any; the next attempt makes it, if it can."""
        if self._running is not None:
            self._running[1].kill()
            self._running[1].wait()
            self._end(None)

    def _end(self, code: int | None) -> None:
        assert self._running is not None
        (completed, process, log), self._running = self._running, None
        assert process.stdin is not None
        process.stdin.close()
        log.seek(0)
        with log:
            tail = log.read().decode("utf-8", "replace").strip()[-_TAIL_CHARS:]
        folder = self._folder(completed)
        if code == 0:
            self.done.append(completed)
            self._message(f"model after train step {completed} exported to {folder}")
            return
        self._remove(folder)
        if code is None:
            self._message(f"{folder} was given up, since training stops")
            return
        self.failed.append(completed)
        self._message(f"{folder} could not be made, and training goes on without it: {tail}")

    def _look(self, is_writer: bool) -> None:
        exports = storage.join(self._output_path, "exports")
        for name in storage.list_names(exports) if storage.is_dir(exports) else ():
            folder = storage.join(exports, name)
            number = name.removeprefix("step-")
            if number.isdecimal() and storage.exists(storage.join(folder, MARK)):
                self.done.append(int(number) + 1)
            elif number.isdecimal() and is_writer:
                self._remove(folder)
        self.done.sort()

    def _folder(self, completed: int) -> str:
        return storage.join(self._output_path, "exports", f"step-{completed - 1}")

    def _remove(self, folder: str) -> None:
        if storage.is_dir(folder):
            storage.remove_tree(folder)


def _template_of(config: TrainSftConfig) -> str:
    for cache in config.caches:
        path = storage.join(str(cache), "stats.json")
        if storage.exists(path) and (text := storage.read_json(path).get("template")):
            return text
    raise TrainInputError(
        "execution: export_every_train_steps needs a token cache whose stats.json holds its template, "
        "got none. Leave it None and export kept checkpoints with export_hf."
    )


def _main() -> None:
    from neve_train.export import export  # heavy: jax and Levanter

    threading.Thread(target=_end_with_parent, daemon=True).start()
    job = json.loads(sys.argv[1])
    job["eos_token_ids"] = tuple(job["eos_token_ids"])
    facts = export(**job)
    storage.write_json(storage.join(job["output_path"], MARK), facts)
    end_program()


def _end_with_parent() -> None:
    while os.read(0, 1):  # sys.stdin would be locked when Python ends
        pass
    os._exit(1)


if __name__ == "__main__":
    _main()
