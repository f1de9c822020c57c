"""Step: copy files of this machine under the prefix; identity is their content, never their path."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neve.errors import InputError
from neve.step import unhashed

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class ImportLocalConfig:
    """What to copy. Made by `local_source`, which digests the files."""

    source: Any
    """Path of the file or folder, wrapped in unhashed(): where the bytes happen to be."""
    digests: tuple[tuple[str, str], ...]
    """Pairs (name below the source, sha256 in hex), sorted by name."""


def local_source(path: str) -> ImportLocalConfig:
    """Return the config of a file or folder, its files digested now.

    Digests are remembered in the user's cache folder by (path, size, mtime, inode), so that planning
    again reads nothing.

    Raises:
        InputError: Nothing is there, it holds no file, or it can't be read.
    """
    source = Path(path.removeprefix("file://")).expanduser()
    if not source.exists():
        raise InputError(
            f"local source {path}: must be a file or a folder, got nothing there. Check the path; "
            f"relative ones start at {Path.cwd()}."
        )
    files = sorted(_files(source))
    if not files:
        raise InputError(f"local source {path}: must hold files, got an empty folder. Add some.")
    memory = _Memory()
    try:
        digests = tuple((name, memory.digest(file)) for name, file in files)
    except OSError as error:
        raise InputError(f"local source {path}: must be readable, got {error}.") from error
    memory.save()
    return ImportLocalConfig(source=unhashed(str(source.resolve())), digests=digests)


def import_local(config: ImportLocalConfig, output_path: str) -> dict[str, Any]:
    """The output holds the files, byte for byte as they were digested.

    Returns:
        num_files and num_bytes.

    Raises:
        InputError: A file is gone or changed since planning.
    """
    from neve import progress, storage

    source = Path(str(config.source))
    num_bytes = 0
    for index, (name, digest) in enumerate(config.digests):
        target = storage.join(output_path, name)
        file = source / name if source.is_dir() else source
        if not file.is_file():
            raise InputError(f"local source {file}: must stay there until it is imported, got none.")
        with storage.open_file(target, "wb") as out:
            seen = hashlib.sha256()
            for chunk in _chunks(file):
                seen.update(chunk)
                out.write(chunk)
                num_bytes += len(chunk)
            if seen.hexdigest() != digest:
                raise InputError(
                    f"local source {file}: must not change between plan and import, got sha256 "
                    f"{seen.hexdigest()[:12]} for {digest[:12]}. Run the command again."
                )
        progress.report(index + 1, len(config.digests), "files")
    return {"num_files": len(config.digests), "num_bytes": num_bytes}


def _files(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) for what counts: no hidden files, no bytecode."""
    if source.is_file():
        yield source.name, source
        return
    for folder, folders, names in os.walk(source):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        for name in names:
            if not name.startswith("."):
                file = Path(folder) / name
                yield file.relative_to(source).as_posix(), file


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


class _Memory:
    """Digests of files seen before, in the user's cache folder; losing it costs a read, no more."""

    def __init__(self) -> None:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        self._path = Path(cache) / "neve" / "file_digests.json"
        self._changed = False
        try:
            known = json.loads(self._path.read_text())
            self._known: dict[str, str] = known if isinstance(known, dict) else {}
        except (OSError, ValueError):
            self._known = {}

    def digest(self, file: Path) -> str:
        """Return the sha256 of a file."""
        facts = file.stat()
        key = f"{file.resolve()}|{facts.st_size}|{facts.st_mtime_ns}|{facts.st_ino}"
        if key not in self._known:
            digest = hashlib.sha256()
            for chunk in _chunks(file):
                digest.update(chunk)
            if file.stat().st_mtime_ns != facts.st_mtime_ns:
                raise InputError(
                    f"local source {file}: must not change while it is read, got a new time. Run the command again."
                )
            self._known[key] = digest.hexdigest()
            self._changed = True
        return self._known[key]

    def save(self) -> None:
        """Write what was learned; a cache folder that can't be written is no error."""
        if not self._changed:
            return
        part = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self._known))
            part.replace(self._path)
        except OSError:
            part.unlink(missing_ok=True)
