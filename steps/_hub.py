"""Listing and fetching files of a pinned hub revision; shared by steps that read from a hub."""

import contextlib
import dataclasses
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from neve.errors import InputError

_CHUNK_BYTES = 1 << 20
_MAX_TRIES = 6


class DownloadError(RuntimeError):
    """The hub did not deliver what its listing promises."""


class StoppedError(RuntimeError):
    """Another file failed, so this one is given up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of the listing."""

    name: str
    """Path inside the repository."""
    size: int
    """Bytes."""
    digest: str
    """`sha256:<hex>` of an LFS file, `git-sha1:<hex>` of any other."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A pinned repository on the hub that the environment names; never part of identity."""

    repo: str
    """Owner and name."""
    repo_type: str
    """"model" or "dataset"."""
    revision: str
    """Commit, 40 hex digits."""
    endpoint: str
    """Base URL of the hub."""
    token: str | None = dataclasses.field(default=None, repr=False)
    """Secret; None for anonymous access."""

    def __str__(self) -> str:
        return f"{self.repo_type} {self.repo}@{self.revision[:12]}"


def open_source(repo: str, repo_type: str, revision: str) -> Source:
    """Return the source with the endpoint and token of the environment."""
    import huggingface_hub  # optional at plan time, 0.3 s to import

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or huggingface_hub.constants.ENDPOINT
    token = huggingface_hub.get_token()
    return Source(repo=repo, repo_type=repo_type, revision=revision, endpoint=endpoint, token=token)


def _explain(error: Any, source: Source) -> InputError | None:
    """Return the user's mistake behind a hub error, or None where it isn't one."""
    from huggingface_hub import errors  # optional at plan time

    status = error.response.status_code
    kind = "datasets/" if source.repo_type == "dataset" else ""
    page = f"{source.endpoint}/{kind}{source.repo}"
    with_token = "the token in HF_TOKEN" if source.token else "no HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        rule = f"access must be granted first, got none with {with_token}"
        return InputError(f"{source}: {rule}. Accept the terms at {page} and set HF_TOKEN.")
    if isinstance(error, errors.RevisionNotFoundError):
        rule = f"the revision must be a commit of the repository, got {source.revision}"
        return InputError(f"{source}: {rule}. Find one at {page}/commits/main.")
    if isinstance(error, errors.RepositoryNotFoundError) and not (status == 401 and source.token):
        rule = f"the repository must exist and be readable, got HTTP {status} with {with_token}"
        action = "Check its name and type; for a private one set HF_TOKEN to a token that reads it"
        return InputError(f"{source}: {rule}. {action}.")
    if status in (401, 403):
        rule = f"the hub must accept the credentials, got HTTP {status} with {with_token}"
        return InputError(f"{source}: {rule}. Set HF_TOKEN to a valid token that reads it.")
    return None


def _retry_seconds(response: Any, tries: int) -> float:
    value = response.headers.get("Retry-After", "") if response is not None else ""
    return min(300.0, float(value)) if value.isdigit() else min(30.0, 0.25 * 2**tries)


def list_remote_files(source: Source) -> list[RemoteFile]:
    """Return every file of the pinned revision, sorted by name.

    Raises:
        InputError: The repository or revision isn't there or may not be read.
        DownloadError: The hub stays out of reach.
    """
    import httpx  # optional at plan time
    from huggingface_hub import HfApi, RepoFile
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=source.endpoint, token=source.token or False)
    for tries in range(_MAX_TRIES):
        response = None
        try:
            tree = api.list_repo_tree(
                source.repo, recursive=True, revision=source.revision, repo_type=source.repo_type
            )
            return sorted(
                (_remote_file(entry) for entry in tree if isinstance(entry, RepoFile)),
                key=lambda file: file.name,
            )
        except HfHubHTTPError as error:
            response = error.response
            reason = f"HTTP {response.status_code}"
            mistake = _explain(error, source)
            if mistake is not None:
                raise mistake from None  # the cause holds request headers
            if response.status_code != 429 and response.status_code < 500:
                break
        except httpx.TransportError as error:
            reason = type(error).__name__
        if tries + 1 < _MAX_TRIES:
            time.sleep(_retry_seconds(response, tries))
    message = f"{source}: the hub must list its files, got {reason}. Check {source.endpoint}."
    raise DownloadError(message)


def _remote_file(entry: Any) -> RemoteFile:
    parts = entry.path.split("/")
    if ".." in parts or "" in parts or "\\" in entry.path or parts[0].startswith(".neve"):
        raise InputError(
            f"file {entry.path!r}: a repository's file must stay below the output path, outside "
            ".neve. Leave it out by choosing another repository."
        )
    if entry.lfs is not None:
        digest = f"sha256:{entry.lfs.sha256}"
        return RemoteFile(name=entry.path, size=entry.lfs.size, digest=digest)
    return RemoteFile(name=entry.path, size=entry.size, digest=f"git-sha1:{entry.blob_id}")


