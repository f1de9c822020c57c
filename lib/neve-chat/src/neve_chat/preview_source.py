"""
Where a preview gets its conversations: token caches, or canonical conversations and a template.

Only the rows that are asked for are read.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

from neve import storage

from neve_chat.cache_reader import CacheReader
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer, TemplateRefusal
from neve_chat.statistics import SplitCounts
from neve_chat.template_check import check_template_fits
from neve_chat.templates import check_generation_marks, load_template, tokenizer_template
from neve_chat.tokens import ChatTokenizer, Tokens
from neve_chat.transform import SUMMARY_NAME, iter_conversations
from neve_chat.zstd import open_zstd

__all__ = ["CacheSource", "ConversationSource", "PreviewSource", "Shown", "open_source"]

_LEDGER = "shard_ledger.json"
_SHARD_BEGIN, _SHARD_END = "shard-", ".jsonl.zst"
_FILE_ENDS = (".jsonl", ".jsonl.zst")
_FEW = 12


@dataclass(frozen=True, kw_only=True)
class Shown:
    """
    One conversation to show.
    """

    row: int
    """Its number in the source, from 0."""
    tokens: Tokens
    """Ids and mask."""
    row_id: str | None = None
    """Id of the conversation, where known."""
    source: str | None = None
    """File and row it came from, where known."""


class PreviewSource(Protocol):
    """
    Conversations of one data set, with what is known about all of them.
    """

    name: str
    """What to call it."""
    path: str
    """Where it is."""
    tokenizer: ChatTokenizer
    """The tokenizer of the ids."""
    facts: Mapping[str, Any]
    """What the step wrote about the whole: rejected, notes, template_name and digests; may be
    empty."""

    def conversations(self, start: int, num_rows: int) -> Iterator[Shown]:
        """
        Up to num_rows conversations from row `start` on.

        Raises:
            ChatInputError: there is no row `start`.
        """
        ...

    def known_counts(self) -> SplitCounts | None:
        """
        The counts that are written down, or None.
        """
        ...

    def counts(self) -> SplitCounts:
        """
        The counts, taken from the data itself where they are not written down.
        """
        ...


def open_source(
    path: str,
    *,
    split: str = "train",
    tokenizer: str | None = None,
    template: str | None = None,
    name: str | None = None,
) -> PreviewSource:
    """
    Find out what is at a path.

    Args:
        path: output of a tokenize step, any Levanter chat cache, one split of either, or a folder
            or file of canonical conversations.
        split: which split of a cache with several.
        tokenizer: folder with tokenizer.json; None: the one that made the cache.
        template: name or file of a chat template, or "tokenizer" for its own; needed for
            conversations, and only there.
        name: what to call it; None: the name of the step, or of the folder.

    Raises:
        ChatInputError: nothing to show there, or it can't be shown with what is given.
    """
    path = path if "://" in path else os.path.abspath(path)
    if not storage.exists(path):
        raise ChatInputError(f"path {path}: must exist, got nothing there. Correct the path.")
    names = storage.list_names(path) if storage.is_dir(path) else []
    if _LEDGER in names:
        return CacheSource(path, tokenizer=tokenizer, name=name)
    splits = [n for n in names if storage.exists(storage.join(path, n, _LEDGER))]
    if splits:
        if split not in splits:
            raise ChatInputError(
                f"--split {split}: must be a split of {path}, got none of that name. "
                f"It has {', '.join(splits)}."
            )
        return CacheSource(storage.join(path, split), tokenizer=tokenizer, name=name)
    is_shards = any(n.startswith(_SHARD_BEGIN) and n.endswith(_SHARD_END) for n in names)
    if is_shards or (not names and path.endswith(_FILE_ENDS)):
        return ConversationSource(path, tokenizer=tokenizer, template=template, name=name)
    shown = ", ".join(names[:_FEW]) + (", ..." if len(names) > _FEW else "")
    raise ChatInputError(
        f"path {path}: must hold a token cache ({_LEDGER}) or conversations "
        f"({_SHARD_BEGIN}*{_SHARD_END}, or a .jsonl file), got "
        f"{shown or 'neither'}. Give the output of a tokenize or a transform step."
    )


class CacheSource:
    """
    One split of a token cache.
    """

    def __init__(self, split_path: str, *, tokenizer: str | None, name: str | None) -> None:
        self.path = split_path
        output_path, self.split = split_path.rstrip("/").rsplit("/", 1)
        record = _json_or_none(storage.join(output_path, ".neve", "record.json"))
        self.name = name or (record or {}).get("name") or output_path.rsplit("/", 1)[-1]
        self.facts: Mapping[str, Any] = _json_or_none(storage.join(output_path, "stats.json")) or {}
        self._example = _json_or_none(storage.join(output_path, "first_example.json")) or {}
        self.tokenizer = self._tokenizer(tokenizer, output_path, record)
        self._reader = CacheReader(split_path)

    def conversations(self, start: int, num_rows: int) -> Iterator[Shown]:
        """
        See PreviewSource.
        """
        total = self._reader.num_rows
        if start >= total:
            raise ChatInputError(
                f"row {start}: must be one of 0 to {total - 1:,} of {self.path}, got one behind "
                "the last. Choose a smaller one."
            )
        for row in range(start, min(start + num_rows, total)):
            tokens = Tokens(*self._reader.read(row))
            if len(tokens.ids) and int(tokens.ids.max()) >= self.tokenizer.id_limit:
                raise ChatInputError(
                    f"tokenizer {self.tokenizer.path}: must know every id of {self.path}, got "
                    f"{int(tokens.ids.max())} with ids below {self.tokenizer.id_limit}. "
                    "Pass the tokenizer that made the cache with --tokenizer."
                )
            # The step keeps its first conversation, which is the first row of one split.
            is_first = row == 0 and self._example.get("input_ids") == tokens.ids.tolist()
            known = self._example if is_first else {}
            yield Shown(row=row, tokens=tokens, row_id=known.get("id"), source=known.get("source"))

    def known_counts(self) -> SplitCounts | None:
        """
        See PreviewSource.
        """
        counts = self.facts.get(self.split)
        return SplitCounts.from_json(counts) if counts else None

    def counts(self) -> SplitCounts:
        """
        See PreviewSource.
        """
        known = self.known_counts()
        if known is not None:
            return known
        num_trained = int(self._reader.trained_tokens().sum())
        return SplitCounts.from_lengths(self._reader.lengths, num_trained)

    def _tokenizer(
        self, given: str | None, output_path: str, record: dict[str, Any] | None
    ) -> ChatTokenizer:
        path = given or _recorded_tokenizer(output_path, record) or self._ledger_tokenizer()
        if path is None:
            raise ChatInputError(
                f"tokens of {self.path}: need the tokenizer that made them, got no record of one "
                "that is still there. Pass --tokenizer FOLDER with its tokenizer.json."
            )
        tokenizer = ChatTokenizer(path)
        digest = hashlib.sha256(tokenizer.json_bytes).hexdigest()
        made_by = self.facts.get("tokenizer_digest", digest)
        if digest != made_by:
            raise ChatInputError(
                f"tokenizer {path}: must be the one that made {self.path} (tokenizer.json with "
                f"sha256 {made_by[:16]}), got {digest[:16]}. Pass that one with --tokenizer."
            )
        return tokenizer

    def _ledger_tokenizer(self) -> str | None:
        """
        The tokenizer that Levanter's metadata name, if it is a folder that is still there.
        """
        ledger = _json_or_none(storage.join(self.path, _LEDGER)) or {}
        metadata = (ledger.get("metadata") or {}).get("preprocessor_metadata") or {}
        path = metadata.get("tokenizer")
        is_there = isinstance(path, str) and storage.exists(storage.join(path, "tokenizer.json"))
        return path if is_there else None


class ConversationSource:
    """
    Canonical conversations, rendered and tokenized as they are shown.
    """

    def __init__(
        self, path: str, *, tokenizer: str | None, template: str | None, name: str | None
    ) -> None:
        if tokenizer is None or template is None:
            raise ChatInputError(
                f"conversations of {path}: need a tokenizer and a template to show what is "
                f"trained, got {'neither' if tokenizer is template else 'one of them'}. "
                "Pass --tokenizer FOLDER and --template NAME."
            )
        self.path = path
        self.name = name or path.rstrip("/").rsplit("/", 1)[-1]
        self.tokenizer = ChatTokenizer(tokenizer)
        chosen = load_template(template)
        if not chosen.text:
            chosen = tokenizer_template(tokenizer)
        check_generation_marks(chosen.name, chosen.text)
        self._renderer = ChatRenderer(
            chosen.text, special_tokens=self.tokenizer.special_tokens, name=chosen.name
        )
        check_template_fits(self._renderer, self.tokenizer, chosen.name, tokenizer)
        summary = _json_or_none(storage.join(path, SUMMARY_NAME)) or {}
        self.facts: Mapping[str, Any] = {
            **summary,
            "template_name": chosen.name,
            "template_digest": hashlib.sha256(chosen.text.encode("utf-8")).hexdigest(),
            "tokenizer_digest": hashlib.sha256(self.tokenizer.json_bytes).hexdigest(),
        }

    def conversations(self, start: int, num_rows: int) -> Iterator[Shown]:
        """
        See PreviewSource.
        """
        is_empty = True
        for index, row in islice(enumerate(self._rows()), start, start + num_rows):
            is_empty = False
            yield self._shown(index, row)
        if is_empty:
            raise ChatInputError(
                f"row {start}: must be a row of {self.path}, got one behind the last. "
                "Choose a smaller one."
            )

    def known_counts(self) -> SplitCounts | None:
        """
        See PreviewSource.
        """
        return None

    def counts(self) -> SplitCounts:
        """
        See PreviewSource.
        """
        return self._counts

    @cached_property
    def _counts(self) -> SplitCounts:
        counts = SplitCounts()
        for index, row in enumerate(self._rows()):
            counts.add(self._shown(index, row).tokens)
        return counts

    def _rows(self) -> Iterator[dict[str, Any]]:
        if storage.is_dir(self.path):
            yield from iter_conversations(self.path)
            return
        with storage.open_file(self.path, "rb") as raw:
            lines = open_zstd(raw) if self.path.endswith(".zst") else raw
            for index, line in enumerate(lines):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise ChatInputError(
                        f"{self.path} line {index + 1}: must be JSON, got {error}. Correct it."
                    ) from error
                if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
                    raise ChatInputError(
                        f"{self.path} line {index + 1}: must be a canonical conversation with "
                        f"messages, got {str(row)[:80]!r}. Transform the data first."
                    )
                yield row

    def _shown(self, index: int, row: dict[str, Any]) -> Shown:
        try:
            rendered = self._renderer.render_row(row)
        except TemplateRefusal as refusal:
            raise ChatInputError(
                f"row {index} of {self.path}: must fit the template, got {refusal}. "
                f"Go on behind it with --start {index + 1}."
            ) from refusal
        (tokens,) = self.tokenizer.encode_rendered([rendered])
        return Shown(row=index, tokens=tokens, row_id=row.get("id"), source=row.get("source"))


def _recorded_tokenizer(output_path: str, record: dict[str, Any] | None) -> str | None:
    """
    The tokenizer that a step's record names, if it is still there.

    Paths of a step's dependencies are recorded relative to the prefix, which lies as many folders
    above the output path as the step's name has parts.
    """
    path = ((record or {}).get("config") or {}).get("tokenizer")
    if not isinstance(path, str) or record is None:
        return None
    if "://" not in path and not path.startswith("/"):
        prefix = output_path.rstrip("/").rsplit("/", record["name"].count("/") + 1)[0]
        path = storage.join(prefix, path)
    return path if storage.exists(storage.join(path, "tokenizer.json")) else None


def _json_or_none(path: str) -> Any:
    return storage.read_json(path) if storage.exists(path) else None
