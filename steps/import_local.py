"""Step: files of this machine copied under the prefix; identity is content, never the path."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neve.digest_memory import DigestMemory
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

    Hidden files, bytecode and what is no regular file are left out; links are followed. Digests are
    remembered in the user's cache folder with size, times and inode of the file, so that planning
    again reads nothing.

    Raises:
        InputError: Nothing is there, it holds no file, or it can't be read.
    """
    source = Path(path.removeprefix("file://")).expanduser()
    if not path or not source.exists():
        raise InputError(
            f"local source {path}: must be a file or a folder, got nothing there. Check the path; "
            f"relative ones start at {Path.cwd()}."
        )
    memory = DigestMemory()
    try:
        files = sorted(_files(source))
        digests = tuple((name, memory.digest(file)) for name, file in files)
    except OSError as error:
        raise InputError(
            f"local source {path}: must be readable, got {error}. Change the rights or remove it."
        ) from error
    if not digests:
        raise InputError(
            f"local source {path}: must hold files, got none that is not hidden. Add some."
        )
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
            raise InputError(
                f"local source {file}: must stay there until it is imported, got none."
            )
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
    """Yield (name, file) for what counts.

    Raises:
        OSError: A folder can't be read.
    """

    def fail(error: OSError) -> None:
        raise error

    if source.is_file():
        yield source.name, source
        return
    for folder, folders, names in os.walk(source, onerror=fail, followlinks=True):
        real = os.path.realpath(folder)
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name != "__pycache__"
            and not _is_within(real, os.path.realpath(os.path.join(folder, name)))
        ]
        for name in names:
            file = Path(folder) / name
            if not name.startswith(".") and (file.is_file() or not file.exists()):
                yield file.relative_to(source).as_posix(), file  # a dead link fails when read


def _is_within(path: str, folder: str) -> bool:
    """Return whether the path is the folder or lies below it, so that a link to it would loop."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _chunks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk
