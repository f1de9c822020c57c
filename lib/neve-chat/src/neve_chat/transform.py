"""
Rows of any known layout to shards of canonical conversations.

Streaming, and a function of its input alone: the same rows give the same bytes, whatever the
machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import zstandard
from neve import storage

from neve_chat.adapt import Conversation, RowAdapter, RowRejected
from neve_chat.errors import ChatInputError
from neve_chat.quarantine import Quarantine, refuse_if_too_many
from neve_chat.rows import SourceRow, find_input_files, read_rows
from neve_chat.schemas import ConversationSchema
from neve_chat.zstd import open_zstd

__all__ = ["ShardWriter", "iter_conversations", "list_shards", "transform_conversations"]

SHARD_PATTERN = "shard-{:05d}.jsonl.zst"
SUMMARY_NAME = "summary.json"
_ZSTD_LEVEL = 3


class ShardWriter:
    """
    Writes JSON lines into zstd shards of a fixed number of rows.
    """

    def __init__(self, output_path: str, rows_per_shard: int) -> None:
        self._output_path = output_path
        self._rows_per_shard = rows_per_shard
        self._num_rows_in_shard = 0
        self._shard = contextlib.ExitStack()
        self._stream: Any = None
        self.num_shards = 0

    def write(self, line: bytes) -> None:
        """
        Append one line, which must not hold a newline.
        """
        if self._stream is None:
            path = storage.join(self._output_path, SHARD_PATTERN.format(self.num_shards))
            file = self._shard.enter_context(storage.open_file(path, "wb"))
            compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
            self._stream = self._shard.enter_context(compressor.stream_writer(file, closefd=False))
            self.num_shards += 1
        self._stream.write(line + b"\n")
        self._num_rows_in_shard += 1
        if self._num_rows_in_shard == self._rows_per_shard:
            self._finish(None, None, None)

    def _finish(self, *exception: Any) -> None:
        self._shard.__exit__(*exception)
        self._stream, self._num_rows_in_shard = None, 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._finish(*exception)


def transform_conversations(
    *,
    input_path: str,
    output_path: str,
    schema: ConversationSchema,
    files: Sequence[str],
    replacements: Mapping[str, str] | None = None,
    rows_per_shard: int = 5_000,
    max_rejected_fraction: float = 0.05,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> dict[str, Any]:
    """
    The conversations stand in `shard-NNNNN.jsonl.zst`, refused rows in `rejected.jsonl`.

    Args:
        input_path: folder or file with the rows.
        output_path: where the shards go.
        schema: the layout of the rows.
        files: globs of the files below input_path.
        replacements: text -> text, in the string contents and reasoning of every message, after
            the id.
        rows_per_shard: conversations per shard, >= 1.
        max_rejected_fraction: share of refused rows above which the whole is refused, 0 to 1.
        on_progress: called with (rows read, None).

    Returns:
        Counts: rows_in, rows_out, rejected by reason, notes, roles_seen, num_files, num_shards.

    Raises:
        ChatInputError: no file, a damaged file, no usable row, or too many refused.
    """
    inputs = find_input_files(input_path, files)
    adapter = RowAdapter(schema)
    notes: Counter[str] = Counter()
    rows_in = rows_out = 0
    with (
        Quarantine(storage.join(output_path, "rejected.jsonl")) as quarantine,
        ShardWriter(output_path, rows_per_shard) as writer,
    ):
        for file in inputs:
            for row in read_rows(file, schema.required_columns(), schema.optional_columns()):
                rows_in += 1
                try:
                    conversation = _adapt(adapter, row)
                    line = _output_line(row, conversation, replacements or {})
                except RowRejected as refusal:
                    quarantine.add(
                        refusal.reason, refusal.detail, f"{row.file}:{row.index}", row.values
                    )
                else:
                    notes.update(set(conversation.notes))
                    writer.write(line)
                    rows_out += 1
                if on_progress is not None:
                    on_progress(rows_in, None)
    roles = dict(sorted(adapter.roles_seen.items()))
    refuse_if_too_many(
        quarantine,
        rows_in,
        max_fraction=max_rejected_fraction,
        what=f"conversations of {input_path}",
        advice=f"Roles seen: {_roles_text(roles)}; the schema reads {schema.describe()}. "
        "Correct the schema so that it fits the rows",
    )
    summary = {
        "rows_in": rows_in,
        "rows_out": rows_out,
        "rejected": dict(sorted(quarantine.counts.items())),
        "notes": dict(sorted(notes.items())),
        "roles_seen": roles,
        "num_files": len(inputs),
        "num_shards": writer.num_shards,
    }
    storage.write_json(storage.join(output_path, SUMMARY_NAME), summary)
    return summary


def list_shards(input_path: str) -> list[str]:
    """
    Paths of the shards below input_path, in order.

    Raises:
        ChatInputError: there is none.
    """
    return [file.path for file in find_input_files(input_path, ("shard-*.jsonl.zst",))]


def iter_conversations(input_path: str) -> Iterator[dict[str, Any]]:
    """
    The transformed rows in order: id, messages, source, and tools and chat_template_kwargs where
    present.
    """
    for path in list_shards(input_path):
        try:
            with storage.open_file(path, "rb") as raw, open_zstd(raw) as stream:
                for line in stream:
                    yield _loads(line)
        except (EOFError, zstandard.ZstdError) as error:
            raise ChatInputError(
                f"shard {path}: must be readable to its end, got {error}. Transform again."
            ) from error


def _adapt(adapter: RowAdapter, row: SourceRow) -> Conversation:
    if row.error:
        raise RowRejected("unreadable row", row.error)
    return adapter.adapt(row.values, is_padded=row.is_padded)


def _output_line(
    row: SourceRow, conversation: Conversation, replacements: Mapping[str, str]
) -> bytes:
    messages = conversation.messages
    row_id = conversation.source_id or hashlib.sha256(_dumps(messages)).hexdigest()
    for message in messages:
        for key in ("content", "reasoning_content"):
            if isinstance(message.get(key), str):
                for old, new in replacements.items():
                    message[key] = message[key].replace(old, new)
    out: dict[str, Any] = {"id": row_id, "messages": messages}
    if conversation.tools:
        out["tools"] = conversation.tools
    if conversation.template_kwargs:
        out["chat_template_kwargs"] = conversation.template_kwargs
    out["source"] = f"{row.file}:{row.index}"
    return _dumps(out)


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # integers over 64 bits, lone surrogates, types that JSON doesn't have
        pass
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError) as error:
        raise RowRejected("not writable as JSON", str(error)) from error


def _loads(line: bytes) -> dict[str, Any]:
    try:
        return orjson.loads(line)
    except ValueError:
        return json.loads(line)


def _roles_text(roles: Mapping[str, int]) -> str:
    return ", ".join(f"{role!r} x{count:,}" for role, count in roles.items()) or "none"
