"""What an upload would change in a repository, and the one commit that changes it."""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from neve import storage
from neve.errors import InputError

from steps._hub import CHUNK_BYTES, RemoteFile

CARD = "README.md"
MANIFEST = "neve-upload.json"
"""File in the repository that notes what was written there: only that may be replaced or removed."""

_SMALL_BYTES = 10 << 20  # the hub keeps larger files apart from git


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalFile:
    """One file to upload."""

    source: str | bytes
    """Its path, local or remote, or its content."""
    size: int
    """Bytes."""
    sha256: str
    """Digest of the content."""
    git_sha1: str | None
    """Digest as git names a blob; None for a large file."""

    def is_at(self, digest: str) -> bool:
        """Return whether a digest of a listing is this file's."""
        return digest in (f"sha256:{self.sha256}", f"git-sha1:{self.git_sha1}")

    def facts(self) -> dict[str, Any]:
        """Return what the manifest notes of it."""
        return {"size": self.size, "sha256": self.sha256, "git_sha1": self.git_sha1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Changes:
    """What one commit does."""

    adds: dict[str, LocalFile]
    """Files that are missing or older there."""
    removes: list[str]
    """Files of an earlier upload that are no longer part of it."""
    kept: list[str]
    """Files that stay as somebody else wrote them."""


def local_file(source: str | bytes) -> LocalFile:
    """Return a file with its digests, reading it in pieces."""
    size = len(source) if isinstance(source, bytes) else storage.size(source)
    sha256 = hashlib.sha256()
    sha1 = (
        hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False) if size <= _SMALL_BYTES else None
    )
    for chunk in _chunks(source):
        sha256.update(chunk)
        if sha1:
            sha1.update(chunk)
    return LocalFile(
        source=source, size=size, sha256=sha256.hexdigest(), git_sha1=sha1 and sha1.hexdigest()
    )


def _chunks(source: str | bytes) -> Any:
    if isinstance(source, bytes):
        yield source
        return
    with storage.open_file(source) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def manifest_file(files: Mapping[str, LocalFile]) -> LocalFile:
    """Return the manifest of these files."""
    facts = {name: file.facts() for name, file in sorted(files.items())}
    return local_file(json.dumps({"format": 1, "files": facts}, indent=1).encode())


def find_changes(
    where: str,
    files: Mapping[str, LocalFile],
    remote: Mapping[str, RemoteFile],
    written: Mapping[str, Mapping[str, Any]],
    overwrite: bool,
) -> Changes:
    """Return what makes the remote files ours, without touching what others wrote.

    Args:
        where: The repository and branch, for messages.
        files: Name -> file to upload, without the manifest.
        remote: Name -> file as the branch has it.
        written: Name -> facts of the manifest of the last upload.
        overwrite: Whether a file that somebody else wrote may be replaced.

    Raises:
        InputError: Such a file is in the way.
    """

    def is_ours(name: str) -> bool:
        facts = written.get(name)
        known = facts and (f"sha256:{facts['sha256']}", f"git-sha1:{facts['git_sha1']}")
        return bool(known) and remote[name].digest in known

    same = {name for name in files if name in remote and files[name].is_at(remote[name].digest)}
    foreign = [name for name in files if name in remote and name not in same and not is_ours(name)]
    kept = [name for name in foreign if name == CARD and not overwrite]
    conflicts = sorted(set(foreign) - set(kept))
    if conflicts and not overwrite:
        raise InputError(
            f"{where}: files there must be absent, equal, or from the last upload, got "
            f"{len(conflicts)} that somebody else wrote, such as {conflicts[0]}. Upload to another "
            "branch, or set overwrite."
        )
    gone = [name for name in written if name not in files and name in remote]
    return Changes(
        adds={name: file for name, file in files.items() if name not in same and name not in kept},
        removes=[name for name in gone if is_ours(name)],
        kept=sorted(kept + [name for name in gone if not is_ours(name)]),
    )


def send(
    api: Any,
    repo: str,
    branch: str,
    parent: str,
    changes: Changes,
    manifest: LocalFile,
    message: str,
    on_file: Callable[[str, int], None],
) -> str:
    """Upload the files one by one, then commit all of them at once.

    Args:
        api: HfApi.
        repo: Owner and name.
        branch: Branch that exists.
        parent: Its commit; if it has moved, nothing is committed.
        changes: What to do.
        manifest: Goes with them.
        message: Title of the commit.
        on_file: Told (name, bytes) of each file that is uploaded.

    Returns:
        The new commit.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    operations: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="neve-") as scratch:
        for name, file in {**changes.adds, MANIFEST: manifest}.items():
            local = _at_hand(file, Path(scratch) / "file")
            addition = CommitOperationAdd(path_in_repo=name, path_or_fileobj=local)
            api.preupload_lfs_files(repo, [addition], revision=branch, gitignore_content="")
            operations.append(addition)
            on_file(name, file.size)
    operations += [CommitOperationDelete(path_in_repo=name) for name in changes.removes]
    commit = api.create_commit(
        repo, operations, commit_message=message, revision=branch, parent_commit=parent
    )
    return commit.oid


def _at_hand(file: LocalFile, scratch: Path) -> str | bytes:
    """Return what the client can read: a path on this machine, or the bytes of a small file."""
    if isinstance(file.source, bytes):
        return file.source
    if storage.is_local(file.source):
        return storage.local_path(file.source)
    if file.size <= _SMALL_BYTES:
        return storage.read_bytes(file.source)
    storage.download_file(file.source, scratch)
    return str(scratch)
