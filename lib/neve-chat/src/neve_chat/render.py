"""
Conversations to text, with the character spans that are trained.

The environment is the one transformers gives a chat template, so text and masks are equal to
`apply_chat_template`: sandboxed, trimmed blocks, loop controls, JSON neither sorted nor escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from neve_chat.errors import ChatInputError
from neve_chat.templates import is_built_in

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


class _GenerationTracker(jinja2.ext.Extension):
    """
    Notes where each generation block starts and ends in the text rendered so far.
    """

    tags = {"generation"}  # noqa: RUF012  declared so by jinja2.ext.Extension

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.num_chars = 0
        self.spans: list[tuple[int, str]] = []
        environment.extend(generation_tracker=self)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: jinja2.runtime.Macro) -> str:
        written = caller()
        self.spans.append((self.num_chars, written))
        return written


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """
    The sandbox of transformers, with its verdicts kept: they depend on type and name alone.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._verdicts: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        key = (type(obj), attr)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = super().is_safe_attribute(obj, attr, value)
        return verdict


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
        # What comes with neve needs no guard, which takes a quarter of the time.
        kind = jinja2.Environment if is_built_in(template) else _Environment
        environment = kind(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTracker, jinja2.ext.loopcontrols],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._tracker: _GenerationTracker = environment.generation_tracker  # type: ignore[attr-defined]
        try:
            self._template = environment.from_string(template)
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
        tracker = self._tracker
        tracker.num_chars, tracker.spans = 0, []
        pieces: list[str] = []
        try:
            variables = {
                "messages": messages,
                "tools": tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
                **self._special_tokens,
                **kwargs,
            }
            # Template.generate would pass each piece on through another generator.
            for piece in self._template.root_render_func(self._template.new_context(variables)):
                pieces.append(piece)
                tracker.num_chars += len(piece)
        except _ROW_ERRORS as error:
            raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
        text = "".join(pieces)
        for start, written in tracker.spans:
            if not text.startswith(written, start):
                raise ChatInputError(
                    f"template {self._name!r}: a generation block must stand in the main text, "
                    f"got one inside a "
                    "macro, filter or set block. Move it out, or its loss mask would be wrong."
                )
        return Rendered(
            text, tuple((start, start + len(part)) for start, part in tracker.spans if part)
        )

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


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
