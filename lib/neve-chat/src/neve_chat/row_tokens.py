"""
Canonical rows to what a token cache holds of them, by a recipe's options.

The tokenize step and the preview go through here, so that what is shown is what is trained.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from neve_chat.checks import RowRejected
from neve_chat.render import ChatRenderer, Rendered
from neve_chat.row_rendering import RowRendering
from neve_chat.spans import make_probe
from neve_chat.template_check import check_template_fits
from neve_chat.templates import check_generation_marks, tokenizer_template
from neve_chat.terminator import Terminator, find_terminator
from neve_chat.tokenize_options import TokenizeOptions
from neve_chat.tokens import ChatTokenizer, Tokens
from neve_chat.windows import Shortener

__all__ = ["OpenedTemplate", "RowTokens", "open_template"]


@dataclass(frozen=True)
class OpenedTemplate:
    """
    A template and a tokenizer that were found to fit each other.
    """

    text: str
    """Jinja text, also where it is the tokenizer's own."""
    tokenizer: ChatTokenizer
    """The tokenizer."""
    renderer: ChatRenderer
    """The compiled template."""
    terminator: Terminator
    """What ends a trained turn."""


def open_template(options: TokenizeOptions) -> OpenedTemplate:
    """
    Template and tokenizer of the options, checked before any row is read.

    Raises:
        ChatInputError: one of them is wrong, they don't fit, or can't serve the loss options.
    """
    name = options.template_name
    text = options.template or tokenizer_template(options.tokenizer_path).text
    check_generation_marks(name, text)
    tokenizer = ChatTokenizer(options.tokenizer_path)
    renderer = ChatRenderer(text, special_tokens=tokenizer.special_tokens, name=name)
    check_template_fits(renderer, tokenizer, name, options.tokenizer_path)
    terminator = find_terminator(renderer, tokenizer, name)
    make_probe(renderer, options.loss, name)
    return OpenedTemplate(text, tokenizer, renderer, terminator)


class RowTokens:
    """
    Template, tokenizer and options at work; counts what it notes.
    """

    def __init__(
        self, renderer: ChatRenderer, tokenizer: ChatTokenizer, options: TokenizeOptions
    ) -> None:
        """
        Raises:
            ChatInputError: the template can't give what the loss options ask for.
        """
        self._tokenizer = tokenizer
        self._max_tokens = options.max_tokens
        self._rendering = RowRendering(renderer, tokenizer, options)
        self._shortener = None
        if options.max_tokens is not None:
            self._shortener = Shortener(
                options.long_conversations,
                options.max_tokens,
                lambda row: tokenizer.encode_rendered([self._rendering.render(row)])[0],
                lambda row: len(self._rendering.render(row).spans),
            )

    def render(self, row: dict[str, Any]) -> Rendered:
        """
        The row as text with its trained spans; counts what the template left out.

        Raises:
            RowRejected: the template refuses it, or a policy drops it.
            ChatInputError: it holds the text of special tokens, and the policy is error.
        """
        rendered = self._rendering.render(row)
        self._rendering.note(row, rendered)
        return rendered

    def pieces(
        self, row: dict[str, Any], rendered: Rendered, tokens: Tokens
    ) -> list[tuple[dict[str, Any], Tokens]]:
        """
        The rows of the cache that a conversation becomes: itself, or pieces that fit.

        Args:
            row: canonical row.
            rendered: of it.
            tokens: of that.

        Raises:
            RowRejected: nothing of it can be trained.
            ChatInputError: it holds the text of special tokens, and the policy is error.
        """
        self._rendering.check(row, rendered, tokens)
        if not tokens.num_trained:
            roles = ", ".join(dict.fromkeys(message["role"] for message in row["messages"]))
            raise RowRejected("no trained tokens", f"nothing of it is marked; roles: {roles}")
        if not self._shortener or len(tokens.ids) <= (self._max_tokens or 0):
            return [(row, tokens)]
        pieces = self._shortener.shorten(row)
        if not pieces:
            raise RowRejected(
                "too long", f"{len(tokens.ids):,} tokens, and no turn fits into a row"
            )
        return pieces

    def of(self, row: dict[str, Any]) -> list[tuple[dict[str, Any], Tokens]]:
        """
        `pieces` of one row by itself.

        Raises:
            RowRejected: nothing of it is trained.
            ChatInputError: it stops the tokenize step.
        """
        rendered = self.render(row)
        (tokens,) = self._tokenizer.encode_rendered([rendered])
        return self.pieces(row, rendered, tokens)

    def take_notes(self) -> Counter[str]:
        """
        What was noted since the last call: note -> conversations.
        """
        notes = self._rendering.notes.copy()
        self._rendering.notes.clear()
        if self._shortener:
            notes += self._shortener.notes
            self._shortener.notes.clear()
        return notes
