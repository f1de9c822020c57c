"""Why a step is not the output that is there: the fields that differ, down to the changed leaf."""

import dataclasses
from typing import Any

from neve import storage
from neve.artifacts import Artifact, complete_of_name, read_artifact
from neve.changes import ABSENT, Change, compare_identity, shown_pair
from neve.identity import PATH_DIGITS

_MAX_DEPTH = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A step's identity, planned or on disk."""

    name: str
    """Step name."""
    fingerprint: str
    """64 hex digits."""
    encoded: dict[str, Any]
    """Identity tree."""

    @property
    def relative(self) -> str:
        """Output path below the prefix."""
        return f"{self.name}-{self.fingerprint[:PATH_DIGITS]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reason:
    """One difference; a dependency's difference holds the reasons behind it."""

    change: Change
    """The field and its values."""
    old_step: str = ""
    """For a dependency: its output before, relative to the prefix."""
    new_step: str = ""
    """For a dependency: its output now."""
    because: tuple["Reason", ...] = ()
    """For a dependency: what differs inside it."""
    seen_before: bool = False
    """True where the same pair of dependencies is explained further up."""


class Explainer:
    """Explains differences between steps; looks dependencies up by fingerprint."""

    def __init__(self, prefix: str, planned: dict[str, Subject] | None = None) -> None:
        """Args: planned are steps by fingerprint that may not be on disk yet."""
        self._prefix = prefix
        self._planned = planned or {}
        self._seen: set[tuple[str, str]] = set()

    def explain(
        self, old: Subject, new: Subject, old_deps: Any, new_deps: Any, depth: int = 0
    ) -> tuple[Reason, ...]:
        """Return what differs between two steps, every changed dependency followed to its leaf.

        Args:
            old: The step before.
            new: The step now.
            old_deps: "deps" of its document, {field: {"name", "fingerprint", "path"}}.
            new_deps: The same of the new one.
            depth: How deep the recursion is.
        """
        found = [*(old_deps or {}).values(), *(new_deps or {}).values()]
        names = {dep["fingerprint"]: dep for dep in found}
        reasons = []
        for change in compare_identity(old.encoded, new.encoded):
            if change.is_dependency and depth < _MAX_DEPTH:
                reasons.append(self._dependency(change, names, depth))
            else:
                reasons.append(Reason(change=change))
        return tuple(reasons)

    def _dependency(self, change: Change, names: dict[str, Any], depth: int) -> Reason:
        keys = [change.old["$step"]["fingerprint"], change.new["$step"]["fingerprint"]]
        (old, old_deps), (new, new_deps) = (self._find(key, names.get(key)) for key in keys)
        labels = [
            found.relative if found else _label(key, names.get(key))
            for key, found in zip(keys, (old, new), strict=True)
        ]
        pair = (keys[0], keys[1])
        seen = pair in self._seen
        self._seen.add(pair)
        because: tuple[Reason, ...] = ()
        if old is not None and new is not None and not seen:
            because = self.explain(old, new, old_deps, new_deps, depth + 1)
        return Reason(
            change=change, old_step=labels[0], new_step=labels[1], because=because,
            seen_before=seen,
        )  # fmt: skip

    def _find(self, fingerprint: str, dep: Any) -> tuple[Subject | None, Any]:
        if fingerprint in self._planned:
            return self._planned[fingerprint], {}
        if not dep:
            return None, {}
        home = storage.join(self._prefix, f"{dep['name']}-{fingerprint[:PATH_DIGITS]}")
        artifact = read_artifact(home, self._prefix)
        document = artifact.document() if artifact else {}
        if document.get("fingerprint") != fingerprint:
            return None, {}
        return subject_of(document), document.get("deps")


def _label(fingerprint: str, dep: Any) -> str:
    return f"{dep['name']}-{fingerprint[:PATH_DIGITS]}" if dep else fingerprint[:PATH_DIGITS]


def subject_of(document: dict[str, Any]) -> Subject:
    """Return the subject of a record.json or step.json."""
    return Subject(
        name=document["name"], fingerprint=document["fingerprint"], encoded=document["encoded"]
    )


def planned_subjects(rows: list[Any]) -> dict[str, Subject]:
    """Return the subjects of planned rows by fingerprint."""
    return {
        row.fingerprint: Subject(
            name=row.name, fingerprint=row.fingerprint, encoded=row.identity.encoded
        )
        for row in rows
    }


def planned_deps(row: Any, subjects: dict[str, Subject]) -> dict[str, Any]:
    """Return the "deps" of a planned row in the form of a document."""
    return {
        key: {"name": subjects[key].name, "fingerprint": key} for key in row.deps if key in subjects
    }


def newest_other(prefix: str, name: str, fingerprint: str) -> Artifact | None:
    """Return the newest complete output of a name with another fingerprint."""
    for artifact in complete_of_name(prefix, name):
        if artifact.state["fingerprint"] != fingerprint:
            return artifact
    return None


def reason_lines(reasons: tuple[Reason, ...], indent: int = 1) -> list[str]:
    """Return reasons as lines; what is inside a dependency is indented below it."""
    lines = []
    pad = "  " * indent
    for reason in reasons:
        if reason.old_step and reason.old_step == reason.new_step:
            continue
        if reason.old_step:
            lines.append(f"{pad}{reason.change.field}: {reason.old_step} -> {reason.new_step}")
            if reason.because:
                lines += reason_lines(reason.because, indent + 1)
            elif reason.seen_before:
                lines.append(f"{pad}  (explained above)")
            else:
                lines.append(f"{pad}  (the older output is no longer there to compare with)")
            continue
        old, new = shown_pair(reason.change.old, reason.change.new)
        if len(old) + len(new) > 70:
            lines += [f"{pad}{reason.change.field}:", f"{pad}  - {old}", f"{pad}  + {new}"]
        else:
            lines.append(f"{pad}{reason.change.field}: {old} -> {new}")
    return lines


def reason_json(reasons: tuple[Reason, ...]) -> list[dict[str, Any]]:
    """Return reasons for a script."""
    found = []
    for reason in reasons:
        row: dict[str, Any] = {"field": reason.change.field}
        if reason.old_step:
            row |= {"old": reason.old_step, "new": reason.new_step}
            row["because"] = reason_json(reason.because)
        else:
            for key in ("old", "new"):
                value = getattr(reason.change, key)
                row[key] = None if value is ABSENT else value
        found.append(row)
    return found
