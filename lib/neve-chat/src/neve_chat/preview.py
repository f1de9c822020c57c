"""
One tokenized conversation for human eyes: what the model sees, and which part of it is trained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = ["example_json", "example_text"]

_GREEN, _RESET = "\x1b[30;42m", "\x1b[0m"
_PARTS_AT_ENDS = 4
_OPEN, _CLOSE = "\u27e6", "\u27e7"


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
    before, after = (_GREEN, _RESET) if use_color else ("", "")
    pieces = []
    for ids, is_trained in _runs(tokens):
        text = _shortened(tokenizer.text(ids), max_chars)
        pieces.append(f"{before}{_OPEN}{text}{_CLOSE}{after}" if is_trained else text)
    if max_chars is not None and len(pieces) > 2 * _PARTS_AT_ENDS:
        between = len(pieces) - 2 * _PARTS_AT_ENDS
        skipped = f"\n[... {between} parts ...]\n"
        pieces = [*pieces[:_PARTS_AT_ENDS], skipped, *pieces[-_PARTS_AT_ENDS:]]
    return "".join(pieces)


def example_json(row: dict[str, Any], tokens: Tokens, tokenizer: ChatTokenizer) -> dict[str, Any]:
    """
    The same for a program: id, source, ids, mask and the decoded runs.
    """
    return {
        "id": row["id"],
        "source": row.get("source"),
        "num_tokens": len(tokens.ids),
        "num_trained_tokens": tokens.num_trained,
        "parts": [
            {"trained": trained, "text": tokenizer.text(ids)} for ids, trained in _runs(tokens)
        ],
        "input_ids": tokens.ids.tolist(),
        "assistant_masks": tokens.mask.tolist(),
    }


def _runs(tokens: Tokens) -> Iterator[tuple[np.ndarray, bool]]:
    edges = np.flatnonzero(np.diff(tokens.mask)) + 1
    for part, mask in zip(np.split(tokens.ids, edges), np.split(tokens.mask, edges), strict=True):
        if len(part):
            yield part, bool(mask[0])


def _shortened(text: str, max_chars: int | None) -> str:
    if max_chars is None or len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
