"""
Chat templates by name, by file, or from the tokenizer's own folder.

Light on purpose: recipes import this module to plan, so it needs neither jinja2 nor a tokenizer.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neve import storage

from neve_chat.errors import ChatInputError

__all__ = [
    "TOKENIZER_TEMPLATE",
    "TRAINING_TEMPLATE_FILE",
    "ChatTemplate",
    "check_generation_marks",
    "fitting_templates",
    "is_built_in",
    "load_template",
    "serving_template",
    "template_names",
    "template_tokens",
    "tokenizer_template",
]

TOKENIZER_TEMPLATE = "tokenizer"
"""The name that stands for the template in the tokenizer's folder."""

TRAINING_TEMPLATE_FILE = "training_chat_template.jinja"
"""Where an export keeps the template with its generation marks."""

_FILES = Path(__file__).parent / "template_files"

# One alternative per Jinja region, in the order in which the lexer would meet them: what a
# comment, a raw block or a quoted string holds is never seen as a tag.
_STRING = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
_REGION = re.compile(
    rf"""
      \{{\#.*?\#\}}
    | \{{%[-+]?\s*raw\s*[-+]?%\}}.*?\{{%[-+]?\s*endraw\s*[-+]?%\}}
    | \{{\{{(?:{_STRING}|[^'"])*?\}}\}}
    | \{{%[-+]?\s*(?P<tag>\w+)(?:{_STRING}|[^'"])*?%\}}
    """,
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True)
class ChatTemplate:
    """
    A chat template: what to call it, and the Jinja text that is its identity.
    """

    name: str
    """Name in the registry, or the path it was read from; for messages only."""
    text: str
    """Jinja source, byte for byte as it will stand in the exported tokenizer; empty: the
    tokenizer's own, which `tokenizer_template` reads once the tokenizer is there."""


def template_names() -> tuple[str, ...]:
    """
    The names of the built-in templates, sorted.
    """
    return tuple(sorted(path.stem for path in _FILES.glob("*.jinja")))


def is_built_in(text: str) -> bool:
    """
    Whether a template's text is that of a built-in one.
    """
    return any(text == path.read_text(encoding="utf-8") for path in _FILES.glob("*.jinja"))


def load_template(name_or_path: str) -> ChatTemplate:
    """
    A built-in template by its name, any template by the path of its file, or "tokenizer".

    Raises:
        ChatInputError: neither a known name nor a readable file.
    """
    if name_or_path == TOKENIZER_TEMPLATE:
        return ChatTemplate(TOKENIZER_TEMPLATE, "")
    names = template_names()
    if name_or_path in names:
        text = (_FILES / f"{name_or_path}.jinja").read_text(encoding="utf-8")
        return ChatTemplate(name_or_path, text)
    path = Path(name_or_path)
    if path.is_file():
        try:
            return ChatTemplate(name_or_path, path.read_text(encoding="utf-8"))
        except UnicodeDecodeError as error:
            raise ChatInputError(
                f"template {name_or_path!r}: must be UTF-8 text, got a byte at {error.start} "
                f"that is not."
                " Save the file as UTF-8."
            ) from error
    near = difflib.get_close_matches(name_or_path, names, n=1)
    hint = (
        f"Did you mean {near[0]!r}?" if near else "Pass one of these or the path of a Jinja file."
    )
    raise ChatInputError(
        f"template {name_or_path!r}: must be a built-in name ({', '.join(names)}), "
        f"{TOKENIZER_TEMPLATE!r} or a file, got none of them. {hint}"
    )


def template_tokens(name: str) -> tuple[str, ...]:
    """
    The tokens a tokenizer needs for a built-in template, as the template's first line tells.
    """
    line = (_FILES / f"{name}.jinja").read_text(encoding="utf-8").partition("\n")[0]
    return tuple(re.findall(r"<\S+>", line))


