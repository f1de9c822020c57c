"""Fingerprints: the identity of a step, the same in every process, hash seed, prefix and machine.

fingerprint = sha256 over the canonical JSON of (scheme, step name, qualified name of fn, version,
config); a dependency stands in the config as its own fingerprint and the part below its output.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from typing import Any

from neve.codec import Encoder, canonical
from neve.errors import InputError
from neve.naming import qualified_name
from neve.step import ExecutorStep

SCHEME = 1
PATH_DIGITS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """A step with its fingerprint."""

    step: ExecutorStep
    """The step as the recipe wrote it."""
    fingerprint: str
    """64 hex digits."""
    encoded: Any
    """The canonical identity tree, with fingerprints of dependencies."""
    fn_name: str
    """Qualified name of fn, "module:qualname"."""
    deps: tuple[tuple[str, ExecutorStep], ...]
    """Dependencies as (field path, step), in field order."""
    unhashed: dict[str, Any]
    """Encoded unhashed values by field path."""

    @property
    def relative_path(self) -> str:
        """Output path below the prefix."""
        return f"{self.step.name}-{self.fingerprint[:PATH_DIGITS]}"


def forbidden_prefixes(prefix: str | None) -> tuple[str, ...]:
    """Return every spelling of the prefix that a config value must not start with."""
    if not prefix:
        return ()
    clean = prefix.rstrip("/")
    if "://" in clean and not clean.startswith("file://"):
        return (clean,)
    plain = os.path.abspath(clean.removeprefix("file://"))
    spellings = {plain, os.path.realpath(plain), f"file://{plain}"}
    # "/" alone would forbid every absolute path.
    return tuple(sorted(s for s in spellings if s not in ("/", "file:///")))


class Graph:
    """The steps of a recipe with their identities, dependencies first, equal steps once."""

    def __init__(self, steps: Iterable[ExecutorStep], prefix: str | None = None) -> None:
        """Resolve identities bottom-up.

        Raises:
            InputError: A value has no identity, steps form a cycle, or two share an output path.
        """
        self.prefix = prefix
        self._forbidden = forbidden_prefixes(prefix)
        self._by_step: dict[ExecutorStep, Identity] = {}
        self._walked: dict[ExecutorStep, tuple[Encoder, Any]] = {}
        self.nodes: dict[str, Identity] = {}
        self._paths: dict[str, Identity] = {}
        self.targets: list[Identity] = []
        for step in steps:
            if not isinstance(step, ExecutorStep):
                raise InputError(
                    f"steps: must be ExecutorStep objects, got {type(step).__name__}. "
                    "Pass the list of steps."
                )
            self._resolve(step)
            target = self.of(step)
            if target not in self.targets:
                self.targets.append(target)

    def of(self, step: ExecutorStep) -> Identity:
        """Return the identity of a step of the graph; equal steps share one."""
        return self.nodes[self._by_step[step].fingerprint]

    def upstream(self, identity: Identity) -> list[Identity]:
        """Return the distinct steps that must succeed before one, order-only ones last."""
        found = {id(dep): dep for dep in (self.of(step) for _, step in identity.deps)}
        for step in identity.step.after:
            dep = self.of(step)
            found.setdefault(id(dep), dep)
        return list(found.values())

    def _resolve(self, root: ExecutorStep) -> None:
        """Depth-first without recursion: chains of thousands of steps are fine."""
        stack: list[tuple[ExecutorStep, list[ExecutorStep]]] = []
        on_path: dict[ExecutorStep, None] = {}
        if root not in self._by_step:
            stack.append((root, self._children(root)))
            on_path[root] = None
        while stack:
            step, todo = stack[-1]
            if not todo:
                stack.pop()
                del on_path[step]
                self._add(step)
                continue
            child = todo.pop()
            if child in on_path:
                names = [s.name for s in on_path]
                circle = " -> ".join([*names[names.index(child.name) :], child.name])
                raise InputError(f"steps: must not form a cycle, got {circle}. Break it.")
            if child not in self._by_step:
                stack.append((child, self._children(child)))
                on_path[child] = None

    def _children(self, step: ExecutorStep) -> list[ExecutorStep]:
        encoder = Encoder(identity=True, forbidden=self._forbidden)
        tree = encoder.encode(step.config, f"step {step.name!r}: config")
        self._walked[step] = (encoder, tree)
        return [*reversed(step.after), *(ref[1] for ref in reversed(encoder.refs))]

    def _add(self, step: ExecutorStep) -> None:
        encoder, tree = self._walked.pop(step)
        for _, dep, node in encoder.refs:
            node["fingerprint"] = self._by_step[dep].fingerprint
        fn_name = qualified_name(step.fn, f"step {step.name!r}: fn")
        encoded = step_payload(step, fn_name, tree)
        fingerprint = hashlib.sha256(canonical(encoded).encode()).hexdigest()
        deps = tuple((_field(where), dep) for where, dep, _ in encoder.refs)
        unhashed = {_field(where): value for where, value in encoder.unhashed.items()}
        identity = Identity(
            step=step, fingerprint=fingerprint, encoded=encoded, fn_name=fn_name, deps=deps,
            unhashed=unhashed,
        )  # fmt: skip
        self._by_step[step] = identity
        if fingerprint in self.nodes:
            return
        other = self._paths.setdefault(identity.relative_path, identity)
        if other is not identity:
            raise InputError(
                f"step {step.name!r}: must have an output path of its own, got "
                f"{identity.relative_path} twice. Rename one of the two steps."
            )
        self.nodes[fingerprint] = identity


def step_payload(step: ExecutorStep, fn_name: str, tree: Any) -> dict[str, Any]:
    """Return what is hashed; a step class may put its own payload in place of the usual one."""
    payload = getattr(step, "identity_payload", None)
    if payload is not None:
        return {"scheme": SCHEME, "name": step.name, **payload(fn_name, tree)}
    return {
        "scheme": SCHEME,
        "name": step.name,
        "fn": f"id:{step.fn_id}" if step.fn_id else fn_name,
        "version": step.version,
        "config": tree,
    }


def _field(where: str) -> str:
    """Return the field path without the words that name the step."""
    return where.partition(": ")[2]


def fingerprint_of(step: ExecutorStep, prefix: str | None = None) -> str:
    """Return the fingerprint of one step, 64 hex digits."""
    return Graph([step], prefix).of(step).fingerprint
