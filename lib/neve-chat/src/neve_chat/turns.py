"""
The turns of a row, from whichever columns the schema names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from neve_chat.checks import RowFaults, RowRejected
from neve_chat.content import drop_padding, parse_json, short, text_of
from neve_chat.harmony import merge_channels
from neve_chat.schemas import ConversationSchema

__all__ = ["Turns", "read_turns"]

Turns = list[tuple[str | None, Any]]
"""Pairs of canonical role, or None where the turn's role key tells it, and turn."""


def read_turns(
    row: Mapping[str, Any], schema: ConversationSchema, *, is_padded: bool, faults: RowFaults
) -> Turns:
    """
    The turns in order, with the system column's text in front where no system turn stands there.

    Args:
        row: column name -> value, with every required column.
        schema: resolved, of any kind but auto.
        is_padded: null struct keys are padding.
        faults: takes notes.

    Raises:
        RowRejected: a column is of the wrong form.
    """

    def value_of(column: str) -> Any:
        value = row.get(column) if column else None
        return drop_padding(value) if is_padded else value

    if schema.kind in ("instruction", "preference"):
        prompt = _prompt_turns(value_of, schema)
        answer = _answer_turns(value_of(schema.response_column), schema)
        turns = _joined(prompt, answer, schema)
    else:
        turns = _listed_turns(value_of(schema.conversation_column), schema, faults)
    if schema.system_column:
        turns = _with_system(turns, value_of(schema.system_column), schema, faults)
    return turns


def _listed_turns(value: Any, schema: ConversationSchema, faults: RowFaults) -> Turns:
    if isinstance(value, str):
        value = parse_json(value, "empty conversation", schema.conversation_column)
    if isinstance(value, Mapping):
        value = _transposed(value, schema)
    if not isinstance(value, list) or not value:
        raise RowRejected("empty conversation", f"{schema.conversation_column!r} holds no turns")
    if schema.kind == "harmony":
        return merge_channels(value, schema, faults)
    return [(None, turn) for turn in value]


def _transposed(value: Mapping[str, Any], schema: ConversationSchema) -> Any:
    """
    Turns from one list for each key, which is how some data sets store a sequence of objects.
    """
    lists = [items for items in value.values() if items is not None]
    is_lists = all(isinstance(items, list) for items in lists)
    if schema.role_key not in value or not is_lists or len({len(items) for items in lists}) != 1:
        raise RowRejected(
            "malformed turn",
            f"{schema.conversation_column!r} must hold a list of turns, got {short(value)}",
        )
    keys = [key for key, items in value.items() if items is not None]
    return [dict(zip(keys, items, strict=True)) for items in zip(*lists, strict=True)]


def _prompt_turns(value_of: Any, schema: ConversationSchema) -> Turns:
    instruction = value_of(schema.instruction_column)
    context = value_of(schema.context_column)
    if isinstance(instruction, str) and context:
        context = text_of(context, schema.context_column)
        instruction = f"{instruction}{schema.context_separator}{context}"
    turns = _history_turns(value_of(schema.history_column), schema)
    if instruction is None and schema.kind == "preference":
        return turns
    return turns + _as_turns(instruction, "user", schema)


def _history_turns(value: Any, schema: ConversationSchema) -> Turns:
    if not value:
        return []
    turns: Turns = []
    for pair in value if isinstance(value, list) else [value]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise RowRejected(
                "bad history",
                f"{schema.history_column!r} must hold pairs of user and assistant text, got "
                f"{short(pair)}",
            )
        turns += [("user", {schema.content_key: pair[0]})]
        turns += [("assistant", {schema.content_key: pair[1]})]
    return turns


def _answer_turns(value: Any, schema: ConversationSchema) -> Turns:
    if schema.metric_key or schema.use_first_response:
        value = _chosen_completion(value, schema)
    return _as_turns(value, "assistant", schema)


def _chosen_completion(value: Any, schema: ConversationSchema) -> Any:
    column = schema.response_column
    if isinstance(value, str):
        value = parse_json(value, "bad completions", column)
    if not isinstance(value, list) or not value:
        raise RowRejected("bad completions", f"{column!r} must be a list, got {short(value)}")
    if schema.use_first_response:
        return value[0]
    best, best_metric = None, -math.inf
    for completion in value:
        metric = completion.get(schema.metric_key) if isinstance(completion, Mapping) else None
        if isinstance(metric, bool) or not isinstance(metric, int | float) or math.isnan(metric):
            raise RowRejected(
                "bad completions",
                f"every completion in {column!r} must have a number under "
                f"{schema.metric_key!r}, got {short(completion)}",
            )
        if best is None or metric > best_metric:
            best, best_metric = completion, metric
    return best


def _as_turns(value: Any, role: str, schema: ConversationSchema) -> Turns:
    """
    Text or content parts are one turn of the role, objects with a role are turns by themselves.
    """
    items = [value] if isinstance(value, Mapping) else value
    if isinstance(items, list) and items and all(isinstance(item, Mapping) for item in items):
        if all(schema.role_key in item for item in items):
            return [(None, item) for item in items]
        if len(items) == 1 and schema.content_key in items[0]:
            return [(role, items[0])]
    return [(role, {schema.content_key: value})]


def _joined(prompt: Turns, answer: Turns, schema: ConversationSchema) -> Turns:
    """
    Prompt and answer, or the answer alone where it holds the whole conversation.
    """
    first = _role(answer[0], schema)
    if first not in ("user", "system"):
        if not prompt and first == "assistant":
            raise RowRejected(
                "prompt not in chosen",
                f"{schema.response_column!r} starts with the answer and "
                f"{schema.instruction_column!r} is empty",
            )
        return prompt + answer
    said = [(_role(turn, schema), _text(turn, schema)) for turn in answer]
    for turn in prompt:
        if (_role(turn, schema), _text(turn, schema)) not in said:
            raise RowRejected(
                "prompt not in chosen",
                f"{schema.response_column!r} has turns of the user, none of them is "
                f"{short(_text(turn, schema))}",
            )
    return answer


def _role(turn: tuple[str | None, Any], schema: ConversationSchema) -> str | None:
    role, values = turn
    if role is not None or not isinstance(values, Mapping):
        return role
    return schema.role_map().get(str(values.get(schema.role_key)))


def _text(turn: tuple[str | None, Any], schema: ConversationSchema) -> str | None:
    return text_of(turn[1].get(schema.content_key), "a turn")


def _with_system(turns: Turns, value: Any, schema: ConversationSchema, faults: RowFaults) -> Turns:
    if value is not None and not isinstance(value, str):
        raise RowRejected(
            "bad system text", f"{schema.system_column!r} must be text, got {short(value)}"
        )
    if not value or not value.strip():
        return turns
    for turn in turns:
        if _role(turn, schema) == "system":
            if turn[1].get(schema.content_key) != value:
                faults.notes.append("system column not used, a system turn differs")
            return turns
    return [("system", {schema.content_key: value}), *turns]
