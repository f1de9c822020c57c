"""
LLaMA-Factory's registry of data sets, dataset_info.json, read as it is.

Its rules: the formatting is alpaca unless stated; a columns block leaves every column that it
doesn't list out, a tags block every tag; hf_hub_url comes before the other sources, file_name last.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema

__all__ = ["RegistryEntry", "read_dataset_info"]

_FILE_NAME = "dataset_info.json"
_FORMATTINGS = ("alpaca", "sharegpt", "openai")
_OTHER_SOURCES = ("ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_MEDIA = ("images", "videos", "audios", "kto_tag")
_USUAL_COLUMNS = {
    "prompt": "instruction",
    "query": "input",
    "response": "output",
    "messages": "conversations",
}
_USUAL_TAGS = {
    "role_tag": "from",
    "content_tag": "value",
    "user_tag": "human",
    "assistant_tag": "gpt",
    "observation_tag": "observation",
    "function_tag": "function_call",
    "system_tag": "system",
}
_COLUMNS = (*_USUAL_COLUMNS, "history", "system", "tools", "chosen", "rejected", *_MEDIA)
_FIELDS = (
    "hf_hub_url",
    *_OTHER_SOURCES,
    "file_name",
    "formatting",
    "ranking",
    "subset",
    "split",
    "folder",
    "num_samples",
    "columns",
    "tags",
)
_MAX_NAMES = 20


@dataclass(frozen=True, kw_only=True)
class RegistryEntry:
    """
    One data set of a registry. It comes from either repo or path.
    """

    name: str
    """Its key in the registry."""
    schema: ConversationSchema
    """The layout of its rows; the chosen side for preference data."""
    repo: str = ""
    """Data set repository on the Hugging Face hub, or empty."""
    path: str = ""
    """File, or folder whose files are all read, or empty; relative names are below the registry."""
    subset: str = ""
    """Configuration of the repository; empty: its default."""
    split: str = "train"
    """Split to read."""
    folder: str = ""
    """Folder inside the repository; empty: all of it."""
    num_samples: int | None = None
    """Number of rows to draw, or None for all."""
    ignored: tuple[str, ...] = ()
    """Fields of the entry that LLaMA-Factory doesn't know either."""


def read_dataset_info(path: str, name: str) -> RegistryEntry:
    """
    One entry of a registry.

    Args:
        path: dataset_info.json or its folder, local or remote.
        name: key of the entry.

    Raises:
        ChatInputError: no registry there, no such entry (near names are listed), or an entry that
            can't be read as conversations.
    """
    registry, file = _read_registry(path)
    entry = registry.get(name)
    if not isinstance(entry, Mapping):
        raise ChatInputError(
            f"data set registry {file}: must have an entry {name!r}, got {_names(registry, name)}. "
            "Pass one of its names."
        )
    what = f"data set {name!r} in {file}"
    repo, data_path = _source(entry, file.rsplit("/", 1)[0] if "/" in file else "", what)
    return RegistryEntry(
        name=name,
        schema=_schema(entry, what),
        repo=repo,
        path=data_path,
        subset=entry.get("subset") or "",
        split=entry.get("split") or "train",
        folder=entry.get("folder") or "",
        num_samples=_num_samples(entry.get("num_samples"), what),
        ignored=tuple(key for key in entry if key not in _FIELDS),
    )


def _read_registry(path: str) -> tuple[Mapping[str, Any], str]:
    file = path if path.endswith(".json") else storage.join(path, _FILE_NAME)
    if not storage.exists(file):
        raise ChatInputError(
            f"data set registry {file}: must exist, got nothing there. Correct the path."
        )
    try:
        registry = json.loads(storage.read_bytes(file))
    except ValueError as error:
        raise ChatInputError(
            f"data set registry {file}: must be JSON, got {error}. Correct the file."
        ) from error
    if not isinstance(registry, Mapping):
        raise ChatInputError(
            f"data set registry {file}: must be an object of entries, got a "
            f"{type(registry).__name__}. Pass a {_FILE_NAME}."
        )
    return registry, file


def _names(registry: Mapping[str, Any], name: str) -> str:
    if name in registry:
        return f"a {type(registry[name]).__name__} under that name"
    names = [key for key, entry in registry.items() if isinstance(entry, Mapping)]
    near = difflib.get_close_matches(name, names)
    if near:
        return f"none, but {', '.join(near)}"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES]) or 'no entries'}{more}"


