"""
Conversations to text, with the character spans that are trained.

Text and masks are equal to those of transformers' `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2

from neve_chat.errors import ChatInputError
from neve_chat.template_environment import CompiledTemplate, MisplacedBlock

__all__ = ["ChatRenderer", "Rendered", "TemplateRefusal", "rendering_notes"]


@dataclass(frozen=True)
class Rendered:
    """
    One conversation as the model sees it.
    """

    text: str
    """The whole rendered conversation."""
    spans: tuple[tuple[int, int], ...]
    """Half-open character ranges of text that are trained, in order, never empty."""
    cuts: tuple[int, ...] = ()
    """Characters at which the text is encoded in separate pieces, in order; nothing merges across."""


class TemplateRefusal(Exception):
    """
    The template raised while it rendered one conversation: a property of that row.
    """


# What a template can raise because of one conversation.
_ROW_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_OURS = frozenset({"messages", "tools", "add_generation_prompt", "documents", "self"})


class ChatRenderer:
    """
    A compiled chat template with the special tokens it may name. Not for several threads at once.
    """

    def __init__(
        self,
        template: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        name: str = "template",
    ) -> None:
        """
        Args:
            template: Jinja source.
            special_tokens: variables such as bos_token and eos_token, as text.
            name: what to call the template in messages.

        Raises:
            ChatInputError: the template is not valid Jinja; with the line.
        """
        self._name = name
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = CompiledTemplate(template)
        except jinja2.TemplateSyntaxError as error:
            raise ChatInputError(
                f"template {name!r} line {error.lineno}: must be valid Jinja, got: "
                f"{error.message}. Correct that line."
            ) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> Rendered:
        """
        The conversation as text with its trained spans.

        Args:
            messages: canonical messages, in order.
            tools: JSON signatures of the functions the assistant may call.
            add_generation_prompt: end with an open assistant header.
            kwargs: further variables of the template (enable_thinking, ...).

        Raises:
            TemplateRefusal: the template raised on this conversation.
            ChatInputError: a generation block sits where its position cannot be known.
        """
        variables = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
            **kwargs,
        }
        try:
            text, spans = self._template.render(variables)
        except MisplacedBlock as error:
            raise ChatInputError(
                f"template {self._name!r}: a generation block must stand in the main text, got one "
                "inside a macro, filter or set block. Move it out, or its loss mask would be wrong."
            ) from error
        except _ROW_ERRORS as error:
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
        return Rendered(text, tuple(spans))

    def render_row(self, row: Mapping[str, Any]) -> Rendered:
        """
        A canonical row as text: its messages, its tools and its own template variables.

        Raises:
            TemplateRefusal: the template raised on this conversation.
        """
        kwargs = row.get("chat_template_kwargs") or {}
        own = {key: value for key, value in kwargs.items() if key not in _OURS}
        return self.render(row["messages"], tools=row.get("tools"), **own)


_HEAD_CHARS = 32


def rendering_notes(messages: Iterable[Mapping[str, Any]], text: str) -> Iterator[str]:
    """
    What the template changed or left out of a conversation, one note for each turn it befell.

    Linear in the text: turns are looked for in their order.
    """
    position = 0

    def is_there(part: str) -> bool:
        nonlocal position
        found = text.find(part[:_HEAD_CHARS], position)  # long needles cost str.find a preparation
        if found < 0 or not text.startswith(part, found):
            found = text.find(part, position)
        position = found + len(part) if found >= 0 else position
        return found >= 0 or part in text

    for message in messages:
        if reasoning := message.get("reasoning_content"):
            yield "reasoning fields"
            if not is_there(reasoning.strip()):
                yield "reasoning fields dropped by the template"
        content = message.get("content")
        if isinstance(content, str) and not is_there(content.strip()):
            yield f"{message['role']} text changed or dropped by the template"
