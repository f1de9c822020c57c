"""
Which of a data set's files belong to which subset and split.

A folder says so itself or by convention, in this order:

1. `README.md` names data files under `configs:` in its head, as repositories of the hub do.
2. `dataset_dict.json` stands above one folder for each split, and `state.json` beside arrow files
   names those that count; so `datasets` saves to disk.
3. `train-00000-of-00003.parquet`: what stands before the numbers is the split, where it begins
   with one of the words below (such as train_sft) or the folder is named data.
4. A folder or the end of a file's name is train, validation or test, or another word for one of
   them (training, valid, val, dev, testing, eval, evaluation).
5. Without any of these all files are the split train.

By convention the first folder is the subset, unless it is a split or named data. More than one
subset or split is never mixed without being asked for by `*`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError
from neve_chat.input_files import InputFile, find_input_files, glob_matches, names_text

__all__ = ["choose_files"]

ALL = "*"
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF_WORD = {word: split for split, words in _WORDS.items() for word in words}
_NO_SPLITS = ("data", "part", "shard", "chunk", "file")
_NUMBERED = re.compile(r"(.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?$")
_LAST_WORD = re.compile(r"(?:^|.*[-._])([a-z]+)(?:[-._]?\d[\d._-]*)?$")
_HEAD = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class _Labeled:
    """
    A file in one of its places; a file may belong to several subsets.
    """

    file: InputFile
    subset: str
    """Empty: none is named."""
    split: str
    """Empty: none is named."""


def choose_files(
    input_path: str, patterns: Sequence[str], *, subset: str = "", split: str = ""
) -> list[InputFile]:
    """
    The files of one subset and split, sorted by name.

    Args:
        input_path: folder or file, local or remote.
        patterns: globs of the files below it.
        subset: which subset; empty: the only one; `*`: all.
        split: which split; empty: the only one; `*`: all.

    Raises:
        ChatInputError: no such file, subset or split, or several and none is chosen.
    """
    files = find_input_files(input_path, patterns)
    is_folder = [file.path for file in files] != [input_path]
    labeled = list(_declared(input_path, files)) if is_folder else []
    is_declared = bool(labeled)
    if not is_declared:
        labeled = list(_conventional(input_path, files)) if is_folder else []
        labeled = labeled or [_Labeled(file, "", _split_by_name(file.name)) for file in files]
    what = f"input {input_path}"
    if subset or is_declared:
        labeled = _chosen(labeled, subset, "subset", what)
    if not any(each.split for each in labeled):
        labeled = [_Labeled(each.file, each.subset, "train") for each in labeled]
    labeled = _chosen(labeled, split, "split", what)
    return sorted({each.file for each in labeled}, key=lambda file: file.name)


def _chosen(labeled: list[_Labeled], wanted: str, kind: str, what: str) -> list[_Labeled]:
    names = sorted({getattr(each, kind) for each in labeled} - {""})
    if wanted == ALL:
        return labeled
    if wanted:
        wanted = wanted if wanted in names else _SPLIT_OF_WORD.get(wanted, wanted)
        found = [each for each in labeled if getattr(each, kind) == wanted]
        if not found:
            raise ChatInputError(
                f"{what}: the {kind} must be one that is there, got {wanted!r}; there is "
                f"{names_text(names, 'none')}. Choose one of them, or name files by their patterns."
            )
        return found
    if len(names) > 1:
        raise ChatInputError(
            f"{what}: one {kind} must be chosen, got {names_text(names)}. Pass {kind}={names[0]!r} "
            f"or another one, or {kind}={ALL!r} for all."
        )
    return labeled


def _declared(input_path: str, files: Sequence[InputFile]) -> Iterator[_Labeled]:
    """
    What README.md says of these files.
    """
    for config in _readme_configs(input_path):
        name = str(config.get("config_name", "default"))
        folder = str(config.get("data_dir") or "")
        splits = _data_files(config.get("data_files"))
        if not splits:
            below = [f for f in files if f.name.startswith(f"{folder}/")] if folder else []
            yield from (_Labeled(f, name, _split_by_name(f.name)) for f in below)
        for split, patterns in splits:
            full = [posixpath.normpath(posixpath.join(folder, p)) for p in patterns]
            for file in files:
                if any(glob_matches(pattern, file.name) for pattern in full):
                    yield _Labeled(file, name, split)


def _readme_configs(input_path: str) -> list[dict[str, Any]]:
    path = storage.join(input_path, "README.md")
    if not storage.exists(path):
        return []
    head = _HEAD.match(storage.read_bytes(path).decode("utf-8", "replace"))
    if head is None:
        return []
    import yaml  # lazy: most inputs have no README.md

    try:
        facts = yaml.safe_load(head[1])
    except yaml.YAMLError as error:
        raise ChatInputError(
            f"input {path}: its head must be YAML, got: {str(error).splitlines()[0]}. Correct it, "
            "or leave README.md out."
        ) from error
    configs = facts.get("configs") if isinstance(facts, dict) else None
    return [config for config in configs or [] if isinstance(config, dict)]


def _data_files(value: Any) -> list[tuple[str, list[str]]]:
    """
    (split, patterns) in any of the forms that the hub allows.
    """

    def patterns(paths: Any) -> list[str]:
        return [str(path) for path in (paths if isinstance(paths, list) else [paths])]

    if not value:
        return []
    if isinstance(value, dict):
        return [(str(split), patterns(paths)) for split, paths in value.items()]
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return [(str(each.get("split", "train")), patterns(each.get("path"))) for each in value]
    return [("train", patterns(value))]


def _conventional(input_path: str, files: Sequence[InputFile]) -> Iterator[_Labeled]:
    folders = {posixpath.dirname(f.name) for f in files if f.suffix == ".arrow"}
    saved = {folder: _saved_names(input_path, folder) for folder in folders}
    is_dict = storage.exists(storage.join(input_path, "dataset_dict.json")) if saved else False
    for file in files:
        folder, name = posixpath.split(file.name)
        if file.suffix == ".arrow" and saved[folder] and name not in saved[folder]:
            continue  # a cache file that `datasets` left beside the data
        split = folder if is_dict and folder else _split_by_name(file.name)
        yield _Labeled(file, _subset_by_folder(file.name), split)


def _saved_names(input_path: str, folder: str) -> set[str]:
    """
    The data files that a folder's state.json names, all of which must be there.
    """
    path = storage.join(input_path, folder, "state.json")
    if not storage.exists(path):
        return set()
    names = {entry["filename"] for entry in storage.read_json(path).get("_data_files", [])}
    missing = sorted(n for n in names if not storage.exists(storage.join(input_path, folder, n)))
    if missing:
        raise ChatInputError(
            f"input {path}: every data file that it names must be there, got none for "
            f"{names_text(missing)}. Copy the folder again."
        )
    return names


def _split_by_name(name: str) -> str:
    *folders, base = name.split("/")
    stem = base.split(".")[0]
    if numbered := _NUMBERED.fullmatch(stem):
        prefix = numbered[1]
        if prefix.split("_")[0] in _SPLIT_OF_WORD or (
            folders[-1:] == ["data"] and prefix not in _NO_SPLITS
        ):
            return _SPLIT_OF_WORD.get(prefix, prefix)
    word = _LAST_WORD.match(stem.lower())
    if word and word[1] in _SPLIT_OF_WORD:
        return _SPLIT_OF_WORD[word[1]]
    return next((_SPLIT_OF_WORD[f] for f in reversed(folders) if f in _SPLIT_OF_WORD), "")


def _subset_by_folder(name: str) -> str:
    folders = [f for f in name.split("/")[:-1] if f != "data" and f not in _SPLIT_OF_WORD]
    return folders[0] if folders else ""
