"""`neve plan` and `neve run`: a recipe module as `python -m` would run it."""

import contextlib
import importlib.util
import io
import os
import runpy
import sys
from typing import Any

import click

from neve.display import observed_plans
from neve.errors import InputError

_PASS = {"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False}


@click.command("plan", context_settings=_PASS, short_help="Show what a recipe would run.")
@click.argument("module")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def plan_command(module: str, options: tuple[str, ...]) -> int:
    """Show what a recipe MODULE would run, and write nothing.

    OPTIONS are the recipe's own, such as --prefix, --only NAME or --spec.seq_len 8192.
    """
    return run_module(module, [*options, "--dry_run"])


@click.command("run", context_settings=_PASS, short_help="Run a recipe.")
@click.argument("module")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def run_command(module: str, options: tuple[str, ...]) -> int:
    """Run a recipe MODULE, such as experiments.sft.configs.snowball_tiny.

    OPTIONS are the recipe's own, such as --accelerator 8xcpu or --force NAME;
    `python -m MODULE --help` lists them.
    """
    return run_module(module, list(options))


def module_name(text: str) -> str:
    """Return the dotted name of a recipe given as a name or as a path of a file.

    Raises:
        InputError: There is no such module here.
    """
    name = text
    if text.endswith(".py"):
        name = os.path.relpath(text).removesuffix(".py").replace(os.sep, ".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise InputError(
            f"module {text!r}: must be importable from {os.getcwd()}, got no such module. "
            "Give its dotted name, and start in the folder that holds its package."
        )
    return name


def run_module(text: str, argv: list[str]) -> int:
    """Run a recipe in this process with the given options; return its exit code."""
    name = module_name(text)
    before = sys.argv
    sys.argv = [name, *argv]
    try:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    except SystemExit as stop:
        if isinstance(stop.code, str):
            raise InputError(stop.code) from stop
        return stop.code or 0
    finally:
        sys.argv = before
    return 0


def plan_of_module(text: str, argv: list[str]) -> Any:
    """Return the plan of a recipe, without running or showing anything.

    Raises:
        InputError: The recipe refuses its options, or plans nothing.
    """
    quiet = io.StringIO()
    with observed_plans() as plans, contextlib.redirect_stdout(quiet):
        code = run_module(text, [*argv, "--dry_run"])
    if code or not plans:
        raise InputError(
            f"module {text!r}: must plan its steps with --dry_run, got exit code {code}. "
            f"See what `neve plan {text}` says."
        )
    return plans[-1]
