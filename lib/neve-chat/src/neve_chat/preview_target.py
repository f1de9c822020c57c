"""
What the target of `neve preview` means: a path, a recipe's data sets, or an output found by name.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
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
    """Tokens, or conversations that aren't tokenized yet."""
    name: str | None = None
    """Data set of a recipe."""
    config: Mapping[str, Any] | None = None
    """Fields of the recipe's tokenize step by name, as JSON, with paths."""
    seq_len: int | None = None
    """Tokens of a row of the recipe's mixture, if it has one."""
    long_conversations: str = ""
    """What that does with longer conversations."""


def find_places(
    target: str,
    *,
    recipe_options: Sequence[str] = (),
    wanted: str | None = None,
    prefix: str | None = None,
    recipe: str | None = None,
) -> list[Place]:
    """
    What to open: a path that exists, a recipe's data sets, or an output as `neve show` finds it.

    Args:
        target: what the user wrote.
        recipe_options: options that the recipe plans with.
        wanted: the one data set of a recipe; None: all.
        prefix: folder of all outputs; None: MARIN_PREFIX.
        recipe: recipe whose configuration holds for a path.

    Raises:
        ChatInputError: nothing of that name, several of it, or a data set of which neither tokens
            nor conversations are there.
    """
    is_path = target.endswith(_DATA_ENDS) or "://" in target
    if is_path or (storage.exists(target) and not target.endswith(".py")):
        path = target
    elif _is_module(target):
        if recipe is not None:
            raise ChatInputError(
                f"--recipe {recipe}: must go with a path, got the recipe {target}. Drop it."
            )
        return _recipe_places(target, recipe_options, wanted, prefix)
    else:
        path = _neve("show", target, "--json", *_flag("--prefix", prefix))["path"]
    if recipe is not None:
        return [_as_in_recipe(path, recipe, recipe_options, wanted, prefix)]
    if wanted is not None:
        raise ChatInputError(
            f"--source {wanted}: must go with a recipe, got the path {path}. Drop it, or name the "
            "recipe with --recipe."
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
    The data sets of a recipe: their tokens, or where they are missing their conversations.
    """
    places, missing = [], []
    for name, data_set in _data_sets(recipe, options, wanted, prefix).items():
        path = data_set.tokens if data_set.is_tokenized else data_set.conversations
        if path is None:
            missing.append(name)
        else:
            places.append(dataclasses.replace(data_set.place, path=path))
    if missing:
        module = recipe.removesuffix(".py").replace("/", ".") if recipe.endswith(".py") else recipe
        only = [word for name in missing for word in ("--only", f"{_STEP_BEGIN}{name}")]
        command = ["python", "-m", module, *only, *options, *_flag("--prefix", prefix)]
        raise ChatInputError(
            f"data set {', '.join(missing)}: must be tokenized to be shown, or have conversations "
            f"and tokenizer, got no complete output. Run: {' '.join(command)}"
        )
    return places


def _as_in_recipe(
    path: str, recipe: str, options: Sequence[str], wanted: str | None, prefix: str | None
) -> Place:
    """
    A path with the configuration of the data set whose output it is, else of the only one.
    """
    found = _data_sets(recipe, options, wanted, prefix)
    own = os.path.abspath(path) if "://" not in path else path
    same = [each for each in found.values() if own in (each.tokens, each.conversations)]
    if len(same or found) != 1:
        raise ChatInputError(
            f"--recipe {recipe}: must tell how {path} is trained, got the data sets "
            f"{', '.join(found)}. Choose one with --source."
        )
    (data_set,) = same or found.values()
    return dataclasses.replace(data_set.place, path=path)


@dataclass(frozen=True, kw_only=True)
class _DataSet:
    """
    What a recipe plans for one data set.
    """

    place: Place
    """Its configuration; the path is that of its tokens."""
    tokens: str
    """Output of its tokenize step."""
    is_tokenized: bool
    """Whether that is complete."""
    conversations: str | None
    """Output of its transform step, where that and a tokenizer are there."""


def _data_sets(
    recipe: str, options: Sequence[str], wanted: str | None, prefix: str | None
) -> dict[str, _DataSet]:
    plan = _neve("plan", recipe, *options, "--json", *_flag("--prefix", prefix))
    steps = {step["fingerprint"]: step for step in plan["steps"]}
    named = {
        step["name"].removeprefix(_STEP_BEGIN): step
        for step in plan["steps"]
        if step["name"].startswith(_STEP_BEGIN)
    }
    if not named:
        raise ChatInputError(
            f"recipe {recipe}: must have steps named {_STEP_BEGIN}<data set>, got none. "
            "Give the output of a tokenize step by its path."
        )
    if wanted is not None and wanted not in named:
        raise ChatInputError(
            f"--source {wanted}: must be a data set of {recipe}, got an unknown one. "
            f"It has {', '.join(named)}."
        )
    return {
        name: _data_set(name, step, steps) for name, step in named.items() if wanted in (None, name)
    }


def _data_set(name: str, step: dict[str, Any], steps: Mapping[str, dict[str, Any]]) -> _DataSet:
    config = dict(step.get("config") or {})
    source = steps.get(config.get("input") or "")
    tokenizer = _located(config.get("tokenizer"), steps)
    if tokenizer is not None:
        config["tokenizer"] = tokenizer
    has_tokenizer = tokenizer and storage.exists(storage.join(tokenizer, "tokenizer.json"))
    is_there = source is not None and has_tokenizer and _is_complete(source)
    seq_len, rule = _row_limit(step["fingerprint"], steps)
    return _DataSet(
        place=Place(
            path=step["output_path"],
            name=name,
            config=config,
            seq_len=seq_len,
            long_conversations=rule,
        ),
        tokens=step["output_path"],
        is_tokenized=_is_complete(step),
        conversations=source["output_path"] if source is not None and is_there else None,
    )


def _located(value: Any, steps: Mapping[str, dict[str, Any]]) -> str | None:
    """
    The path of a config value that is a path, a step or something below a step.
    """
    if not isinstance(value, str):
        return None
    fingerprint, _, part = value.partition("/")
    if fingerprint not in steps:
        return value
    return storage.join(steps[fingerprint]["output_path"], part)


def _row_limit(fingerprint: str, steps: Mapping[str, dict[str, Any]]) -> tuple[int | None, str]:
    """
    seq_len and rule for long conversations of the mixture that a data set goes into.
    """
    for step in steps.values():
        config = step.get("config") or {}
        for data_set in config.get("datasets") or ():
            if isinstance(data_set, dict) and data_set.get("cache") == fingerprint:
                return config["seq_len"], data_set["long_conversations"]
    return None, ""


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
