"""The metrics of a run: rows keyed by train step, where the last one written wins."""

from __future__ import annotations

import io
import json
import math
from typing import Any

from neve import storage

__all__ = ["MetricsFile", "draw_curve"]


class MetricsFile:
    """`loss.jsonl`: one row per train step, in order, over all attempts of a run."""

    def __init__(self, path: str, is_writer: bool = True) -> None:
        """Reads the rows that earlier attempts left, but for lines that were cut.

        Args:
            path: The file.
            is_writer: False in all processes of a run but one; they keep their rows to themselves.
        """
        self._path = path
        self._is_writer = is_writer
        self._rows: dict[int, dict[str, Any]] = {}
        if storage.exists(path):
            for line in storage.read_bytes(path).decode(errors="replace").splitlines():
                row = _parsed(line)
                if row is not None:
                    self._rows[row["step"]] = row

    def forget_after(self, step: int) -> None:
        """Drops the rows of train steps that will be done again."""
        self._rows = {key: row for key, row in self._rows.items() if key <= step}

    def lacking(self, up_to: int) -> list[int]:
        """Returns the train steps from 1 to up_to that have no loss."""
        return [step for step in range(1, up_to + 1) if "loss" not in self._rows.get(step, {})]

    def add(self, step: int, **values: float) -> None:
        """Adds values to the row of a train step (0: before training)."""
        row = self._rows.setdefault(step, {"step": step})
        row.update(values)

    def write(self) -> None:
        """Replaces the file by what is known now."""
        if not self._is_writer:
            return
        lines = [json.dumps(self._rows[step], sort_keys=True) for step in sorted(self._rows)]
        storage.write_bytes(self._path, "".join(f"{line}\n" for line in lines).encode())

    def series(self, name: str) -> list[tuple[int, float]]:
        """Returns (train step, value) of every row that has the value, in order."""
        return [
            (step, row[name])
            for step, row in sorted(self._rows.items())
            if name in row and math.isfinite(row[name])
        ]

    def total(self, name: str, after: int = 0) -> float:
        """Returns the sum of a value over all rows of later train steps than `after`."""
        return math.fsum(value for step, value in self.series(name) if step > after)


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def draw_curve(metrics: MetricsFile, path: str, title: str) -> None:
    """Writes a picture of training and held-out loss."""
    import matplotlib  # heavy; only the end of a run needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), dpi=120)
    for name, label, style in (("loss", "training", "-"), ("heldout_loss", "held out", "o-")):
        points = metrics.series(name)
        if points:
            axes.plot(*zip(*points, strict=True), style, label=label, linewidth=1.2, markersize=4)
    axes.set_xlabel("train step")
    axes.set_ylabel("loss, nats per trained token")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    pyplot.close(figure)
    storage.write_bytes(path, buffer.getvalue())
