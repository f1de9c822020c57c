"""
Numbers that fast JSON libraries change without a word, found before they are trained on.

orjson reads an integer beyond 64 bits as a float, and writes NaN and infinity as null.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from neve_chat.checks import RowRejected

__all__ = ["dumps", "holds_huge_number"]

_HUGE = 2.0**63


def holds_huge_number(value: Any) -> bool:
    """
    Whether a float may stand for an integer beyond 64 bits anywhere in a parsed value.
    """
    left = [value]
    while left:
        item = left.pop()
        kind = item.__class__
        if kind is dict:
            left += item.values()
        elif kind is list:
            left += item
        elif kind is float and not -_HUGE < item < _HUGE:
            return True
    return False


def dumps(value: Any) -> bytes:
    """
    The JSON of a value, which reads back as the same.

    Raises:
        RowRejected: it can't be written so: a number that is not finite or an integer beyond 64
            bits, a lone surrogate, more than 250 levels, or a type that JSON doesn't have.
    """
    try:
        text = orjson.dumps(value)
    except TypeError as error:
        raise RowRejected("not writable as JSON", str(error)) from error
    if b"null" in text and _holds_no_number(value):
        raise RowRejected("not writable as JSON", "a number is NaN or infinite")
    return text


def _holds_no_number(value: Any) -> bool:
    left = [value]
    while left:
        item = left.pop()
        kind = item.__class__
        if kind is dict:
            left += item.values()
        elif kind is list:
            left += item
        elif kind is float and not math.isfinite(item):
            return True
    return False
