"""Step: files of a hub repository at one commit to the output path, every byte verified."""

import dataclasses
import fnmatch
import os
import re
import threading
from typing import Any

from neve import progress, storage
from neve.errors import InputError

from steps import _hub, _hub_fetch

__all__ = ["DownloadHfConfig", "download_hf", "select_names"]

MANIFEST_NAME = ".neve-download.json"
_SHOWN = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class DownloadHfConfig:
    """Which files of which repository at which commit."""

    repo: str
    """Owner and name, such as "Qwen/Qwen3-0.6B"."""
    repo_type: str = "model"
    """"model" or "dataset"."""
    revision: str
    """Commit of the repository, 40 hex digits; a branch or tag can move and is refused."""
    allow: tuple[str, ...] = ("*",)
    """Patterns of the files to fetch; `*` also crosses "/"."""
    ignore: tuple[str, ...] = ()
    """Patterns of the files to leave out; they win over allow."""

    def __post_init__(self) -> None:
        if self.repo_type not in ("model", "dataset"):
            raise InputError(
                f"download of {self.repo}: repo_type must be 'model' or 'dataset', "
                f"got {self.repo_type!r}. Choose one."
            )
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.repo):
            raise InputError(
                f"download: repo must be owner/name, got {self.repo!r}. "
                "Copy it from the head of the repository's page."
            )
        if not re.fullmatch(r"[0-9a-f]{40}", str(self.revision or "")):
            kind = "datasets/" if self.repo_type == "dataset" else ""
            url = f"https://huggingface.co/{kind}{self.repo}"
            raise InputError(
                f"download of {self.repo}: revision must be a whole commit of 40 hex digits, "
                f"got {self.revision!r}. Pin a revision: `git ls-remote {url} main` prints it, "
                f"{url}/commits/main lists them."
            )
        for name in ("allow", "ignore"):
            patterns = getattr(self, name)
            if not isinstance(patterns, tuple) or not all(isinstance(p, str) for p in patterns):
                raise InputError(
                    f"download of {self.repo}: {name} must be a tuple of patterns, "
                    f'got {patterns!r}. Write ("*.parquet",).'
                )


def select_names(
    names: list[str], allow: tuple[str, ...], ignore: tuple[str, ...], what: str
) -> list[str]:
    """Return the names that a pattern of allow and none of ignore matches, in their order.

    Raises:
        InputError: Nothing matches, or all that matches is ignored; it names what there is.
    """
    allowed = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in allow)]
    kept = [n for n in allowed if not any(fnmatch.fnmatchcase(n, p) for p in ignore)]
    if kept:
        return kept
    if allowed:
        raise InputError(
            f"{what}: some file must be left, got all matches are ignored: "
            f"{_some(allowed)} by {_some(ignore)}. Loosen ignore."
        )
    folders = {p.split("*")[0].rsplit("/", 1)[0] for p in allow if "/" in p.split("*")[0]}
    near = [n for n in names if any(n.startswith(f"{folder}/") for folder in folders)]
    others = [n for n in names if n not in near]
    raise InputError(
        f"{what}: allow must match a file, got no file matches {_some(allow)}; "
        f"repository has {_some([*near, *others]) or 'no files'}. Change allow."
    )


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def download_hf(config: DownloadHfConfig, output_path: str) -> dict[str, Any]:
    """Make the output path hold exactly the chosen files, verified against the hub's listing.

    Safe to call again on its own earlier output: files that verify are kept, others repaired.
    With HF_HUB_OFFLINE=1 it verifies what is there and fetches nothing.

    Args:
        config: What to fetch.
        output_path: Local path or URL.

    Returns:
        repo, revision, num_files, num_bytes, and fetched_files of this call.

    Raises:
        InputError: The config doesn't fit the hub, or the output path holds something else.
        DownloadError: The hub doesn't deliver.
    """
    old = _read_manifest(config, output_path)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")
    source = None
    if offline:
        files = _offline_files(config, output_path, old)
    else:
        source = _hub.open_source(config.repo, config.repo_type, config.revision)
        listing = {file.name: file for file in _hub.list_remote_files(source)}
        names = select_names(list(listing), config.allow, config.ignore, str(source))
        for name in names:
            _hub.check_name(name)
        files = [listing[name] for name in names]
    faults = _find_faults(files, output_path)
    if offline and faults:
        listed = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        raise InputError(
            f"{output_path}: all files of {config.repo} must be there while HF_HUB_OFFLINE is "
            f"set, got {listed}. Run it once with access to the hub."
        )
    if source is not None:
        _remove_unwanted(old, files, output_path)
        storage.write_json(storage.join(output_path, MANIFEST_NAME), _manifest(config, files))
        _fetch_all(source, [f for f in files if f.name in faults], files, output_path)
    return {
        "repo": config.repo,
        "revision": config.revision,
        "num_files": len(files),
        "num_bytes": sum(file.size for file in files),
        "fetched_files": len(faults),
    }


