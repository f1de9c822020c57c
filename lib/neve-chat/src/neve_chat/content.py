"""
Values inside a row: text parts, reasoning tags, JSON text and Arrow's padding.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from neve_chat.checks import RowRejected

__all__ = ["drop_padding", "load_json", "parse_json", "short", "split_reasoning", "text_of"]


def text_of(content: Any, where: str) -> str | None:
    """
    The text of a content, which may be text, null, a text part or a list of text parts.

    Raises:
        RowRejected: it holds anything that isn't text.
    """
    if content is None or isinstance(content, str):
        return content
    parts = [content] if isinstance(content, Mapping) else content
    if isinstance(parts, list):
        texts = [_part_text(part) for part in parts]
        if all(text is not None for text in texts):
            return "".join(text for text in texts if text is not None)
    raise RowRejected("content is not text", f"{where} holds {short(content)}")


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if (
        isinstance(part, Mapping)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    ):
        return part["text"]
    return None


def split_reasoning(text: str, tags: tuple[str, str]) -> tuple[str | None, str]:
    """
    The reasoning between the tags at the start of text, without outer newlines, and the text after
    it, without leading newlines. No reasoning is (None, text), as where the closing tag is missing.
    """
    opening, closing = tags
    start = text.lstrip()
    if not start.startswith(opening):
        return None, text
    reasoning, found, answer = start[len(opening) :].partition(closing)
    if not found:
        return None, text
    return reasoning.strip("\n"), answer.lstrip("\n")


def drop_padding(value: Any) -> Any:
    """
    Without the null struct keys that Arrow adds so that all rows have one type; list items stay.
    """
    if isinstance(value, dict):
        return {key: drop_padding(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [drop_padding(item) for item in value]
    return value


def load_json(text: str) -> Any:
    """
    The value of a JSON text.

    Raises:
        ValueError: it isn't JSON; NaN, infinities and thousands of nested levels aren't either.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def parse_json(text: str, reason: str, where: str) -> Any:
    """
    The value of a JSON text in a row.

    Raises:
        RowRejected: for this reason, with the place and the text.
    """
    try:
        return load_json(text)
    except ValueError as error:
        raise RowRejected(reason, f"{where}: not JSON ({error}): {short(text)}") from error


def short(value: Any, limit: int = 200) -> str:
    """
    At most limit characters of a value, for a message.
    """
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
