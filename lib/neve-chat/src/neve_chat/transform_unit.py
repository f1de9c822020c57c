"""
One unit of input to its shards. Runs in any process, on any machine.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_chat.adapt import Conversation, RowAdapter
from neve_chat.checks import RowPolicies, RowRejected
from neve_chat.duplicates import DIGEST_BYTES, digests_path
from neve_chat.exact_json import dumps
from neve_chat.input_files import InputFile
from neve_chat.parts import Part, write_facts
from neve_chat.pool import advance
from neve_chat.quarantine import Quarantine
from neve_chat.rows import Columns, SourceRow, read_rows
from neve_chat.schema_probe import adapt_row
from neve_chat.schemas import ConversationSchema
from neve_chat.shards import ShardWriter
from neve_chat.units import pieces_of

__all__ = ["UnitConfig", "make_worker"]


@dataclass(frozen=True, kw_only=True)
class UnitConfig:
    """
    What a worker needs to know; the same for all units.
    """

    output_path: str
    """Where the shards go."""
    files: dict[str, InputFile]
    """Name -> file."""
    schema: ConversationSchema
    """The layout of the rows."""
    replacements: tuple[tuple[str, str], ...]
    """Pairs (old, new), applied to texts and reasoning in this order."""
    policies: RowPolicies
    """What happens to rows with faults."""


def make_worker(config: UnitConfig) -> _Worker:
    """
    A function that does one unit.
    """
    return _Worker(config)


class _Worker:
    """
    Turns the rows of units into lines.
    """

    def __init__(self, config: UnitConfig) -> None:
        self._config = config
        schema = config.schema
        self._columns = Columns(schema.required_columns(), schema.optional_columns())

    def __call__(self, part: Part) -> dict[str, Any]:
        output = self._config.output_path
        adapter = RowAdapter(self._config.schema, self._config.policies)
        notes: Counter[str] = Counter()
        digests = bytearray()
        rows_in = num_read = 0

        def note_bytes(count: int) -> None:
            nonlocal num_read
            num_read += count
            advance(count)

        rejected = storage.join(output, "rejected", f"part-{part.index:05d}.jsonl")
        with Quarantine(rejected) as quarantine, ShardWriter(output, part.index) as writer:
            for piece in pieces_of(part, self._config.files):
                for row in read_rows(piece, self._columns, on_bytes=note_bytes):
                    rows_in += 1
                    try:
                        conversation = adapt_row(adapter, row)
                        line, digest = _output_line(row, conversation, self._config.replacements)
                    except RowRejected as refusal:
                        quarantine.add(refusal.reason, refusal.detail, row.place, row.values)
                    else:
                        notes.update(set(conversation.notes))
                        writer.write(line)
                        digests += digest
        storage.write_bytes(digests_path(output, part), bytes(digests))
        advance(-num_read)  # the finished unit counts as a whole
        facts = {
            "rows_in": rows_in,
            "rejected": dict(sorted(quarantine.counts.items())),
            "first_rejected": quarantine.first,
            "notes": dict(sorted(notes.items())),
            "roles_seen": dict(sorted(adapter.roles_seen.items())),
            "shards": writer.shards,
        }
        return write_facts(output, part, facts)


def _output_line(
    row: SourceRow, conversation: Conversation, replacements: tuple[tuple[str, str], ...]
) -> tuple[bytes, bytes]:
    """
    The row's line, and the digest of the whole conversation for finding duplicates.
    """
    write = functools.partial(dumps, may_hold_nan=row.is_padded)
    messages = write(conversation.messages)
    digest = hashlib.sha256(messages)
    row_id = conversation.source_id or digest.hexdigest()
    if replacements and _replace(conversation.messages, replacements):
        messages = write(conversation.messages)
    parts = [b'{"id":', write(row_id), b',"messages":', messages]
    more = {"tools": conversation.tools, "chat_template_kwargs": conversation.template_kwargs}
    for key, value in more.items():
        if value:
            parts += [b',"', key.encode(), b'":', write(value)]
            digest.update(b"".join(parts[-3:]))
    parts += [b',"source":', write(row.place), b"}"]
    return b"".join(parts), digest.digest()[:DIGEST_BYTES]


def _replace(messages: list[dict[str, Any]], replacements: tuple[tuple[str, str], ...]) -> bool:
    """
    Replaces in place; returns whether anything changed.
    """
    has_changed = False
    for message in messages:
        for key in ("content", "reasoning_content"):
            text = message.get(key)
            if isinstance(text, str):
                for old, new in replacements:
                    text = text.replace(old, new)
                has_changed = has_changed or text != message[key]
                message[key] = text
    return has_changed
