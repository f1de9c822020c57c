"""`neve why` and `neve diff`: what makes one output differ from another."""

from typing import Any

import click

from neve import display_text as say
from neve import why
from neve.artifacts import Artifact, complete_of_name, required_prefix, resolve
from neve.changes import Change, compare_identity, shown_pair, shown_plain
from neve.cli import json_option, prefix_option, print_json, print_text
from neve.errors import InputError, did_you_mean


@click.command(
    "why",
    context_settings={"ignore_unknown_options": True},
    short_help="Tell why a step is not a hit, field by field.",
)
@click.argument("step")
@click.argument("module", required=False)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@prefix_option
@json_option
def why_command(
    step: str, module: str | None, options: tuple[str, ...], prefix: str | None, as_json: bool
) -> None:
    """Tell field by field why a STEP is not the complete output that is already there.

    With a MODULE, STEP is a name in that recipe, and what the recipe would run is compared with the
    newest complete output of that name. Without one, STEP is an output (or a name, for its newest
    output), and it is compared with the newest other one. OPTIONS are the recipe's own.
    """
    if module is not None:
        _why_planned(step, module, options, prefix, as_json)
        return
    artifact = _newest(step, prefix)
    document = artifact.document()
    subject = why.subject_of(document)
    base = _prefix_of(artifact, subject, prefix)
    other = why.newest_other(base, subject.name, subject.fingerprint)
    if other is None:
        _tell_alone(subject, artifact.state_text, as_json)
        return
    old = other.document()
    reasons = why.Explainer(base).explain(
        why.subject_of(old), subject, old.get("deps"), document.get("deps")
    )
    _tell(subject, other, reasons, as_json)


def _newest(text: str, prefix: str | None) -> Artifact:
    """Return the output a user means; a name stands for its newest complete output."""
    try:
        return resolve(text, prefix)
    except InputError:
        outputs = complete_of_name(required_prefix(prefix), text)
        if not outputs:
            raise
        return outputs[0]


def _prefix_of(artifact: Artifact, subject: why.Subject, prefix: str | None) -> str:
    if artifact.path.endswith(f"/{subject.relative}"):
        return artifact.path.removesuffix(f"/{subject.relative}")
    return required_prefix(prefix)


def _why_planned(
    step: str, module: str, options: tuple[str, ...], prefix: str | None, as_json: bool
) -> None:
    from neve.cli_recipes import plan_of_module  # imports the engine, which outputs don't need

    plan = plan_of_module(module, [*options, *(("--prefix", prefix) if prefix else ())])
    rows = [row for row in plan.rows if row.name == step or row.output_path == step]
    if not rows:
        known = [row.name for row in plan.rows]
        hint = did_you_mean(step, known) or f" Its steps are {', '.join(known)}."
        raise InputError(f"step {step!r}: must be a step of {module}, got an unknown name.{hint}")
    row = rows[0]
    subjects = why.planned_subjects(plan.rows)
    subject = subjects[row.fingerprint]
    other = why.newest_other(plan.prefix, row.name, row.fingerprint)
    if row.action == "hit":
        print_text(f"{subject.relative} is a hit: {row.why}.") if not as_json else print_json(
            {"output": subject.relative, "action": "hit", "why": row.why, "differences": []}
        )
        return
    if other is None:
        _tell_alone(subject, row.why, as_json)
        return
    old = other.document()
    reasons = why.Explainer(plan.prefix, subjects).explain(
        why.subject_of(old), subject, old.get("deps"), why.planned_deps(row, subjects)
    )
    _tell(subject, other, reasons, as_json, row.why)


def _tell_alone(subject: why.Subject, state: str, as_json: bool) -> None:
    if as_json:
        print_json({"output": subject.relative, "state": state, "other": None, "differences": []})
        return
    print_text(
        f"{subject.relative} ({state}): no other complete output of {subject.name} to compare with."
    )


def _tell(
    subject: why.Subject, other: Artifact, reasons: Any, as_json: bool, note: str = ""
) -> None:
    if as_json:
        rows = why.reason_json(reasons)
        print_json({"output": subject.relative, "other": other.relative, "differences": rows})
        return
    age = say.age_text(other.changed_at)
    about = f" ({note})" if note else ""
    older = f"{subject.name}-{other.state['fingerprint'][:8]}"
    print_text(f"{subject.relative}{about} differs from {older} (complete, {age}):")
    print_text("\n".join(why.reason_lines(reasons)) or "  nothing")


@click.command("diff", short_help="Compare the records of two outputs.")
@click.argument("a")
@click.argument("b")
@prefix_option
@json_option
def diff_command(a: str, b: str, prefix: str | None, as_json: bool) -> None:
    """Compare the records of two outputs A and B: config, dependencies, code and libraries."""
    first, second = resolve(a, prefix), resolve(b, prefix)
    old, new = first.document(), second.document()
    changes = compare_identity(old.get("encoded") or {}, new.get("encoded") or {})
    named = _dep_names(old) | _dep_names(new)
    parts: dict[str, dict[str, tuple[str, str]]] = {
        "identity": {c.field: _named_pair(c, named) for c in changes if not c.is_dependency},
        "dependencies": {c.field: _named_pair(c, named) for c in changes if c.is_dependency},
    }
    for part in ("unhashed", "resources", "code", "libraries", "results"):
        parts[part] = _plain_changes(old.get(part) or {}, new.get(part) or {})
    if as_json:
        print_json({"a": first.path, "b": second.path, **parts})
        return
    print_text(f"--- {first.path}\n+++ {second.path}")
    for part, rows in parts.items():
        if rows:
            lines = [_pair_text(field, *pair) for field, pair in rows.items()]
            print_text("\n".join([part, *lines]))
    same = [part for part, rows in parts.items() if not rows]
    if same:
        print_text(f"same: {', '.join(same)}")


def _dep_names(document: dict[str, Any]) -> dict[str, str]:
    deps = (document.get("deps") or {}).values()
    return {dep["fingerprint"]: f"{dep['name']}-{dep['fingerprint'][:8]}" for dep in deps}


def _named_pair(change: Change, named: dict[str, str]) -> tuple[str, str]:
    if not change.is_dependency:
        return shown_pair(change.old, change.new)
    keys: list[str] = [tree["$step"]["fingerprint"] for tree in (change.old, change.new)]
    old, new = (named.get(key, key[:8]) for key in keys)
    return old, new


def _plain_changes(old: Any, new: Any, field: str = "") -> dict[str, tuple[str, str]]:
    """Return the leaves of two JSON objects that differ, as texts by dotted field."""
    found: dict[str, tuple[str, str]] = {}
    for key in [*old, *(key for key in new if key not in old)]:
        where = f"{field}.{key}" if field else key
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            found |= _plain_changes(before, now, where)
        elif before != now:
            found[where] = (shown_plain(before), shown_plain(now))
    return found


def _pair_text(field: str, old: str, new: str) -> str:
    if len(old) + len(new) > 70:
        return f"  {field}:\n    - {old}\n    + {new}"
    return f"  {field}: {old} -> {new}"
