"""
One shard of conversations to one part of the token caches. Runs in any process, on any machine.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from neve import storage

from neve_chat.cache import PART_PATTERN, TreeCacheWriter
from neve_chat.checks import RowRejected
from neve_chat.errors import ChatInputError, NeveChatError
from neve_chat.parts import Part, write_facts
from neve_chat.quarantine import Quarantine
from neve_chat.render import ChatRenderer, Rendered
from neve_chat.row_tokens import RowTokens
from neve_chat.shards import read_shard
from neve_chat.statistics import SplitCounts
from neve_chat.terminator import Terminator, find_terminator
from neve_chat.tokenize_options import TokenizeOptions
from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = ["EncoderDiffers", "PartConfig", "is_validation", "make_worker", "read_example"]

# Each token of a batch costs about 200 bytes while it lives.
_BATCH_CHARS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """
    What a worker needs to know; the same for all parts.
    """

    options: TokenizeOptions
    """What bears on the tokens."""
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


def read_example(output_path: str, index: int) -> tuple[dict[str, Any], Tokens]:
    """
    The first conversation of a part that has one: its id and source, and its tokens.
    """
    example = storage.read_json(_example_path(output_path, index))
    ids, mask = (
        np.array(example.pop(field), dtype=np.int32) for field in ("input_ids", "assistant_masks")
    )
    return example, Tokens(ids, mask)


def _example_path(output_path: str, index: int) -> str:
    return storage.join(output_path, ".parts", f"{index:05d}.example.json")


def make_worker(config: PartConfig) -> _Worker:
    """
    A function that does one part.
    """
    return _Worker(config)


class EncoderDiffers(NeveChatError):
    """
    A sample showed that fastokens is wrong for this tokenizer: what it encoded is not to be kept.
    """


class _Worker:
    """
    Holds what is loaded once for all parts of a process.
    """

    def __init__(self, config: PartConfig) -> None:
        options = config.options
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
        self.rows = RowTokens(self.renderer, self.tokenizer, options)

    def __call__(self, part: Part) -> dict[str, Any]:
        output = self.config.output_path
        before = self.tokenizer.encoder_report()
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
        if self.tokenizer.suspect:
            raise EncoderDiffers(self.tokenizer.encoder_report()["message"])
        # What the encoder did depends on the process, so it stands in no file.
        report = self.tokenizer.encoder_report()
        for count in ("num_fast", "num_refereed", "num_differences"):
            report[count] -= before[count]
        return {**write_facts(output, part, run.facts()), "encoder": report}


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
        self.counts = {"train": SplitCounts(), "validation": SplitCounts()}
        self._config = worker.config
        self._path = storage.join(worker.config.input_path, part.unit["name"])
        self._tokenizer = worker.tokenizer
        self._rows = worker.rows
        self._rows.take_notes()
        self._terminator: Terminator = worker.terminator
        self._part = part
        self._caches = caches
        self._scratch = scratch
        self._quarantine = quarantine
        self._example: tuple[dict[str, Any], Tokens] | None = None
        self._writers: dict[str, TreeCacheWriter] = {}

    def rendered_batches(self) -> Iterator[list[tuple[dict[str, Any], Rendered]]]:
        """
        The shard's rows, rendered, about a megabyte of text at a time.
        """
        batch: list[tuple[dict[str, Any], Rendered]] = []
        num_chars = 0
        for row in read_shard(self._path):
            self.num_rows += 1
            try:
                rendered = self._rows.render(row)
            except RowRejected as refusal:
                self._quarantine.add(refusal.reason, refusal.detail, row["id"], row)
                continue
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
            try:
                for piece, piece_tokens in self._rows.pieces(row, rendered, tokens):
                    self._add(piece, piece_tokens, row["id"])
            except RowRejected as refusal:
                self._quarantine.add(refusal.reason, refusal.detail, row["id"], row)

    def write_example(self) -> None:
        """
        Keep the first conversation, as ids: decoding one in each part would cost a tenth of its time.
        """
        if self._example is None:
            return
        row, tokens = self._example
        example = {
            "id": row["id"],
            "source": row.get("source"),
            "input_ids": tokens.ids.tolist(),
            "assistant_masks": tokens.mask.tolist(),
        }
        path = _example_path(self._config.output_path, self._part.index)
        storage.write_json(path, example, indent=None)

    def facts(self) -> dict[str, Any]:
        """
        Everything that is counted, as JSON.
        """
        return {
            "rows_in": self.num_rows,
            "splits": {split: counts.as_json() for split, counts in self.counts.items()},
            "unclosed": self.num_unclosed,
            "notes": dict(self._rows.take_notes()),
            "rejected": dict(self._quarantine.counts),
            "first_rejected": self._quarantine.first,
            "has_example": self._example is not None,
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
