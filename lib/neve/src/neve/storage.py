"""Files and objects under one set of functions: local paths, file://, and every fsspec URL.

The only module that knows fsspec. Local paths take short cuts through the standard library, so that
planning a thousand steps does not import fsspec at all. Writes publish whole objects or nothing.
"""

import contextlib
import dataclasses
import errno
import io
import json
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from neve.errors import InputError, StorageError

TEMP_SUFFIX = ".neve-tmp"
_READ_BYTES = 1 << 20  # at 8 KB, Python's own, long lines are read at less than half the speed
_BLOCK_BYTES = 8 << 20  # s3fs would fetch 50 MB ahead of each seek
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileInfo:
    """One file below a folder."""

    name: str
    """Path relative to the listed folder, with forward slashes."""
    size: int
    """Size in bytes."""
    version: str = ""
    """What a store changes with the content: checksum, ETag or generation; empty for local files."""


def is_local(path: str) -> bool:
    """Return True for plain paths and file:// URLs."""
    return "://" not in path or path.startswith("file://")


def local_path(path: str) -> str:
    """Return the plain path of a local path or file:// URL.

    Raises:
        InputError: The path is on a remote store.
    """
    if not is_local(path):
        raise InputError(f"path {path!r}: must be local here, got a remote URL. Download it first.")
    return path.removeprefix("file://") if path.startswith("file://") else path


def join(base: str, *parts: str) -> str:
    """Join relative parts below a path or URL with forward slashes; empty parts are skipped."""
    result = base.rstrip("/") if base != "/" else ""
    for part in parts:
        if part:
            result = f"{result}/{part.strip('/')}"
    return result or "/"


def _filesystem(path: str) -> Any:
    import fsspec  # heavy optional dependency: only for remote URLs

    return fsspec.core.url_to_fs(path)[0]


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Turn a full disk into an error that says so and names the path."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StorageError(
                error.errno, f"write of {path}: the disk is full, got no space. Free some space."
            ) from error
        raise


def _temp_name(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid():x}{os.urandom(4).hex()}{TEMP_SUFFIX}")


def _write_local(path: str, data: bytes) -> None:
    temp = _temp_name(path)
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        finally:
            os.close(fd)
        os.replace(temp, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temp)
        raise


def write_bytes(path: str, data: bytes) -> None:
    """Publish a whole object: readers see the old one or the new one, never a part.

    Raises:
        StorageError: The disk is full.
    """
    with _explained(path):
        if is_local(path):
            _write_local(local_path(path), data)
        else:
            _filesystem(path).pipe_file(path, data)


def read_bytes(path: str) -> bytes:
    """Return the whole content; FileNotFoundError where there is none."""
    if is_local(path):
        with open(local_path(path), "rb") as file:
            return file.read()
    return _filesystem(path).cat_file(path)


