"""
Refused rows: counted by reason, kept in a file, and too many of them stop the step.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError

__all__ = ["Quarantine", "refuse_if_too_many"]

_PREVIEW_CHARS = 2_000


class Quarantine:
    """
    Collects refused rows in a JSON-lines file that exists only if there is one.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.first = ""
        self._open = contextlib.ExitStack()
        self._file: Any = None

    def add(self, reason: str, detail: str, row: str, value: Any) -> None:
        """
        Note one refused row.

        Args:
            reason: short constant text that is counted.
            detail: what is wrong in this row.
            row: where the row stands, as file:index or as id.
            value: the row, of which the beginning is kept.
        """
        self.counts[reason] += 1
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
    quarantine: Quarantine, num_rows: int, *, max_fraction: float, what: str, advice: str
) -> None:
    """
    Stop where nothing is left or more than the agreed share was refused.

    Args:
        quarantine: the refused rows, already published.
        num_rows: rows seen.
        max_fraction: largest share that may be refused, 0 to 1.
        what: what the rows are, for the message.
        advice: what to look at, for the message; without a full stop.

    Raises:
        ChatInputError: with the counts by reason and one example.
    """
    num_refused = quarantine.counts.total()
    if num_rows == 0:
        raise ChatInputError(f"{what}: at least one row is needed, got 0. Check the input files.")
    reasons = ", ".join(f"{reason} x{count:,}" for reason, count in quarantine.counts.most_common())
    example = _as_sentence(f"Example: {quarantine.first}")
    if num_refused == num_rows:
        raise ChatInputError(
            f"{what}: all {num_rows:,} rows were refused ({reasons}). {advice}. {example}"
        )
    if num_refused > max_fraction * num_rows:
        raise ChatInputError(
            f"{what}: at most {max_fraction:.1%} of the rows may be refused, got "
            f"{num_refused:,} of {num_rows:,} "
            f"({reasons}). {advice}, or raise max_rejected_fraction. They are kept in "
            f"{quarantine.path}. {example}"
        )


def _as_sentence(text: str) -> str:
    return text if text.endswith(".") else text + "."
