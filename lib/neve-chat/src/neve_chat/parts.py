"""
Work in parts that are fixed by the input: resumable, and shared by processes and cluster tasks.

Part i is finished when its facts stand in `.parts/<i>.json`, written last by whoever did it. A
finished part is never done again; an unfinished one is done from its start.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.pool import own_units, run_units

__all__ = ["Part", "Tasks", "forget_parts", "run_parts", "write_facts"]

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Part:
    """
    One part of the work.
    """

    index: int
    """Its number, from 0."""
    unit: dict[str, Any]
    """What it is made of, as JSON: compared when an earlier attempt finished it."""


@dataclass(frozen=True)
class Tasks:
    """
    This task among those of a cluster job that share the parts.
    """

    index: int = 0
    """Number of this task; task 0 completes the work."""
    count: int = 1
    """Tasks in all."""
    num_processes: int | None = None
    """Processes of this task; None: one for each core."""

    @classmethod
    def from_environment(cls, num_processes: int | None = None) -> Tasks:
        """
        The task that NEVE_TASK_INDEX and NEVE_TASK_COUNT describe; without them the only one.
        """
        index, count = (
            int(os.environ.get(name, default))
            for name, default in (("NEVE_TASK_INDEX", "0"), ("NEVE_TASK_COUNT", "1"))
        )
        return cls(index=index, count=count, num_processes=num_processes)


def run_parts(
    make_worker: Callable[[Any], Callable[[Part], dict[str, Any]]],
    config: Any,
    parts: Sequence[Part],
    *,
    output_path: str,
    tasks: Tasks,
    on_part: Callable[[dict[str, Any]], None] | None = None,
    on_advance: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """
    The facts of all parts, in order. Task 0 waits for the others; they get an empty list.

    Args:
        make_worker: module-level function, called once in each process: config -> (part -> facts).
            The worker ends with `write_facts`.
        config: what it needs; pickled.
        parts: all parts.
        output_path: where `.parts/` is.
        tasks: who does which.
        on_part: called with the facts of each part that is done, also of those found finished.
        on_advance: called with what unfinished parts told by `pool.advance`.

    Raises:
        ChatInputError: a part was finished from another input.
    """
    found: dict[int, dict[str, Any]] = {}

    def note(part: Part, facts: dict[str, Any]) -> None:
        found[part.index] = facts
        if on_part is not None:
            on_part(facts)

    own = own_units(parts, tasks.index, tasks.count)
    for part in own:
        if facts := _read_facts(output_path, part):
            note(part, facts)
    todo = [part for part in own if part.index not in found]
    by_index = {part.index: part for part in parts}
    for facts in run_units(
        make_worker, config, todo, num_processes=tasks.num_processes, on_advance=on_advance
    ):
        note(by_index[facts["index"]], facts)
    if tasks.index:
        return []
    while len(found) < len(parts):
        for part in parts:
            if part.index not in found and (facts := _read_facts(output_path, part)):
                note(part, facts)
        if len(found) < len(parts):
            time.sleep(_POLL_SECONDS)
    return [found[part.index] for part in parts]


def forget_parts(output_path: str) -> None:
    """
    Have all parts done again, also those that were finished.
    """
    storage.remove_tree(storage.join(output_path, ".parts"))


def write_facts(output_path: str, part: Part, facts: dict[str, Any]) -> dict[str, Any]:
    """
    Declare a part finished, as the last thing that is written of it.

    Returns:
        The facts with the part's index and unit.
    """
    whole = {"index": part.index, "unit": part.unit, **facts}
    storage.write_json(_facts_path(output_path, part), whole, indent=None)
    return whole


def _facts_path(output_path: str, part: Part) -> str:
    return storage.join(output_path, ".parts", f"{part.index:05d}.json")


def _read_facts(output_path: str, part: Part) -> dict[str, Any] | None:
    path = _facts_path(output_path, part)
    if not storage.exists(path):
        return None
    facts = storage.read_json(path)
    if facts["unit"] != part.unit:
        raise ChatInputError(
            f"part {path}: must be made of {part.unit}, got {facts['unit']}. The input changed "
            "since it was done: remove the output and run again."
        )
    return facts
