"""Finding outputs under a prefix, and the one that a user means."""

import dataclasses
import os
import re
from collections.abc import Iterator
from typing import Any

from neve import storage
from neve.errors import FormatError, InputError, did_you_mean
from neve.lease import RUNNING, SUCCEEDED, owner_is_dead
from neve.records import (
    attempt_path,
    neve_path,
    read_record,
    read_state,
    read_step,
    state_path,
)  # fmt: skip

_FEW = 10
_SUFFIX = re.compile(r"-[0-9a-f]{8}$")
_MAX_DEPTH = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Artifact:
    """One output path that has a state."""

    path: str
    """The output path."""
    relative: str
    """The path below the prefix, or the whole path where it is elsewhere."""
    state: dict[str, Any]
    """The parsed state.json."""

    @property
    def name(self) -> str:
        """The step's name."""
        return _SUFFIX.sub("", self.relative)

    @property
    def is_complete(self) -> bool:
        """True if the step succeeded."""
        return self.state["state"] == SUCCEEDED

    @property
    def state_text(self) -> str:
        """The state for people: STALLED where the owner of a running step is known to be dead."""
        if self.state["state"] == RUNNING and owner_is_dead(self.state["owner"]):
            return "STALLED"
        return self.state["state"]

    @property
    def changed_at(self) -> float | None:
        """When the state last changed, in seconds since 1970, where the store can tell."""
        return modified_at(state_path(self.path))

    def record(self) -> dict[str, Any] | None:
        """Return its record, or None where it is not complete."""
        return _or_none(read_record, self.path)

    def document(self) -> dict[str, Any]:
        """Return what describes the step: its record, else step.json, else nothing."""
        return self.record() or _or_none(read_step, self.path) or {}


def _or_none(read: Any, path: str) -> dict[str, Any] | None:
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def modified_at(path: str) -> float | None:
    """Return when a local file was last written, in seconds since 1970, or None."""
    if not storage.is_local(path):
        return None
    try:
        return os.stat(storage.local_path(path)).st_mtime
    except OSError:
        return None


def required_prefix(prefix: str | None) -> str:
    """Return the prefix from the option or MARIN_PREFIX.

    Raises:
        InputError: Neither is set.
    """
    chosen = prefix or os.environ.get("MARIN_PREFIX")
    if not chosen:
        raise InputError(
            "prefix: must be set, got none. Export MARIN_PREFIX=<folder or URL>, or pass --prefix."
        )
    return chosen.rstrip("/") or "/"


def read_artifact(path: str, prefix: str | None = None) -> Artifact | None:
    """Return the output whose path is exactly this one, or None."""
    path = path.rstrip("/")
    try:
        state = read_state(path)
    except NotADirectoryError:
        return None
    if state is None:
        return None
    cut = f"{prefix.rstrip('/')}/" if prefix else ""
    return Artifact(path=path, relative=path.removeprefix(cut), state=state)


def find_artifacts(prefix: str) -> Iterator[Artifact]:
    """Yield every output under a prefix in order of path; damaged ones are skipped."""
    yield from _walk(prefix, prefix, 0)


def _walk(folder: str, prefix: str, depth: int) -> Iterator[Artifact]:
    names = _names(folder)
    if depth and ".neve" in names:
        try:
            artifact = read_artifact(folder, prefix)
        except FormatError:
            artifact = None
        if artifact is not None:
            yield artifact
            return
    if depth < _MAX_DEPTH:
        for name in names:
            if not name.startswith("."):
                yield from _walk(storage.join(folder, name), prefix, depth + 1)


def _names(folder: str) -> list[str]:
    try:
        return storage.list_names(folder)
    except (NotADirectoryError, PermissionError):
        return []


def resolve(text: str, prefix: str | None) -> Artifact:
    """Return the output that a user means.

    Args:
        text: A whole path, one below the prefix, a path inside an output, or the unique
            beginning of a name.
        prefix: Where to look; None takes MARIN_PREFIX, which may be unset for whole paths.

    Raises:
        InputError: Nothing matches, or several do; candidates are named.
    """
    base = prefix or os.environ.get("MARIN_PREFIX")
    base = base.rstrip("/") if base else None
    whole = text if "://" in text else os.path.abspath(text)
    for path, limit in ((whole, 1), (storage.join(base, text) if base else "", len(base or ""))):
        found = _at_or_above(path, base, limit)
        if found is not None:
            return found
    base = required_prefix(base)
    artifacts = list(find_artifacts(base))
    exact = [a for a in artifacts if a.name == text]
    matches = exact or [a for a in artifacts if a.relative.startswith(text)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        lines = "".join(f"\n  {a.relative}  {a.state_text}" for a in matches[:_FEW])
        more = f"\n  and {len(matches) - _FEW} more" if len(matches) > _FEW else ""
        raise InputError(
            f"output {text!r}: must name one output, got {len(matches)}. Use one of:{lines}{more}"
        )
    known = sorted({name for a in artifacts for name in (a.name, a.relative)})
    hint = did_you_mean(text, known) or " `neve ls` lists what is there."
    raise InputError(f"output {text!r}: must be an output under {base}, got no match.{hint}")


def _at_or_above(path: str, prefix: str | None, limit: int) -> Artifact | None:
    while len(path) > limit and not path.endswith(":/"):
        found = read_artifact(path, prefix)
        if found is not None:
            return found
        path = path.rstrip("/").rpartition("/")[0]
    return None


def complete_of_name(prefix: str, name: str, other_than: str | None = None) -> list[Artifact]:
    """Return the complete outputs of a step name, newest first."""
    folder, _, last = name.rpartition("/")
    base = storage.join(prefix, folder)
    found = []
    for entry in _names(base):
        if _SUFFIX.sub("", entry) != last or entry == last:
            continue
        artifact = read_artifact(storage.join(base, entry), prefix)
        if artifact and artifact.is_complete and artifact.path != other_than:
            found.append(artifact)
    return sorted(found, key=lambda a: a.changed_at or 0.0, reverse=True)


def last_progress_at(artifact: Artifact) -> float | None:
    """Return when the present attempt last wrote anything to its log or events."""
    attempt = artifact.state.get("attempt", 1)
    folder = attempt_path(artifact.path, attempt)
    times = [modified_at(storage.join(folder, name)) for name in _names(folder)]
    return max((t for t in times if t), default=modified_at(neve_path(artifact.path)))
