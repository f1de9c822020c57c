"""Manifests: every file of an output with its size and digest."""

import fnmatch
import hashlib
import os
from collections.abc import Callable
from typing import Any

from neve import storage
from neve.codec import canonical
from neve.errors import StepFailedError
from neve.records import FORMAT

_BLOCK_BYTES = 1 << 20
_PARALLEL_BYTES = 1 << 20  # below this much data threads cost more than they win
_THREADS = 8


def file_digest(path: str) -> str:
    """Return the sha256 of one file's content."""
    digest = hashlib.sha256()
    with storage.open_file(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def make_manifest(path: str, digest: Callable[[str], str] = file_digest) -> dict[str, Any]:
    """Return the manifest of all files below a folder, or of one file.

    Args:
        path: Folder or file.
        digest: Returns the sha256 of one file; called by several threads.
    """
    files = storage.list_files(path)
    if not files and storage.exists(path) and not storage.is_dir(path):
        files = [storage.FileInfo(name="", size=storage.size(path))]
    paths = [storage.join(path, info.name) for info in files]
    if len(paths) > 1 and sum(info.size for info in files) > _PARALLEL_BYTES:
        from concurrent.futures import ThreadPoolExecutor  # 10 ms of imports, rarely needed

        with ThreadPoolExecutor(min(_THREADS, len(paths), (os.cpu_count() or 1) * 2)) as pool:
            digests = list(pool.map(digest, paths))
    else:
        digests = [digest(one) for one in paths]
    rows = [[info.name, info.size, found] for info, found in zip(files, digests, strict=True)]
    return {"format": FORMAT, "digest": manifest_digest(rows), "files": rows}


def manifest_digest(rows: list[list[Any]]) -> str:
    """Return the digest of [name, bytes, sha256] rows in order of name."""
    return hashlib.sha256(canonical(sorted(rows)).encode()).hexdigest()


def check_outputs(outputs: tuple[str, ...], rows: list[list[Any]], step: str) -> None:
    """Check that every declared output is there and not empty.

    Args:
        outputs: Relative paths of files or folders, or globs.
        rows: Files of the manifest.
        step: Step name, for the error.

    Raises:
        StepFailedError: Some are missing or empty; all are named.
    """
    problems = []
    for output in outputs:
        name = output.rstrip("/")
        sizes = [
            row[1]
            for row in rows
            if row[0] == name or row[0].startswith(f"{name}/") or fnmatch.fnmatchcase(row[0], name)
        ]
        if not sizes:
            problems.append(f"missing declared output {output}")
        elif not any(sizes):
            problems.append(f"empty declared output {output} (0 bytes)")
    if problems:
        raise StepFailedError(
            f"step {step!r}: must write what it declares, got {', '.join(problems)}. "
            "Fix the step function or its declared outputs."
        )