def _hasher(file: RemoteFile) -> Any:
    if file.digest.startswith("sha256:"):
        return hashlib.sha256()
    return hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)


def has_digest(stream: IO[bytes], file: RemoteFile) -> bool:
    """Return whether the bytes of the stream are those of the listing."""
    hasher = _hasher(file)
    while chunk := stream.read(_CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest() == file.digest.split(":")[1]


@contextlib.contextmanager
def open_client(source: Source) -> Iterator[Any]:
    """Yield an HTTP client; it drops the token when a redirect leaves the hub's host."""
    import httpx  # optional at plan time
    from huggingface_hub.utils import build_hf_headers

    headers = build_hf_headers(token=source.token or False) | {"accept-encoding": "identity"}
    with httpx.Client(headers=headers, follow_redirects=True, timeout=60) as client:
        yield client


def fetch_file(
    client: Any,
    source: Source,
    file: RemoteFile,
    part: Path,
    *,
    stop: threading.Event,
    received: Callable[[int], None],
) -> None:
    """Leave the verified bytes of one file at `part`, going on where an earlier try ended.

    Args:
        client: From `open_client`; may be shared between threads.
        source: Where it lies.
        file: What the listing says.
        part: Local file; what it holds already is kept and verified with the rest.
        stop: Set by the caller to give up early.
        received: Called with the number of new bytes, negative where some were dropped.

    Raises:
        DownloadError: The bytes are still wrong or absent after several tries.
    """
    import httpx  # optional at plan time
    from huggingface_hub.errors import HfHubHTTPError

    tries, best = 0, -1
    while True:
        response = None
        try:
            reason = _fetch_once(client, source, file, part, stop, received)
            if not reason:
                return
        except HfHubHTTPError as error:
            response = error.response
            reason = f"HTTP {response.status_code}"
            mistake = _explain(error, source)
            if mistake is not None:
                raise mistake from None  # the cause holds request headers
            if response.status_code != 429 and response.status_code < 500:
                tries = _MAX_TRIES
        except httpx.TransportError as error:
            reason = f"a broken connection ({type(error).__name__})"
        have = part.stat().st_size if part.exists() else 0
        tries = 1 if have > best and tries < _MAX_TRIES else tries + 1
        best = max(best, have)
        if tries >= _MAX_TRIES:
            rule = f"{file.size} bytes with digest {file.digest} must arrive, got {reason}"
            raise DownloadError(f"{source} file {file.name!r}: {rule}. Run again to continue.")
        if stop.wait(_retry_seconds(response, tries)):
            raise StoppedError(file.name)


def _fetch_once(
    client: Any,
    source: Source,
    file: RemoteFile,
    part: Path,
    stop: threading.Event,
    received: Callable[[int], None],
) -> str:
    """Return what was wrong with the file after one request, empty if nothing."""
    from huggingface_hub import hf_hub_url

    part.touch()
    if part.stat().st_size < file.size or (file.size == 0 and part.stat().st_size):
        url = hf_hub_url(
            source.repo,
            file.name,
            repo_type=source.repo_type,
            revision=source.revision,
            endpoint=source.endpoint,
        )
        have = part.stat().st_size
        headers = {"Range": f"bytes={have}-"} if have else {}
        with client.stream("GET", url, headers=headers) as response:
            _append(response, source, have, part, stop, received)
    size = part.stat().st_size
    if size < file.size:
        return f"{size} bytes"
    with part.open("rb") as stream:
        if size == file.size and has_digest(stream, file):
            return ""
    part.unlink()
    received(-size)
    return f"{size} bytes with another digest"


def _append(
    response: Any,
    source: Source,
    have: int,
    part: Path,
    stop: threading.Event,
    received: Callable[[int], None],
) -> None:
    from huggingface_hub.utils import hf_raise_for_status

    if response.status_code == 416:
        part.unlink()
        received(-have)
        part.touch()
        return
    if response.is_error:
        response.read()
    hf_raise_for_status(response)
    commits = {r.headers.get("X-Repo-Commit") for r in [*response.history, response]} - {None}
    if commits - {source.revision}:
        got = ", ".join(sorted(commits))
        raise DownloadError(f"{source}: files must come from that commit, got {got}. Report it.")
    goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if have and not (response.status_code == 206 and goes_on):
        received(-have)
        have = 0
    with part.open("ab" if have else "wb") as target:
        for chunk in response.iter_raw(_CHUNK_BYTES):
            target.write(chunk)
            received(len(chunk))
            if stop.is_set():
                raise StoppedError(part.name)
