"""Digests of the code behind a step: recorded, compared and told, never part of identity."""

import ast
import hashlib
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

_modules: dict[str, tuple[tuple[int, int], ast.Module, str]] = {}


def module_file(module: str) -> str | None:
    """Return the source file of a module without running it, or None."""
    loaded = sys.modules.get(module)
    main = sys.modules.get("__main__")
    if loaded is None and getattr(getattr(main, "__spec__", None), "name", None) == module:
        loaded = main
    path = getattr(loaded, "__file__", None)
    if path is None and loaded is None:
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return None
        path = spec.origin if spec else None
    return path if path and path.endswith(".py") else None


def _parse(path: str) -> tuple[ast.Module, str] | None:
    try:
        info = os.stat(path)
        key = (info.st_mtime_ns, info.st_size)
        known = _modules.get(path)
        if known is None or known[0] != key:
            with open(path, "rb") as file:
                tree = ast.parse(file.read())
            _strip_docstrings(tree)
            known = (key, tree, _digest(tree))
            _modules[path] = known
    except (OSError, SyntaxError, ValueError):
        return None
    return known[1], known[2]


def _strip_docstrings(tree: ast.Module) -> None:
    kinds = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]


def _digest(node: ast.AST) -> str:
    return hashlib.sha256(ast.dump(node).encode()).hexdigest()


_found: dict[tuple[str, str], str | None] = {}


def code_digests(fn_name: str, known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the digests of "module:qualname"; comments and docstrings don't count.

    Args:
        fn_name: Qualified name of the step function.
        known: Digests from before, which hold as long as the file has the same bytes.

    Returns:
        {"file", "file_digest", "source_digest", "module_digest"}; the digests are None where
        there is no source to read.
    """
    module, _, qualname = fn_name.partition(":")
    path = module_file(module)
    file_digest = _file_digest(path)
    if known and known.get("file") == path and known.get("file_digest") == file_digest:
        return dict(known)
    parsed = _parse(path) if path else None
    facts = {"file": path, "file_digest": file_digest}
    if path is None or parsed is None:
        return facts | {"source_digest": None, "module_digest": None}
    tree, module_digest = parsed
    key = (module_digest, qualname)
    if key not in _found:
        _found[key] = _function_digest(tree, qualname)
    return facts | {"source_digest": _found[key], "module_digest": module_digest}


_bytes_digests: dict[tuple[str, int, int], str] = {}


def _file_digest(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        info = os.stat(path)
        key = (path, info.st_mtime_ns, info.st_size)
        if key not in _bytes_digests:
            with open(path, "rb") as file:
                _bytes_digests[key] = hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None
    return _bytes_digests[key]


def _function_digest(tree: ast.Module, qualname: str) -> str | None:
    node: Any = tree
    for part in qualname.split("."):
        matches = [n for n in getattr(node, "body", []) if getattr(n, "name", None) == part]
        if not matches:
            return None
        node = matches[-1]
    return _digest(node)


def commit_facts(folder: str) -> dict[str, Any]:
    """Return {"commit", "dirty"} of the git work tree around a folder; None where there is none."""
    try:
        out = subprocess.run(
            ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=no"],
            cwd=folder, capture_output=True, text=True, timeout=10, check=True,
        ).stdout.splitlines()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {"commit": None, "dirty": None}
    commit = next((line.split()[2] for line in out if line.startswith("# branch.oid")), None)
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in out)}
