"""
Which parts of a rendered conversation are trained, where that isn't all its generation blocks.

Light on purpose: recipes import LossOptions to plan.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from neve_chat.adapt import RowRejected
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema
from neve_chat.turn_texts import find_contents

if TYPE_CHECKING:
    from neve_chat.render import ChatRenderer, Rendered

__all__ = [
    "ROLES",
    "TRAIN_TURNS",
    "USUAL_ROLES",
    "LossOptions",
    "SpanProbe",
    "canonical_roles",
    "make_probe",
    "select_spans",
]

ROLES = ("system", "user", "assistant", "tool")
"""Canonical roles, in the order in which they are written."""
USUAL_ROLES = {name: role for role in ROLES for name in getattr(ConversationSchema(), role)}
"""Role values that a schema maps unless told otherwise -> canonical role. The value function_call
is not among them: it means some turns of the assistant, not all."""
TRAIN_TURNS = ("all", "last")
_QUESTION, _THOUGHT, _ANSWER = "neveprobequestion", "neveprobethought", "neveprobeanswer"


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """
    What is trained of a conversation; the defaults are the template's generation blocks.
    """

    train_turns: str = "all"
    """all: every turn of the trained roles; last: only the last such turn of a conversation."""
    train_roles: tuple[str, ...] = ("assistant",)
    """Roles whose turns are trained, of system, user, assistant and tool; or usual names of the
    data that mean one of them, such as gpt, human and developer."""
    train_reasoning: bool = True
    """False: no loss on an assistant turn's reasoning with its opening and closing marker."""
    train_end_of_turn: bool = True
    """False: no loss on what ends a turn, so the model will not learn to stop."""

    def __post_init__(self) -> None:
        if self.train_turns not in TRAIN_TURNS:
            raise ChatInputError(
                f"loss options: train_turns must be one of {', '.join(TRAIN_TURNS)}, got "
                f"{self.train_turns!r}. Pass one of them."
            )
        if isinstance(self.train_roles, str) or not self.train_roles:
            raise ChatInputError(
                f"loss options: train_roles must be a tuple of one role or more, got "
                f"{self.train_roles!r}. Write ('assistant',)."
            )
        roles = canonical_roles(self.train_roles, USUAL_ROLES)
        object.__setattr__(self, "train_roles", roles)

    @functools.cached_property
    def is_default(self) -> bool:
        """
        Whether exactly the generation blocks are trained.
        """
        return self == LossOptions()


def canonical_roles(names: Iterable[str], role_map: Mapping[str, str]) -> tuple[str, ...]:
    """
    Canonical roles for names as the data or the user writes them, sorted, each once.

    Args:
        names: canonical roles, or role values of the data.
        role_map: role value in the data -> canonical role.

    Raises:
        ChatInputError: a name that is neither.
    """
    known = dict(role_map) | {role: role for role in ROLES}
    found: set[str] = set()
    for name in names:
        if name not in known:
            hint = _role_hint(str(name), known)
            raise ChatInputError(
                f"loss options: train_roles must be of {', '.join(ROLES)}, got {name!r}. {hint}"
            )
        found.add(known[name])
    return tuple(role for role in ROLES if role in found)


def _role_hint(name: str, known: Mapping[str, str]) -> str:
    if name in ConversationSchema().function_call:
        return "Its turns are the assistant's. Write 'assistant'."
    if near := difflib.get_close_matches(name.strip().lower(), known, n=1):
        return f"Did you mean {near[0]!r}?"
    return f"Where the schema says assistant=({name!r},) write 'assistant', and so for the other roles."


@dataclass(frozen=True, kw_only=True)
class SpanProbe:
    """
    What a template writes around the parts of an assistant turn, seen on a probe conversation.
    """

    renderer: ChatRenderer
    """Renders the rows once more where turns of other roles are looked for."""
    open_reasoning: str
    """Text before the reasoning in a generation block; empty: none is rendered there."""
    close_reasoning: str
    """Text between reasoning and answer."""
    end_of_turn: str
    """Text behind the answer in a generation block."""


def make_probe(renderer: ChatRenderer, options: LossOptions, name: str) -> SpanProbe:
    """
    The facts that `select_spans` needs about a template.

    Raises:
        ChatInputError: the template can't give what the options ask for.
    """
    if options.is_default:
        return SpanProbe(renderer=renderer, open_reasoning="", close_reasoning="", end_of_turn="")
    user = {"role": "user", "content": _QUESTION}
    answer = {"role": "assistant", "content": _ANSWER}
    thought = _blocks(renderer, [user, {**answer, "reasoning_content": _THOUGHT}], name)
    plain = _blocks(renderer, [user, answer], name)
    if options.train_turns == "last" and len(plain) != 1:
        raise ChatInputError(
            f"template {name!r}: train_turns 'last' needs one generation block for each assistant "
            f"turn, got {len(plain)}. Put one block around the whole turn, or train all turns."
        )
    end_of_turn = plain[-1].rpartition(_ANSWER)[2] if plain else ""
    if not options.train_end_of_turn and not end_of_turn:
        raise ChatInputError(
            f"template {name!r}: trains nothing behind the answer, so train_end_of_turn=False has "
            "nothing to leave out. Leave it True."
        )
    opened, _, rest = thought[0].partition(_THOUGHT) if thought else ("", "", "")
    closed = rest.partition(_ANSWER)[0]
    if not options.train_reasoning and not (rest and opened.strip() and closed.strip()):
        raise ChatInputError(
            f"template {name!r}: train_reasoning=False needs reasoning between two markers in the "
            f"generation block, got {thought!r} for a probe. Leave it True, or pass a template "
            "that marks the reasoning."
        )
    return SpanProbe(
        renderer=renderer, open_reasoning=opened, close_reasoning=closed, end_of_turn=end_of_turn
    )


