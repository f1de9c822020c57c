"""
What the target of `neve preview` means: a path, a recipe's data sets, or an output found by name.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError

__all__ = ["Place", "find_places"]

_STEP_BEGIN = "tokenized/"
_DATA_ENDS = (".jsonl", ".zst", ".json", ".gz", ".parquet")


@dataclass(frozen=True, kw_only=True)
class Place:
    """
    Something to open.
    """

    path: str
    """Output path."""
    name: str | None = None
    """Data set of a recipe."""


def find_places(
    target: str,
    *,
    recipe_options: Sequence[str] = (),
    wanted: str | None = None,
    prefix: str | None = None,
) -> list[Place]:
    """
    What to open: a path that exists, a recipe's data sets, or an output as `neve show` finds it.

    Args:
        target: what the user wrote.
        recipe_options: options that the recipe plans with.
        wanted: the one data set of a recipe; None: all.
        prefix: folder of all outputs; None: MARIN_PREFIX.

    Raises:
        ChatInputError: nothing of that name, several of it, or a data set that isn't tokenized.
    """
    is_path = target.endswith(_DATA_ENDS) or "://" in target
    if is_path or (storage.exists(target) and not target.endswith(".py")):
        path = target
    elif _is_module(target):
        return _recipe_places(target, recipe_options, wanted, prefix)
    else:
        path = _neve("show", target, "--json", *_flag("--prefix", prefix))["path"]
    if wanted is not None:
        raise ChatInputError(
            f"--source {wanted}: must go with a recipe, got the path {path}. Drop it."
        )
    if recipe_options:
        raise ChatInputError(
            f"option {recipe_options[0]}: must be one of neve preview, or follow a recipe, got "
            f"the path {path}. See neve preview --help."
        )
    return [Place(path=path)]


def _is_module(target: str) -> bool:
    if target.endswith(".py"):
        return True
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", target):
        return False
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        return importlib.util.find_spec(target) is not None
    except (ImportError, ValueError):
        return "." in target


def _recipe_places(
    recipe: str, options: Sequence[str], wanted: str | None, prefix: str | None
) -> list[Place]:
    """
    The tokenized data sets of a recipe, all of them built.
    """
    plan = _neve("plan", recipe, *options, "--json", *_flag("--prefix", prefix))
    steps = {
        step["name"].removeprefix(_STEP_BEGIN): step
        for step in plan["steps"]
        if step["name"].startswith(_STEP_BEGIN)
    }
    if not steps:
        raise ChatInputError(
            f"recipe {recipe}: must have steps named {_STEP_BEGIN}<data set>, got none. "
            "Give the output of a tokenize step by its path."
        )
    if wanted is not None and wanted not in steps:
        raise ChatInputError(
            f"--source {wanted}: must be a data set of {recipe}, got an unknown one. "
            f"It has {', '.join(steps)}."
        )
    chosen = {name: step for name, step in steps.items() if wanted in (None, name)}
    missing = [name for name, step in chosen.items() if not _is_complete(step)]
    if missing:
        module = recipe.removesuffix(".py").replace("/", ".") if recipe.endswith(".py") else recipe
        only = [word for name in missing for word in ("--only", f"{_STEP_BEGIN}{name}")]
        command = ["python", "-m", module, *only, *options, *_flag("--prefix", prefix)]
        raise ChatInputError(
            f"data set {', '.join(missing)}: must be tokenized to be shown, got no complete "
            f"output. Run: {' '.join(command)}"
        )
    return [Place(path=step["output_path"], name=name) for name, step in chosen.items()]


def _is_complete(step: dict[str, Any]) -> bool:
    """
    Whether a planned step is built; one that nothing needs may be built all the same.
    """
    state = storage.join(step["output_path"], ".neve", "state.json")
    if step["action"] == "hit":
        return True
    return storage.exists(state) and storage.read_json(state)["state"] == "SUCCEEDED"


def _flag(name: str, value: str | None) -> list[str]:
    return [name, value] if value is not None else []


def _neve(*words: str) -> Any:
    """
    What a command of neve says as JSON, asked for as a script would: this room knows only storage.
    """
    done = subprocess.run(
        [sys.executable, "-m", "neve.cli", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode == 2:
        message = re.sub(r"\A[Ee]rror: ", "", done.stderr.strip())
        raise ChatInputError(message or f"neve {' '.join(words)}: refused without a word.")
    raise RuntimeError(f"neve {' '.join(words)} ended with {done.returncode}:\n{done.stderr}")
