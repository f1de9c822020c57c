"""
What the columns of a few rows have in common.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

from neve_chat.content import load_json

__all__ = ["ROLE_KEYS", "ColumnValues", "role_counts"]

ROLE_KEYS = ("role", "from")
"""Keys that usually hold a turn's role."""
_MAX_ROLE_VALUES = 12
_MAX_ROLE_CHARS = 40


class ColumnValues:
    """
    The values of each column that aren't null, and what they have in common.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.values: dict[str, list[Any]] = {}
        for row in rows:
            for name, value in row.items():
                known = self.values.setdefault(name, [])
                if value is not None:
                    known.append(value)

    def is_text(self, column: str) -> bool:
        """
        Whether every value is text, not all of it blank, and it isn't JSON text of objects.
        """
        values = self.values.get(column, [])
        has_text = all(isinstance(value, str) for value in values) and any(map(str.strip, values))
        return has_text and not self.objects(column)

    def objects(self, column: str, *, from_json: bool = True) -> list[Mapping[str, Any]]:
        """
        All objects of a column whose every value is a list of objects, else none.

        Args:
            column: its name.
            from_json: a list may also be JSON text.
        """
        lists = self.values.get(column, [])
        if from_json:
            lists = [_parsed(value) for value in lists]
        if not all(isinstance(items, list) for items in lists):
            return []
        found = [item for items in lists for item in items]
        return found if all(isinstance(item, Mapping) for item in found) else []

    def describe(self, column: str, known_roles: Container[str]) -> str:
        """
        Name, type, and for objects their keys and the values that look like roles.
        """
        objects = self.objects(column)
        if not objects:
            types = sorted({type(value).__name__ for value in self.values[column]})
            return f"{column} ({' or '.join(types) or 'only null'})"
        keys = list(dict.fromkeys(key for item in objects for key in item))
        role_keys = [key for key in ROLE_KEYS if key in keys] or keys
        counts = {key: role_counts(objects, key) for key in role_keys}
        seen = "".join(
            f"; {key} has {_counts_text(counts[key], known_roles)}"
            for key in keys
            if counts.get(key)
        )
        return f"{column} (list of objects with {', '.join(keys)}{seen})"


def _counts_text(counts: Mapping[str, int], known: Container[str]) -> str:
    return ", ".join(
        f"{value!r} x{count:,}{'' if value in known else ' (unknown)'}"
        for value, count in counts.items()
    )


def _parsed(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            return load_json(value)
        except ValueError:
            pass
    return value


def role_counts(objects: Sequence[Mapping[str, Any]], key: str) -> Counter[str]:
    """
    Counts of a key's values where they look like roles: short, few and in every object.
    """
    values = [item.get(key) for item in objects]
    counts = Counter(value for value in values if isinstance(value, str))
    is_role = counts.total() == len(values) and len(counts) <= _MAX_ROLE_VALUES
    return counts if is_role and all(len(v) <= _MAX_ROLE_CHARS for v in counts) else Counter()