def _blocks(renderer: ChatRenderer, messages: list[dict[str, Any]], name: str) -> list[str]:
    from neve_chat.render import TemplateRefusal  # jinja2, which planning does without

    try:
        rendered = renderer.render(messages)
    except TemplateRefusal as refusal:
        raise ChatInputError(
            f"template {name!r}: loss options need it to render one user and one assistant turn, "
            f"got: {refusal}. Train all assistant turns, or pass another template."
        ) from refusal
    return [rendered.text[start:end] for start, end in rendered.spans]


def select_spans(
    rendered: Rendered, row: Mapping[str, Any], options: LossOptions, probe: SpanProbe
) -> Rendered:
    """
    The same text with the spans that the options train.

    Args:
        rendered: the row as the template renders it.
        row: canonical row: messages, tools, chat_template_kwargs.
        options: what is trained.
        probe: facts about the template, of `make_probe`.

    An assistant's turn with the weight 0 is not trained, whatever the options.

    Raises:
        RowRejected: a turn can't be found in the text exactly.
    """
    is_weighted = any("weight" in message for message in row["messages"])
    if options.is_default and not is_weighted:
        return rendered
    text, spans = rendered.text, list(rendered.spans)
    if is_weighted:
        spans = _weighted(spans, row["messages"])
    if "assistant" not in options.train_roles:
        spans = []
    if set(options.train_roles) != {"assistant"}:
        spans = sorted(spans + _other_turns(rendered, row, options, probe))
    if options.train_turns == "last":
        spans = spans[-1:]
    if not options.train_end_of_turn and (tail := probe.end_of_turn):
        spans = [
            (start, end - len(tail) if text.endswith(tail, start, end) else end)
            for start, end in spans
        ]
    if not options.train_reasoning:
        reasonings = _reasonings(rendered, row["messages"])
        spans = [
            (_behind_reasoning(text, start, end, reasonings[start], probe), end)
            if start in reasonings
            else (start, end)
            for start, end in spans
        ]
    return dataclasses.replace(rendered, spans=tuple((a, b) for a, b in spans if a < b))


def _weighted(
    spans: list[tuple[int, int]], messages: Sequence[Mapping[str, Any]]
) -> list[tuple[int, int]]:
    weights = [m.get("weight", 1) for m in messages if m["role"] == "assistant"]
    if len(weights) != len(spans):
        raise RowRejected(
            "turn weights",
            f"{len(weights)} turns of the assistant, of which some have the weight 0, are rendered "
            f"as {len(spans)} trained stretches",
        )
    return [span for span, weight in zip(spans, weights, strict=True) if weight]


def _reasonings(rendered: Rendered, messages: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """
    Start of each generation block -> the reasoning field of its message, empty where unknown.
    """
    fields = [
        (message.get("reasoning_content") or "").strip()
        for message in messages
        if message["role"] == "assistant"
    ]
    if len(fields) != len(rendered.spans):
        fields = [""] * len(rendered.spans)
    return {start: text for (start, _), text in zip(rendered.spans, fields, strict=True)}


def _behind_reasoning(text: str, start: int, end: int, reasoning: str, probe: SpanProbe) -> int:
    """
    Where the answer starts in a trained turn that may open with reasoning.
    """
    opened, closed = probe.open_reasoning.strip(), probe.close_reasoning.strip()
    first = end - len(text[start:end].lstrip())
    if not text.startswith(opened, first, end):
        return start
    behind = first + len(opened)
    # The row's own reasoning is stepped over as a whole: it may hold the closing marker.
    if (at := text.find(reasoning, behind, end)) >= 0 and not text[behind:at].strip():
        behind = at + len(reasoning)
    at = text.find(closed, behind, end)
    if at < 0:
        detail = f"{opened!r} opens the turn at character {start:,}, and no {closed!r} follows"
        raise RowRejected("reasoning not closed", detail)
    behind = at + len(closed)
    for space in probe.close_reasoning[len(probe.close_reasoning.rstrip()) :]:
        if not text.startswith(space, behind, end):
            break
        behind += 1
    return behind


def _other_turns(
    rendered: Rendered, row: Mapping[str, Any], options: LossOptions, probe: SpanProbe
) -> list[tuple[int, int]]:
    """
    Content of each turn of the chosen roles but the assistant's, up to and with its end of turn.
    """
    text = rendered.text
    found = find_contents(text, row, probe.renderer)
    borders = sorted([start for start, _ in found.values()] + [a for a, _ in rendered.spans])
    spans: list[tuple[int, int]] = []
    for index, (start, end) in found.items():
        if row["messages"][index]["role"] in options.train_roles:
            later = (border for border in borders if border >= end and border > start)
            behind = next(later, len(text))
            at = text.find(probe.end_of_turn, end, behind) if probe.end_of_turn else -1
            spans.append((start, at + len(probe.end_of_turn) if at >= 0 else end))
    return spans
