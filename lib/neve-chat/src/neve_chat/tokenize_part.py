"""
One shard of conversations to one part of the token caches. Runs in any process, on any machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neve import storage

from neve_chat.adapt import RowRejected
from neve_chat.cache import PART_PATTERN, TreeCacheWriter
from neve_chat.errors import ChatInputError
from neve_chat.parts import Part, write_facts
from neve_chat.preview import example_json, example_text
from neve_chat.quarantine import Quarantine
from neve_chat.render import ChatRenderer, Rendered, TemplateRefusal
from neve_chat.shards import read_shard
from neve_chat.spans import make_probe, select_spans
from neve_chat.special_text import SpecialText
from neve_chat.statistics import SplitCounts
from neve_chat.terminator import Terminator, find_terminator
from neve_chat.tokens import ChatTokenizer, Tokens
from neve_chat.windows import Shortener

if TYPE_CHECKING:
    from neve_chat.tokenization import TokenizeOptions

__all__ = ["PartConfig", "example_path", "is_validation", "make_worker"]

# Each token of a batch costs about 200 bytes while it lives.
_BATCH_CHARS = 1_000_000
_OURS = frozenset({"messages", "tools", "add_generation_prompt", "documents", "self"})


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """
    What a worker needs to know; the same for all parts.
    """

    options: Any
    """TokenizeOptions."""
    template: str
    """Jinja text, also where the tokenizer's own is used."""
    input_path: str
    """Output of the transform."""
    output_path: str
    """Where the caches go."""
    encoder: str = "auto"
    """auto, or tokenizers where fastokens was found wrong."""
    num_threads: int | None = None
    """Threads of the encoder; None: one for each core."""
    num_parts: int
    """Parts in all."""
    metadata: dict[str, Any]
    """Preprocessor metadata of the caches."""


def is_validation(row_id: str, fraction: float) -> bool:
    """
    Whether a conversation belongs to the validation split: a function of its id alone.

    Args:
        row_id: id of the conversation.
        fraction: share of all ids, 0 to 1.
    """
    digest = hashlib.sha256(b"validation:" + row_id.encode("utf-8")).digest()
    return int.from_bytes(digest[:8]) < fraction * 2**64


def example_path(output_path: str, index: int) -> str:
    """
    Where a part keeps its first conversation for the reader.
    """
    return storage.join(output_path, ".parts", f"{index:05d}.example.json")


def make_worker(config: PartConfig) -> _Worker:
    """
    A function that does one part.
    """
    return _Worker(config)


class _Worker:
    """
    Holds what is loaded once for all parts of a process.
    """

    def __init__(self, config: PartConfig) -> None:
        options: TokenizeOptions = config.options
        self.config = config
        self.tokenizer = ChatTokenizer(
            options.tokenizer_path, encoder=config.encoder, num_threads=config.num_threads
        )
        self.renderer = ChatRenderer(
            config.template,
            special_tokens=self.tokenizer.special_tokens,
            name=options.template_name,
        )
        self.terminator = find_terminator(self.renderer, self.tokenizer, options.template_name)
        self.probe = make_probe(self.renderer, options.loss, options.template_name)
        self.special_text = SpecialText(
            self.tokenizer.special_texts, options.special_text, options.allowed_special_text
        )

    def __call__(self, part: Part) -> dict[str, Any]:
        output = self.config.output_path
        rejected = storage.join(output, "rejected", f"part-{part.index:05d}.jsonl")
        with (
            storage.scratch_dir() as scratch,
            contextlib.ExitStack() as caches,
            Quarantine(rejected) as quarantine,
        ):
            run = _PartRun(self, part, caches, scratch, quarantine)
            for batch in run.rendered_batches():
                run.add_batch(batch)
        run.write_example()
        return write_facts(output, part, run.facts())


