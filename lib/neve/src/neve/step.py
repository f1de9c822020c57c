"""Steps: the nodes of an experiment, and references between them."""

import dataclasses
from collections.abc import Callable
from typing import Any

from neve.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """What a step needs to run; never part of its identity."""

    accelerator: str | None = None
    """Devices as `<count>x<kind>`, such as "8xH100" or "8xcpu" (virtual devices); None for none."""
    cpu: int = 1
    """Number of CPU cores, 1 or more."""
    memory: str | None = None
    """Memory such as "16GB", or None for no claim."""


@dataclasses.dataclass(frozen=True)
class OutputRef:
    """A path at or below the output of a step; becomes an absolute path when the step runs."""

    step: "ExecutorStep"
    """The step that writes the path."""
    part: str = ""
    """Relative path below its output, empty for the output itself."""

    def __truediv__(self, part: str) -> "OutputRef":
        return OutputRef(self.step, join_part(self.part, part))

    def __repr__(self) -> str:
        return f"{self.step.name} / {self.part!r}" if self.part else f"output of {self.step.name}"


@dataclasses.dataclass(frozen=True)
class ThisOutput:
    """A path below the output of the step whose config holds it."""

    part: str = ""
    """Relative path, empty for the output path itself."""

    def __truediv__(self, part: str) -> "ThisOutput":
        return ThisOutput(join_part(self.part, part))


@dataclasses.dataclass(frozen=True)
class Unhashed:
    """A value that the step sees and the record keeps, yet which is no part of identity."""

    value: Any
    """The value."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ExecutorStep:
    """A step function with its config; its output path follows from its fingerprint."""

    name: str
    """Name under the prefix, such as "tokenized/openthoughts"; part of identity."""
    fn: Callable[..., Any]
    """Module-level function `fn(config, output_path)` that writes the output."""
    config: Any = None
    """Frozen dataclass (or plain values); every field bears identity."""
    version: str = "1"
    """Bumped by the author when the meaning of the step changes."""
    resources: Resources = Resources()
    """What it needs to run."""
    outputs: tuple[str, ...] = ()
    """Relative paths or globs that must exist and be non-empty afterwards."""
    resumable: bool = False
    """True where a new attempt continues from the files of the last one."""
    fn_id: str | None = None
    """Stands for the qualified name of fn in identity, so that code can move."""
    after: tuple["ExecutorStep", ...] = ()
    """Steps that must succeed first; order only, never identity."""

    def __post_init__(self) -> None:
        parts = self.name.split("/") if isinstance(self.name, str) else [""]
        if any(p in ("", ".", "..") or p.strip() != p for p in parts) or "\\" in self.name:
            raise InputError(
                f"step name {self.name!r}: must be a relative path such as 'tokenized/chat', got "
                f"{self.name!r}. Rename the step."
            )
        if ":" in self.name or parts[0] == ".neve" or self.name != self.name.strip():
            raise InputError(
                f"step name {self.name!r}: must not hold ':' or start with '.neve'. Rename it."
            )
        if not isinstance(self.outputs, tuple) or not isinstance(self.after, tuple):
            raise InputError(
                f"step {self.name!r}: outputs and after must be tuples, got "
                f"{type(self.outputs).__name__} and {type(self.after).__name__}. Write (x,)."
            )

    def __truediv__(self, part: str) -> OutputRef:
        return OutputRef(self, join_part("", part))

    def __repr__(self) -> str:
        return f"ExecutorStep({self.name!r})"


def join_part(base: str, part: str) -> str:
    """Return base/part for a relative part that stays below base.

    Raises:
        InputError: The part is absolute or climbs up.
    """
    if not isinstance(part, str) or part.startswith("/") or ".." in part.split("/"):
        raise InputError(
            f"path below an output: must be relative without '..', got {part!r}. Name a part of it."
        )
    clean = "/".join(piece for piece in part.split("/") if piece not in ("", "."))
    return f"{base}/{clean}" if base and clean else base or clean


def this_output_path(part: str = "") -> Any:
    """Return a stand-in for a path below the step's own output path."""
    return ThisOutput(join_part("", part))


def output_path_of(step: ExecutorStep, part: str = "") -> Any:
    """Return a stand-in for a path below another step's output path."""
    return OutputRef(step, join_part("", part))


def unhashed(value: Any) -> Any:
    """Mark one config value as not part of identity; the step sees the plain value."""
    return Unhashed(value)
