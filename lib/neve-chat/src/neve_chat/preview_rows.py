"""
What previews are made of: conversations to show, those that training would not see, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from neve_chat.errors import ChatInputError
from neve_chat.statistics import SplitCounts
from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = ["PreviewSource", "Refused", "RowLimit", "Shown", "check_start"]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """
    One conversation, or a piece of one, as it is trained.
    """

    row: int
    """Number of the conversation in the source, from 0."""
    tokens: Tokens
    """Ids and mask."""
    row_id: str | None = None
    """Id of the conversation, where known."""
    source: str | None = None
    """File and row it came from, where known."""
    note: str = ""
    """What is special about it, such as that it was cut."""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """
    One conversation that is not trained.
    """

    row: int
    """Number of the conversation in the source, from 0."""
    reason: str
    """The constant text under which it is counted."""
    detail: str
    """What is wrong with this one."""
    row_id: str | None = None
    """Id of the conversation, where known."""
    source: str | None = None
    """File and row it came from, where known."""


@dataclass(frozen=True, kw_only=True)
class RowLimit:
    """
    The length of a training's rows, and what its mixture does with longer conversations.
    """

    seq_len: int
    """Tokens of a row."""
    rule: str
    """One of mixture_rules.LONG_CONVERSATIONS."""

    def apply(self, shown: Shown) -> Shown | Refused:
        """
        The conversation as `fitting.fit_rows` leaves it.
        """
        ids, mask = shown.tokens.ids, shown.tokens.mask
        place = {"row": shown.row, "row_id": shown.row_id, "source": shown.source}
        length = f"{len(ids):,} tokens, rows have {self.seq_len:,}"
        if len(ids) > self.seq_len:
            if self.rule == "drop":
                return Refused(reason=self.reason, detail=length, **place)
            if self.rule != "truncate":
                return Refused(reason=f"stops the mixture: {self.reason}", detail=length, **place)
            note = f"cut behind token {self.seq_len:,} of {len(ids):,}"
            tokens = Tokens(ids[: self.seq_len], mask[: self.seq_len])
            shown = Shown(tokens=tokens, note=_joined(shown.note, note), **place)
        if not shown.tokens.num_trained:
            return Refused(reason="no trained tokens", detail=length, **place)
        return shown

    @property
    def reason(self) -> str:
        """
        Why a conversation is dropped, as it is counted.
        """
        return f"longer than seq_len {self.seq_len:,}"


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
    facts: dict[str, Any]
    """What is known about the whole: rejected, notes, template_name and digests; may be empty."""

    def conversations(self, start: int, num_rows: int) -> Iterator[Shown | Refused]:
        """
        Up to num_rows conversations from row `start` on; one may be several pieces.

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
        The same, taken from all of the data where none are written down. What is refused or noted
        on the way goes into `facts`.
        """
        ...


def check_start(start: int, num_rows: int | None, path: str) -> None:
    """
    Refuse a row that isn't there.

    Args:
        start: the first row that is asked for.
        num_rows: rows that there are; None: fewer than start + 1.
        path: of what.

    Raises:
        ChatInputError: there is no row `start`.
    """
    if num_rows is not None and start < num_rows:
        return
    there = f"one of 0 to {num_rows - 1:,}" if num_rows else "a row"
    raise ChatInputError(
        f"row {start}: must be {there} of {path}, got one behind the last. Choose a smaller one."
    )


def _joined(*notes: str) -> str:
    return ", ".join(note for note in notes if note)
