"""Listing and verifying files of a pinned hub revision; shared by steps that read from a hub."""

import dataclasses
import hashlib
import os
import time
from typing import IO, Any

from neve.errors import InputError

CHUNK_BYTES = 1 << 20
MAX_TRIES = 6


class DownloadError(RuntimeError):
    """The hub did not deliver what its listing promises."""


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
    from huggingface_hub import constants, get_token  # optional at plan time, 0.3 s to import

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or constants.ENDPOINT
    return Source(
        repo=repo, repo_type=repo_type, revision=revision, endpoint=endpoint, token=get_token()
    )


def explain_refusal(error: Any, source: Source) -> InputError | None:
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


def retry_seconds(response: Any, tries: int) -> float:
    """Return how long to wait after a failed try: as the hub asks, else longer each time."""
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
    reason = ""
    for tries in range(MAX_TRIES):
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
            mistake = explain_refusal(error, source)
            if mistake is not None:
                raise mistake from None  # the cause holds request headers
            if response.status_code != 429 and response.status_code < 500:
                break
        except httpx.TransportError as error:
            reason = type(error).__name__
        if tries + 1 < MAX_TRIES:
            time.sleep(retry_seconds(response, tries))
    message = f"{source}: the hub must list its files, got {reason}. Check {source.endpoint}."
    raise DownloadError(message)


def _remote_file(entry: Any) -> RemoteFile:
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
    while chunk := stream.read(CHUNK_BYTES):
        hasher.update(chunk)
    return hasher.hexdigest() == file.digest.split(":")[1]


def check_name(name: str) -> None:
    """Refuse a name that would leave the output path or hide among the files of neve.

    Raises:
        InputError: The name is refused.
    """
    parts = name.split("/")
    unsafe = ".." in parts or "." in parts or "" in parts or "\\" in name
    if unsafe or ".neve" in parts or parts[0].startswith(".neve") or name.endswith(".neve-tmp"):
        raise InputError(
            f"file {name!r}: a repository's file must stay below the output path, outside of "
            "the names that start with .neve, got this name. Leave it out with ignore."
        )
