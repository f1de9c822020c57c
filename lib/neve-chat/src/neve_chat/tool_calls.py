"""
Tool calls, tool replies and function signatures in their canonical form.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from neve_chat.checks import RowFaults, RowRejected
from neve_chat.content import drop_padding, load_json, parse_json, short

__all__ = ["canonical_calls", "canonical_template_kwargs", "canonical_tools", "unwrap_response"]

_RESPONSE_OPEN, _RESPONSE_CLOSE = "<tool_response>", "</tool_response>"


def canonical_calls(calls: Any, where: str, faults: RowFaults) -> list[dict[str, Any]]:
    """
    Calls as {id?, type, function: {name, arguments}}; a call may come without its function layer.

    Args:
        calls: a call, a list of calls, or either as JSON text.
        where: the turn, for messages.
        faults: applies the policy on arguments that are no JSON object.

    Raises:
        RowRejected: the form is wrong, or a policy is drop.
        ChatInputError: a policy is error.
    """
    if isinstance(calls, str):
        calls = parse_json(calls, "bad tool calls", where)
    if isinstance(calls, Mapping):
        calls = [calls]
    if not isinstance(calls, list):
        raise RowRejected("bad tool calls", f"{where}: must be a list, got {short(calls)}")
    return [_call(call, where, faults) for call in calls]


def _call(call: Any, where: str, faults: RowFaults) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowRejected(
            "bad tool calls", f"{where}: a call must name its function, got {short(call)}"
        )
    place = f"{where}, function {function['name']!r}, call {call.get('id')!r}"
    identity = {} if call.get("id") is None else {"id": str(call["id"])}
    arguments = _arguments(function.get("arguments"), place, faults)
    return {
        **identity,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(arguments: Any, place: str, faults: RowFaults) -> Any:
    value, problem = arguments, "arguments must be an object"
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = load_json(value)
        except ValueError as error:
            problem = f"not JSON ({error})"
    if isinstance(value, Mapping):
        return dict(value)
    faults.report("bad_arguments", f"{place}: {problem}, got {short(arguments)}")
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def unwrap_response(message: dict[str, Any], notes: list[str]) -> None:
    """
    A tool's <tool_response>{"name", "content"}</tool_response> becomes its name and content in
    place; a broken one stays and is noted.
    """
    content = message["content"]
    if not isinstance(content, str) or not content.lstrip().startswith(_RESPONSE_OPEN):
        return
    inner = content.strip().removeprefix(_RESPONSE_OPEN).removesuffix(_RESPONSE_CLOSE)
    try:
        reply = load_json(inner)
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


def canonical_tools(value: Any, is_padded: bool) -> list[Any] | None:
    """
    The signatures of a tools column, a list or JSON text; None where it is empty.

    Raises:
        RowRejected: not JSON, or no list.
    """
    value = _column_value(value, is_padded, "bad tools", "the tools column")
    if not value:
        return None
    if not isinstance(value, list):
        raise RowRejected("bad tools", f"must be a list of signatures, got {short(value)}")
    return [
        parse_json(tool, "bad tools", "one signature") if isinstance(tool, str) else tool
        for tool in value
    ]


def canonical_template_kwargs(value: Any, is_padded: bool) -> dict[str, Any] | None:
    """
    The variables of a template kwargs column, an object or JSON text; None where it is empty.

    Raises:
        RowRejected: not JSON, or no object.
    """
    value = _column_value(value, is_padded, "bad template kwargs", "the column")
    if not value:
        return None
    if not isinstance(value, dict):
        raise RowRejected("bad template kwargs", f"must be an object, got {short(value)}")
    return value


def _column_value(value: Any, is_padded: bool, reason: str, where: str) -> Any:
    if isinstance(value, str):
        return parse_json(value, reason, where) if value.strip() else None
    return drop_padding(value) if is_padded else value
