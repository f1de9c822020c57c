"""Execution options: how a recipe runs, never what it computes."""

import argparse
import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, NoReturn

from neve import storage
from neve.errors import InputError, did_you_mean
from neve.plan import empty_prefix_error

_BACKENDS = ("auto", "local", "iris", "slurm")
_ACCELERATOR = re.compile(r"([1-9][0-9]*)x([A-Za-z][A-Za-z0-9_-]*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Execution options of one invocation."""

    accelerator: str | None = None
    """Devices for steps that take them, such as "32xH100" or "8xcpu"."""
    backend: str = "auto"
    """auto, local, iris or slurm."""
    dry_run: bool = False
    """Print the plan and write nothing."""
    prefix: str | None = None
    """Folder of all outputs; by default $MARIN_PREFIX."""
    only: tuple[str, ...] = ()
    """Names of the only steps to ask for."""
    force: tuple[str, ...] = ()
    """Names of steps to run again with all downstream, or "all"."""
    max_concurrent: int | None = None
    """Most steps at a time, 1 or more; by default the number of cores."""
    json: bool = False
    """Print the plan and the outcome as JSON."""

    def resolved_prefix(self) -> str:
        """Return the absolute prefix, from the option or $MARIN_PREFIX."""
        return resolve_prefix(self)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"arguments: {message}. See --help.")


def make_parser(description: str = "") -> argparse.ArgumentParser:
    """Return the parser of execution options."""
    parser = _Parser(description=description or None, allow_abbrev=False)
    add = parser.add_argument
    add("--accelerator", metavar="NxKIND", help="devices, such as 32xH100 or 8xcpu")
    add("--backend", choices=_BACKENDS, default="auto", help="where steps run")
    add("--dry_run", action="store_true", help="print the plan and write nothing")
    add("--prefix", metavar="PATH", help="folder of all outputs (default: $MARIN_PREFIX)")
    add("--only", action="append", default=[], metavar="NAME", help="ask for this step alone")
    add("--force", action="append", default=[], metavar="NAME",
        help="run this step and all downstream again; 'all' for every step")  # fmt: skip
    add("--max_concurrent", type=int, metavar="N", help="most steps at a time")
    add("--json", action="store_true", help="print JSON")
    return parser


def parse_options(argv: Sequence[str], description: str = "") -> tuple[Options, list[str]]:
    """Return the execution options of a command line and the words that are none.

    Raises:
        InputError: A value is wrong.
    """
    known, rest = make_parser(description).parse_known_args(list(argv))
    values: dict[str, Any] = vars(known)
    values |= {"only": tuple(known.only), "force": tuple(known.force)}
    options = Options(**values)
    if options.accelerator is not None and not _ACCELERATOR.fullmatch(options.accelerator):
        raise InputError(
            f"--accelerator: must be a count and a kind such as 8xH100, got "
            f"{options.accelerator!r}. Write it that way."
        )
    if options.max_concurrent is not None and options.max_concurrent < 1:
        raise InputError(
            f"--max_concurrent: must be at least 1, got {options.max_concurrent}. Raise it."
        )
    return options, rest


def refuse_unknown(rest: Sequence[str]) -> None:
    """Raise InputError for words that no option has taken."""
    if rest:
        flags = [word for action in make_parser()._actions for word in action.option_strings]
        hint = did_you_mean(rest[0].partition("=")[0], flags) or " See --help."
        raise InputError(f"argument {rest[0]}: must be a known option, got an unknown one.{hint}")


def resolve_prefix(options: Options) -> str:
    """Return the absolute prefix of a run.

    Raises:
        InputError: None is given.
    """
    prefix = options.prefix or os.environ.get("MARIN_PREFIX") or ""
    if not prefix.strip():
        raise empty_prefix_error()
    prefix = prefix if prefix == "/" else prefix.rstrip("/")
    return os.path.abspath(storage.local_path(prefix)) if storage.is_local(prefix) else prefix


def check_writable(prefix: str) -> None:
    """Make the prefix and prove that it can be written.

    Raises:
        InputError: It can't be.
    """
    if not storage.is_local(prefix):
        return
    probe = storage.join(prefix, ".neve", f"probe-{os.getpid()}{storage.TEMP_SUFFIX}")
    try:
        storage.write_bytes(probe, b"")
        storage.remove_tree(probe)
    except OSError as error:
        raise InputError(
            f"prefix {prefix}: must be writable, got {error.strerror or error}. "
            "Choose another MARIN_PREFIX or --prefix."
        ) from error


def check_backend(options: Options) -> None:
    """Refuse engines that are not here and accelerators that this machine lacks.

    Raises:
        InputError: The run can't be what was asked for.
    """
    if options.backend not in ("auto", "local"):
        raise InputError(
            f"--backend {options.backend}: must be local in this version, got an engine that "
            "comes with a later release. Use --backend local."
        )
    check_accelerator(options.accelerator, "--accelerator")


def check_accelerator(accelerator: str | None, what: str) -> None:
    """Raise InputError where this machine has fewer such devices than asked for."""
    match = _ACCELERATOR.fullmatch(accelerator or "")
    if match is None or match[2] == "cpu":
        return
    count, kind = int(match[1]), match[2]
    found = [name for name in _gpu_names() if kind.lower() in name.lower() or kind == "gpu"]
    if len(found) < count:
        raise InputError(
            f"{what} {accelerator}: must be here or on a cluster engine, got {len(found)} local "
            f"{kind}. Use --accelerator 8xcpu for a small recipe, or run it where they are."
        )


def _gpu_names() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]
