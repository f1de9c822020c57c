"""
The row policy: each row is kept or refused for a named reason, and fields survive.
"""

from __future__ import annotations

from typing import Any

import pytest
from neve_chat.adapt import Conversation, RowAdapter, RowRejected
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema


def adapt(row: dict[str, Any], *, is_padded: bool = False, **schema: Any) -> Conversation:
    return RowAdapter(ConversationSchema(**schema)).adapt(row, is_padded=is_padded)


def turns(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


QA = (("user", "q"), ("assistant", "a"))


@pytest.mark.parametrize(
    ("row", "notes"),
    [
        (turns(*QA), []),
        (turns(("system", "s"), *QA), []),
        (turns(("user", "q1"), *QA), []),
        (turns(("assistant", "hello"), *QA), []),
        (turns(*QA, ("assistant", "a2")), []),
        (turns(*QA, ("user", "thanks")), ["last turn not trainable"]),
        (turns(*QA, ("user", "q"), ("assistant", "")), ["empty assistant turn"]),
        (turns(("developer", "s"), *QA), []),
        (turns(("user", [{"type": "text", "text": "q"}]), ("assistant", "a")), []),
    ],
)
def test_adapt_keeps_usable_rows(row: dict[str, Any], notes: list[str]) -> None:
    """
    Orders that a template can render are kept; what a reader should know is noted.
    """
    conversation = adapt(row)

    assert len(conversation.messages) == len(row["messages"])
    assert conversation.notes == notes


def bad_arguments(arguments: str) -> dict[str, Any]:
    call = {"id": "c9", "function": {"name": "get_weather", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {"messages": [{"role": "user", "content": "x"}, answer]}


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        (turns(("user", "q")), "no assistant turn", "1 turns"),
        (turns(), "empty conversation", "'messages'"),
        ({"messages": None}, "empty conversation", "'messages'"),
        ({"text": "x"}, "missing column", "the row has text"),
        (turns(("user", None), ("assistant", "a")), "null content", "turn 0"),
        (turns(("user", "q"), ("assistant", None)), "null content", "turn 1"),
        (turns(("user", "q"), ("assistant", " ")), "empty answer", "all 1"),
        (turns(("hummany", "q"), ("assistant", "a")), "unknown role", "hummany"),
        (turns(("user", [{"type": "image"}]), ("assistant", "a")), "content is not text", "turn 0"),
        ({"messages": ["q", "a"]}, "malformed turn", "turn 0 is a str"),
        ({"messages": [{"from": "human"}]}, "malformed turn", "no key 'role'"),
        (bad_arguments('{"city": "Oslo"'), "bad tool arguments", "'get_weather', call 'c9'"),
        (bad_arguments("[1, 2]"), "bad tool arguments", "must be an object"),
        ({**turns(*QA), "tools": "{"}, "bad tools", "not JSON"),
    ],
)
def test_adapt_refuses_with_a_reason_and_the_place(
    row: dict[str, Any], reason: str, detail: str
) -> None:
    """
    A refused row has a countable reason and a detail that finds the fault.
    """
    with pytest.raises(RowRejected) as caught:
        adapt(row)

    assert caught.value.reason == reason
    assert detail in caught.value.detail


def test_adapt_keeps_empty_answers_on_request() -> None:
    """
    keep_empty_answers turns the refusal of an empty answer off.
    """
    row = turns(("user", "q"), ("assistant", ""))

    assert adapt(row, keep_empty_answers=True).notes == ["empty assistant turn"]


def test_adapt_keeps_tool_fields() -> None:
    """
    Calls, ids, names and signatures survive, with the arguments' key order (marin#7045 lost them).
    """
    call = {"id": "c1", "function": {"name": "w", "arguments": '{"unit": "C", "city": "Oslo"}'}}
    row = {
        "messages": [
            {"role": "user", "content": "Weather?", "tool_calls": []},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "name": "w", "content": "5"},
            {"role": "assistant", "content": "5 degrees.", "reasoning": "easy"},
        ],
        "tools": '[{"type": "function", "function": {"name": "w"}}]',
    }

    conversation = adapt(row)

    function = {"name": "w", "arguments": {"unit": "C", "city": "Oslo"}}
    assert conversation.messages == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "5", "name": "w", "tool_call_id": "c1"},
        {"role": "assistant", "content": "5 degrees.", "reasoning_content": "easy"},
    ]
    arguments = conversation.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert list(arguments) == ["unit", "city"]
    assert conversation.tools == [{"type": "function", "function": {"name": "w"}}]


@pytest.mark.parametrize(
    "arguments", [{"time": "2025-08-01"}, {"time": 1, "deep": {"z": 1, "a": [1, "x"]}}]
)
def test_adapt_casts_no_argument(arguments: dict[str, Any]) -> None:
    """
    An argument keeps its type and key order whatever other rows hold (axolotl PR 3136).
    """
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}

    kept = adapt({"messages": [{"role": "user", "content": "x"}, answer]}).messages[1]

    assert repr(kept["tool_calls"][0]["function"]["arguments"]) == repr(arguments)


def test_adapt_drops_padding_of_columnar_files_only() -> None:
    """
    Arrow's null struct keys vanish, a null that JSON lines state stays (ms-swift#6467).
    """
    tool = {"function": {"name": "f", "parameters": {"a": {"enum": ["x", None], "default": None}}}}
    row = {**turns(*QA), "tools": [tool]}

    assert adapt(row).tools == [tool]
    assert adapt(row, is_padded=True).tools == [
        {"function": {"name": "f", "parameters": {"a": {"enum": ["x", None]}}}}
    ]


def test_adapt_unwraps_tool_responses_of_sharegpt() -> None:
    """
    A well-formed response becomes name and content; a broken one stays verbatim and is noted.
    """
    good = '<tool_response>{"name": "sh", "content": "a.txt"}</tool_response>'
    broken = "<tool_response>{broken</tool_response>"
    values = [
        ("human", "run"),
        ("gpt", "<think>t</think>x"),
        ("tool", good),
        ("tool", broken),
        ("gpt", "ok"),
    ]
    row = {"conversations": [{"from": role, "value": value} for role, value in values]}

    conversation = adapt(row, kind="sharegpt")

    assert conversation.messages[1]["content"] == "<think>t</think>x"
    assert conversation.messages[2] == {"role": "tool", "content": "a.txt", "name": "sh"}
    assert conversation.messages[3] == {"role": "tool", "content": broken}
    assert conversation.notes == ["malformed tool response"]


def test_adapt_reads_two_columns() -> None:
    """
    An instruction, its context and a response are a conversation of two turns.
    """
    row = {"prompt": "sum", "input": "1 2", "answer": "3"}

    conversation = adapt(
        row,
        kind="instruction",
        instruction_column="prompt",
        context_column="input",
        response_column="answer",
    )

    assert conversation.messages == [
        {"role": "user", "content": "sum\n\n1 2"},
        {"role": "assistant", "content": "3"},
    ]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "openai"}, "kind must be one of messages, sharegpt, instruction"),
        ({"user": "human"}, "must be a tuple"),
        ({"user": ("gpt",)}, "under both user and assistant"),
        ({"assistant": ()}, "Nothing would be trained"),
    ],
)
def test_schema_refuses_what_it_cannot_mean(fields: dict[str, Any], problem: str) -> None:
    """
    A contradictory schema fails where it is written, not in the step.
    """
    with pytest.raises(ChatInputError, match=problem):
        ConversationSchema(**fields)