def write_json(path: str, value: Any, *, indent: int | None = 1) -> None:
    """Publish a JSON document as one whole object."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=True)
    write_bytes(path, text.encode())


def read_json(path: str) -> Any:
    """Return the parsed JSON document at a path."""
    return json.loads(read_bytes(path))


@contextlib.contextmanager
def open_file(path: str, mode: str = "rb") -> Iterator[IO[Any]]:
    """Open for reading ("r", "rb") or for a whole-object write ("w", "wb").

    A write is published when the block ends without an exception; otherwise nothing appears and an
    earlier version stays.
    """
    if mode not in ("r", "rb", "w", "wb"):
        raise InputError(f"open_file mode: must be r, rb, w or wb, got {mode!r}. Pick one.")
    encoding = None if "b" in mode else "utf-8"
    if "r" in mode:
        if is_local(path):
            with open(local_path(path), mode, _READ_BYTES, encoding=encoding) as file:
                yield file
        else:
            with _filesystem(path).open(path, "rb", block_size=_BLOCK_BYTES) as file:
                yield file if encoding is None else io.TextIOWrapper(file, encoding=encoding)
        return
    if is_local(path):
        target = local_path(path)
        os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
        temp = _temp_name(target)
    else:
        temp = os.path.join(tempfile.gettempdir(), f"neve-{os.urandom(8).hex()}{TEMP_SUFFIX}")
    try:
        with _explained(path):
            with open(temp, mode, encoding=encoding) as file:
                yield file
            if is_local(path):
                os.replace(temp, local_path(path))
            else:
                _filesystem(path).put_file(temp, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)


def exists(path: str) -> bool:
    """Return True if a file or a folder is there (uncached)."""
    if is_local(path):
        return os.path.exists(local_path(path))
    filesystem = _filesystem(path)
    filesystem.invalidate_cache()
    return filesystem.exists(path)


def is_dir(path: str) -> bool:
    """Return True if the path is a folder, or a prefix with objects below it."""
    if is_local(path):
        return os.path.isdir(local_path(path))
    filesystem = _filesystem(path)
    filesystem.invalidate_cache()
    return filesystem.isdir(path)


def size(path: str) -> int:
    """Return the size of one file in bytes."""
    return os.path.getsize(local_path(path)) if is_local(path) else _filesystem(path).size(path)


def _walk_local(root: str, below: str, found: list[FileInfo]) -> None:
    with os.scandir(os.path.join(root, below) if below else root) as entries:
        for entry in entries:
            name = posixpath.join(below, entry.name)
            if entry.is_dir():
                if name != ".neve":
                    _walk_local(root, name, found)
            elif not entry.name.endswith(TEMP_SUFFIX):
                found.append(FileInfo(name=name, size=entry.stat().st_size))


def list_files(path: str) -> list[FileInfo]:
    """Return every file below a folder, sorted by name, without its .neve/ and unfinished writes.

    A missing folder has no files.
    """
    found: list[FileInfo] = []
    if is_local(path):
        with contextlib.suppress(FileNotFoundError):
            _walk_local(local_path(path), "", found)
        return sorted(found, key=lambda info: info.name)
    filesystem = _filesystem(path)
    filesystem.invalidate_cache()
    root = filesystem._strip_protocol(path).rstrip("/")
    for name, info in filesystem.find(root, detail=True).items():
        relative = filesystem._strip_protocol(name)[len(root) :].lstrip("/")
        if relative and not relative.startswith(".neve/") and not name.endswith("/"):
            found.append(_file_info(relative, info))
    return sorted(found, key=lambda info: info.name)


def file_info(path: str) -> FileInfo:
    """Return what a listing would tell of one file; FileNotFoundError where there is none."""
    name = posixpath.basename(path)
    if is_local(path):
        return FileInfo(name=name, size=os.path.getsize(local_path(path)))
    filesystem = _filesystem(path)
    filesystem.invalidate_cache()
    info = filesystem.info(path)
    if info["type"] != "file":
        raise FileNotFoundError(errno.ENOENT, "no object has this name", path)
    return _file_info(name, info)


def _file_info(name: str, info: dict[str, Any]) -> FileInfo:
    known = (info.get(key) for key in ("md5Hash", "crc32c", "ETag", "etag", "generation"))
    version = next((str(value).strip('"') for value in known if value), "")
    return FileInfo(name=name, size=int(info.get("size") or 0), version=version)


def list_names(path: str) -> list[str]:
    """Return the names directly below a folder, sorted; a missing folder has none."""
    if is_local(path):
        try:
            return sorted(os.listdir(local_path(path)))
        except FileNotFoundError:
            return []
    filesystem = _filesystem(path)
    filesystem.invalidate_cache()
    try:
        names = filesystem.ls(path, detail=False)
    except FileNotFoundError:
        return []
    return sorted(posixpath.basename(name.rstrip("/")) for name in names)


def make_dirs(path: str) -> None:
    """Make a local folder with its parents; object stores need none."""
    if is_local(path):
        os.makedirs(local_path(path), exist_ok=True)


def remove_tree(path: str) -> None:
    """Remove a file or a folder with all below it; a missing one is fine."""
    if is_local(path):
        target = local_path(path)
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(target)
        return
    filesystem = _filesystem(path)
    filesystem.invalidate_cache()
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(path, recursive=True)


def upload_file(local: str | Path, path: str) -> None:
    """Publish a local file as one whole object at a path."""
    if not is_local(path):
        _filesystem(path).put_file(str(local), path)
        return
    target = local_path(path)
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    temp = _temp_name(target)
    try:
        with _explained(path):
            shutil.copyfile(local, temp)
            os.replace(temp, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)


def download_file(path: str, local: str | Path) -> None:
    """Copy one object to a local file, whole or not at all."""
    target = os.fspath(local)
    os.makedirs(os.path.dirname(target) or ".", exist_ok=True)
    temp = _temp_name(target)
    try:
        with _explained(target):
            if is_local(path):
                shutil.copyfile(local_path(path), temp)
            else:
                _filesystem(path).get_file(path, temp)
            os.replace(temp, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp)


@contextlib.contextmanager
def scratch_dir() -> Iterator[Path]:
    """Give a local folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="neve-") as folder:
        yield Path(folder)
