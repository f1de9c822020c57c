"""
Numbers that fast JSON libraries change without a word, found before they are trained on.

orjson reads an integer beyond 64 bits as a float, and writes NaN and infinity as null. So rows with
such integers, and what orjson doesn't read, go through the standard parser; NaN and infinity are
there an object that can't be written, and so refuses its row only if it would be trained on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import orjson

from neve_chat.checks import RowRejected

__all__ = ["DECODER", "NaNOrInfinity", "dumps", "holds_huge_number"]

_HUGE = 2.0**63


class NaNOrInfinity:
    """
    What a JSON text has in the place of a number, as it stands there.
    """

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _finite(text: str) -> Any:
    number = float(text)
    return number if math.isfinite(number) else NaNOrInfinity(text)


DECODER = json.JSONDecoder(parse_constant=NaNOrInfinity, parse_float=_finite)
"""The standard parser: integers of any size, lone surrogates, NaN as an object."""


def holds_huge_number(value: Any) -> bool:
    """
    Whether a float may stand for an integer beyond 64 bits anywhere in a parsed value.
    """
    return any(not -_HUGE < number < _HUGE for number in _floats(value))


def dumps(value: Any, *, may_hold_nan: bool) -> bytes:
    """
    The JSON of a value, which reads back as the same.

    Args:
        value: JSON values.
        may_hold_nan: whether floats may be NaN or infinite, as those of columnar files.

    Raises:
        RowRejected: it can't be written so: a number that is not finite or an integer beyond 64
            bits, a lone surrogate, more than 250 levels, or a type that JSON doesn't have.
    """
    try:
        text = orjson.dumps(value)
    except TypeError as error:
        raise RowRejected("not writable as JSON", str(error)) from error
    if may_hold_nan and not all(map(math.isfinite, _floats(value))):
        raise RowRejected("not writable as JSON", "a number is NaN or infinite")
    return text


def _floats(value: Any) -> Iterator[float]:
    left: list[Any] = [(value,)]
    while left:
        for item in left.pop():
            kind = item.__class__
            if kind is str:
                continue
            if kind is dict:
                left.append(item.values())
            elif kind is list:
                left.append(item)
            elif kind is float:
                yield item
