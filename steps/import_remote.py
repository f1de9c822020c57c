"""Step: objects of S3 or Google Cloud Storage copied under the prefix; identity is their listing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

from neve.errors import InputError
from neve.step import unhashed

_SCHEMES = ("s3://", "gs://")
_CHUNK_BYTES = 1 << 20
_THREADS = 4  # each holds a block or two of 8 MB


@dataclass(frozen=True, kw_only=True)
class ImportRemoteConfig:
    """What to copy. Made by `remote_source`, which lists the objects."""

    source: Any
    """URL of the object or folder, wrapped in unhashed(): where the bytes happen to be."""
    files: tuple[tuple[str, int, str], ...]
    """(Name below the source, size in bytes, version: checksum, ETag or generation), by name."""


def remote_source(url: str) -> ImportRemoteConfig:
    """Return the config of a folder or one object, listed now; credentials come from the environment.

    Hidden names are left out.

    Raises:
        InputError: The URL is of another kind, nothing is there, or the store refuses.
    """
    from neve import storage

    _check_url(url)
    try:
        files = [file for file in storage.list_files(url) if not _is_hidden(file.name)]
        if not files and storage.exists(url):
            files = [storage.file_info(url)]
    except Exception as error:  # every store's client has exceptions of its own
        raise InputError(
            f"remote source {url}: must be readable, got {type(error).__name__}: {error}. Check "
            "the name and the credentials in the environment."
        ) from error
    if not files:
        raise InputError(
            f"remote source {url}: must be an object or a folder of objects, got nothing there. "
            "Check the URL."
        )
    unversioned = [file.name for file in files if not file.version]
    if unversioned:
        raise InputError(
            f"remote source {url}: the store must tell a version of every object, got none for "
            f"{unversioned[0]}. Download the files and import them from here."
        )
    listing = tuple((file.name, file.size, file.version) for file in files)
    return ImportRemoteConfig(source=unhashed(url), files=listing)


def import_remote(config: ImportRemoteConfig, output_path: str) -> dict[str, Any]:
    """The output holds the objects, byte for byte as they were listed.

    May be killed and called again: files that are whole are kept.

    Returns:
        num_files and num_bytes.

    Raises:
        InputError: An object is gone or changed since planning, or while it was copied.
    """
    from neve import progress, storage

    total = sum(size for _, size, _ in config.files)
    present = {file.name: file.size for file in storage.list_files(output_path)}
    missing = [entry for entry in config.files if present.get(entry[0]) != entry[1]]
    done, lock = total - sum(size for _, size, _ in missing), threading.Lock()

    def note(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            progress.report(done // 1_000_000, total // 1_000_000, "MB")

    def copy(entry: tuple[str, int, str]) -> None:
        name, size, version = entry
        source = _url_of(str(config.source), name, config.files)
        with storage.open_file(storage.join(output_path, name), "wb") as out:
            _check_unchanged(source, size, version)
            try:
                for chunk in _chunks(source):
                    out.write(chunk)
                    note(len(chunk))
            finally:  # a client that noticed the change itself tells less than this does
                _check_unchanged(source, size, version)
            if out.tell() != size:
                raise _changed(source, f"{size:,} bytes", f"{out.tell():,}")

    with ThreadPoolExecutor(_THREADS) as pool:
        try:
            for _ in pool.map(copy, missing):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {"num_files": len(config.files), "num_bytes": total}


def _check_url(url: str) -> None:
    if not url.startswith(_SCHEMES):
        raise InputError(
            f"remote source {url}: must start with {' or '.join(_SCHEMES)}, got another kind. "
            "Import local files with local_source."
        )
    if "@" in url.split("://")[1].split("/")[0]:
        raise InputError(
            "remote source: a URL must not hold credentials, got one with '@' before the bucket. "
            "Put them into the environment or the store's own configuration."
        )


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _url_of(source: str, name: str, files: Sequence[tuple[str, int, str]]) -> str:
    """Return the URL of a file; the source itself where it is that one object."""
    from neve import storage

    is_object = len(files) == 1 and source.rsplit("/", 1)[-1] == name
    if is_object and not storage.exists(storage.join(source, name)):
        return source
    return storage.join(source, name)


def _check_unchanged(source: str, size: int, version: str) -> None:
    from neve import storage

    try:
        now = storage.file_info(source)
    except FileNotFoundError as error:
        raise _changed(source, "there", "nothing") from error
    if (now.size, now.version) != (size, version):
        raise _changed(source, f"{size:,} bytes {version}", f"{now.size:,} bytes {now.version}")


def _changed(source: str, planned: str, seen: str) -> InputError:
    return InputError(
        f"remote source {source}: must stay as it was planned ({planned}), got {seen}. Run the "
        "command again."
    )


def _chunks(source: str) -> Iterator[bytes]:
    from neve import storage

    with storage.open_file(source, "rb") as stream:
        yield from iter(lambda: _read(stream), b"")


def _read(stream: IO[bytes]) -> bytes:
    return stream.read(_CHUNK_BYTES)
