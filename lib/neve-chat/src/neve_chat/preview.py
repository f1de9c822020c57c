"""
One tokenized conversation for human eyes: what the model sees, and which part of it is trained.

Text is always decoded from the ids. What a screen would not show, or would obey (control
characters, marks that turn the direction of text, invisible tags), stands there as an escape.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple

from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = [
    "INVISIBLE",
    "Decoder",
    "Part",
    "Piece",
    "escape",
    "example_json",
    "example_text",
    "parts",
    "token_table",
    "visible",
]

INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
"""Characters without a shape of their own; joiners, which many scripts and emoji need, are not
among them."""

_TRAINED, _SPECIAL, _RESET = "\x1b[30;42m", "\x1b[1;35m", "\x1b[0m"
_OPEN, _CLOSE = "\u27e6", "\u27e7"
_PARTS_AT_ENDS = 4
_TOKENS_AT_ENDS = 100
_MAX_TOKENS_PER_CHARACTER = 8
_REPLACEMENT = "\ufffd"


class Piece(NamedTuple):
    """
    The shortest run of tokens that is text of its own: one token, or those of one character.
    """

    text: str
    """As decoded; U+FFFD where the tokens are no valid text."""
    ids: tuple[int, ...]
    """Its token ids."""
    is_trained: bool
    """Whether the tokens have a loss."""
    is_special: bool
    """Whether it is a special token."""


class Part(NamedTuple):
    """
    Neighboring pieces of one kind.
    """

    text: str
    """As decoded."""
    num_tokens: int
    """Tokens in it."""
    is_trained: bool
    """Whether the tokens have a loss."""
    is_special: bool
    """Whether they are special tokens."""


class Decoder:
    """
    Decodes ids piece by piece; the pieces joined are the text of the whole.
    """

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        # Some decoders strip the space of the first token, so each is decoded behind another one.
        self._before = tuple(tokenizer.encode(["a"])[0][:1])
        self._before_text = tokenizer.text(self._before)
        self._texts: dict[tuple[int, ...], str] = {}

    def pieces(self, tokens: Tokens) -> list[Piece]:
        """
        The conversation piece by piece.
        """
        ids: list[int] = tokens.ids.tolist()
        mask: list[int] = tokens.mask.tolist()
        special = self._tokenizer.special_ids
        found: list[Piece] = []
        first = 0
        while first < len(ids):
            last, text = first + 1, self._text((ids[first],))
            if _REPLACEMENT in text and ids[first] not in special:
                last, text = self._character(ids, mask, first)
            if first == 0:
                text = self._tokenizer.text(ids[:last])
            found.append(
                Piece(text, tuple(ids[first:last]), mask[first] == 1, ids[first] in special)
            )
            first = last
        return found

    def _character(self, ids: list[int], mask: list[int], first: int) -> tuple[int, str]:
        """
        (end, text) of the tokens from `first` on that make whole characters, else of one token.
        """
        for last in range(first + 2, min(len(ids), first + _MAX_TOKENS_PER_CHARACTER) + 1):
            if ids[last - 1] in self._tokenizer.special_ids or mask[last - 1] != mask[first]:
                break
            text = self._text(tuple(ids[first:last]))
            if _REPLACEMENT not in text:
                return last, text
        return first + 1, self._text((ids[first],))

    def _text(self, ids: tuple[int, ...]) -> str:
        text = self._texts.get(ids)
        if text is None:
            both = self._tokenizer.text((*self._before, *ids))
            is_behind = both.startswith(self._before_text)
            text = both[len(self._before_text) :] if is_behind else self._tokenizer.text(ids)
            self._texts[ids] = text
        return text


def parts(pieces: Iterable[Piece]) -> Iterator[Part]:
    """
    Neighboring pieces of one kind, joined.
    """
    for (is_trained, is_special), group in groupby(pieces, lambda p: (p.is_trained, p.is_special)):
        run = list(group)
        num_tokens = sum(len(piece.ids) for piece in run)
        yield Part("".join(piece.text for piece in run), num_tokens, is_trained, is_special)


def escape(character: str) -> str:
    """
    A character as Python's escape for it, such as \\x1b or \\u202e.
    """
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str) -> str:
    """
    The text with everything that has no shape of its own escaped; spaces, tabs and newlines stay.
    """
    return INVISIBLE.sub(lambda match: escape(match[0]), text)


def example_text(
    tokens: Tokens,
    tokenizer: ChatTokenizer,
    *,
    use_color: bool | None = None,
    max_chars: int | None = None,
) -> str:
    """
    The conversation decoded from its ids, trained parts between marks and, where wanted, in color.

    Args:
        tokens: ids and mask.
        tokenizer: whose ids they are.
        use_color: ANSI colors; None: unless the environment sets NO_COLOR.
        max_chars: shorten each part to this many characters, middle out, and show the first
            and last parts of a long conversation; None: show all.
    """
    if use_color is None:
        use_color = not os.environ.get("NO_COLOR")
    runs: list[tuple[str, int]] = []
    for is_trained, group in groupby(parts(Decoder(tokenizer).pieces(tokens)), _is_trained):
        run = list(group)
        text = "".join(
            _painted(_shortened(visible(part.text), max_chars), part, use_color) for part in run
        )
        text = f"{_OPEN}{text}{_CLOSE}" if is_trained else text
        runs.append((text, sum(part.num_tokens for part in run)))
    if max_chars is not None and len(runs) > 2 * _PARTS_AT_ENDS:
        between = runs[_PARTS_AT_ENDS:-_PARTS_AT_ENDS]
        num_tokens = sum(count for _, count in between)
        skipped = f"\n[... {len(between):,} parts, {num_tokens:,} tokens ...]\n"
        runs = [*runs[:_PARTS_AT_ENDS], (skipped, 0), *runs[-_PARTS_AT_ENDS:]]
    return "".join(text for text, _ in runs)


def token_table(
    tokens: Tokens, tokenizer: ChatTokenizer, *, use_color: bool, show_all: bool
) -> str:
    """
    One line for each token: index, id, * where it is trained, and its text.

    Args:
        tokens: ids and mask.
        tokenizer: whose ids they are.
        use_color: ANSI colors.
        show_all: show every token, not only the first and last 100.
    """
    lines, index = [], 0
    for piece in Decoder(tokenizer).pieces(tokens):
        for position, token_id in enumerate(piece.ids):
            more = f" (part {position + 1} of {len(piece.ids)})" if len(piece.ids) > 1 else ""
            line = f"{index:>8} {token_id:>8} {'*' if piece.is_trained else ' '} "
            text = visible(repr(piece.text)) + more
            lines.append(line + _painted(text, piece, use_color))
            index += 1
    if not show_all and len(lines) > 2 * _TOKENS_AT_ENDS:
        skipped = f"[... {len(lines) - 2 * _TOKENS_AT_ENDS:,} tokens ...]"
        lines = [*lines[:_TOKENS_AT_ENDS], skipped, *lines[-_TOKENS_AT_ENDS:]]
    return "\n".join([f"{'index':>8} {'id':>8} * text", *lines])


def example_json(row: dict[str, Any], tokens: Tokens, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """
    The same for a program: id, source, ids, mask and the decoded runs.
    """
    pieces = Decoder(tokenizer).pieces(tokens)
    return {
        "id": row["id"],
        "source": row.get("source"),
        "num_tokens": len(tokens.ids),
        "num_trained_tokens": tokens.num_trained,
        "parts": [
            {"trained": is_trained, "text": "".join(piece.text for piece in run)}
            for is_trained, run in groupby(pieces, _is_trained)
        ],
        "input_ids": tokens.ids.tolist(),
        "assistant_masks": tokens.mask.tolist(),
    }


def _is_trained(part: Part | Piece) -> bool:
    return part.is_trained


def _painted(text: str, part: Part | Piece, use_color: bool) -> str:
    """
    The text in the color of its kind, line by line: terminals paint beyond the end of a line.
    """
    style = (_TRAINED if part.is_trained else "") + (_SPECIAL if part.is_special else "")
    if not use_color or not style:
        return text
    return "\n".join(f"{style}{line}{_RESET}" if line else "" for line in text.split("\n"))


def _shortened(text: str, max_chars: int | None) -> str:
    if max_chars is None or len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