def _manifest(config: DownloadHfConfig, files: list[_hub.RemoteFile]) -> dict[str, Any]:
    fields = dataclasses.asdict(config) | {"allow": [*config.allow], "ignore": [*config.ignore]}
    listed = {file.name: {"size": file.size, "digest": file.digest} for file in files}
    return {"format": 1, **fields, "files": listed}


def _read_manifest(config: DownloadHfConfig, output_path: str) -> dict[str, Any] | None:
    """Return the manifest of an earlier call; refuse a folder that holds anything else."""
    path = storage.join(output_path, MANIFEST_NAME)
    if not storage.exists(path):
        names = [f.name for f in storage.list_files(output_path) if not _is_own(f.name)]
        if names:
            raise InputError(
                f"{output_path}: a new download needs an empty folder, got {_some(names)}. "
                "Choose another folder or empty it."
            )
        return None
    old = storage.read_json(path)
    held = tuple(old.get(key) for key in ("repo_type", "repo", "revision"))
    if held != (config.repo_type, config.repo, config.revision):
        raise InputError(
            f"{output_path}: the folder must be empty or hold {config.repo}@{config.revision}, "
            f"got: target holds {held[1]}@{held[2]}. Choose another folder or empty it."
        )
    return old


def _is_own(name: str) -> bool:
    own = (".neve/", f"{_hub_fetch.PARTS_NAME}/")
    return name.startswith(own) or name == MANIFEST_NAME or name.endswith(".incomplete")


def _offline_files(
    config: DownloadHfConfig, output_path: str, old: dict[str, Any] | None
) -> list[_hub.RemoteFile]:
    fetched = (old["allow"], old["ignore"]) if old else "nothing"
    if old is None or fetched != ([*config.allow], [*config.ignore]):
        raise InputError(
            f"{output_path}: while HF_HUB_OFFLINE is set the folder must hold {config.repo} "
            f"fetched with allow={config.allow}, ignore={config.ignore}, got {fetched}. "
            "Run it once with access to the hub."
        )
    return [_hub.RemoteFile(name=name, **facts) for name, facts in old["files"].items()]


def _find_faults(files: list[_hub.RemoteFile], output_path: str) -> dict[str, str]:
    """Return what is wrong with each file that isn't there as the listing says."""
    sizes = {info.name: info.size for info in storage.list_files(output_path)}
    unlisted = sizes.keys() - {file.name for file in files}
    faults = {}
    for file in files:
        path = storage.join(output_path, file.name)
        if file.name not in sizes:
            has_part = any(part in unlisted for part in _hub_fetch.part_names(file.name))
            faults[file.name] = "missing" + (" (there is an .incomplete)" if has_part else "")
        elif sizes[file.name] != file.size:
            faults[file.name] = f"has size {sizes[file.name]}, expected {file.size}"
        else:
            with storage.open_file(path, "rb") as stream:
                if not _hub.has_digest(stream, file):
                    faults[file.name] = f"has another digest than {file.digest}"
    return faults


def _remove_unwanted(
    old: dict[str, Any] | None, files: list[_hub.RemoteFile], output_path: str
) -> None:
    """Remove what an earlier call with other patterns fetched and this one doesn't want."""
    wanted = {file.name for file in files}
    present = {info.name for info in storage.list_files(output_path)}
    for name in set(old["files"] if old else ()) - wanted:
        for path in ({name, *_hub_fetch.part_names(name)} & present) - wanted:
            storage.remove_tree(storage.join(output_path, path))


def _fetch_all(
    source: _hub.Source,
    faulty: list[_hub.RemoteFile],
    files: list[_hub.RemoteFile],
    output_path: str,
) -> None:
    """Fetch what is faulty and report progress over all files."""
    total = sum(file.size for file in files)
    done = total - sum(file.size for file in faulty)
    lock = threading.Lock()

    def received(num_bytes: int) -> None:
        nonlocal done
        with lock:
            done += num_bytes
            progress.report(done=done, total=total, unit="bytes")

    taken = frozenset(file.name for file in files)
    _hub_fetch.fetch_all(source, faulty, output_path, taken, received)
