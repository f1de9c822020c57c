"""The compiled train step in a file, so that the next attempt neither traces nor compiles its model.

jax's own cache holds the program too, but is found by it: a deep model takes longer to trace than to
read. The file lies beside it, and is read while the checkpoint is.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
from jax.experimental import serialize_executable
from neve import storage

from neve_train import devices
from neve_train.program_key import form_of
from neve_train.train_step import StepResult

__all__ = ["KeptProgram"]

Program = Callable[[Any, Any], tuple[Any, StepResult]]
"""(arrays of the state, batch) -> (arrays of the next state, result)."""


@dataclass(frozen=True, kw_only=True)
class _Loaded:
    """What a file holds."""

    form: str
    """form_of the state and batch that it takes."""
    program: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]]
    """Takes and gives leaves: trees hold functions, which no file can."""
    result: Any
    """Tree of a StepResult."""


class KeptProgram:
    """The file of one train step: read in a thread from the start on, written in one."""

    def __init__(self, folder: str, key: str, message: Callable[[str], None]) -> None:
        """Begins to read the file, if there is one.

        Args:
            folder: Of compiled programs, as devices.initialize gives it.
            key: program_key of the training.
            message: Told of a file that can't be used or written.
        """
        self.path = storage.join(folder, "train-steps", key)
        self.is_faulty = False
        """A file, of any process, can't be used; only a program compiled anew replaces it."""
        self._message = message
        self._thread = ThreadPoolExecutor(1, "train-step")
        self._reading = self._thread.submit(_read, self.path)
        self._writing: Future[None] | None = None

    def take(self, state: Any, batch: Any) -> Program | None:
        """Returns the program once it is read; None: there is none that can be used.

        Processes that train together call it together: all of them get theirs, or none does.

        Args:
            state: TrainerState, as `placed` returns it.
            batch: First batch.
        """
        loaded, fault = self._loaded(form_of(state, batch))
        if fault:
            self._message(f"train step in {self.path} can't be used ({fault}); compiling it anew.")
        self.is_faulty = not devices.everywhere(not fault)
        return _on_trees(loaded) if devices.everywhere(loaded is not None) and loaded else None

    def _loaded(self, form: str) -> tuple[_Loaded | None, str]:
        """Returns what the file holds, and why it can't be used, if it is there."""
        try:
            loaded = self._reading.result()
        except FileNotFoundError:
            return None, ""
        except Exception as error:  # noqa: BLE001  whatever a damaged file makes of the loader
            return None, str(error).strip().partition("\n")[0][:300] or type(error).__name__
        if loaded.form != form:
            return None, "takes another state or batch"
        return loaded, ""

    def keep(self, program: jax.stages.Compiled, state: Any, batch: Any) -> None:
        """Begins to write a program that was compiled in this process.

        One that came from jax's cache can't be written: on a CPU its functions would be missing.

        Args:
            program: From compile_train_step.
            state: TrainerState that it was compiled for.
            batch: Batch that it was compiled for.
        """
        facts = {
            "form": form_of(state, batch),
            "num_arrays": [len(_arrays(state)), len(_arrays(batch))],
        }
        self._writing = self._thread.submit(_write, self.path, program, facts)

    def finish(self) -> None:
        """Waits until the file is written."""
        self._thread.shutdown()
        error = self._writing and self._writing.exception()
        if error:
            self._message(f"train step can't be kept in {self.path} ({error}).")


def _arrays(tree: Any) -> list[Any]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_array))


def _on_trees(loaded: _Loaded) -> Program:
    def program(arrays: Any, batch: Any) -> tuple[Any, StepResult]:
        leaves, structure = jax.tree.flatten(arrays)
        leaves, numbers = loaded.program(leaves, jax.tree.leaves(batch))
        return structure.unflatten(leaves), loaded.result.unflatten(numbers)

    return program


def _write(path: str, program: jax.stages.Compiled, facts: dict[str, Any]) -> None:
    payload, _, outputs = serialize_executable.serialize(program)
    _, result = outputs.unflatten(range(outputs.num_leaves))
    head = json.dumps(facts | {"result_facts": list(result.facts)})
    body = head.encode() + b"\n" + zlib.compress(payload, 1)
    storage.write_bytes(path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def _read(path: str) -> _Loaded:
    """Returns the program of a file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It isn't what was written.
        Exception: Whatever jax raises where it can't load the program.
    """
    digest, _, body = storage.read_bytes(path).partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:  # before native code looks at it
        raise ValueError("damaged")
    head, _, payload = body.partition(b"\n")
    facts = json.loads(head)
    state, batch = ([0] * number for number in facts["num_arrays"])
    leaf: Any = 0
    told: Any = dict.fromkeys(facts["result_facts"], leaf)
    result = StepResult(leaf, leaf, leaf, leaf, told)
    numbers = jax.tree.leaves(result)
    program = serialize_executable.deserialize_and_load(
        zlib.decompress(payload),
        jax.tree.structure(((state, batch), {})),
        jax.tree.structure((state, numbers)),
    )
    return _Loaded(form=facts["form"], program=program, result=jax.tree.structure(result))
