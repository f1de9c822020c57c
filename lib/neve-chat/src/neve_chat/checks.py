"""
The row policy: what happens to each fault, where nothing is guessed and nothing vanishes.

A policy is error (the step stops at the first such row), drop (the row goes into quarantine and is
counted by reason) or keep (the row stays and is counted as a note). Defaults are in bold.

| RowPolicies field | the fault | allowed |
|---|---|---|
| unknown_role | a role value that the schema doesn't map | error, **drop** |
| wrong_order | the user or the assistant twice in a row, the first turn after the system's not the \
user's, or a system turn that isn't first | error, drop, **keep** |
| null_content | a turn without content, unless it calls tools or reasons; keep: as empty text | \
error, **drop**, keep |
| empty_answer | every assistant turn is empty, only end tokens would be trained | error, **drop**, \
keep |
| no_assistant_turn | no turn of the assistant | error, **drop** |
| orphan_tool_reply | a tool turn whose tool_call_id no earlier call has, or one without an id \
before any call; <tool_call> text is a call | error, drop, **keep** |
| bad_arguments | a tool call's arguments that are no JSON object; keep: the text as it is | error, \
**drop**, keep |
| duplicate_rows | the same conversation once more | error, drop, **keep** |

Always the same:

| row | result |
|---|---|
| last turn is not the assistant's | kept, noted: last turn not trainable |
| an assistant turn without text, others with | kept, noted: empty assistant turn |
| content is a list of text parts | kept, parts joined |
| assistant turn with tool calls and null content | kept, content null |
| tool arguments as JSON text of an object | kept, parsed once |
| tool turn with <tool_response>{name, content}</...> | unwrapped; broken: verbatim, noted |
| reasoning tags: no closing tag, or reasoning twice | verbatim, noted |
| a system column beside a system turn that differs | the turn is kept, noted |
| analysis that no message of the assistant follows (harmony) | a turn of its own, noted |
| no turns, or the column is absent or null | dropped: empty conversation / missing column |
| turns, history or completions of the wrong form | dropped: malformed turn / bad history / bad \
completions |
| a preference's prompt that its chosen turns don't hold | dropped: prompt not in chosen |
| content with parts that are not text | dropped: content is not text |
| tool calls that name no function | dropped: bad tool calls |
| channel or recipient that harmony doesn't know | dropped: unknown channel / unknown recipient |
| assistant turn with function_call, the key of older APIs | read as its tool call |
| assistant turn with the weight 0; with one that is neither 0 nor 1 | kept, not trained; dropped: \
bad turn weight |
| one list for each key of a turn instead of a list of turns | read as the turns |
| a number that is NaN, infinite or an integer beyond 64 bits; a lone surrogate; more than 250 levels \
| dropped: not writable as JSON |
| tools, template kwargs or system column of the wrong form | dropped: bad tools / bad template \
kwargs / bad system text |

Special-token text inside content has its policy in tokenization, where the tokenizer is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from neve_chat.errors import ChatInputError

__all__ = ["REASONS", "RowFaults", "RowPolicies", "RowRejected", "check_messages"]

REASONS = {
    "unknown_role": "unknown role",
    "wrong_order": "wrong order",
    "null_content": "null content",
    "empty_answer": "empty answer",
    "no_assistant_turn": "no assistant turn",
    "orphan_tool_reply": "orphan tool reply",
    "bad_arguments": "bad tool arguments",
    "duplicate_rows": "duplicate row",
}
"""Policy -> the constant text under which its rows are counted."""
_POLICIES = ("error", "drop", "keep")
_NEVER_KEPT = ("unknown_role", "no_assistant_turn")
_MAX_ROLES_SHOWN = 12


class RowRejected(Exception):
    """
    A row that the policy refuses. `reason` is a short constant text, `detail` names the place.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, kw_only=True)
class RowPolicies:
    """
    One of error, drop and keep for every fault; the module's table says what each means.
    """

    unknown_role: str = "drop"
    """A role value outside the schema's map: error or drop."""
    wrong_order: str = "keep"
    """Turns in an unusual order: error, drop or keep."""
    null_content: str = "drop"
    """A turn without content: error, drop or keep."""
    empty_answer: str = "drop"
    """All assistant turns are empty: error, drop or keep."""
    no_assistant_turn: str = "drop"
    """Nothing to train on: error or drop."""
    orphan_tool_reply: str = "keep"
    """A tool's reply that no call asked for: error, drop or keep."""
    bad_arguments: str = "drop"
    """Tool arguments that are no JSON object: error, drop or keep."""
    duplicate_rows: str = "keep"
    """A conversation that an earlier row holds too: error, drop or keep."""

    def __post_init__(self) -> None:
        for field in fields(self):
            policy, allowed = getattr(self, field.name), allowed_policies(field.name)
            if policy not in allowed:
                raise ChatInputError(
                    f"row policies: {field.name} must be one of {', '.join(allowed)}, got "
                    f"{policy!r}. Pass one of them."
                )


