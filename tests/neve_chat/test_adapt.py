"""
The row policy: each row is kept or refused for a named reason, and fields survive.
"""

from __future__ import annotations

from typing import Any

import pytest
from neve_chat.adapt import Conversation, RowAdapter, RowRejected, roles_report
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
        (turns(("user", "q1"), *QA), ["wrong order"]),
        (turns(("assistant", "hello"), *QA), ["wrong order"]),
        (turns(*QA, ("assistant", "a2")), ["wrong order"]),
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


def weighted(weight: Any) -> dict[str, Any]:
    answer = {"role": "assistant", "content": "a", "weight": weight}
    return {"messages": [{"role": "user", "content": "q"}, answer]}


@pytest.mark.parametrize("weight", [1, 1.0, True, None, 0, 0.0, False])
def test_adapt_keeps_a_weight_of_zero_alone(weight: Any) -> None:
    """
    Trained or not is what a weight can say; other values are refused below.
    """
    answer = adapt(weighted(weight)).messages[1]

    assert answer.get("weight", 1) == (1 if weight is None else weight)


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
        (bad_arguments('"{}"'), "bad tool arguments", "must be an object"),
        ({**turns(*QA), "tools": "{"}, "bad tools", "not JSON"),
        (weighted("0"), "bad turn weight", "turn 1 has the weight '0'"),
        (weighted(0.5), "bad turn weight", "turn 1 has the weight 0.5"),
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

    assert adapt(row, keep_empty_answers=True).notes == ["empty answer"]


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
        ("gpt", '<think>t</think><tool_call>{"name": "sh"}</tool_call>'),
        ("tool", good),
        ("tool", broken),
        ("gpt", "ok"),
    ]
    turns_of_row = [{"from": role, "value": value} for role, value in values]
    row = {"id": "src-7", "conversations": turns_of_row}

    conversation = adapt(row, kind="sharegpt", id_column="id")

    assert conversation.source_id == "src-7"
    assert conversation.messages[1]["content"] == values[1][1]
    assert conversation.messages[2] == {"role": "tool", "content": "a.txt", "name": "sh"}
    assert conversation.messages[3] == {"role": "tool", "content": broken}
    assert conversation.notes == ["malformed tool response"]


def test_adapt_restores_padded_rows_of_parquet() -> None:
    """
    A row padded by Arrow equals the clean row, key order included, and plain turns get no calls.
    """
    function = {"name": "get_a", "arguments": {"a": "1", "b": None}}
    call = {"type": "function", "function": function}
    parameters = {
        "type": "object",
        "properties": {"a": {"type": "string", "enum": None}, "b": None},
    }
    padded = {
        "tools": [{"type": "function", "function": {"name": "get_a", "parameters": parameters}}],
        "messages": [
            {"role": "user", "content": "x", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [call]},
        ],
    }

    conversation = adapt(padded, is_padded=True)

    clean = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert repr(conversation.tools) == repr(
        [{"type": "function", "function": {"name": "get_a", "parameters": clean}}]
    )
    assert conversation.messages == [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"type": "function", "function": {"name": "get_a", "arguments": {"a": "1"}}}
            ],
        },
    ]


def test_adapt_keeps_content_that_the_first_turn_lacks() -> None:
    """
    A key that only later turns have is read (axolotl PR 3917 took the first turn's keys for all).
    """
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    row = {
        "messages": [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "assistant", "content": "done"},
        ]
    }

    assert adapt(row).messages[2]["content"] == "done"


def test_adapt_names_the_id_of_a_refused_row() -> None:
    """
    Where the data has ids, the detail holds the row's, beside function, call and the bad text.
    """
    with pytest.raises(RowRejected) as caught:
        adapt({"id": "broken_json", **bad_arguments('{"city": "Oslo"')}, id_column="id")

    detail = caught.value.detail
    assert "function 'get_weather', call 'c9'" in detail
    assert '{"city": "Oslo"' in detail
    assert detail.endswith("(id 'broken_json')")


def test_adapt_joins_the_text_parts_of_a_reply_and_keeps_other_values() -> None:
    """
    A tool's content is text parts or any JSON value; only parts are joined.
    """
    parts = [{"type": "text", "text": "5"}, {"type": "text", "text": " C"}]
    row = turns(*QA, ("tool", parts), ("tool", {"t": 5}), ("assistant", "ok"))

    messages = adapt(row).messages

    assert [message["content"] for message in messages[2:4]] == ["5 C", {"t": 5}]


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "notes"),
    [
        ("<think>\nwhy\n</think>\n\nyes", "yes", "why", []),
        ("\n<think>why</think>yes", "yes", "why", []),
        ("<think>\n\n</think>\n\nyes", "yes", "", []),
        ("<think>why", "<think>why", None, ["reasoning tag not closed"]),
        ("so <think>why</think>", "so <think>why</think>", None, []),
    ],
)
def test_adapt_moves_reasoning_out_of_tags(
    text: str, content: str, reasoning: str | None, notes: list[str]
) -> None:
    """
    Reasoning at the start of an answer becomes its own field; an unclosed tag stays and is noted.
    """
    row = turns(("user", "<think>q</think>"), ("assistant", text))

    conversation = adapt(row, reasoning_tags=("<think>", "</think>"))

    assert conversation.messages[0]["content"] == "<think>q</think>"
    assert conversation.messages[1]["content"] == content
    assert conversation.messages[1].get("reasoning_content") == reasoning
    assert conversation.notes == notes


def test_adapt_never_overwrites_reasoning() -> None:
    """
    A turn with reasoning both in its key and in tags stays as it is, with a note.
    """
    text = "<think>b</think>yes"
    turn = {"role": "assistant", "content": text, "reasoning_content": "a"}
    row = {"messages": [{"role": "user", "content": "q"}, turn]}

    conversation = adapt(row, reasoning_tags=("<think>", "</think>"))

    assert conversation.messages[1] == turn
    assert conversation.notes == ["reasoning both in its key and in tags"]


def test_roles_report_shows_the_roles_and_the_tags_to_pass() -> None:
    """
    Roles of refused rows are counted too, and the report is what to write.
    """
    adapter = RowAdapter(ConversationSchema(kind="sharegpt"))
    answer = {"from": "gpt", "value": "a"}
    adapter.adapt({"conversations": [{"from": "human", "value": "q"}, answer]})
    with pytest.raises(RowRejected, match="unknown role"):
        adapter.adapt({"conversations": [{"from": "hummany", "value": "q"}, answer]})

    report = roles_report(adapter)

    assert "Roles seen: 'gpt' x2, 'human' x1, 'hummany' x1" in report
    assert "Not mapped: 'hummany'" in report
    assert "user=('human', 'user', 'hummany')" in report


def test_roles_report_tells_that_no_role_is_trained() -> None:
    """
    Known roles without one of the assistant ask for the assistant's tag.
    """
    adapter = RowAdapter(ConversationSchema())
    with pytest.raises(RowRejected, match="no assistant turn"):
        adapter.adapt(turns(("user", "q")))

    assert "None of them is the assistant's" in roles_report(adapter)


def test_adapter_refuses_a_schema_that_was_not_chosen() -> None:
    """
    Kind auto is no layout yet.
    """
    with pytest.raises(ChatInputError, match="choose_schema"):
        RowAdapter(ConversationSchema(kind="auto"))
