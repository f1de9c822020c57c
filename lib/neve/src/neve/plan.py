"""Plans: what a run would do, found by reading one small state per step and writing nothing."""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from neve import storage
from neve.code import code_digests
from neve.errors import InputError, did_you_mean
from neve.identity import Graph, Identity
from neve.lease import FAILED, RUNNING, SUCCEEDED, StateView, check_fingerprint, read_view
from neve.step import ExecutorStep

STRICT_VARIABLE = "NEVE_STRICT_CODE"


@dataclasses.dataclass(kw_only=True)
class PlannedStep:
    """One row of a plan."""

    step: ExecutorStep
    """The step."""
    name: str
    """Its name."""
    fingerprint: str
    """64 hex digits."""
    output_path: str
    """Absolute path or URL of its output."""
    action: str
    """hit, run, resume, wait or "not needed"."""
    why: str
    """The reason in a few words."""
    deps: tuple[str, ...]
    """Fingerprints of the steps it waits for."""
    identity: Identity = dataclasses.field(repr=False)
    """The resolved identity."""
    replace_version: str | None = None
    """Version of a complete state that --force replaces."""
    code: dict[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """Digests of the code, taken while planning."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps of a recipe, dependencies first."""

    prefix: str
    """Where outputs live."""
    rows: list[PlannedStep]
    """One row per distinct step."""
    graph: Graph = dataclasses.field(repr=False)
    """Identities and edges."""

    def row(self, fingerprint: str) -> PlannedStep:
        """Return the row of a fingerprint."""
        return next(row for row in self.rows if row.fingerprint == fingerprint)


def output_path(identity: Identity, prefix: str) -> str:
    """Return where a step's output lives; an adopted one lives where it was found."""
    foreign = getattr(identity.step, "path", None)
    return foreign if foreign is not None else storage.join(prefix, identity.relative_path)


def state_home(identity: Identity, prefix: str) -> str:
    """Return the path whose .neve/ holds a step's state; always under the prefix."""
    return storage.join(prefix, identity.relative_path)


def make_plan(
    steps: Iterable[ExecutorStep],
    prefix: str,
    force: Iterable[str] = (),
    only: Iterable[str] = (),
) -> Plan:
    """Plan the steps under a prefix; reads states, writes nothing.

    Args:
        steps: Steps that are asked for; what they depend on follows.
        prefix: Folder or URL of all outputs.
        force: Step names to run again with all downstream of them, or "all".
        only: Step names to keep as the only ones asked for.

    Raises:
        InputError: A config has no identity, or a name is unknown.
    """
    if not storage.is_local(prefix) and "://" in prefix:
        raise InputError(
            f"prefix: must be a local or shared file system in this version, got {prefix!r}. "
            "Choose a local prefix."
        )
    graph = Graph(steps, prefix)
    _check_names("--force", force, graph, extra=("all",))
    _check_names("--only", only, graph)
    targets = graph.targets
    if wanted := set(only):
        targets = [node for node in graph.nodes.values() if node.step.name in wanted]
    reachable = _reachable(graph, targets)
    forced = _forced(graph, reachable, set(force))
    rows = {
        key: PlannedStep(
            step=node.step,
            name=node.step.name,
            fingerprint=key,
            output_path=output_path(node, prefix),
            action="not needed",
            why="nothing that runs needs it",
            deps=tuple(dep.fingerprint for dep in graph.upstream(node)),
            identity=node,
        )
        for key, node in graph.nodes.items()
        if key in reachable
    }
    _decide(graph, rows, targets, forced, prefix)
    return Plan(prefix=prefix, rows=list(rows.values()), graph=graph)


def _check_names(
    flag: str, names: Iterable[str], graph: Graph, extra: tuple[str, ...] = ()
) -> None:
    known = [node.step.name for node in graph.nodes.values()]
    for name in names:
        if name not in known and name not in extra:
            raise InputError(
                f"{flag} {name}: must name a step of this recipe, got an unknown name."
                f"{did_you_mean(name, known) or ' See --dry_run for the names.'}"
            )


def _reachable(graph: Graph, targets: list[Identity]) -> set[str]:
    found: set[str] = set()
    todo = list(targets)
    while todo:
        node = todo.pop()
        if node.fingerprint not in found:
            found.add(node.fingerprint)
            todo.extend(graph.upstream(node))
    return found


def _forced(graph: Graph, reachable: set[str], force: set[str]) -> dict[str, str]:
    """Return why each forced step must run: asked for, or downstream of one that is."""
    forced: dict[str, str] = {}
    if not force:
        return forced
    for key, node in graph.nodes.items():  # dependencies come first
        if key not in reachable:
            continue
        if "all" in force or node.step.name in force:
            forced[key] = "forced"
            continue
        cause = next((d for d in graph.upstream(node) if d.fingerprint in forced), None)
        if cause is not None:
            forced[key] = f"{cause.step.name} runs again"
    return forced


def _decide(
    graph: Graph,
    rows: dict[str, PlannedStep],
    targets: list[Identity],
    forced: dict[str, str],
    prefix: str,
) -> None:
    todo = list(targets) + [graph.nodes[key] for key in forced]
    decided: set[str] = set()
    while todo:
        node = todo.pop()
        if node.fingerprint in decided:
            continue
        decided.add(node.fingerprint)
        row = rows[node.fingerprint]
        view = read_view(state_home(node, prefix))
        row.action, row.why = _action(row, view, forced.get(node.fingerprint), prefix)
        if view is not None and view.state["state"] == SUCCEEDED and row.action == "run":
            row.replace_version = view.version
        if row.action != "hit":
            row.code = code_digests(node.fn_name)
            todo.extend(graph.upstream(node))


def _action(
    row: PlannedStep, view: StateView | None, forced: str | None, prefix: str
) -> tuple[str, str]:
    if view is None:
        return "run", forced or "never ran"
    check_fingerprint(view.state, row.fingerprint, state_home(row.identity, prefix))
    status = view.state["state"]
    again = "resume" if row.step.resumable else "run"
    if status == RUNNING and not view.is_stale:
        owner = view.state["owner"]
        return "wait", f"runs on {owner['host']} as process {owner['pid']}"
    if forced and status == SUCCEEDED:
        return "run", forced
    if status == SUCCEEDED:
        return "hit", _drift(row, view)
    if status == FAILED:
        ended = view.state.get("ended")
        how = f"was {ended}" if ended in ("preempted", "interrupted") else "failed"
        return again, f"attempt {view.state['attempt']} {how}"
    return again, f"attempt {view.state['attempt']} was killed"


def _drift(row: PlannedStep, view: StateView) -> str:
    """Return "complete", or what changed in the code since the step ran."""
    before = view.state.get("code") or {}
    now = code_digests(row.identity.fn_name)
    row.code = now
    if before.get("module_digest") in (None, now["module_digest"]) or now["module_digest"] is None:
        return "complete"
    same_fn = before.get("source_digest") == now["source_digest"]
    what = "the rest of its module" if same_fn else row.identity.fn_name.partition(":")[2]
    where = os.path.relpath(now["file"]) if now["file"] else row.identity.fn_name
    if os.environ.get(STRICT_VARIABLE) == "1":
        raise InputError(
            f"step {row.name!r}: its code must be what made its output ({STRICT_VARIABLE}=1), got "
            f"changes in {where} ({what}). Bump its version or use --force {row.name}."
        )
    return f"complete; code changed since ({where}, {what})"


def empty_prefix_error() -> InputError:
    """Return the error for a run without a prefix."""
    return InputError(
        "MARIN_PREFIX: must name the folder of all outputs, got nothing. "
        "Set it, or pass --prefix /path/to/outputs."
    )
