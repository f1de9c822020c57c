"""
Where a preview gets its conversations: token caches, of which only the rows that are asked for are
read, or canonical conversations, which go through what the tokenize step does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from neve import storage

from neve_chat.cache_reader import CacheReader
from neve_chat.errors import ChatInputError
from neve_chat.preview_conversations import ConversationSource, choose_options
from neve_chat.preview_rows import PreviewSource, Refused, RowLimit, Shown, check_start
from neve_chat.statistics import SplitCounts
from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = ["CacheSource", "open_source"]

_LEDGER = "shard_ledger.json"
_SHARD_BEGIN, _SHARD_END = "shard-", ".jsonl.zst"
_FILE_ENDS = (".jsonl", ".jsonl.zst")
_FEW = 12


def open_source(
    path: str,
    *,
    split: str = "train",
    tokenizer: str | None = None,
    template: str | None = None,
    name: str | None = None,
    config: Mapping[str, Any] | None = None,
    limit: RowLimit | None = None,
) -> PreviewSource:
    """
    Find out what is at a path.

    Args:
        path: output of a tokenize step, any Levanter chat cache, one split of either, or a folder
            or file of canonical conversations.
        split: which split of a cache with several.
        tokenizer: folder with tokenizer.json; None: the one that made the cache.
        template: name or file of a chat template, or "tokenizer" for its own; for conversations.
        name: what to call it; None: the name of the step, or of the folder.
        config: fields of the tokenize step by name, for conversations; what isn't there has its
            default, without it tokenizer and template are needed.
        limit: what the recipe's mixture does with long conversations.

    Raises:
        ChatInputError: nothing to show there, or it can't be shown with what is given.
    """
    path = path if "://" in path else os.path.abspath(path)
    if not storage.exists(path):
        raise ChatInputError(f"path {path}: must exist, got nothing there. Correct the path.")
    names = storage.list_names(path) if storage.is_dir(path) else []
    if _LEDGER in names:
        return CacheSource(path, tokenizer=tokenizer, name=name, limit=limit)
    splits = [n for n in names if storage.exists(storage.join(path, n, _LEDGER))]
    if splits:
        if split not in splits:
            raise ChatInputError(
                f"--split {split}: must be a split of {path}, got none of that name. "
                f"It has {', '.join(splits)}."
            )
        path = storage.join(path, split)
        return CacheSource(path, tokenizer=tokenizer, name=name, limit=limit)
    is_shards = any(n.startswith(_SHARD_BEGIN) and n.endswith(_SHARD_END) for n in names)
    if is_shards or (not names and path.endswith(_FILE_ENDS)):
        options = choose_options(path, config, tokenizer=tokenizer, template=template)
        return ConversationSource(path, options, name=name, limit=limit, split=split)
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

    def __init__(
        self,
        split_path: str,
        *,
        tokenizer: str | None,
        name: str | None,
        limit: RowLimit | None = None,
    ) -> None:
        self.path = split_path
        output_path, self.split = split_path.rstrip("/").rsplit("/", 1)
        record = _json_or_none(storage.join(output_path, ".neve", "record.json"))
        self.name = name or (record or {}).get("name") or output_path.rsplit("/", 1)[-1]
        self.facts: dict[str, Any] = _json_or_none(storage.join(output_path, "stats.json")) or {}
        self._example = _json_or_none(storage.join(output_path, "first_example.json")) or {}
        self.tokenizer = self._tokenizer(tokenizer, output_path, record)
        self._reader = CacheReader(split_path)
        self._limit = limit
        if limit is not None:
            self._count_long(limit)

    def _count_long(self, limit: RowLimit) -> None:
        num_long = int((self._reader.lengths > limit.seq_len).sum())
        kind = "notes" if limit.rule == "truncate" else "rejected"
        if num_long:
            self.facts[kind] = {**(self.facts.get(kind) or {}), limit.reason: num_long}

    def conversations(self, start: int, num_rows: int) -> Iterator[Shown | Refused]:
        """
        See PreviewSource.
        """
        total = self._reader.num_rows
        check_start(start, total, self.path)
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
            shown = Shown(
                row=row, tokens=tokens, row_id=known.get("id"), source=known.get("source")
            )
            yield self._limit.apply(shown) if self._limit else shown

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
