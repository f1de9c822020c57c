"""
Canonical conversations as a tokenize step and a mixture would leave them, shown without either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from neve import storage

from neve_chat.adapt import RowAdapter
from neve_chat.checks import RowRejected
from neve_chat.errors import ChatInputError
from neve_chat.preview_rows import Refused, RowLimit, Shown, check_start
from neve_chat.row_tokens import RowTokens, open_template
from neve_chat.schemas import ConversationSchema
from neve_chat.spans import LossOptions
from neve_chat.statistics import SplitCounts
from neve_chat.templates import load_template
from neve_chat.tokenization import TokenizeOptions, is_validation
from neve_chat.transform import SUMMARY_NAME, iter_conversations
from neve_chat.zstd import open_zstd

__all__ = ["ConversationSource", "choose_options"]

_RECIPE_TEMPLATE = "of the recipe"


def choose_options(
    path: str,
    config: Mapping[str, Any] | None,
    *,
    tokenizer: str | None,
    template: str | None,
) -> TokenizeOptions:
    """
    The options of a tokenize step, for conversations without one.

    Args:
        path: the conversations, for errors.
        config: fields of the step by name, as JSON; None: only the defaults are known.
        tokenizer: folder with tokenizer.json; None: the step's.
        template: name or file of a chat template, or "tokenizer"; None: the step's.

    Raises:
        ChatInputError: no tokenizer or no template, or no such template.
    """
    known = dict(config or {})
    tokenizer = tokenizer or known.get("tokenizer")
    if tokenizer is None or (template is None and "template" not in known):
        raise ChatInputError(
            f"conversations of {path}: need a tokenizer and a template to show what is "
            f"trained, got {'neither' if tokenizer is template else 'one of them'}. "
            "Pass --tokenizer FOLDER and --template NAME, or --recipe MODULE to show them as it "
            "would train them."
        )
    own = {field.name for field in dataclasses.fields(TokenizeOptions)}
    fields = {name: value for name, value in known.items() if name in own}
    if "loss" in fields:
        roles = tuple(fields["loss"]["train_roles"])
        fields["loss"] = LossOptions(**{**fields["loss"], "train_roles": roles})
    fields["allowed_special_text"] = tuple(fields.get("allowed_special_text") or ())
    fields["template_name"] = _RECIPE_TEMPLATE
    if template is not None:
        chosen = load_template(template)
        fields |= {"template": chosen.text, "template_name": chosen.name}
    return TokenizeOptions(**{**fields, "tokenizer_path": tokenizer})


class ConversationSource:
    """
    Conversations, rendered, checked, shortened and tokenized as they are shown.
    """

    def __init__(
        self,
        path: str,
        options: TokenizeOptions,
        *,
        name: str | None,
        limit: RowLimit | None = None,
        split: str = "train",
    ) -> None:
        """
        Args:
            path: folder of shards, or a file.
            options: of the tokenize step.
            name: what to call it; None: the folder's or the file's name.
            limit: of the mixture's rows, if there is one.
            split: rows of the other split are told as such.

        Raises:
            ChatInputError: what the tokenize step would refuse before it reads a row.
        """
        self.path = path
        self.name = name or path.rstrip("/").rsplit("/", 1)[-1]
        opened = open_template(options)
        self.tokenizer = opened.tokenizer
        self._rows = RowTokens(opened.renderer, opened.tokenizer, options)
        self._options = options
        self._limit = limit
        self._split = split
        # What no transform step wrote may hold anything.
        self._adapter = None if storage.is_dir(path) else RowAdapter(ConversationSchema())
        summary = storage.join(path, SUMMARY_NAME)
        self.facts: dict[str, Any] = {
            **(storage.read_json(summary) if storage.exists(summary) else {}),
            "template_name": options.template_name,
            "template_digest": hashlib.sha256(opened.text.encode("utf-8")).hexdigest(),
            "tokenizer_digest": hashlib.sha256(self.tokenizer.json_bytes).hexdigest(),
            "terminator": {"text": opened.terminator.text},
        }

    def conversations(self, start: int, num_rows: int) -> Iterator[Shown | Refused]:
        """
        See PreviewSource.
        """
        is_empty = True
        for index, row in islice(enumerate(self._all_rows()), start, start + num_rows):
            is_empty = False
            yield from self._trained(index, row)
        if is_empty:
            check_start(start, None, self.path)

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
        counts, refused = SplitCounts(), Counter[str]()
        self._rows.take_notes()
        for index, row in enumerate(self._all_rows()):
            for shown in self._trained(index, row):
                if isinstance(shown, Refused):
                    refused[shown.reason] += 1
                else:
                    counts.add(shown.tokens)
        for kind, more in (("rejected", refused), ("notes", self._rows.take_notes())):
            self.facts[kind] = dict(sorted((Counter(self.facts.get(kind) or {}) + more).items()))
        return counts

    def _trained(self, index: int, row: dict[str, Any]) -> Iterator[Shown | Refused]:
        """
        What becomes of a row: one conversation, several pieces, or the reason why none.
        """
        place = {"row": index, "source": row.get("source")}
        fraction = self._options.validation_fraction
        is_held_out = fraction > 0 and is_validation(row["id"], fraction)
        split = "validation" if is_held_out else "train"
        if split != self._split:
            reason = "held out for validation" if is_held_out else "not held out for validation"
            yield Refused(
                reason=reason, detail=f"--split {split} shows it", row_id=row["id"], **place
            )
            return
        try:
            row = row if self._adapter is None else _adapted(self._adapter, row)
            pieces = self._rows.of(row)
        except RowRejected as refusal:
            reason, detail = refusal.reason, refusal.detail
        except ChatInputError as error:
            reason, detail = "stops the tokenize step", str(error)
        else:
            for piece, tokens in pieces:
                policy = self._options.long_conversations
                note = "" if piece is row else f"shortened by {policy}"
                shown = Shown(tokens=tokens, row_id=piece.get("id"), note=note, **place)
                yield self._limit.apply(shown) if self._limit else shown
            return
        yield Refused(reason=reason, detail=detail, row_id=row.get("id"), **place)

    def _all_rows(self) -> Iterator[dict[str, Any]]:
        if storage.is_dir(self.path):
            yield from iter_conversations(self.path)
            return
        with storage.open_file(self.path, "rb") as raw:
            lines = open_zstd(raw) if self.path.endswith(".zst") else raw
            for index, line in enumerate(lines):
                if line.strip():
                    yield _canonical(line, f"{self.path} line {index + 1}")


def _adapted(adapter: RowAdapter, row: dict[str, Any]) -> dict[str, Any]:
    conversation = adapter.adapt(row)
    return {
        **row,
        "messages": conversation.messages,
        "tools": conversation.tools,
        "chat_template_kwargs": conversation.template_kwargs,
    }


def _canonical(line: bytes, where: str) -> dict[str, Any]:
    """
    A row of a file that no transform step wrote.
    """
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ChatInputError(f"{where}: must be JSON, got {error}. Correct it.") from error
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        raise ChatInputError(
            f"{where}: must be a canonical conversation with messages, got {str(row)[:80]!r}. "
            "Transform the data first."
        )
    row_id = row.get("id")
    return {**row, "id": where.rpartition("/")[2] if row_id is None else str(row_id)}
