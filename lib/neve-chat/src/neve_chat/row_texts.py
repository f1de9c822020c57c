"""
The strings of a row that reach the template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["TEMPLATE_FIELDS", "mapped_texts", "row_texts", "text_paths"]

TEMPLATE_FIELDS = ("messages", "tools", "chat_template_kwargs")
"""Fields of a canonical row that a template is given."""
_SHORT = 16


def row_texts(row: Mapping[str, Any]) -> tuple[set[str], list[str]]:
    """
    Every string of a row that reaches the template, keys of objects included: the short ones, once
    each, and the long ones.
    """
    short = {"role", "content"}  # the keys of nearly every message
    long: list[str] = []
    left: list[Any] = [row.get(field) for field in TEMPLATE_FIELDS]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            short.update(value)
            value = value.values()
        elif isinstance(value, str):
            value = (value,)
        elif not isinstance(value, list | tuple):
            continue
        for entry in value:
            if isinstance(entry, str):
                if len(entry) > _SHORT:
                    long.append(entry)
                else:
                    short.add(entry)
            elif (
                entry.__class__ is dict
                and len(entry) == 2
                and (role := entry.get("role")).__class__ is str
                and (content := entry.get("content")).__class__ is str
            ):  # most messages
                short.add(role)
                long.append(content)
            elif entry is not None:
                left.append(entry)
    return short, long


def text_paths(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """
    Every string below a value, each with its path such as messages[2].content.
    """
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            if isinstance(key, str):
                yield f"{path} (key)", key
            yield from text_paths(entry, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            yield from text_paths(entry, f"{path}[{index}]")


def mapped_texts(value: Any, change: Callable[[str], str]) -> Any:
    """
    A copy of a value with every string in it changed, keys of objects included.
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            mapped_texts(key, change): mapped_texts(entry, change) for key, entry in value.items()
        }
    if isinstance(value, list | tuple):
        return [mapped_texts(entry, change) for entry in value]
    return value
