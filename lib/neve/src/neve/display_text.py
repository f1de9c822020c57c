"""Numbers, times and tables as people read them; no dependency beyond the standard library."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

_COLORS = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "dim": "2", "bold": "1"}
_COUNT_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k"))
_BYTE_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def paint(text: str, color: str, on: bool = True) -> str:
    """Return the text in a color or style, or as it is where colors are off."""
    return f"\x1b[{_COLORS[color]}m{text}\x1b[0m" if on and text else text


def seconds_text(seconds: float | None) -> str:
    """Return a duration such as "0.42 s", "3 min 05 s" or "2 h 10 min"."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def age_text(epoch_seconds: float | None) -> str:
    """Return how long ago a time was, in one rough unit, such as "5 min ago"."""
    if not epoch_seconds:
        return "?"
    age = max(0.0, time.time() - epoch_seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if age >= size:
            return f"{age / size:.0f} {unit} ago"
    return f"{age:.0f} s ago"


def count_text(value: float | None) -> str:
    """Return a count such as "950", "12.3k" or "1.54M"."""
    if value is None:
        return "?"
    for size, unit in _COUNT_UNITS:
        if abs(value) >= size * 0.99995:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if isinstance(value, float) and value % 1 else f"{value:.0f}"


def bytes_text(value: float | None) -> str:
    """Return a size such as "812 B" or "1.50 GiB"."""
    if value is None:
        return "?"
    for size, unit in _BYTE_UNITS:
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def rate_text(rate: float | None, unit: str) -> str:
    """Return a speed such as "35.0M tokens/s", or "2.50 s/step" where it is slow."""
    if not rate:
        return ""
    if rate < 0.1:
        return f"{seconds_text(1 / rate)}/{unit.removesuffix('s') or 'unit'}"
    return f"{count_text(rate)} {unit}/s" if unit else f"{count_text(rate)}/s"


def value_text(value: Any) -> str:
    """Return a fact of a result: floats with four digits, the rest as it is."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() if value is not None else "none"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def key_results(results: dict[str, Any] | None, limit: int = 6) -> str:
    """Return the first few plain results as "rows=1,234 train.tokens=5,678"."""
    found: list[str] = []

    def walk(tree: dict[str, Any], before: str) -> None:
        plain = {k: v for k, v in tree.items() if not isinstance(v, (dict, list))}
        for key, value in plain.items():
            text = value_text(value)
            if len(text) <= 40 and "\n" not in text:
                found.append(f"{before}{key}={text}")
        for key, value in tree.items():
            if isinstance(value, dict):
                walk(value, f"{before}{key}.")

    walk(results or {}, "")
    return " ".join(found[:limit])


def shorten(text: str, width: int) -> str:
    """Return the text in at most `width` characters, cut in its middle."""
    if len(text) <= width or width < 5:
        return text
    head = (width - 3) // 2
    return f"{text[:head]}...{text[len(text) - (width - 3 - head) :]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A table cell with a color."""

    text: str
    """What it says."""
    color: str = ""
    """Name of a color, or empty for none."""


def table(rows: Sequence[Sequence[str | Cell]], head: Sequence[str], color: bool) -> list[str]:
    """Return lines of left-aligned columns under a head; the last column is never padded."""
    cells = [[c if isinstance(c, Cell) else Cell(text=c) for c in row] for row in rows]
    widths = [max([len(h), *(len(row[i].text) for row in cells)]) for i, h in enumerate(head)]
    lines = ["  ".join(f"{h:{w}}" for h, w in zip(head, widths, strict=True)).rstrip()]
    lines[0] = paint(lines[0], "bold", color)
    for row in cells:
        padded = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            space = " " * (width - len(cell.text)) if index < len(row) - 1 else ""
            painted = paint(cell.text, cell.color, color) if cell.color else cell.text
            padded.append(painted + space)
        lines.append("  ".join(padded).rstrip())
    return lines
