"""
Does the template train the end of the assistant's turn? A model that never saw its end doesn't
stop.

The question is put to the template, not to the tokenizer's eos token: many templates close a turn
with another token. A probe conversation is rendered, and what is trained behind the last answer is
the terminator; behind every other trained answer and behind tool calls there must be one too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neve_chat.errors import ChatInputError
from neve_chat.probes import ANSWERS, ARGUMENT, CALLS, DIALOG, Messages
from neve_chat.render import ChatRenderer, Rendered, TemplateRefusal
from neve_chat.tokens import ChatTokenizer, Tokens

__all__ = ["Terminator", "find_terminator"]

_TAIL = 64


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
        start = max(len(tokens.ids) - _TAIL, 0)  # where it is, as a rule
        if not tokens.mask[start:].any():
            start = 0
        last = int(tokens.ids[start + tokens.mask[start:].nonzero()[0][-1]])
        return last == self.ids[-1] if self.ids else last in self.special_ids


def find_terminator(renderer: ChatRenderer, tokenizer: ChatTokenizer, name: str) -> Terminator:
    """
    The terminator that the template trains.

    Args:
        renderer: of the template.
        tokenizer: for the ids.
        name: of the template, for messages.

    Raises:
        ChatInputError: nothing that could end a turn is trained behind the last answer, behind an
            earlier one that is trained, or behind a tool call.
    """
    rendered = _rendered(renderer, DIALOG) or _rendered(renderer, DIALOG[:2])
    if rendered is None:
        return Terminator(text=None, ids=(), special_ids=tokenizer.special_ids)
    last = ANSWERS[ANSWERS[1] in rendered.text]
    tails = _tails(rendered, ANSWERS)
    if last not in tails:
        trained = "".join(rendered.text[start:end] for start, end in rendered.spans)
        raise ChatInputError(
            f"template {name!r}: the answer itself must be trained, got {trained!r} as trained "
            "text of a probe. Put {% generation %} around the assistant's content."
        )
    for tail, behind in reversed(tails.values()):
        if not tail.strip():
            raise ChatInputError(
                f"template {name!r}: the trained part of an assistant turn must end with its "
                f"end-of-turn token, got the bare answer with {behind[:40]!r} outside the "
                f"generation block, so the model will not learn to stop. {_advice(behind)}"
            )
    text = tails[last][0]
    terminator = Terminator(
        text=text, ids=tuple(tokenizer.encode([text])[0]), special_ids=tokenizer.special_ids
    )
    _check_calls(renderer, tokenizer, terminator, name)
    return terminator


def _check_calls(
    renderer: ChatRenderer, tokenizer: ChatTokenizer, terminator: Terminator, name: str
) -> None:
    """
    A turn of tool calls ends as an answer does, or with another special token.
    """
    rendered = _rendered(renderer, CALLS)
    for tail, behind in _tails(rendered, [ARGUMENT]).values() if rendered else ():
        last = tokenizer.encode([tail])[0][-1:]
        if not last or last[0] not in {*terminator.ids[-1:], *terminator.special_ids}:
            raise ChatInputError(
                f"template {name!r}: the trained part of a turn with tool calls must end with its "
                f"end-of-turn token, got {tail!r} at its end with {behind[:40]!r} outside the "
                f"generation block, so the model will not learn to stop. {_advice(behind)}"
            )


def _rendered(renderer: ChatRenderer, messages: Messages) -> Rendered | None:
    try:
        return renderer.render(messages)
    except TemplateRefusal:
        return None


def _tails(rendered: Rendered, texts: Sequence[str]) -> dict[str, tuple[str, str]]:
    """
    For each text that is trained: what is trained behind it, and what follows untrained.
    """
    joined: list[tuple[int, int]] = []
    for start, end in rendered.spans:
        if joined and joined[-1][1] == start:
            start = joined.pop()[0]
        joined.append((start, end))
    found: dict[str, tuple[str, str]] = {}
    for start, end in joined:
        for text in texts:
            place = rendered.text.rfind(text, start, end)
            if place >= 0:
                found[text] = rendered.text[place + len(text) : end], rendered.text[end:]
    return found


def _advice(behind: str) -> str:
    if behind.strip():
        return "Move {% endgeneration %} behind the end-of-turn token."
    return "Let the template write an end-of-turn token, inside the block, after every such turn."