def allowed_policies(fault: str) -> tuple[str, ...]:
    """
    The policies that make sense for a fault.
    """
    return _POLICIES[:2] if fault in _NEVER_KEPT else _POLICIES


class RowFaults:
    """
    Applies the policies to the faults of one row and collects its notes.
    """

    def __init__(self, policies: RowPolicies, where: str = "") -> None:
        self.policies = policies
        self.where = where
        self.notes: list[str] = []

    def report(self, fault: str, detail: str) -> None:
        """
        Returns, with a note, only where the row is kept in spite of the fault.

        Args:
            fault: name of a field of RowPolicies.
            detail: the place in the row and the value seen.

        Raises:
            RowRejected: the policy is drop.
            ChatInputError: the policy is error.
        """
        policy, reason = getattr(self.policies, fault), REASONS[fault]
        if policy == "drop":
            raise RowRejected(reason, detail)
        if policy == "error":
            others = " or ".join(repr(p) for p in allowed_policies(fault) if p != "error")
            raise ChatInputError(
                f"row {self.where or '(unknown place)'}: {reason} is not allowed, got {detail}. "
                f"Correct the row, or set the policy {fault} to {others}."
            )
        self.notes.append(reason)


def check_messages(messages: Sequence[Mapping[str, Any]], faults: RowFaults) -> None:
    """
    Every policy on the conversation as a whole is applied.

    Args:
        messages: canonical messages, at least one.
        faults: takes the notes.

    Raises:
        RowRejected: a policy is drop.
        ChatInputError: a policy is error.
    """
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        faults.report("no_assistant_turn", f"{len(messages)} turns, none of the assistant")
    num_empty = sum(1 for message in answers if not _has_substance(message))
    if num_empty == len(answers):
        faults.report("empty_answer", f"all {num_empty} assistant turns are empty")
    elif num_empty:
        faults.notes.append("empty assistant turn")
    _check_order([message["role"] for message in messages], faults)
    _check_tool_replies(messages, faults)
    if messages[-1]["role"] != "assistant":
        faults.notes.append("last turn not trainable")


def _has_substance(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    has_text = bool(content.strip()) if isinstance(content, str) else bool(content)
    return has_text or bool(message.get("tool_calls")) or bool(message.get("reasoning_content"))


def _check_order(roles: list[str], faults: RowFaults) -> None:
    problem = ""
    start = next((i for i, role in enumerate(roles) if role != "system"), len(roles))
    for index in range(1, len(roles)):
        if roles[index] == "system":
            problem = f"turn {index} is the system's"
        elif roles[index] == roles[index - 1] != "tool":
            problem = f"turn {index} is the {roles[index]}'s again"
        if problem:
            break
    if not problem and start < len(roles) and roles[start] != "user":
        problem = f"the first turn is the {roles[start]}'s"
    if problem:
        more = ", ..." if len(roles) > _MAX_ROLES_SHOWN else ""
        faults.report("wrong_order", f"{problem}: {', '.join(roles[:_MAX_ROLES_SHOWN])}{more}")


def _check_tool_replies(messages: Sequence[Mapping[str, Any]], faults: RowFaults) -> None:
    if all(message["role"] != "tool" for message in messages):
        return
    known_ids: set[str] = set()
    has_call = False
    for index, message in enumerate(messages):
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            known_ids.update(call["id"] for call in calls if "id" in call)
            has_call = has_call or bool(calls) or "<tool_call>" in str(message["content"] or "")
        elif message["role"] == "tool":
            call_id = message.get("tool_call_id")
            if call_id is not None and call_id not in known_ids:
                faults.report(
                    "orphan_tool_reply", f"turn {index}: no earlier call has the id {call_id!r}"
                )
            elif call_id is None and not has_call:
                faults.report("orphan_tool_reply", f"turn {index}: no call stands before it")
