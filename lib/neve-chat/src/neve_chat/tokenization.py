"""
Canonical conversations to Levanter token caches with loss masks.

Streaming: memory depends on the largest conversation and on the number of rows (8 bytes each), not
on the number of tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neve import storage

from neve_chat.adapt import RowRejected
from neve_chat.baselines import BaselineCounter
from neve_chat.cache import TreeCacheWriter
from neve_chat.errors import ChatInputError
from neve_chat.preview import example_json, example_text
from neve_chat.quarantine import Quarantine, refuse_if_too_many
from neve_chat.render import ChatRenderer, Rendered, TemplateRefusal
from neve_chat.statistics import SplitCounts
from neve_chat.templates import check_generation_marks
from neve_chat.terminator import Terminator, find_terminator
from neve_chat.tokens import ChatTokenizer, Tokens
from neve_chat.transform import SUMMARY_NAME, iter_conversations

__all__ = ["TokenizeOptions", "is_validation", "tokenize_conversations"]

# A batch of 1 M characters keeps both cores busy; each token of it costs about 200 bytes while it
# lives.
_BATCH_CHARS = 1_000_000
_PREVIEW_CHARS = 600
TRAIN_TURNS = ("all", "last")


@dataclass(frozen=True, kw_only=True)
class TokenizeOptions:
    """
    What bears on the tokens.
    """

    tokenizer_path: str
    """Folder with tokenizer.json."""
    template: str
    """Jinja text of the chat template."""
    template_name: str = "template"
    """What to call the template in messages."""
    validation_fraction: float = 0.0
    """Share of the conversations that go to the validation split by the hash of their id, 0 to <
    1."""
    train_turns: str = "all"
    """all: every generation block is trained; last: only the last one of a conversation."""
    max_rejected_fraction: float = 0.05
    """Share of refused conversations above which the whole is refused, 0 to 1."""


def is_validation(row_id: str, fraction: float) -> bool:
    """
    Whether a conversation belongs to the validation split: a function of its id alone.

    Args:
        row_id: id of the conversation.
        fraction: share of all ids, 0 to 1.
    """
    digest = hashlib.sha256(b"validation:" + row_id.encode("utf-8")).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


def tokenize_conversations(
    *,
    input_path: str,
    output_path: str,
    options: TokenizeOptions,
    on_progress: Callable[[int, int | None, dict[str, Any]], None] | None = None,
    on_example: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """
    `train/` and, if any, `validation/` are complete caches; beside them statistics and an example.

    Args:
        input_path: output of the transform.
        output_path: where the caches go.
        options: tokenizer, template and split.
        on_progress: called with (rows done, rows in all or None, facts to show).
        on_example: called once with the first conversation, trained tokens marked and in color.

    Returns:
        Counts of both splits, baselines, refused rows by reason.

    Raises:
        ChatInputError: wrong template, tokenizer or data; no ledger is written then.
    """
    check_generation_marks(options.template_name, options.template)
    tokenizer = ChatTokenizer(options.tokenizer_path)
    renderer = ChatRenderer(
        options.template, special_tokens=tokenizer.special_tokens, name=options.template_name
    )
    terminator = find_terminator(renderer, tokenizer, options.template_name)
    total = _num_rows(input_path)
    with storage.scratch_dir() as scratch, contextlib.ExitStack() as caches:
        run = _Run(options, tokenizer, terminator, output_path, caches, scratch)
        with Quarantine(storage.join(output_path, "rejected.jsonl")) as quarantine:
            for batch in _rendered_batches(input_path, renderer, options, quarantine, run):
                run.add_batch(batch, quarantine)
                if on_progress is not None:
                    on_progress(run.num_rows, total, {"tokens": run.num_tokens})
                if on_example is not None and run.example is not None and not run.has_shown:
                    on_example(example_text(run.example[1], tokenizer, max_chars=_PREVIEW_CHARS))
                    run.has_shown = True
        if total is not None and run.num_rows != total:
            raise ChatInputError(
                f"conversations of {input_path}: the shards must hold the {total:,} rows that "
                f"{SUMMARY_NAME} counts, got {run.num_rows:,}. A shard is cut off: transform again."
            )
        run.check(quarantine, input_path)
    return run.write_facts()


class _Run:
    """
    The state of one tokenization.
    """

    def __init__(
        self,
        options: TokenizeOptions,
        tokenizer: ChatTokenizer,
        terminator: Terminator,
        output_path: str,
        caches: contextlib.ExitStack,
        scratch: Path,
    ) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.terminator = terminator
        self.output_path = output_path
        self.num_rows = 0
        self.num_tokens = 0
        self.num_unclosed = 0
        self.notes: Counter[str] = Counter()
        self.rejected: dict[str, int] = {}
        self.example: tuple[dict[str, Any], Tokens] | None = None
        self.has_shown = False
        self.counts = {"train": SplitCounts(), "validation": SplitCounts()}
        self.baselines = BaselineCounter(tokenizer.id_limit)
        self._caches = caches
        self._scratch = scratch
        self._writers: dict[str, TreeCacheWriter] = {}

    def add_batch(
        self, batch: list[tuple[dict[str, Any], Rendered]], quarantine: Quarantine
    ) -> None:
        """
        Tokenize rendered rows and put them into their splits.
        """
        all_tokens = self.tokenizer.encode_rendered([rendered for _, rendered in batch])
        for (row, _), tokens in zip(batch, all_tokens, strict=True):
            if not tokens.num_trained:
                detail = "the template marks nothing of this conversation as the assistant's"
                quarantine.add("no trained tokens", detail, row["id"], row)
                continue
            split = (
                "validation"
                if is_validation(row["id"], self.options.validation_fraction)
                else "train"
            )
            self.num_tokens += len(tokens.ids)
            self.num_unclosed += not self.terminator.closes(tokens)
            self.counts[split].add(tokens)
            self.baselines.add(split, tokens.ids, tokens.mask)
            self._writer(split).append(tokens.ids, tokens.mask)
            if self.example is None:
                self.example = row, tokens

    def _writer(self, split: str) -> TreeCacheWriter:
        if split not in self._writers:
            # The keys and values that Levanter's ChatProcessor reports, so that it finds no
            # mismatch.
            metadata = {
                "tokenizer": self.options.tokenizer_path,
                "vocab_size": self.tokenizer.vocab_size,
                "chat_template": self.options.template,
                "messages_field": "messages",
                "system_prompt_field": None,
                "chat_template_kwargs_field": "chat_template_kwargs",
            }
            path = storage.join(self.output_path, split)
            writer = TreeCacheWriter(
                path, scratch=self._scratch / split, preprocessor_metadata=metadata
            )
            self._writers[split] = self._caches.enter_context(writer)
        return self._writers[split]

    def check(self, quarantine: Quarantine, input_path: str) -> None:
        """
        Refuse a source that would train nothing, or not what was meant.
        """
        self.rejected = dict(sorted(quarantine.counts.items()))
        refuse_if_too_many(
            quarantine,
            self.num_rows,
            max_fraction=self.options.max_rejected_fraction,
            what=f"tokens of {input_path}",
            advice=(
                f"Check that the template {self.options.template_name!r} fits these conversations"
            ),
        )
        kept = self.num_rows - quarantine.counts.total()
        if self.num_unclosed == kept:
            raise ChatInputError(
                f"template {self.options.template_name!r}: the last trained token of a "
                f"conversation must end the turn, "
                f"got another one in all {kept:,} conversations, so the model will not learn "
                f"to stop. Put the "
                "end-of-turn token inside the generation block, and check that the tokenizer "
                "has it."
            )
        if not self.counts["train"].num_rows:
            raise ChatInputError(
                f"tokens of {input_path}: the train split needs at least one conversation, got "
                f"none of {kept:,} with "
                f"validation_fraction {self.options.validation_fraction}. Lower it or add data."
            )

    def write_facts(self) -> dict[str, Any]:
        """
        Write stats.json and the first example, and return the results.
        """
        assert self.example is not None
        row, tokens = self.example
        text = example_text(tokens, self.tokenizer, use_color=False)
        storage.write_bytes(
            storage.join(self.output_path, "first_example.txt"), text.encode("utf-8")
        )
        facts = example_json(row, tokens, self.tokenizer)
        storage.write_json(storage.join(self.output_path, "first_example.json"), facts, indent=None)
        results = {split: counts.as_json() for split, counts in self.counts.items()}
        results["baselines"] = self.baselines.losses()
        results["rejected"] = self.rejected
        results["notes"] = dict(sorted(self.notes.items())) | {
            "unclosed conversations": self.num_unclosed
        }
        identity = {
            "tokenizer_digest": hashlib.sha256(self.tokenizer.json_bytes).hexdigest(),
            "template_digest": hashlib.sha256(self.options.template.encode("utf-8")).hexdigest(),
            "template_name": self.options.template_name,
            "vocab_size": self.tokenizer.vocab_size,
            "terminator": {"text": self.terminator.text, "ids": list(self.terminator.ids)},
        }
        storage.write_json(storage.join(self.output_path, "stats.json"), {**results, **identity})
        return results


def _rendered_batches(
    input_path: str,
    renderer: ChatRenderer,
    options: TokenizeOptions,
    quarantine: Quarantine,
    run: _Run,
) -> Iterator[list[tuple[dict[str, Any], Rendered]]]:
    batch: list[tuple[dict[str, Any], Rendered]] = []
    num_chars = 0
    for row in iter_conversations(input_path):
        run.num_rows += 1
        try:
            rendered = _render(row, renderer, options)
        except RowRejected as refusal:
            quarantine.add(refusal.reason, refusal.detail, row["id"], row)
            continue
        run.notes.update(_reasoning_notes(row["messages"], rendered.text))
        batch.append((row, rendered))
        num_chars += len(rendered.text)
        if num_chars >= _BATCH_CHARS:
            yield batch
            batch, num_chars = [], 0
    if batch:
        yield batch


def _render(row: dict[str, Any], renderer: ChatRenderer, options: TokenizeOptions) -> Rendered:
    kwargs = {
        key: value
        for key, value in (row.get("chat_template_kwargs") or {}).items()
        if key not in _OURS
    }
    try:
        rendered = renderer.render(row["messages"], tools=row.get("tools"), **kwargs)
    except TemplateRefusal as refusal:
        raise RowRejected("template refused", str(refusal)) from refusal
    if options.train_turns == "last":
        return Rendered(rendered.text, rendered.spans[-1:])
    return rendered


_OURS = frozenset({"messages", "tools", "add_generation_prompt", "documents", "self"})


def _reasoning_notes(messages: Iterable[dict[str, Any]], text: str) -> Iterator[str]:
    for message in messages:
        if reasoning := message.get("reasoning_content"):
            yield "reasoning fields"
            if reasoning not in text:
                yield "reasoning fields dropped by the template"


def _num_rows(input_path: str) -> int | None:
    summary = storage.join(input_path, SUMMARY_NAME)
    return storage.read_json(summary)["rows_out"] if storage.exists(summary) else None
