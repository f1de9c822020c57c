"""
Which files a data set is made of: globs below a folder, formats by suffix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from neve import storage

from neve_chat.errors import ChatInputError

__all__ = [
    "COLUMNAR_SUFFIXES",
    "LINE_SUFFIXES",
    "PLAIN_LINE_SUFFIXES",
    "InputFile",
    "find_input_files",
    "glob_matches",
    "names_text",
]

PLAIN_LINE_SUFFIXES = (".jsonl", ".ndjson")
LINE_SUFFIXES = (
    *PLAIN_LINE_SUFFIXES,
    *(f"{plain}{packed}" for plain in PLAIN_LINE_SUFFIXES for packed in (".gz", ".zst")),
)
COLUMNAR_SUFFIXES = (".parquet", ".arrow")
SUFFIXES = (*COLUMNAR_SUFFIXES, *LINE_SUFFIXES, ".json", ".json.gz", ".json.zst")


@dataclass(frozen=True)
class InputFile:
    """
    One file to read.
    """

    name: str
    """Path relative to the input, or the file's own name."""
    path: str
    """Where it is."""
    num_bytes: int
    """Its size."""
    version: str = ""
    """What a store calls this version of the object, if it does."""

    @property
    def suffix(self) -> str:
        """
        The known suffix that the name ends in, the longest one, in lower case.
        """
        name = self.name.lower()
        return max((s for s in SUFFIXES if name.endswith(s)), key=len, default="")


def find_input_files(input_path: str, patterns: Sequence[str]) -> list[InputFile]:
    """
    The files below input_path that match a pattern, sorted by name; input_path may be a file
    itself.

    Args:
        input_path: folder or file, local or remote.
        patterns: globs relative to it; `*` stays inside one folder, `**` crosses folders.

    Raises:
        ChatInputError: nothing there, nothing matches, or a match of a format that can't be read.
    """
    if input_path.lower().endswith(SUFFIXES) and not storage.is_dir(input_path):
        if not storage.exists(input_path):
            raise ChatInputError(
                f"input {input_path}: must exist, got nothing there. Correct the path."
            )
        info = storage.file_info(input_path)
        return [InputFile(info.name, input_path, info.size, info.version)]
    present = [info for info in storage.list_files(input_path) if not _is_hidden(info.name)]
    found = sorted(
        (i for i in present if any(glob_matches(p, i.name) for p in patterns)),
        key=lambda i: i.name,
    )
    if not found:
        raise ChatInputError(
            f"input {input_path}: a file must match {', '.join(patterns)}, got "
            f"{names_text(sorted(info.name for info in present), 'no files')}. "
            "Pass patterns that match the data files."
        )
    for info in found:
        if not info.name.lower().endswith(SUFFIXES):
            raise ChatInputError(
                f"input file {info.name}: must end in {', '.join(SUFFIXES)}, got a format "
                f"that can't be read. "
                "Narrow the patterns."
            )
    return [
        InputFile(info.name, storage.join(input_path, info.name), info.size, info.version)
        for info in found
    ]


def glob_matches(pattern: str, name: str) -> bool:
    """
    Whether a relative path fits a glob: `*` stays inside one folder, `**` crosses folders.
    """
    return _glob(pattern).fullmatch(name) is not None


def names_text(names: Sequence[str], nothing: str = "none", limit: int = 20) -> str:
    """
    Names for a message: the first ones and how many more there are.
    """
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more or nothing


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


@lru_cache(maxsize=256)
def _glob(pattern: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(known.get(part, re.escape(part)) for part in parts))
