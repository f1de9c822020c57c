"""
Does the template train the end of the assistant's turn? A model that never saw its end doesn't
stop.

The question is put to the template, not to the tokenizer's eos token: many templates close a turn
with another token. A probe conversation is rendered, and what the last trained span holds behind
the answer is the terminator.
"""

from __future__ import annotations

from dataclasses import dataclass

from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer, TemplateRefusal
from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = ["Terminator", "find_terminator"]

_QUESTION, _ANSWER = "neveprobequestion", "neveprobeanswer"


@dataclass(frozen=True, kw_only=True)
class Terminator:
    """
    What closes a trained turn.
    """

    text: str | None
    """Text behind the answer; None if the template refused the probe, then any special token
    counts."""
    ids: tuple[int, ...]
    """Its token ids."""
    special_ids: frozenset[int]
    """Every special token of the tokenizer."""

    def closes(self, tokens: Tokens) -> bool:
        """
        Whether the last trained token of a conversation ends a turn.
        """
        last = int(tokens.ids[tokens.mask.nonzero()[0][-1]])
        return last == self.ids[-1] if self.ids else last in self.special_ids


def find_terminator(renderer: ChatRenderer, tokenizer: ChatTokenizer, name: str) -> Terminator:
    """
    The terminator that the template trains.

    Raises:
        ChatInputError: nothing that could end a turn is trained behind the answer.
    """
    probe = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}]
    try:
        rendered = renderer.render(probe)
    except TemplateRefusal:
        return Terminator(text=None, ids=(), special_ids=tokenizer.special_ids)
    trained = [rendered.text[start:end] for start, end in rendered.spans]
    if not trained or _ANSWER not in trained[-1]:
        raise ChatInputError(
            f"template {name!r}: the answer itself must be trained, got {''.join(trained)!r} "
            f"as trained text of a "
            "probe. Put {% generation %} around the assistant's content."
        )
    tail = trained[-1].rpartition(_ANSWER)[2]
    if not tail.strip():
        behind = rendered.text[rendered.spans[-1][1] :][:40]
        raise ChatInputError(
            f"template {name!r}: the trained part of an assistant turn must end with its "
            f"end-of-turn token, got the "
            f"bare answer with {behind!r} outside the generation block, so the model will not "
            f"learn to stop. "
            "Move {% endgeneration %} behind the end-of-turn token."
        )
    return Terminator(
        text=tail, ids=tuple(tokenizer.encode([tail])[0]), special_ids=tokenizer.special_ids
    )