def _source(entry: Mapping[str, Any], folder: str, what: str) -> tuple[str, str]:
    if entry.get("hf_hub_url"):
        return str(entry["hf_hub_url"]), ""
    for key in _OTHER_SOURCES:
        if entry.get(key):
            raise ChatInputError(
                f"{what}: must come from hf_hub_url or file_name, got {key} {entry[key]!r}. "
                "Download it and name the files as file_name."
            )
    file_name = entry.get("file_name")
    if not isinstance(file_name, str) or not file_name:
        raise ChatInputError(
            f"{what}: must name its source as hf_hub_url or file_name, got "
            f"{', '.join(entry) or 'an empty entry'}. Add one."
        )
    is_absolute = file_name.startswith("/") or "://" in file_name
    return "", file_name if is_absolute else storage.join(folder or ".", file_name)


def _num_samples(value: Any, what: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ChatInputError(
            f"{what}: num_samples must be a whole number of at least 1, got {value!r}. Correct it."
        )
    return value


def _schema(entry: Mapping[str, Any], what: str) -> ConversationSchema:
    formatting = entry.get("formatting", "alpaca")
    if formatting not in _FORMATTINGS:
        raise ChatInputError(
            f"{what}: formatting must be one of {', '.join(_FORMATTINGS)}, got {formatting!r}. "
            "Correct it."
        )
    columns = _block(entry, "columns", _USUAL_COLUMNS, _COLUMNS, what)
    for key in _MEDIA:
        if columns.get(key):
            raise ChatInputError(
                f"{what}: must be text conversations, got the column {key} ({columns[key]!r}). "
                "Choose another data set."
            )
    is_ranking = bool(entry.get("ranking"))
    answer = "chosen" if is_ranking else "response"
    tags = _block(entry, "tags", _USUAL_TAGS, tuple(_USUAL_TAGS), what)
    common: dict[str, Any] = {
        "system_column": columns.get("system", ""),
        "tools_column": columns.get("tools", ""),
    }
    if formatting == "alpaca":
        _require(columns, ("prompt", answer), "columns", what)
        return ConversationSchema(
            kind="preference" if is_ranking else "instruction",
            instruction_column=columns["prompt"],
            context_column=columns.get("query", ""),
            context_separator="\n",
            response_column=columns[answer],
            history_column=columns.get("history", ""),
            **common,
        )
    _require(columns, ("messages", "chosen") if is_ranking else ("messages",), "columns", what)
    _require(tags, ("role_tag", "content_tag", "user_tag", "assistant_tag"), "tags", what)
    common |= {
        "role_key": tags["role_tag"],
        "content_key": tags["content_tag"],
        "user": (tags["user_tag"],),
        "assistant": (tags["assistant_tag"],),
        "system": _values(tags, "system_tag"),
        "tool": _values(tags, "observation_tag"),
        "function_call": _values(tags, "function_tag"),
    }
    if is_ranking:
        return ConversationSchema(
            kind="preference",
            instruction_column=columns["messages"],
            response_column=columns["chosen"],
            **common,
        )
    return ConversationSchema(
        kind="sharegpt" if formatting == "sharegpt" else "messages",
        conversation_column=columns["messages"],
        **common,
    )


def _block(
    entry: Mapping[str, Any],
    name: str,
    usual: Mapping[str, str],
    known: tuple[str, ...],
    what: str,
) -> dict[str, str]:
    block = entry.get(name, usual)
    if not isinstance(block, Mapping):
        raise ChatInputError(
            f"{what}: {name} must be an object, got {block!r}. Write names as key and value."
        )
    for key in block:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else "Remove it."
            raise ChatInputError(
                f"{what}: {name} must hold only {', '.join(known)}, got {key!r}. {hint}"
            )
    return {key: str(value) for key, value in block.items() if value}


def _require(block: Mapping[str, str], keys: tuple[str, ...], name: str, what: str) -> None:
    missing = [key for key in keys if key not in block]
    if missing:
        raise ChatInputError(
            f"{what}: {name} must list {', '.join(missing)}, because what a {name} block leaves "
            f"out is null, got {', '.join(block) or 'none'}. Add {', '.join(missing)}."
        )


def _values(tags: Mapping[str, str], key: str) -> tuple[str, ...]:
    return (tags[key],) if key in tags else ()
