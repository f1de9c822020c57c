"""state.json: created if absent and replaced by compare-and-swap, nothing else.

`ConditionalObject` is the whole interface to a store; `LocalObject` is its form on a local file
system. Object stores implement the same three methods with their own preconditions.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from typing import Protocol

from neve import storage
from neve.errors import InputError, NeveError


class ConflictError(NeveError):
    """Somebody else's write is there: the object exists already, or its version moved on."""


class ConditionalObject(Protocol):
    """One small object with conditional writes. Every payload must be unique (nonce, counter)."""

    def read(self) -> tuple[bytes, str] | None:
        """Return (content, version) without any cache, or None where there is no object."""
        ...

    def create(self, data: bytes) -> str:
        """Write if absent and return the version; raise ConflictError otherwise."""
        ...

    def swap(self, data: bytes, version: str) -> str:
        """Replace exactly this version and return the new one; raise ConflictError otherwise."""
        ...


def content_version(data: bytes) -> str:
    """Return the version of a content on stores whose versions are content digests."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class LocalObject:
    """Create is temp + fsync + link (never partial); swap is flock on a sidecar + rename."""

    def __init__(self, path: str) -> None:
        """Stand for the object at a local path; nothing is touched yet."""
        self.path = os.path.abspath(storage.local_path(path))

    def read(self) -> tuple[bytes, str] | None:
        """Return (content, version), or None where there is no object."""
        try:
            fd = os.open(self.path, os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            data = os.read(fd, 1 << 20)
        finally:
            os.close(fd)
        return data, content_version(data)

    def _write_temp(self, data: bytes) -> str:
        temp = f"{self.path}.{os.getpid():x}{os.urandom(4).hex()}{storage.TEMP_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            fd = os.open(temp, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            fd = os.open(temp, flags, 0o666)
        try:
            os.write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        return temp

    def create(self, data: bytes) -> str:
        """Write if absent; raise ConflictError where an object is there."""
        temp = self._write_temp(data)
        try:
            os.link(temp, self.path)
        except FileExistsError as error:
            # NFS: the link may have succeeded although the reply says that it exists.
            if os.stat(temp).st_nlink != 2:
                raise ConflictError(f"{self.path}: must be absent, got an object.") from error
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise
            self._create_without_links(data)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp)
        return content_version(data)

    def _create_without_links(self, data: bytes) -> None:
        """Create on file systems without hard links: same lock as swap, then rename."""
        with self._locked():
            if self.read() is not None:
                raise ConflictError(f"{self.path}: must be absent, got an object.")
            os.replace(self._write_temp(data), self.path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        # The sidecar is never deleted, so nobody can hold a lock on an unlinked inode.
        fd = os.open(f"{self.path}.lock", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def swap(self, data: bytes, version: str) -> str:
        """Replace exactly this version; raise ConflictError where it moved on."""
        try:
            temp = self._write_temp(data)
        except FileNotFoundError as error:
            raise ConflictError(f"{self.path}: must be there, got nothing.") from error
        try:
            with self._locked():
                current = self.read()
                if current is None or current[1] != version:
                    raise ConflictError(f"{self.path}: must be unchanged, got another version.")
                os.replace(temp, self.path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp)
        return content_version(data)


def open_object(path: str) -> ConditionalObject:
    """Return the conditional object at a path.

    Raises:
        InputError: The store has no conditional writes that this version knows.
    """
    if storage.is_local(path):
        return LocalObject(path)
    scheme = path.partition("://")[0]
    raise InputError(
        f"prefix on {scheme}://: must be a local or shared file system in this version, "
        f"got {path!r}. Choose a local prefix."
    )
