"""
Turns with one channel each (analysis, commentary, final) to turns with reasoning and tool calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neve_chat.checks import RowFaults, RowRejected
from neve_chat.content import short, text_of
from neve_chat.schemas import ConversationSchema

__all__ = ["merge_channels"]

_FUNCTIONS = "functions."
_TO_EVERYONE = (None, "", "all", "user", "assistant")


def merge_channels(
    turns: Sequence[Any], schema: ConversationSchema, faults: RowFaults
) -> list[tuple[str | None, Any]]:
    """
    Pairs of canonical role, or None where the schema's map decides, and turn.

    Analysis becomes the reasoning of the assistant's next message. Commentary to functions.x
    becomes a call of x, in one message with the calls and the commentary right before it. A turn
    of the role tool with the name functions.x, or of the role functions.x, is the reply of x.

    Args:
        turns: the raw turns, in order.
        schema: resolved; its map tells the assistant's and the tools' turns.
        faults: takes the note on analysis that no message of the assistant follows.

    Raises:
        RowRejected: a channel or a recipient that is unknown, or content that isn't text.
    """
    merger = _Merger(schema, faults)
    for index, turn in enumerate(turns):
        merger.add(turn, index)
    merger.end_answer()
    return merger.turns


class _Merger:
    def __init__(self, schema: ConversationSchema, faults: RowFaults) -> None:
        self.turns: list[tuple[str | None, Any]] = []
        self._schema = schema
        self._faults = faults
        self._roles = schema.role_map()
        self._analysis: list[str] = []
        self._open_answer: dict[str, Any] | None = None  # commentary that calls may still join

    def add(self, turn: Any, index: int) -> None:
        raw_role = turn.get(self._schema.role_key) if isinstance(turn, Mapping) else None
        role = self._roles.get(raw_role) if isinstance(raw_role, str) else None
        if role == "assistant":
            self._add_assistant(turn, f"turn {index}")
            return
        self.end_answer()
        if isinstance(raw_role, str) and raw_role.startswith(_FUNCTIONS):
            self.turns.append(("tool", {**turn, "name": raw_role.removeprefix(_FUNCTIONS)}))
        elif role == "tool" and isinstance(turn.get("name"), str):
            self.turns.append((None, {**turn, "name": turn["name"].removeprefix(_FUNCTIONS)}))
        else:
            self.turns.append((None, turn))

    def end_answer(self) -> None:
        """
        Analysis that is still waiting for its answer becomes a turn of its own, with a note.
        """
        if self._analysis:
            self._faults.notes.append("analysis without an answer")
            self._new_answer({self._schema.role_key: self._schema.assistant[0]}, None)
        self._open_answer = None

    def _add_assistant(self, turn: Mapping[str, Any], where: str) -> None:
        channel, recipient = turn.get("channel"), turn.get("recipient")
        if channel not in (None, "", "analysis", "commentary", "final"):
            raise RowRejected("unknown channel", f"{where} has the channel {short(channel)}")
        text = text_of(turn.get(self._schema.content_key), where)
        if isinstance(recipient, str) and recipient.startswith(_FUNCTIONS):
            self._add_call(turn, recipient.removeprefix(_FUNCTIONS), text)
        elif recipient not in _TO_EVERYONE:
            raise RowRejected("unknown recipient", f"{where} is sent to {short(recipient)}")
        elif channel == "analysis":
            if text:
                self._analysis.append(text)
        else:
            answer = self._new_answer(turn, text)
            self._open_answer = answer if channel == "commentary" else None

    def _add_call(self, turn: Mapping[str, Any], name: str, arguments: str | None) -> None:
        call = {"function": {"name": name, "arguments": arguments}}
        if turn.get("id") is not None:
            call["id"] = turn["id"]
        if self._open_answer is None or self._analysis:
            self._open_answer = self._new_answer(turn, None)
        self._open_answer.setdefault("tool_calls", []).append(call)

    def _new_answer(self, turn: Mapping[str, Any], text: str | None) -> dict[str, Any]:
        answer = {**turn, self._schema.content_key: text}
        if self._analysis:
            answer[self._schema.reasoning_keys[0]] = "\n".join(self._analysis)
            self._analysis = []
        self.turns.append(("assistant", answer))
        return answer