class _PartRun:
    """
    The state of one part.
    """

    def __init__(
        self,
        worker: _Worker,
        part: Part,
        caches: contextlib.ExitStack,
        scratch: Path,
        quarantine: Quarantine,
    ) -> None:
        self.options = worker.config.options
        self.num_rows = 0
        self.num_unclosed = 0
        self.notes: Counter[str] = Counter()
        self.counts = {"train": SplitCounts(), "validation": SplitCounts()}
        self._config = worker.config
        self._path = storage.join(worker.config.input_path, part.unit["name"])
        self._tokenizer = worker.tokenizer
        self._renderer = worker.renderer
        self._probe = worker.probe
        self._special_text = worker.special_text
        self._terminator: Terminator = worker.terminator
        self._part = part
        self._caches = caches
        self._scratch = scratch
        self._quarantine = quarantine
        self._example: tuple[dict[str, Any], Tokens] | None = None
        self._writers: dict[str, TreeCacheWriter] = {}
        self._shortener = None
        if self.options.max_tokens is not None:
            self._shortener = Shortener(
                self.options.long_conversations,
                self.options.max_tokens,
                lambda row: self._tokenizer.encode_rendered([self._render(row)])[0],
                lambda row: len(self._render(row).spans),
            )

    def rendered_batches(self) -> Iterator[list[tuple[dict[str, Any], Rendered]]]:
        """
        The shard's rows, rendered, about a megabyte of text at a time.
        """
        batch: list[tuple[dict[str, Any], Rendered]] = []
        num_chars = 0
        for row in read_shard(self._path):
            self.num_rows += 1
            try:
                rendered = self._render(row)
            except RowRejected as refusal:
                self._quarantine.add(refusal.reason, refusal.detail, row["id"], row)
                continue
            self.notes.update(_reasoning_notes(row["messages"], rendered.text))
            batch.append((row, rendered))
            num_chars += len(rendered.text)
            if num_chars >= _BATCH_CHARS:
                yield batch
                batch, num_chars = [], 0
        expected = self._part.unit["rows"]
        if expected is not None and self.num_rows != expected:
            raise ChatInputError(
                f"shard {self._path}: must hold the {expected:,} rows that the "
                f"summary counts, got {self.num_rows:,}. It is cut off: transform again."
            )
        if batch:
            yield batch

    def add_batch(self, batch: list[tuple[dict[str, Any], Rendered]]) -> None:
        """
        Tokenize rendered rows and put them into their splits.
        """
        all_tokens = self._tokenizer.encode_rendered([rendered for _, rendered in batch])
        for (row, rendered), tokens in zip(batch, all_tokens, strict=True):
            if rendered.cuts and self._tokenizer.num_special(
                tokens
            ) != self._special_text.num_markers(rendered):
                detail = "the tokenizer's normalizer makes special tokens of other text"
                self._quarantine.add("text of a special token", detail, row["id"], row)
            elif not tokens.num_trained:
                detail = "the template marks nothing of this conversation as the assistant's"
                self._quarantine.add("no trained tokens", detail, row["id"], row)
            elif self._shortener and len(tokens.ids) > self.options.max_tokens:
                pieces = self._shortener.shorten(row)
                if not pieces:
                    detail = f"{len(tokens.ids):,} tokens, and no turn fits into a row"
                    self._quarantine.add("too long", detail, row["id"], row)
                for piece, piece_tokens in pieces:
                    self._add(piece, piece_tokens, row["id"])
            else:
                self._add(row, tokens, row["id"])

    def write_example(self) -> None:
        """
        Keep the first conversation for the reader.
        """
        if self._example is None:
            return
        row, tokens = self._example
        example = example_json(row, tokens, self._tokenizer)
        example["text"] = example_text(tokens, self._tokenizer, use_color=False)
        path = example_path(self._config.output_path, self._part.index)
        storage.write_json(path, example, indent=None)

    def facts(self) -> dict[str, Any]:
        """
        Everything that is counted, as JSON.
        """
        if self._shortener:
            self.notes.update(self._shortener.notes)
        return {
            "rows_in": self.num_rows,
            "splits": {split: counts.as_json() for split, counts in self.counts.items()},
            "unclosed": self.num_unclosed,
            "notes": dict(self.notes),
            "rejected": dict(self._quarantine.counts),
            "first_rejected": self._quarantine.first,
            "has_example": self._example is not None,
            "encoder": self._tokenizer.encoder_report(),
        }

    def _add(self, row: dict[str, Any], tokens: Tokens, conversation_id: str) -> None:
        is_held_out = is_validation(conversation_id, self.options.validation_fraction)
        split = "validation" if is_held_out else "train"
        self.num_unclosed += not self._terminator.closes(tokens)
        self.counts[split].add(tokens)
        self._writer(split).append(tokens.ids, tokens.mask)
        if self._example is None:
            self._example = row, tokens

    def _writer(self, split: str) -> TreeCacheWriter:
        if split not in self._writers:
            name = PART_PATTERN.format(self._part.index, self._config.num_parts)
            writer = TreeCacheWriter(
                storage.join(self._config.output_path, split, name),
                scratch=self._scratch / split,
                preprocessor_metadata=self._config.metadata,
            )
            self._writers[split] = self._caches.enter_context(writer)
        return self._writers[split]

    def _render(self, row: dict[str, Any]) -> Rendered:
        """
        The row as text with its trained spans.

        Raises:
            RowRejected: the template refuses it, or it holds the text of special tokens.
            ChatInputError: it holds such text, and special_text is "error".
        """
        keeps = self.options.special_text == "keep"
        source = row if keeps else self._special_text.escape(row)
        kwargs = {
            key: value
            for key, value in (source.get("chat_template_kwargs") or {}).items()
            if key not in _OURS
        }
        try:
            rendered = self._renderer.render(
                source["messages"], tools=source.get("tools"), **kwargs
            )
        except TemplateRefusal as refusal:
            raise RowRejected("template refused", str(refusal)) from refusal
        rendered = select_spans(rendered, source, self.options.loss, self._probe)
        if source is not row:
            rendered = self._special_text.unescape(rendered)
            if rendered.cuts and self.options.special_text != "escape":
                self._refuse_special_text(row)
        return rendered

    def _refuse_special_text(self, row: dict[str, Any]) -> None:
        found = self._special_text.find(row)
        where = ", ".join(f"{marker} in {path}" for path, marker in found[:3])
        detail = where or "strings that make one together"
        if self.options.special_text == "drop":
            raise RowRejected("text of a special token", detail)
        raise ChatInputError(
            f"conversation {row['id']} ({row.get('source')}): must not hold the text of special "
            f"tokens, which would be tokenized as if the template had written it; got {detail}. "
            'Set special_text to "escape" (it stays text), "drop" or "keep", or name markers that '
            "belong there in allowed_special_text."
        )


def _reasoning_notes(messages: Iterable[dict[str, Any]], text: str) -> Iterator[str]:
    for message in messages:
        if reasoning := message.get("reasoning_content"):
            yield "reasoning fields"
            if reasoning not in text:
                yield "reasoning fields dropped by the template"
