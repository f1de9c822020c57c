"""
Rows of any known layout to shards of canonical conversations.

Streaming, parallel and resumable, and a function of its input alone: the same files give the same
bytes, whatever the machine, the number of processes and the number of cluster tasks.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from neve import storage

from neve_chat.adapt import RowAdapter
from neve_chat.checks import RowPolicies
from neve_chat.duplicates import find_duplicates
from neve_chat.errors import ChatInputError
from neve_chat.find_schema import find_schema
from neve_chat.hub_layout import choose_files
from neve_chat.input_files import InputFile, find_input_files
from neve_chat.parts import Part, Tasks, run_parts
from neve_chat.quarantine import Refusals, refuse_if_too_many
from neve_chat.schema_probe import first_rows, refuse_wrong_schema, schema_advice
from neve_chat.schemas import ConversationSchema
from neve_chat.shards import iter_conversations, list_shards, read_shard
from neve_chat.transform_unit import UnitConfig, make_worker
from neve_chat.units import UNIT_BYTES, cut_units, part_bytes

__all__ = [
    "SUMMARY_NAME",
    "iter_conversations",
    "list_shards",
    "read_shard",
    "transform_conversations",
]

SUMMARY_NAME = "summary.json"


def transform_conversations(
    *,
    input_path: str,
    output_path: str,
    schema: ConversationSchema,
    files: Sequence[str],
    subset: str = "",
    split: str = "",
    replacements: Mapping[str, str] | None = None,
    policies: RowPolicies | None = None,
    max_rejected_fraction: float = 0.05,
    tasks: Tasks | None = None,
    unit_bytes: int = UNIT_BYTES,
    on_progress: Callable[[int, int, dict[str, Any]], None] | None = None,
    on_message: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """
    The conversations stand in `shard-*.jsonl.zst`, refused rows in `rejected/`.

    May be killed and called again: finished units are kept.

    Args:
        input_path: folder or file with the rows.
        output_path: where the shards go.
        schema: the layout of the rows; of kind auto it is chosen by the first rows.
        files: globs of the files below input_path.
        subset: subset of a data set in a layout of the hub; empty: the only one; `*`: all.
        split: split of it; empty: the only one; `*`: all.
        replacements: text -> text, in the string contents and reasoning of every message, after
            the id.
        policies: what happens to rows with faults.
        max_rejected_fraction: share of refused rows above which the whole is refused, 0 to 1;
            duplicates that are dropped don't count.
        tasks: this task among those of a cluster job, and its processes.
        unit_bytes: size of the units that the input is cut into.
        on_progress: called with (bytes of input done, bytes in all, facts to show).
        on_message: called with the schema that was chosen, where it is of kind auto.

    Returns:
        What summary.json holds: rows_in, rows_out, rejected by reason, notes, roles_seen,
        num_files, num_shards, name, rows and bytes of each shard, and the schema that was chosen.
        Tasks other than the first get an empty dict.

    Raises:
        ChatInputError: no file, a damaged file, no usable row, too many refused, or a fault whose
            policy is error.
    """
    tasks, policies = tasks or Tasks(), policies or RowPolicies()
    inputs = choose_files(input_path, files, subset=subset, split=split)
    chosen = {file.name for file in inputs}
    others = [file.name for file in find_input_files(input_path, files) if file.name not in chosen]
    if others and on_message is not None and not tasks.index:
        names = ", ".join(others[:3]) + ("" if len(others) <= 3 else ", ...")
        on_message(f"{len(others):,} files of other subsets or splits are left out: {names}")
    found = None
    if schema.kind == "auto":
        found = find_schema(inputs, schema, f"the conversations of {input_path}")
        schema = found.schema
        if on_message is not None and not tasks.index:
            on_message(f"{input_path} is read as {found.text()}")
    parts = cut_units(inputs, schema.required_columns(), unit_bytes=unit_bytes)
    config = UnitConfig(
        output_path=output_path,
        files={file.name: file for file in inputs},
        schema=schema,
        replacements=tuple((replacements or {}).items()),
        policies=policies,
    )
    refuse_wrong_schema(
        parts,
        config.files,
        schema,
        policies,
        max_rejected_fraction=max_rejected_fraction,
        what=f"conversations of {input_path}",
    )
    progress = _Progress(sum(map(part_bytes, parts)), on_progress)
    facts = run_parts(
        make_worker,
        config,
        parts,
        output_path=output_path,
        tasks=tasks,
        on_part=progress.on_part,
        on_advance=progress.on_advance,
    )
    if tasks.index:
        return {}
    summary: dict[str, Any] = _summary(facts, inputs) | {"num_files_left_out": len(others)}
    if policies.duplicate_rows != "drop":
        _check_shards(summary["shards"], output_path)
    if found is not None:
        summary["schema"] = {"found": found.text(), **dataclasses.asdict(schema)}
    _refuse_if_too_many(facts, summary, input_path, config, parts, max_rejected_fraction)
    _treat_duplicates(parts, summary, output_path, policies, tasks)
    storage.write_json(storage.join(output_path, SUMMARY_NAME), summary)
    return summary


class _Progress:
    """
    Bytes of finished units, and of those that are being read where they can't be cut.
    """

    def __init__(
        self, total: int, on_progress: Callable[[int, int, dict[str, Any]], None] | None
    ) -> None:
        self._total = total
        self._on_progress = on_progress
        self._done = self._rows = self._shown = 0

    def on_part(self, facts: dict[str, Any]) -> None:
        self._done += facts["unit"]["bytes"]
        self._rows += facts["rows_in"]
        self._show(self._done)

    def on_advance(self, num_bytes: int) -> None:
        done = min(self._done + num_bytes, self._total)
        if done > self._shown:
            self._show(done)

    def _show(self, done: int) -> None:
        self._shown = max(self._shown, done)
        if self._on_progress is not None:
            self._on_progress(self._shown, self._total, {"rows": self._rows})


def _summary(facts: Sequence[Mapping[str, Any]], inputs: Sequence[InputFile]) -> dict[str, Any]:
    def added(key: str) -> dict[str, int]:
        total: Counter[str] = Counter()
        for each in facts:
            total.update(each[key])
        return dict(sorted(total.items()))

    shards = [shard for each in facts for shard in each["shards"]]
    return {
        "rows_in": sum(each["rows_in"] for each in facts),
        "rows_out": sum(shard["rows"] for shard in shards),
        "rejected": added("rejected"),
        "notes": added("notes"),
        "roles_seen": added("roles_seen"),
        "num_files": len(inputs),
        "num_shards": len(shards),
        "shards": shards,
    }


def _check_shards(shards: Sequence[Mapping[str, Any]], output_path: str) -> None:
    """
    What earlier attempts finished must still be there.
    """
    present = {file.name: file.size for file in storage.list_files(output_path)}
    for shard in shards:
        if present.get(shard["name"]) != shard["bytes"]:
            raise ChatInputError(
                f"shard {storage.join(output_path, shard['name'])}: must have the "
                f"{shard['bytes']:,} bytes that an earlier attempt wrote, got "
                f"{present.get(shard['name'], 'no file')}. Remove the output and run again."
            )


def _refuse_if_too_many(
    facts: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    input_path: str,
    config: UnitConfig,
    parts: Sequence[Part],
    max_fraction: float,
) -> None:
    refusals = Refusals(path=storage.join(config.output_path, "rejected"))
    for each in facts:
        refusals.merge(each["rejected"], each["first_rejected"])
    adapter = RowAdapter(config.schema)
    adapter.roles_seen.update(summary["roles_seen"])
    is_nothing_left = refusals.counts.total() == summary["rows_in"]
    rows = first_rows(parts, config.files, config.schema) if is_nothing_left else ()
    refuse_if_too_many(
        refusals,
        summary["rows_in"],
        max_fraction=max_fraction,
        what=f"conversations of {input_path}",
        advice=f"{schema_advice(adapter, rows)}. Correct the schema so that it fits the rows",
    )


def _treat_duplicates(
    parts: Sequence[Part],
    summary: dict[str, Any],
    output_path: str,
    policies: RowPolicies,
    tasks: Tasks,
) -> None:
    """
    The policy on duplicates is applied, and the summary tells of it.
    """
    duplicates = find_duplicates(output_path, parts, summary["shards"])
    if not len(duplicates):
        return
    if policies.duplicate_rows == "error":
        duplicates.refuse(output_path)
    elif policies.duplicate_rows == "keep":
        summary["notes"] = dict(
            sorted({**summary["notes"], "duplicate row": len(duplicates)}.items())
        )
    else:
        shards = duplicates.drop(output_path, tasks.num_processes)
        rejected = {**summary["rejected"], "duplicate row": len(duplicates)}
        summary["rejected"] = dict(sorted(rejected.items()))
        summary["shards"], summary["num_shards"] = shards, len(shards)
        summary["rows_out"] = sum(shard["rows"] for shard in shards)
