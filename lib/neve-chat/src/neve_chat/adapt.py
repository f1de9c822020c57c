"""
One row to one conversation, by the documented policy. Nothing is guessed and nothing vanishes.

| row | result |
|---|---|
| any order of known roles, also assistant first | kept as it is |
| several turns of one role in a row | kept as they are |
| last turn is not the assistant's | kept, noted: last turn not trainable |
| content is a list of text parts | kept, parts joined |
| an assistant turn without text, others with | kept, noted: empty assistant turn |
| assistant turn with tool calls and null content | kept, content null |
| tool arguments as JSON text of an object | kept, parsed once |
| tool turn with <tool_response>{name, content}</...> | kept, unwrapped; broken: verbatim, noted |
| no turns, or the column is absent or null | rejected: empty conversation / missing column |
| no assistant turn | rejected: no assistant turn |
| every assistant turn is empty | rejected: empty answer, unless keep_empty_answers |
| user or system content null, assistant null and no call | rejected: null content |
| content with parts that are not text | rejected: content is not text |
| role value outside the schema's map | rejected: unknown role |
| tool arguments that are no JSON object | rejected: bad tool arguments |
| tools or template kwargs of the wrong form | rejected: bad tools / bad template kwargs |
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from neve_chat.schemas import ConversationSchema

__all__ = ["Conversation", "RowAdapter", "RowRejected", "drop_padding"]

_RESPONSE_OPEN, _RESPONSE_CLOSE = "<tool_response>", "</tool_response>"


class RowRejected(Exception):
    """
    A row that the policy refuses. `reason` is a short constant text, `detail` names the place.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


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


