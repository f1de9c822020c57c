"""`neve ls`, `neve show` and `neve verify`: what outputs are there and what is in them."""

import json
import sys
from typing import Any

import click

from neve import display_text as say
from neve import manifest, storage
from neve.artifacts import Artifact, find_artifacts, required_prefix, resolve
from neve.cli import json_option, prefix_option, print_json, print_text
from neve.errors import InputError
from neve.records import read_error, read_manifest

_COLORS = {
    "SUCCEEDED": "green",
    "FAILED": "red",
    "STALLED": "red",
    "RUNNING": "yellow",
    "hit": "green",
}
_FEW_FILES = 20


def is_colored() -> bool:
    """Return True if standard output is a terminal."""
    return sys.stdout.isatty()


def state_cell(state: str) -> say.Cell:
    """Return a state in its color."""
    return say.Cell(text=state, color=_COLORS.get(state, ""))


@click.command("ls", short_help="List outputs: name, state, size, age, path.")
@click.argument("beginning", default="")
@prefix_option
@json_option
def ls_command(beginning: str, prefix: str | None, as_json: bool) -> None:
    """List the outputs under the prefix: name, state, size, age and path.

    BEGINNING keeps only those whose path below the prefix starts with it.
    """
    base = required_prefix(prefix)
    rows = [_listed(a) for a in find_artifacts(base) if a.relative.startswith(beginning)]
    if as_json:
        print_json(rows)
        return
    if not rows:
        print_text(f"No outputs under {base}." if not beginning else f"No outputs {beginning}*.")
        return
    cells = [
        [
            row["name"],
            state_cell(row["state"]),
            say.bytes_text(row["num_bytes"]) if row["num_bytes"] is not None else "-",
            say.age_text(row["changed_at"]),
            row["path"],
        ]
        for row in rows
    ]
    head = ["name", "state", "size", "age", "path"]
    print_text("\n".join(say.table(cells, head, is_colored())))


def _listed(artifact: Artifact) -> dict[str, Any]:
    record = artifact.record() or {}
    return {
        "name": record.get("name") or artifact.name,
        "state": artifact.state_text,
        "fingerprint": artifact.state["fingerprint"],
        "num_files": record.get("num_files"),
        "num_bytes": record.get("num_bytes"),
        "seconds": record.get("seconds"),
        "changed_at": artifact.changed_at,
        "attempt": artifact.state.get("attempt"),
        "path": artifact.path,
    }


@click.command("show", short_help="Show config, results and files of an output.")
@click.argument("output")
@prefix_option
@json_option
def show_command(output: str, prefix: str | None, as_json: bool) -> None:
    """Show the record of an OUTPUT: config, dependencies, results, code, times and files."""
    artifact = resolve(output, prefix)
    document = artifact.document()
    if as_json:
        print_json({"path": artifact.path, "state": artifact.state, "record": document})
        return
    color = is_colored()
    name = document.get("name") or artifact.name
    state = artifact.state_text
    lines = [
        f"{say.paint(name, 'bold', color)}  {say.paint(state, _COLORS.get(state, 'dim'), color)}"
    ]
    lines += _facts(artifact, document)
    lines += _section("config", _config(document), color)
    deps = {field: _dep_text(dep) for field, dep in (document.get("deps") or {}).items()}
    lines += _section("dependencies", deps, color)
    lines += _section("not part of identity", document.get("unhashed"), color)
    lines += _section("results", document.get("results"), color)
    lines += _section("libraries", document.get("libraries"), color)
    lines += _failure_lines(artifact, color)
    lines += _file_lines(artifact, color)
    print_text("\n".join(lines))


def _config(document: dict[str, Any]) -> Any:
    if "results" in document:
        return document.get("config")
    from neve.codec import readable  # step.json keeps the config in its tagged form

    return readable(document.get("config"))


def _facts(artifact: Artifact, document: dict[str, Any]) -> list[str]:
    code = document.get("code") or {}
    commit = (code.get("commit") or "")[:12]
    if commit and code.get("dirty"):
        commit += " with local changes"
    size = document.get("num_bytes")
    facts = {
        "path": document.get("adopted_path") or artifact.path,
        "fingerprint": artifact.state["fingerprint"],
        "function": f"{document.get('fn', '?')}, version {document.get('version', '1')}",
        "finished": say.age_text(artifact.changed_at) if artifact.is_complete else None,
        "took": say.seconds_text(document["seconds"]) if "seconds" in document else None,
        "attempt": f"{artifact.state.get('attempt')} on {artifact.state['owner'].get('host')}",
        "files": f"{document.get('num_files')}, {say.bytes_text(size)}" if size is not None else "",
        "commit": commit,
        "resources": _resources(document.get("resources") or {}),
    }
    return [f"  {key:<12} {value}" for key, value in facts.items() if value]


