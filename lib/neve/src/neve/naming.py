"""Qualified names of functions and classes: how code is named on disk and found again."""

import importlib
import sys
import types
from typing import Any

from neve.errors import InputError


def qualified_name(value: Any, where: str) -> str:
    """Return "module:qualname" of a module-level function or class.

    Args:
        value: The function or class.
        where: Field path, for the error.

    Raises:
        InputError: It is a lambda, defined inside a function, or not found under its own name.
    """
    module = getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise InputError(
            f"{where}: must be a module-level function or class, got {_describe(value)}. "
            "Define it with def in a module."
        )
    if "<" in qualname:
        raise InputError(
            f"{where}: must be importable by name, got {qualname} of {module}. "
            "Define it at the top of a module."
        )
    name = _canonical_module(module, where)
    if _lookup(sys.modules.get(module), qualname) is not value:
        raise InputError(
            f"{where}: must be what its own name finds, got another object under "
            f"{module}.{qualname}. Give it a name of its own."
        )
    return f"{name}:{qualname}"


def _canonical_module(module: str, where: str) -> str:
    """Return the importable name of a module, also of the one that runs as __main__."""
    if module != "__main__":
        return module
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or not spec.name:
        raise InputError(
            f"{where}: must live in an importable module, got one that runs as a script. "
            "Start it as `python -m package.module`."
        )
    return spec.name


def _lookup(module: types.ModuleType | None, qualname: str) -> Any:
    value: Any = module
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


def find(name: str) -> Any:
    """Return the function or class that "module:qualname" names, importing its module."""
    module, _, qualname = name.partition(":")
    value = _lookup(importlib.import_module(module), qualname)
    if value is None:
        raise InputError(
            f"name {name!r}: must be found in its module, got nothing. "
            "Restore it, or plan again with the code that is here."
        )
    return value


def _describe(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__} object"
