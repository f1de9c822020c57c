"""What a local hub holds and notes: files, repositories, faults and requests."""

import dataclasses
import hashlib
import io
from pathlib import Path
from typing import IO

CHUNK_BYTES = 1 << 20


@dataclasses.dataclass
class Blob:
    """One file: its bytes or where they lie, and its digests."""

    content: bytes | Path
    size: int
    sha256: str
    git_sha1: str
    is_lfs: bool

    def open(self) -> IO[bytes]:
        """Return a stream of the bytes."""
        return (
            self.content.open("rb") if isinstance(self.content, Path) else io.BytesIO(self.content)
        )


@dataclasses.dataclass
class Repo:
    """Commits, refs and who may read."""

    commits: dict[str, dict[str, Blob]] = dataclasses.field(default_factory=dict)
    refs: dict[str, str] = dataclasses.field(default_factory=dict)
    private: bool = False
    gated: bool = False
    log: list[tuple[str, str, list[str]]] = dataclasses.field(default_factory=list)
    """Branch, title and paths of each commit that a client made."""


@dataclasses.dataclass
class Fault:
    """What to do wrong with the next `times` GETs of a file, or of the listing (name "").

    Uploads of large files have the name "lfs", and commits "commit".
    """

    drop_after: int | None = None
    wrong_bytes: bool = False
    truncate_to: int | None = None
    status: int | None = None
    retry_after: int | None = None
    redirect_to: str | None = None
    hang_after: int | None = None
    skip: int = 0
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Request:
    """One line of the request log."""

    method: str
    path: str
    range: str | None
    has_token: bool


def make_blob(content: bytes | Path, lfs_bytes: int = 1 << 20) -> Blob:
    """Return the file with its digests, reading it in pieces."""
    size = content.stat().st_size if isinstance(content, Path) else len(content)
    sha256, sha1 = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size)
    blob = Blob(content, size, "", "", size >= lfs_bytes)
    with blob.open() as stream:
        while chunk := stream.read(CHUNK_BYTES):
            sha256.update(chunk)
            sha1.update(chunk)
    return dataclasses.replace(blob, sha256=sha256.hexdigest(), git_sha1=sha1.hexdigest())


def tree_entry(name: str, blob: Blob) -> dict:
    """Return a file as the listing of a tree names it."""
    entry = {"type": "file", "path": name, "size": blob.size, "oid": blob.git_sha1}
    if blob.is_lfs:
        entry["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": 134}
    return entry


def sibling(entry: dict) -> dict:
    """Return an entry of a tree as the facts of a revision name it."""
    facts = {"rfilename": entry["path"], "size": entry["size"], "blobId": entry["oid"]}
    if "lfs" in entry:
        lfs = entry["lfs"]
        facts["lfs"] = {"size": lfs["size"], "sha256": lfs["oid"], "pointerSize": 134}
    return facts
