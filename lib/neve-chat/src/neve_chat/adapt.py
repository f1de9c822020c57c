"""
One row to one conversation in canonical form, by the policy of neve_chat.checks.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neve_chat.checks import RowFaults, RowPolicies, RowRejected, check_messages
from neve_chat.content import drop_padding, split_reasoning, text_of
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ROLES, ConversationSchema
from neve_chat.tool_calls import (
    canonical_calls,
    canonical_template_kwargs,
    canonical_tools,
    unwrap_response,
)
from neve_chat.turns import Turns, read_turns

__all__ = ["Conversation", "RowAdapter", "RowRejected", "drop_padding", "roles_report"]

_MAX_ROLES = 100
_TEXT_ONLY = ("system", "user")
_OBJECT = (dict, Mapping)  # dict first: Mapping's own check is slow


@dataclass(kw_only=True)
class Conversation:
    """
    A row in canonical form.
    """

    messages: list[dict[str, Any]]
    """Canonical messages, in order."""
    tools: list[Any] | None = None
    """JSON signatures for the template, or None."""
    template_kwargs: dict[str, Any] | None = None
    """Further template variables, or None."""
    source_id: str | None = None
    """Id from the data, if the schema names a column."""
    notes: list[str] = field(default_factory=list)
    """What was noted about a row that was kept."""


class RowAdapter:
    """
    Rows to conversations for one schema; counts the role values it meets.

    Args:
        schema: the layout of the rows, of any kind but auto.
        policies: what happens to faulty rows.

    Raises:
        ChatInputError: the schema is of kind auto.
    """

    def __init__(self, schema: ConversationSchema, policies: RowPolicies | None = None) -> None:
        if schema.kind == "auto":
            raise ChatInputError(
                "conversation schema: kind must be chosen before rows are read, got 'auto'. Call "
                "neve_chat.detect.choose_schema on the first rows."
            )
        self.schema = schema.resolved()
        self.policies = policies or RowPolicies()
        if schema.keep_empty_answers:
            self.policies = dataclasses.replace(self.policies, empty_answer="keep")
        self.roles_seen: Counter[str] = Counter()
        self._roles = self.schema.role_map()
        self._required = self.schema.required_columns()

    def adapt(
        self, row: Mapping[str, Any], *, is_padded: bool = False, where: str = ""
    ) -> Conversation:
        """
        The row's conversation in canonical form.

        Args:
            row: column name -> value.
            is_padded: the row comes from a columnar file, where null struct keys are padding.
            where: the row's place as file:index, for errors.

        Raises:
            RowRejected: a policy drops the row.
            ChatInputError: a policy stops at the row.
        """
        schema = self.schema
        source_id = row.get(schema.id_column) if schema.id_column else None
        if source_id is not None:
            where = f"{where} (id {str(source_id)!r})".lstrip()
        faults = RowFaults(self.policies, where)
        try:
            self._require_columns(row)
            turns = read_turns(row, schema, is_padded=is_padded, faults=faults)
            self._count_roles(turns)
            messages = [
                self._message(role, turn, index, faults) for index, (role, turn) in enumerate(turns)
            ]
            check_messages(messages, faults)
            tools = canonical_tools(row.get(schema.tools_column), is_padded)
            kwargs = canonical_template_kwargs(row.get(schema.template_kwargs_column), is_padded)
        except RowRejected as refusal:
            if source_id is None:
                raise
            detail = f"{refusal.detail} (id {str(source_id)!r})"
            raise RowRejected(refusal.reason, detail) from refusal
        return Conversation(
            messages=messages,
            tools=tools,
            template_kwargs=kwargs,
            source_id=None if source_id is None else str(source_id),
            notes=faults.notes,
        )

    def _require_columns(self, row: Mapping[str, Any]) -> None:
        for column in self._required:
            if column not in row:
                raise RowRejected(
                    "missing column",
                    f"no column {column!r}; the row has {', '.join(row) or 'none'}",
                )

    def _count_roles(self, turns: Turns) -> None:
        key, seen = self.schema.role_key, self.roles_seen
        values = [turn.get(key, role) for role, turn in turns if isinstance(turn, _OBJECT)]
        names = [
            value if isinstance(value, str) else str(value) for value in values if value is not None
        ]
        for name, count in Counter(names).items():
            if name in seen or len(seen) < _MAX_ROLES:
                seen[name] += count

    def _message(
        self, role: str | None, turn: Any, index: int, faults: RowFaults
    ) -> dict[str, Any]:
        schema, where = self.schema, f"turn {index}"
        if not isinstance(turn, _OBJECT):
            raise RowRejected(
                "malformed turn", f"{where} is a {type(turn).__name__}, not an object"
            )
        raw_role = turn.get(schema.role_key)
        if role is None:
            if raw_role is None:
                problem = "null under the" if schema.role_key in turn else "no"
                raise RowRejected(
                    "malformed turn",
                    f"{where} has {problem} key {schema.role_key!r}; it has {', '.join(turn)}",
                )
            role = self._roles.get(str(raw_role))
            if role is None:
                faults.report("unknown_role", f"{where} has the role {str(raw_role)!r}")
        assert role is not None  # an unknown role is never kept
        message: dict[str, Any] = {"role": role, "content": None}
        content = turn.get(schema.content_key)
        is_plain = isinstance(content, str) and len(turn) == 1 + (raw_role is not None)
        if is_plain and role in _TEXT_ONLY:  # most turns: the role, a text and nothing more
            message["content"] = content
            return message
        if is_plain and role == "assistant" and raw_role not in schema.function_call:
            message["content"] = content
            self._split_tags(message, faults.notes)
            return message
        calls = turn.get("tool_calls") or turn.get("function_call")  # the key of older APIs
        if role == "assistant" and raw_role in schema.function_call:
            content, calls = None, content
        message["content"] = _reply(content) if role == "tool" else text_of(content, where)
        if role == "assistant":
            self._take_reasoning(turn, message, faults.notes)
            weight = turn.get("weight")
            if weight == 0:
                message["weight"] = 0
            elif weight is not None and weight != 1:
                raise RowRejected(
                    "bad turn weight", f"{where} has the weight {weight!r}, neither 0 nor 1"
                )
        if isinstance(turn.get("name"), str) and turn["name"]:
            message["name"] = turn["name"]
        if role == "assistant" and calls:
            message["tool_calls"] = canonical_calls(calls, where, faults)
        if role == "tool":
            unwrap_response(message, faults.notes)
            if turn.get("tool_call_id"):
                message["tool_call_id"] = str(turn["tool_call_id"])
        if message["content"] is None and not (
            message.get("tool_calls") or "reasoning_content" in message
        ):
            name = role if raw_role is None else str(raw_role)
            faults.report("null_content", f"{where} ({name}) has null content")
            message["content"] = ""
        return message

    def _take_reasoning(
        self, turn: Mapping[str, Any], message: dict[str, Any], notes: list[str]
    ) -> None:
        for key in self.schema.reasoning_keys:
            if isinstance(turn.get(key), str) and turn[key]:
                message["reasoning_content"] = turn[key]
                break
        self._split_tags(message, notes)

    def _split_tags(self, message: dict[str, Any], notes: list[str]) -> None:
        tags, content = self.schema.reasoning_tags, message["content"]
        if tags is None or not content or not content.lstrip().startswith(tags[0]):
            return
        reasoning, answer = split_reasoning(content, tags)
        if reasoning is None:
            notes.append("reasoning tag not closed")
        elif "reasoning_content" in message:
            notes.append("reasoning both in its key and in tags")
        else:
            message["reasoning_content"], message["content"] = reasoning, answer


def _reply(content: Any) -> Any:
    """
    A tool's reply: text, text parts joined, or any JSON value as it is.
    """
    is_parts = isinstance(content, list) and all(
        isinstance(part, Mapping) and part.get("type") == "text" for part in content
    )
    return text_of(content, "a tool's reply") if is_parts and content else content


def roles_report(adapter: RowAdapter) -> str:
    """
    Sentences on the roles seen, what the schema reads, and the tags to pass; without a full stop.
    """
    roles_seen, schema = adapter.roles_seen, adapter.schema
    roles = schema.role_map()
    unknown = [value for value in roles_seen if value not in roles]
    counts = ", ".join(f"{value!r} x{count:,}" for value, count in sorted(roles_seen.items()))
    report = f"Roles seen: {counts or 'none'}; the schema reads {schema.describe()}"
    if unknown:
        tags = " or ".join(f"{role}={(*getattr(schema, role), unknown[0])!r}" for role in ROLES)
        listed = ", ".join(repr(value) for value in unknown)
        report += f". Not mapped: {listed}. Pass each under what it means, as {tags}"
    elif roles_seen and all(roles[value] != "assistant" for value in roles_seen):
        report += ". None of them is the assistant's. Pass the one that is, as assistant=(...,)"
    return report
