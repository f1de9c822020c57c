"""
Chat templates by name or by file.

Light on purpose: recipes import this module to plan, so it needs neither jinja2 nor a tokenizer.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from neve_chat.errors import ChatInputError

__all__ = ["ChatTemplate", "check_generation_marks", "load_template", "template_names"]

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
    """Jinja source, byte for byte as it will stand in the exported tokenizer."""


def template_names() -> tuple[str, ...]:
    """
    The names of the built-in templates, sorted.
    """
    return tuple(sorted(path.stem for path in _FILES.glob("*.jinja")))


def load_template(name_or_path: str) -> ChatTemplate:
    """
    A built-in template by its name, or any template by the path of its file.

    Raises:
        ChatInputError: neither a known name nor a readable file.
    """
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
        f"template {name_or_path!r}: must be a built-in name ({', '.join(names)}) or a file, "
        f"got neither. {hint}"
    )


def check_generation_marks(name: str, text: str) -> None:
    """
    The template marks what the assistant writes, so that something can be trained.

    Raises:
        ChatInputError: no generation block outside comments, raw blocks and strings, or one that
            is never closed.
    """
    tags = [match["tag"] for match in _REGION.finditer(text) if match["tag"]]
    opened, closed = tags.count("generation"), tags.count("endgeneration")
    if opened and opened == closed:
        return
    found = f"{opened} opened and {closed} closed" if opened or closed else "none"
    raise ChatInputError(
        f"template {name!r}: needs {{% generation %}} ... {{% endgeneration %}} around what "
        f"the assistant "
        f"writes, got {found}, so no token would be trained. Pass a built-in template "
        f"({', '.join(template_names())}) or a file of yours with these marks."
    )