def tokenizer_template(path: str, name: str = "default") -> ChatTemplate:
    """
    The template in a tokenizer's folder, found as transformers finds it.

    chat_template.jinja comes before the chat_template in tokenizer_config.json; a folder with
    several named ones gives the one asked for, never another. Before both comes the
    training_chat_template.jinja of an export, whose other two are without marks.

    Args:
        path: the tokenizer's folder, local or remote.
        name: which of several named templates.

    Raises:
        ChatInputError: there is none, none of that name, or it marks nothing to train.
    """
    found = _tokenizer_templates(path)
    if name not in found:
        have = f"only {', '.join(map(repr, sorted(found)))}" if found else "none"
        others = f"tokenizer_template(path, {min(found)!r}) or " if found else ""
        raise ChatInputError(
            f"tokenizer {path}: must hold a chat template named {name!r}, got {have}. Pass "
            f"{others}one that fits this tokenizer: {', '.join(fitting_templates(path))}."
        )
    text = found[name]
    where = f"{path} ({name})"
    check_generation_marks(where, text, fitting=fitting_templates(path))
    return ChatTemplate(where, text)


def fitting_templates(path: str) -> tuple[str, ...]:
    """
    Built-in templates whose markers all are tokens of the tokenizer in a folder.
    """
    file = storage.join(path, "tokenizer.json")
    tokenizer = json.loads(storage.read_bytes(file)) if storage.exists(file) else {}
    vocab = tokenizer.get("model", {}).get("vocab", {})
    tokens = {token["content"] for token in tokenizer.get("added_tokens", ())}
    tokens.update(vocab if isinstance(vocab, dict) else (entry[0] for entry in vocab))
    return tuple(name for name in template_names() if tokens.issuperset(template_tokens(name)))


def _tokenizer_templates(path: str) -> Mapping[str, str]:
    """
    Name -> text of the templates in a tokenizer's folder.
    """
    found: dict[str, str] = {}
    for name in (TRAINING_TEMPLATE_FILE, "chat_template.jinja"):
        file = storage.join(path, name)
        if storage.exists(file):
            found["default"] = storage.read_bytes(file).decode("utf-8")
            break
    folder = storage.join(path, "additional_chat_templates")
    for entry in storage.list_names(folder):
        if entry.endswith(".jinja"):
            text = storage.read_bytes(storage.join(folder, entry)).decode("utf-8")
            found[entry.removesuffix(".jinja")] = text
    config = storage.join(path, "tokenizer_config.json")
    if found or not storage.exists(config):
        return found
    value: Any = storage.read_json(config).get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}
    return value or {}


def serving_template(text: str) -> str:
    """
    The same template for readers that don't know generation marks: they have become comments.

    Jinja strips the white space around a comment as it does around a tag, so that the text of a
    conversation stays the same.
    """

    def as_comment(region: re.Match[str]) -> str:
        if region["tag"] not in ("generation", "endgeneration"):
            return region[0]
        return "{#" + region[0][2:-2] + "#}"

    return _REGION.sub(as_comment, text)


def check_generation_marks(name: str, text: str, *, fitting: Sequence[str] | None = None) -> None:
    """
    The template marks what the assistant writes, so that something can be trained.

    Args:
        name: what to call the template in the message.
        text: its Jinja source.
        fitting: built-in templates to propose instead; None: all of them.

    Raises:
        ChatInputError: no generation block outside comments, raw blocks and strings, or one that
            is never closed.
    """
    tags = [match["tag"] for match in _REGION.finditer(text) if match["tag"]]
    opened, closed = tags.count("generation"), tags.count("endgeneration")
    if opened and opened == closed:
        return
    found = f"{opened} opened and {closed} closed" if opened or closed else "none"
    names = template_names() if fitting is None else fitting
    raise ChatInputError(
        f"template {name!r}: needs {{% generation %}} ... {{% endgeneration %}} around what the "
        f"assistant writes, got {found}, so no token would be trained. Pass a built-in template "
        f"({', '.join(names)}) or a file of yours with these marks."
    )