def _resources(resources: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in resources.items() if value is not None)


def _dep_text(dep: dict[str, Any]) -> str:
    return dep.get("path") or f"{dep['name']}-{dep['fingerprint'][:8]}"


def _section(title: str, value: Any, color: bool) -> list[str]:
    return ["", say.paint(title, "bold", color), *tree_lines(value, 1)] if value else []


def tree_lines(value: Any, indent: int = 0) -> list[str]:
    """Return a JSON value as indented lines, one for each leaf; short lists stay on one."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        lines = []
        for key, item in value.items():
            nested = isinstance(item, dict) and item
            nested = nested or (isinstance(item, list) and len(json.dumps(item)) > 90)
            if isinstance(item, str) and "\n" in item:
                lines += [f"{pad}{key}: |", *(f"{pad}  {line}" for line in item.splitlines())]
            elif nested:
                lines += [f"{pad}{key}:", *tree_lines(item, indent + 1)]
            else:
                lines.append(f"{pad}{key}: {leaf_text(item)}")
        return lines
    if isinstance(value, list) and value:
        lines = []
        for item in value:
            inner = tree_lines(item, indent + 1)
            lines += [f"{pad}- {inner[0].strip()}", *inner[1:]]
        return lines
    return [f"{pad}{leaf_text(value)}"]


def leaf_text(value: Any) -> str:
    """Return a leaf: texts bare, anything else as JSON."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _failure_lines(artifact: Artifact, color: bool) -> list[str]:
    if artifact.state["state"] != "FAILED":
        return []
    error = read_error(artifact.path, artifact.state.get("attempt", 1))
    if error is None:
        return ["", say.paint("failure", "bold", color), "  the worker died without a word"]
    return ["", say.paint("failure", "bold", color), f"  {error.get('why')}"]


def _file_lines(artifact: Artifact, color: bool) -> list[str]:
    try:
        rows = read_manifest(artifact.path)["files"]
    except (FileNotFoundError, NotADirectoryError):
        return []
    lines = ["", say.paint("files", "bold", color)]
    lines += [f"  {say.bytes_text(size):>10}  {name}" for name, size, _ in rows[:_FEW_FILES]]
    if len(rows) > _FEW_FILES:
        lines.append(f"  and {len(rows) - _FEW_FILES} more")
    return lines


@click.command("verify", short_help="Check an output's files against its manifest.")
@click.argument("output")
@prefix_option
@json_option
def verify_command(output: str, prefix: str | None, as_json: bool) -> int:
    """Check every file of an OUTPUT against the sizes and digests in its manifest.

    Exit code 1 where a file is missing, changed or not in the manifest.
    """
    artifact = resolve(output, prefix)
    if not artifact.is_complete:
        raise InputError(
            f"output {artifact.relative}: must be complete, got {artifact.state_text}. "
            "Run it first."
        )
    document = artifact.document()
    folder = document.get("adopted_path") or artifact.path
    problems, num_files = verify_files(folder, read_manifest(artifact.path)["files"])
    if as_json:
        rows = [{"file": name, "problem": text} for name, text in problems]
        print_json({"path": folder, "num_files": num_files, "problems": rows})
    else:
        for name, text in problems:
            print_text(f"{name or folder}: {text}")
        verdict = f"{len(problems)} problems" if problems else "all as recorded"
        print_text(f"{folder}: {num_files} files checked, {verdict}.")
    return 1 if problems else 0


def verify_files(folder: str, rows: list[list[Any]]) -> tuple[list[tuple[str, str]], int]:
    """Return what is wrong as (file, problem), and how many files the manifest names."""
    there = {info.name: info.size for info in storage.list_files(folder)}
    if len(rows) == 1 and rows[0][0] == "" and storage.exists(folder):
        there = {"": storage.size(folder)}
    problems = []
    for name, size, digest in rows:
        found = there.pop(name, None)
        if found is None:
            problems.append((name, "missing"))
        elif found != size:
            problems.append((name, f"{found:,} bytes instead of {size:,}"))
        elif manifest.file_digest(storage.join(folder, name)) != digest:
            problems.append((name, "content differs from its digest"))
    problems += [(name, "not in the manifest") for name in there]
    return problems, len(rows)