def drop_padding(value: Any) -> Any:
    """
    Without the null struct keys that Arrow adds so that all rows have one type; list items stay.
    """
    if isinstance(value, dict):
        return {key: drop_padding(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [drop_padding(item) for item in value]
    return value


class RowAdapter:
    """
    Rows to conversations for one schema; counts the role values it meets.
    """

    def __init__(self, schema: ConversationSchema) -> None:
        self.schema = schema.resolved()
        self.roles_seen: Counter[str] = Counter()
        self._roles = self.schema.role_map()

    def adapt(self, row: Mapping[str, Any], *, is_padded: bool = False) -> Conversation:
        """
        The row's conversation in canonical form.

        Args:
            row: column name -> value.
            is_padded: the row comes from a columnar file, where null struct keys are padding.

        Raises:
            RowRejected: the policy refuses the row.
        """
        schema = self.schema
        for column in schema.required_columns():
            if column not in row:
                raise RowRejected(
                    "missing column",
                    f"no column {column!r}; the row has {', '.join(row) or 'none'}",
                )
        turns = (
            self._instruction_turns(row)
            if schema.kind == "instruction"
            else row[schema.conversation_column]
        )
        if isinstance(turns, str):
            turns = _parse_json(turns, "empty conversation", schema.conversation_column)
        if is_padded:
            turns = drop_padding(turns)
        if not isinstance(turns, list) or not turns:
            raise RowRejected(
                "empty conversation", f"{schema.conversation_column!r} holds no turns"
            )
        notes: list[str] = []
        messages = [self._message(turn, index, notes) for index, turn in enumerate(turns)]
        self._check(messages, notes)
        source_id = row.get(schema.id_column) if schema.id_column else None
        return Conversation(
            messages=messages,
            tools=_tools(row.get(schema.tools_column), is_padded),
            template_kwargs=_template_kwargs(row.get(schema.template_kwargs_column), is_padded),
            source_id=None if source_id is None else str(source_id),
            notes=notes,
        )

    def _instruction_turns(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        schema = self.schema
        instruction, response = row[schema.instruction_column], row[schema.response_column]
        context = row.get(schema.context_column) if schema.context_column else None
        if isinstance(instruction, str) and context:
            instruction = f"{instruction}\n\n{context}"
        return [
            {schema.role_key: schema.user[0], schema.content_key: instruction},
            {schema.role_key: schema.assistant[0], schema.content_key: response},
        ]

    def _message(self, turn: Any, index: int, notes: list[str]) -> dict[str, Any]:
        schema = self.schema
        if not isinstance(turn, Mapping):
            raise RowRejected(
                "malformed turn", f"turn {index} is a {type(turn).__name__}, not an object"
            )
        raw_role = turn.get(schema.role_key)
        if raw_role is None:
            raise RowRejected(
                "malformed turn",
                f"turn {index} has no key {schema.role_key!r}; it has {', '.join(turn)}",
            )
        raw_role = str(raw_role)
        if raw_role in self.roles_seen or len(self.roles_seen) < 100:
            self.roles_seen[raw_role] += 1
        role = self._roles.get(raw_role)
        if role is None:
            raise RowRejected("unknown role", f"turn {index} has the role {raw_role!r}")
        message: dict[str, Any] = {"role": role, "content": None}
        calls = turn.get("tool_calls")
        content = turn.get(schema.content_key)
        message["content"] = content if role == "tool" else _text(content, index)
        if role == "assistant":
            reasoning = next(
                (turn[key] for key in schema.reasoning_keys if isinstance(turn.get(key), str)), None
            )
            if reasoning:
                message["reasoning_content"] = reasoning
        if isinstance(turn.get("name"), str) and turn["name"]:
            message["name"] = turn["name"]
        if role == "assistant" and calls:
            message["tool_calls"] = _tool_calls(calls, index)
        if role == "tool":
            if turn.get("tool_call_id"):
                message["tool_call_id"] = str(turn["tool_call_id"])
            _unwrap_response(message, notes)
        elif (
            message["content"] is None
            and "tool_calls" not in message
            and "reasoning_content" not in message
        ):
            raise RowRejected("null content", f"turn {index} ({raw_role}) has null content")
        return message

    def _check(self, messages: list[dict[str, Any]], notes: list[str]) -> None:
        answers = [message for message in messages if message["role"] == "assistant"]
        if not answers:
            raise RowRejected("no assistant turn", f"{len(messages)} turns, none of the assistant")
        empty = sum(1 for message in answers if not _has_substance(message))
        if empty == len(answers) and not self.schema.keep_empty_answers:
            raise RowRejected("empty answer", f"all {empty} assistant turns are empty")
        if empty:
            notes.append("empty assistant turn")
        if messages[-1]["role"] != "assistant":
            notes.append("last turn not trainable")


def _has_substance(message: Mapping[str, Any]) -> bool:
    content = message["content"]
    has_text = bool(content.strip()) if isinstance(content, str) else bool(content)
    return has_text or bool(message.get("tool_calls")) or bool(message.get("reasoning_content"))


def _text(content: Any, index: int) -> str | None:
    if content is None or isinstance(content, str):
        return content
    parts = [content] if isinstance(content, Mapping) else content
    if isinstance(parts, list):
        texts = [_part_text(part) for part in parts]
        if all(text is not None for text in texts):
            return "".join(text for text in texts if text is not None)
    raise RowRejected("content is not text", f"turn {index} holds {_short(content)}")


def _part_text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if (
        isinstance(part, Mapping)
        and part.get("type", "text") == "text"
        and isinstance(part.get("text"), str)
    ):
        return part["text"]
    return None


def _tool_calls(calls: Any, index: int) -> list[dict[str, Any]]:
    if isinstance(calls, str):
        calls = _parse_json(calls, "bad tool calls", f"turn {index}")
    if not isinstance(calls, list):
        raise RowRejected("bad tool calls", f"turn {index}: must be a list, got {_short(calls)}")
    return [_tool_call(call, index) for call in calls]


def _tool_call(call: Any, index: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowRejected(
            "bad tool calls", f"turn {index}: a call must name its function, got {_short(call)}"
        )
    arguments = function.get("arguments")
    where = f"turn {index}, function {function['name']!r}, call {call.get('id')!r}"
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = _parse_json(arguments, "bad tool arguments", where) if arguments.strip() else {}
    if not isinstance(arguments, Mapping):
        raise RowRejected(
            "bad tool arguments", f"{where}: arguments must be an object, got {_short(arguments)}"
        )
    identity = {} if call.get("id") is None else {"id": str(call["id"])}
    return {
        **identity,
        "type": "function",
        "function": {"name": function["name"], "arguments": dict(arguments)},
    }


def _unwrap_response(message: dict[str, Any], notes: list[str]) -> None:
    content = message["content"]
    if not isinstance(content, str) or not content.lstrip().startswith(_RESPONSE_OPEN):
        return
    inner = content.strip().removeprefix(_RESPONSE_OPEN).removesuffix(_RESPONSE_CLOSE)
    try:
        reply = json.loads(inner)
    except ValueError:
        reply = None
    if (
        isinstance(reply, dict)
        and set(reply) <= {"name", "content", "tool_call_id"}
        and "content" in reply
    ):
        message["content"] = reply["content"]
        for key in ("name", "tool_call_id"):
            if isinstance(reply.get(key), str):
                message.setdefault(key, reply[key])
    else:
        notes.append("malformed tool response")


def _tools(value: Any, is_padded: bool) -> list[Any] | None:
    if isinstance(value, str):
        value = _parse_json(value, "bad tools", "the tools column") if value.strip() else None
    elif is_padded:
        value = drop_padding(value)
    if not value:
        return None
    if not isinstance(value, list):
        raise RowRejected("bad tools", f"must be a list of signatures, got {_short(value)}")
    return [
        _parse_json(tool, "bad tools", "one signature") if isinstance(tool, str) else tool
        for tool in value
    ]


def _template_kwargs(value: Any, is_padded: bool) -> dict[str, Any] | None:
    if isinstance(value, str):
        value = _parse_json(value, "bad template kwargs", "the column") if value.strip() else None
    elif is_padded:
        value = drop_padding(value)
    if not value:
        return None
    if not isinstance(value, dict):
        raise RowRejected("bad template kwargs", f"must be an object, got {_short(value)}")
    return value


def _parse_json(text: str, reason: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise RowRejected(reason, f"{where}: not JSON ({error}): {_short(text)}") from error


def _short(value: Any, limit: int = 200) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else text[:limit] + "..."
