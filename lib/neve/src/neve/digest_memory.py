"""Digests of local files seen before, kept in the user's cache folder and never part of identity.

An entry counts while size, times and inode of the file are the same, so that planning again reads
no data. Losing the memory costs a read, no more.
"""

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from neve.errors import InputError

_BLOCK_BYTES = 1 << 20
_SETTLED_SECONDS = 1.0  # a file changed again within one tick of the clock keeps its times


class DigestMemory:
    """The sha256 of local files. Threads may share one."""

    def __init__(self) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self._path = Path(cache) / "neve" / "file_digests.json"
        self._known = self._read()
        self._learned: dict[str, Any] = {}

    def digest(self, path: str | Path) -> str:
        """Return the sha256 of a file in hex.

        Raises:
            InputError: The file changed while it was read.
            OSError: It can't be read.
        """
        key = os.path.realpath(path)
        facts = _facts(path)
        entry = self._known.get(key)
        if isinstance(entry, list) and entry[:-1] == facts and isinstance(entry[-1], str):
            return entry[-1]
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                digest.update(block)
        if _facts(path) != facts:
            raise InputError(
                f"file {path}: must not change while it is read, got a new time. "
                "Run the command again."
            )
        if time.time() - max(facts[1:3]) / 1e9 > _SETTLED_SECONDS:
            self._learned[key] = [*facts, digest.hexdigest()]
        return digest.hexdigest()

    def save(self) -> None:
        """Write what was learned; a cache folder that can't be written is no error."""
        if not self._learned:
            return
        self._known = self._read() | self._learned  # another process may have learned meanwhile
        self._learned = {}
        part = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self._known))
            part.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        try:
            known = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}


def _facts(path: str | Path) -> list[int]:
    """Return what changes with the content: size, mtime, ctime and inode."""
    facts = os.stat(path)
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino]
