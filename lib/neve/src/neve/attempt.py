"""Files of one attempt, written by the supervisor so that they survive the worker."""

import contextlib
import json
import os
import time
from collections import deque
from typing import Any

from neve import records, storage
from neve.secrets import Redactor

TAIL_LINES = 15
_PARTIAL_BYTES = 1 << 16
_PROGRESS_SECONDS = 5.0


class AttemptFiles:
    """log.txt, events.jsonl and metrics.jsonl of one attempt, with secrets masked.

    What arrives before the attempt is known is kept until `open`.
    """

    def __init__(self, home: str, redactor: Redactor) -> None:
        """Stand for the attempt to come of one output path."""
        self.home = home
        self.attempt: int | None = None
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._redactor = redactor
        self._partial = b""
        self._waiting: list[tuple[str, bytes]] = []
        self._files: dict[str, int] = {}
        self._remote: dict[str, list[bytes]] = {}
        self._last_progress = 0.0

    @property
    def log_path(self) -> str | None:
        """Path of log.txt, once the attempt is known."""
        return None if self.attempt is None else records.log_path(self.home, self.attempt)

    def open(self, attempt: int) -> None:
        """Start the files of an attempt."""
        self.attempt = attempt
        storage.make_dirs(records.attempt_path(self.home, attempt))
        self._append("log.txt", b"")
        waiting, self._waiting = self._waiting, []
        for name, data in waiting:
            self._append(name, data)

    def write_output(self, data: bytes) -> bytes:
        """Add raw output to the log in whole lines; return the masked lines that were added."""
        self._partial += data
        cut = self._partial.rfind(b"\n") + 1
        if not cut and len(self._partial) > _PARTIAL_BYTES:
            cut = len(self._partial)
        lines, self._partial = self._partial[:cut], self._partial[cut:]
        return self._write_lines(lines)

    def _write_lines(self, lines: bytes) -> bytes:
        if not lines:
            return b""
        masked = self._redactor.raw(lines)
        text = records.strip_ansi(masked.decode(errors="replace"))
        self.tail.extend(line for line in text.splitlines() if line.strip())
        self._append("log.txt", text.encode())
        return masked

    def write_event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Keep an event in the file it belongs to; return it with secrets masked."""
        kind = event["event"]
        now = time.time()
        if kind == "message":
            event = event | {"text": self._redactor.text(event["text"])}
            self._append("log.txt", records.strip_ansi(event["text"]).encode() + b"\n")
        elif kind == "metric":
            row = {key: value for key, value in event.items() if key != "event"}
            self._append("metrics.jsonl", _line(row | {"time": now}))
            return event
        elif kind == "progress":
            last = event["total"] is not None and event["done"] >= event["total"]
            if now - self._last_progress < _PROGRESS_SECONDS and not last:
                return event
            self._last_progress = now
        self._append("events.jsonl", _line(event | {"time": now}))
        return event

    def _append(self, name: str, data: bytes) -> None:
        if self.attempt is None:
            self._waiting.append((name, data))
            return
        path = records.attempt_path(self.home, self.attempt, name)
        if not storage.is_local(path):
            self._remote.setdefault(name, []).append(data)
            return
        if name not in self._files:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._files[name] = os.open(storage.local_path(path), flags, 0o666)
        os.write(self._files[name], data)

    def close(self) -> None:
        """Write what is left and close the files."""
        self._write_lines(self._partial)
        self._partial = b""
        for fd in self._files.values():
            with contextlib.suppress(OSError):
                os.close(fd)
        self._files.clear()
        for name, parts in self._remote.items():
            if self.attempt is not None:
                path = records.attempt_path(self.home, self.attempt, name)
                storage.write_bytes(path, b"".join(parts))
        self._remote.clear()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, default=_plain, separators=(",", ":")).encode() + b"\n"


def _plain(value: Any) -> Any:
    """Return numpy and jax scalars as numbers, anything else as text."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)
