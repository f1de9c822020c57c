"""Differences between two encoded configs, down to the field."""

import dataclasses
import json
from typing import Any

from neve.codec import readable

ABSENT = object()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """One field that differs."""

    field: str
    """Field path, such as "config.optimizer.learning_rate"."""
    old: Any
    """Encoded value before, or ABSENT."""
    new: Any
    """Encoded value now, or ABSENT."""

    @property
    def is_dependency(self) -> bool:
        """True if both values refer to the same part of a step's output."""
        return (
            _tag(self.old) == "$step"
            and _tag(self.new) == "$step"
            and self.old["$step"].get("part") == self.new["$step"].get("part")
        )


def _tag(tree: Any) -> str | None:
    return next(iter(tree)) if isinstance(tree, dict) and len(tree) == 1 else None


def compare(old: Any, new: Any, field: str = "config") -> list[Change]:
    """Return every leaf that differs between two trees of the codec, in field order."""
    if old == new:
        return []
    tag = _tag(old)
    if tag is not None and tag == _tag(new):
        inner_old, inner_new = old[tag], new[tag]
        if tag == "$class" and inner_old[0] == inner_new[0]:
            return _keys(inner_old[1], inner_new[1], field)
        if tag == "$dict":
            return _keys(_pairs(inner_old), _pairs(inner_new), field)
        if tag in ("$list", "$tuple"):
            return _items(inner_old, inner_new, field)
        if tag == "$step" and _same_step(inner_old, inner_new):
            return []
        if tag == "$unhashed":
            return []
    return [Change(field=field, old=old, new=new)]


def _same_step(old: dict[str, Any], new: dict[str, Any]) -> bool:
    keys = ("fingerprint", "part")
    return all(old.get(key) == new.get(key) for key in keys)


def _pairs(pairs: list[Any]) -> dict[str, Any]:
    return {str(readable(key)): value for key, value in pairs}


def _keys(old: dict[str, Any], new: dict[str, Any], field: str) -> list[Change]:
    changes = []
    for key in [*old, *(key for key in new if key not in old)]:
        where = f"{field}.{key}" if field else key
        before, now = old.get(key, ABSENT), new.get(key, ABSENT)
        if before is ABSENT or now is ABSENT:
            changes.append(Change(field=where, old=before, new=now))
        else:
            changes.extend(compare(before, now, where))
    return changes


def _items(old: list[Any], new: list[Any], field: str) -> list[Change]:
    changes = []
    for index in range(max(len(old), len(new))):
        where = f"{field}[{index}]"
        before = old[index] if index < len(old) else ABSENT
        now = new[index] if index < len(new) else ABSENT
        if before is ABSENT or now is ABSENT:
            changes.append(Change(field=where, old=before, new=now))
        else:
            changes.extend(compare(before, now, where))
    return changes


def compare_identity(old: dict[str, Any], new: dict[str, Any]) -> list[Change]:
    """Return what differs between two identity trees: name, fn, version and every config field."""
    changes = []
    for key in [*old, *(key for key in new if key not in old)]:
        if key == "config":
            changes.extend(compare(old.get(key), new.get(key)))
        elif old.get(key) != new.get(key):
            changes.append(Change(field=key, old=old.get(key, ABSENT), new=new.get(key, ABSENT)))
    return changes


def shown(tree: Any, width: int = 90) -> str:
    """Return a value for people in one line; long text is cut where it does not matter."""
    if tree is ABSENT:
        return "(absent)"
    if _tag(tree) == "$class":
        return f"{tree['$class'][0].rpartition(':')[2]}({shown_plain(readable(tree), width)})"
    if _tag(tree) == "$step":
        inner = tree["$step"]
        name = inner.get("name") or (inner.get("fingerprint") or "?")[:8]
        return f"{name}/{inner['part']}" if inner.get("part") else name
    return shown_plain(readable(tree) if _tag(tree) else tree, width)


def shown_plain(value: Any, width: int = 90) -> str:
    """Return a JSON value in one line of at most `width` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= width else f"{text[: width - 3]}..."


def shown_pair(old: Any, new: Any, width: int = 90) -> tuple[str, str]:
    """Return two values so that their first difference is visible even in long texts."""
    before, now = shown(old, 1 << 30), shown(new, 1 << 30)
    if max(len(before), len(now)) <= width:
        return before, now
    same = next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
        min(len(before), len(now)),
    )
    start = max(0, same - width // 3)

    def cut(text: str) -> str:
        piece = text[start : start + width]
        return f"{'...' if start else ''}{piece}{'...' if start + width < len(text) else ''}"

    return cut(before), cut(now)
