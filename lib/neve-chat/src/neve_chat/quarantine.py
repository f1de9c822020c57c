"""
Refused rows: counted by reason, the first ones kept in a file, and too many of them stop the step.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError

__all__ = ["Quarantine", "Refusals", "refuse_if_too_many"]

_PREVIEW_CHARS = 2_000
_KEPT_PER_REASON = 1_000


@dataclass(kw_only=True)
class Refusals:
    """
    What was refused, of one part of the rows or of all.
    """

    path: str
    """File or folder where refused rows are kept."""
    counts: Counter[str] = field(default_factory=Counter)
    """Reason -> rows."""
    first: str = ""
    """The first refused row, as a sentence without its full stop; empty: there is none."""

    def merge(self, counts: dict[str, int], first: str) -> None:
        """
        Add those of a later part.
        """
        self.counts.update(counts)
        self.first = self.first or first


class Quarantine(Refusals):
    """
    Collects refused rows in a JSON-lines file that exists only if there is one.

    Of each reason the first rows are kept and all are counted.
    """

    def __init__(self, path: str, *, kept_per_reason: int = _KEPT_PER_REASON) -> None:
        """
        Args:
            path: the file.
            kept_per_reason: rows of each reason that go to the file.
        """
        super().__init__(path=path)
        self._kept_per_reason = kept_per_reason
        self._open = contextlib.ExitStack()
        self._file: Any = None

    def add(self, reason: str, detail: str, row: str, value: Any) -> None:
        """
        Note one refused row.

        Args:
            reason: short constant text that is counted.
            detail: what is wrong in this row.
            row: where the row stands, or its id.
            value: the row, of which the beginning is kept.
        """
        self.counts[reason] += 1
        if self.counts[reason] > self._kept_per_reason:
            return
        preview = json.dumps(value, default=str)[:_PREVIEW_CHARS]
        if not self.first:
            self.first = f"row {row}: {reason} ({detail}): {preview[:400]}"
        if self._file is None:
            self._file = self._open.enter_context(storage.open_file(self.path, "wb"))
        line = {"row": row, "reason": reason, "detail": detail, "preview": preview}
        self._file.write(json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """
        Publish the file, if there is one.
        """
        self._open.close()
        self._file = None

    def __enter__(self) -> Quarantine:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def refuse_if_too_many(
    refusals: Refusals, num_rows: int, *, max_fraction: float, what: str, advice: str
) -> None:
    """
    Stop where nothing is left or more than the agreed share was refused.

    Args:
        refusals: the refused rows, already published.
        num_rows: rows seen.
        max_fraction: largest share that may be refused, 0 to 1.
        what: what the rows are, for the message.
        advice: what to look at, for the message; without a full stop.

    Raises:
        ChatInputError: with the counts by reason and one example.
    """
    num_refused = refusals.counts.total()
    if num_rows == 0:
        raise ChatInputError(f"{what}: at least one row is needed, got 0. Check the input files.")
    reasons = ", ".join(f"{reason} x{count:,}" for reason, count in refusals.counts.most_common())
    example = _as_sentence(f"Example: {refusals.first}")
    if num_refused == num_rows:
        raise ChatInputError(
            f"{what}: all {num_rows:,} rows were refused ({reasons}). {advice}. {example}"
        )
    if num_refused > max_fraction * num_rows:
        raise ChatInputError(
            f"{what}: at most {max_fraction:.1%} of the rows may be refused, got "
            f"{num_refused:,} of {num_rows:,} "
            f"({reasons}). {advice}, or raise max_rejected_fraction. The first of each reason are "
            f"kept in {refusals.path}. {example}"
        )


def _as_sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."
