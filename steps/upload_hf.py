"""Step: a Hugging Face folder to a repository on the hub, in one commit.

It can be run again at any time: only what is missing is uploaded, and files that somebody else wrote
are neither replaced nor removed.
"""

import dataclasses
import os
import re
import time
from typing import Any

from neve import progress, storage
from neve.errors import InputError, LeaseLostError

from steps import _hub, _hub_upload, _model_card

__all__ = ["UploadHfConfig", "UploadSpec", "upload_hf"]

CERTIFICATE = "certificate.json"


class UploadError(RuntimeError):
    """The hub did not take what was sent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UploadSpec:
    """A repository on the hub that a folder goes to."""

    repo: str
    """Owner and name; made if it isn't there."""
    branch: str = "main"
    """Branch; made from main if it isn't there."""
    private: bool = True
    """A new repository is private, and a public one is refused."""
    license: str | None = None
    """License of the model as the hub names it, such as apache-2.0; None: not stated."""
    overwrite: bool = False
    """Replace files of these names that somebody else wrote. Execution: a recipe wraps it in unhashed()."""

    def __post_init__(self) -> None:
        """Checks the names."""
        for name, value, pattern, rule in (
            ("repo", self.repo, r"[\w.-]+/[\w.-]+", "owner/name"),
            ("branch", self.branch, r"(?![0-9a-f]{40}$)[\w.-]+(/[\w.-]+)*", "the name of a branch"),
        ):
            if not re.fullmatch(pattern, value):
                raise InputError(f"upload: {name} must be {rule}, got {value!r}. Correct it.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UploadHfConfig(UploadSpec):
    """What goes where."""

    folder: Any
    """Hugging Face folder: a path or a step."""


def upload_hf(config: UploadHfConfig, output_path: str) -> dict[str, Any]:
    """The branch holds the folder's files and a model card; the output holds certificate.json.

    Returns:
        repo, branch, commit, num_files, num_uploaded, bytes_uploaded, kept (names that somebody else
        wrote).

    Raises:
        InputError: No token, it may not write there, a public repository where a private one is wanted,
            or a file that somebody else wrote is in the way.
        UploadError: The hub stays out of reach.
    """
    from huggingface_hub import HfApi  # optional at plan time, 0.3 s to import
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()  # a step reports its progress itself
    token = os.environ.get("HF_TOKEN", "")
    if not token:
        raise InputError(
            f"upload to {config.repo}: HF_TOKEN must hold a token that may write, got none. "
            "Make one at https://huggingface.co/settings/tokens and set it in the environment."
        )
    folder = str(config.folder)
    files = _files(folder, config)
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    upload = _Upload(config, HfApi(endpoint=endpoint, token=token), files)
    commit = upload.run()
    digests = {name: f"sha256:{file.sha256}" for name, file in upload.certain.items()}
    certificate = {
        "repo": config.repo,
        "branch": config.branch,
        "commit": commit,
        "digests": digests,
    }
    storage.write_json(storage.join(output_path, CERTIFICATE), certificate)
    return {
        "repo": config.repo,
        "branch": config.branch,
        "commit": commit,
        "num_files": len(digests),
        "num_uploaded": len(upload.sent),
        "bytes_uploaded": sum(upload.sent.values()),
        "kept": upload.kept,
    }


def _files(folder: str, config: UploadHfConfig) -> dict[str, _hub_upload.LocalFile]:
    found = [file.name for file in storage.list_files(folder)]
    names = [name for name in found if not name.startswith(".neve")]  # notes of a download
    if "config.json" not in names:
        raise InputError(
            f"upload of {folder}: must be a Hugging Face folder with config.json, got "
            f"{len(names)} files without it. Pass the output of export_hf."
        )
    card = _model_card.model_card(
        config.repo, _model_card.read_lineage(folder), config.license
    ).encode()
    files = {_hub_upload.CARD: _hub_upload.local_file(card)}
    for name in names:
        if name != _hub_upload.MANIFEST:
            files[name] = _hub_upload.local_file(storage.join(folder, name))
    return files


class _Upload:
    """One upload with its retries; each looks again at what is there."""

    def __init__(
        self, config: UploadHfConfig, api: Any, files: dict[str, _hub_upload.LocalFile]
    ) -> None:
        self.config, self.api, self.files = config, api, files
        self.where = f"upload to {config.repo} ({config.branch})"
        self.sent: dict[str, int] = {}
        self.kept: list[str] = []
        self.certain: dict[str, _hub_upload.LocalFile] = {}

    def run(self) -> str:
        """Return the commit of the branch that holds every file."""
        import httpx  # optional at plan time
        from huggingface_hub.errors import HfHubHTTPError

        reason = ""
        for tries in range(_hub.MAX_TRIES):
            response = None
            try:
                self._make_room()
                commit = self._push()
                if commit is not None:
                    return commit
                continue  # looks at what was committed
            except (_hub.DownloadError, LeaseLostError):
                raise  # the listing has its own retries
            except (HfHubHTTPError, httpx.TransportError, RuntimeError) as error:
                failure = _root(error)
                response = getattr(failure, "response", None)
                status = getattr(response, "status_code", None)
                if status in (401, 403, 404):
                    raise InputError(
                        f"{self.where}: HF_TOKEN must be allowed to write there, got HTTP {status}. "
                        "Check the repository's name and the token's rights."
                    ) from None  # the cause holds request headers
                reason = f"HTTP {status}" if status else f"{type(failure).__name__}: {failure}"
                progress.message(f"{self.where}: {reason}, trying again")
            if tries + 1 < _hub.MAX_TRIES:
                time.sleep(_hub.retry_seconds(response, tries))
        raise UploadError(
            f"{self.where}: the hub must take the files, got {reason}. What it has is kept: run again."
        )

    def _make_room(self) -> None:
        """Make repository and branch where they aren't there."""
        from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

        config, api = self.config, self.api
        try:
            info = api.repo_info(config.repo)
        except RepositoryNotFoundError:
            api.create_repo(config.repo, private=config.private, exist_ok=True)
            info = api.repo_info(config.repo)
        if config.private and not info.private:
            raise InputError(
                f"{self.where}: the repository must be private, got a public one. Make it private, "
                "or set private to False."
            )
        try:
            api.repo_info(config.repo, revision=config.branch)
        except RevisionNotFoundError:
            api.create_branch(config.repo, branch=config.branch, exist_ok=True)

    def _push(self) -> str | None:
        """Return the branch's commit if it holds every file; else commit them and return None."""
        config = self.config
        head = self.api.repo_info(config.repo, revision=config.branch).sha
        source = _hub.Source(
            repo=config.repo,
            repo_type="model",
            revision=head,
            endpoint=self.api.endpoint,
            token=self.api.token,
        )
        remote = {file.name: file for file in _hub.list_remote_files(source)}
        changes = _hub_upload.find_changes(
            self.where, self.files, remote, self._written(head, remote), config.overwrite
        )
        self.kept = changes.kept
        self.certain = {name: f for name, f in self.files.items() if name not in changes.kept}
        manifest = _hub_upload.manifest_file(self.certain)
        there = remote.get(_hub_upload.MANIFEST)
        if not (changes.adds or changes.removes) and there and manifest.is_at(there.digest):
            return head
        total = sum(file.size for file in changes.adds.values())

        def uploaded(name: str, size: int) -> None:
            self.sent[name] = size
            progress.report(sum(self.sent.values()), total, "bytes", file=name)

        step = f"{len(changes.adds)} files added or changed, {len(changes.removes)} removed"
        _hub_upload.send(
            self.api, config.repo, config.branch, head, changes, manifest, f"Upload model: {step}",
            uploaded,
        )  # fmt: skip
        return None

    def _written(self, head: str, remote: dict[str, Any]) -> dict[str, Any]:
        """Return the files of the manifest that an earlier upload left there."""
        if _hub_upload.MANIFEST not in remote:
            return {}
        with storage.scratch_dir() as scratch:
            path = self.api.hf_hub_download(
                self.config.repo, _hub_upload.MANIFEST, revision=head, local_dir=scratch
            )
            return storage.read_json(path)["files"]


def _root(error: BaseException) -> BaseException:
    """Return the failure of the hub or the network behind an error of the client."""
    while error.__cause__ is not None and getattr(error, "response", None) is None:
        error = error.__cause__
    return error
