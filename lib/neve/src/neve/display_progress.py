"""Rates and remaining times of running steps, from their progress events."""

import collections
import time
from typing import Any

from neve.display_text import count_text, rate_text, seconds_text, value_text

_WINDOW_SECONDS = 30.0
_MAX_POINTS = 400


class Meter:
    """Keeps the last progress of one step; its rate is taken over the last 30 seconds."""

    def __init__(self, started: float | None = None) -> None:
        """Start with nothing done; started in seconds of the monotonic clock."""
        self.started = time.monotonic() if started is None else started
        self.done = 0
        self.total: int | None = None
        self.unit = ""
        self.facts: dict[str, Any] = {}
        self._points: collections.deque[tuple[float, float]] = collections.deque(maxlen=_MAX_POINTS)

    def add(self, event: dict[str, Any], now: float | None = None) -> None:
        """Take one progress event {"done", "total", "unit", "facts"}."""
        now = time.monotonic() if now is None else now
        done = event.get("done") or 0
        unit = event.get("unit") or ""
        if unit != self.unit or done < self.done:
            self._points.clear()  # another phase of the step counts from the beginning
        self.done, self.total, self.unit = done, event.get("total"), unit
        self.facts = event.get("facts") or {}
        self._points.append((now, done))
        while len(self._points) > 2 and now - self._points[0][0] > _WINDOW_SECONDS:
            self._points.popleft()

    @property
    def rate(self) -> float | None:
        """Units per second, or None before two points are there."""
        if len(self._points) < 2:
            return None
        (first_time, first), (last_time, last) = self._points[0], self._points[-1]
        return (last - first) / (last_time - first_time) if last_time > first_time else None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds to the end at the present rate, or None where that is unknown."""
        rate = self.rate
        if not rate or not self.total or self.done > self.total:
            return None
        return (self.total - self.done) / rate

    def text(self) -> str:
        """Return progress, rate, remaining time and facts in one line."""
        counted = count_text(self.done)
        if self.total:
            counted = f"{counted}/{count_text(self.total)}"
        parts = [f"{counted} {self.unit}".strip()]
        if self.total:
            parts.append(f"{min(1.0, self.done / self.total):.0%}")
        parts.append(rate_text(self.rate, self.unit))
        if self.eta_seconds:
            parts.append(f"{seconds_text(self.eta_seconds)} left")
        parts.append(" ".join(f"{k}={value_text(v)}" for k, v in self.facts.items()))
        return ", ".join(part for part in parts if part)
