"""
Canonical rows to text with the spans and cuts that a recipe's options ask for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from neve_chat.checks import RowRejected
from neve_chat.encoded import Tokens
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer, Rendered, TemplateRefusal, rendering_notes
from neve_chat.spans import make_probe, select_spans
from neve_chat.special_text import SpecialText
from neve_chat.tokenize_options import TokenizeOptions
from neve_chat.tokens import ChatTokenizer

__all__ = ["RowRendering"]

_REASON = "text of a special token"


class RowRendering:
    """
    A template with loss options and a policy for the text of special tokens; counts what it notes.
    """

    def __init__(
        self, renderer: ChatRenderer, tokenizer: ChatTokenizer, options: TokenizeOptions
    ) -> None:
        """
        Args:
            renderer: the template.
            tokenizer: whose special tokens are looked for.
            options: template_name, loss, special_text and allowed_special_text.

        Raises:
            ChatInputError: the template can't give what the loss options ask for.
        """
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._loss = options.loss
        self._policy = options.special_text
        self._probe = make_probe(renderer, options.loss, options.template_name)
        self._special_text = SpecialText(
            tokenizer.special_texts, options.special_text, options.allowed_special_text
        )
        self.notes: Counter[str] = Counter()

    def render(self, row: dict[str, Any]) -> Rendered:
        """
        The row as text with its trained spans.

        Raises:
            RowRejected: the template refuses it, or it holds the text of special tokens.
            ChatInputError: it holds such text, and the policy is error.
        """
        source = row if self._policy == "keep" else self._special_text.escape(row)
        try:
            rendered = self._renderer.render_row(source)
        except TemplateRefusal as refusal:
            raise RowRejected("template refused", str(refusal)) from refusal
        rendered = select_spans(rendered, source, self._loss, self._probe)
        if source is row:
            return rendered
        rendered = self._special_text.unescape(rendered)
        if rendered.cuts and self._policy != "escape":
            found = self._special_text.find(row)
            where = ", ".join(f"{marker} in {path}" for path, marker in found[:3])
            self._refuse(row, where or "strings that make one together")
        return rendered

    def note(self, row: dict[str, Any], rendered: Rendered) -> None:
        """
        Count what the template left out of a row, and what was kept from being special.
        """
        self.notes.update(rendering_notes(row["messages"], rendered.text))
        if rendered.cuts:
            space = "" if self._tokenizer.keeps_text_at_cuts else ", with a space added"
            self.notes[f"text of special tokens kept as text{space}"] += 1

    def check(self, row: dict[str, Any], rendered: Rendered, tokens: Tokens) -> None:
        """
        Special ids are those that template and policy allow, whatever the tokenizer's normalizer does.

        Raises:
            RowRejected: there are others.
            ChatInputError: there are others, and the policy is error.
        """
        may_differ = rendered.cuts or self._tokenizer.has_normalizer
        if self._policy == "keep" or not may_differ:
            return
        if self._tokenizer.num_special(tokens) != self._special_text.num_markers(rendered):
            self._refuse(row, "text that the tokenizer's normalizer makes one")

    def _refuse(self, row: dict[str, Any], detail: str) -> None:
        if self._policy != "error":
            raise RowRejected(_REASON, detail)
        raise ChatInputError(
            f"conversation {row['id']} ({row.get('source')}): must not hold the text of special "
            f"tokens, which would be tokenized as if the template had written it; got {detail}. "
            'Set special_text to "escape" (it stays text), "drop" or "keep", or name markers that '
            "belong there in allowed_special_text."
        )
