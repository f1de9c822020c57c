"""Files under `<output path>/.neve/`: their places, formats and readers."""

import re
from typing import Any

from neve import storage
from neve.errors import FormatError, InputError

FORMAT = 1
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def strip_ansi(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return _ANSI.sub("", text)


def neve_path(output_path: str, *parts: str) -> str:
    """Return a path below the .neve/ folder of an output path."""
    return storage.join(output_path, ".neve", *parts)


def state_path(output_path: str) -> str:
    """Return the path of state.json, the one object of the protocol."""
    return neve_path(output_path, "state.json")


def attempt_path(output_path: str, attempt: int, *parts: str) -> str:
    """Return a path below the folder of one attempt; attempts count from 1."""
    return neve_path(output_path, "attempts", str(attempt), *parts)


def log_path(output_path: str, attempt: int) -> str:
    """Return the path of an attempt's log.txt."""
    return attempt_path(output_path, attempt, "log.txt")


def check_format(value: Any, path: str) -> dict[str, Any]:
    """Return a parsed document of .neve/ if this version can read it.

    Raises:
        FormatError: It is damaged, or written by a newer neve.
    """
    number = value.get("format") if isinstance(value, dict) else None
    if not isinstance(number, int):
        raise FormatError(f"{path}: must hold a format number, got none. Remove the damaged file.")
    if number > FORMAT:
        raise FormatError(f"{path}: this neve reads format {FORMAT}, got {number}. Update neve.")
    return value


def read_document(path: str) -> dict[str, Any]:
    """Return a checked document of .neve/; FileNotFoundError where there is none."""
    try:
        value = storage.read_json(path)
    except ValueError as error:
        raise FormatError(f"{path}: must be JSON, got {error}. Remove the damaged file.") from error
    return check_format(value, path)


def read_state(output_path: str) -> dict[str, Any] | None:
    """Return state.json of an output path, or None where there is none."""
    try:
        return read_document(state_path(output_path))
    except FileNotFoundError:
        return None


def read_record(output_path: str) -> dict[str, Any]:
    """Return record.json of a complete step; FileNotFoundError where there is none."""
    return read_document(neve_path(output_path, "record.json"))


def read_step(output_path: str) -> dict[str, Any]:
    """Return step.json: all that is needed to run the step again."""
    return read_document(neve_path(output_path, "step.json"))


def read_manifest(output_path: str) -> dict[str, Any]:
    """Return manifest.json: {"format", "digest", "files": [[name, bytes, sha256], ...]}."""
    return read_document(neve_path(output_path, "manifest.json"))


def read_error(output_path: str, attempt: int) -> dict[str, Any] | None:
    """Return error.json of an attempt, or None where it did not fail (or left no word)."""
    try:
        return read_document(attempt_path(output_path, attempt, "error.json"))
    except FileNotFoundError:
        return None


def read_results(path: str) -> dict[str, Any]:
    """Return what a dependency's step function returned.

    Args:
        path: The dependency's output path, or any path below it.

    Raises:
        InputError: No complete step is at or above the path.
    """
    current = path.rstrip("/")
    while current and not current.endswith(":/"):
        try:
            return read_record(current).get("results") or {}
        except (FileNotFoundError, NotADirectoryError):
            parent = current.rpartition("/")[0]
            if parent == current:
                break
            current = parent
    raise InputError(
        f"results of {path}: must be the output of a complete step, got no record. Run that step."
    )
