"""
The one schema that fits the first rows is found; none or two are an error that helps.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from neve_chat.adapt import RowAdapter
from neve_chat.detect import choose_schema, propose_schemas
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema

TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TAGGED = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
CALLED = [
    TURNS[0],
    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "content": "1"},
    TURNS[1],
]
CHANNELS = [TURNS[0], {**TURNS[1], "channel": "final"}]


@pytest.mark.parametrize(
    ("row", "schema", "text"),
    [
        (
            {"messages": TURNS, "id": "1"},
            ConversationSchema(),
            "messages: messages[].role/content, roles user->user (3), assistant->assistant (3)",
        ),
        (
            {"messages": CALLED, "tools": "[]"},
            ConversationSchema(),
            "messages: messages[].role/content, roles user->user (3), assistant->assistant (6), "
            "tool->tool (3)",
        ),
        (
            {"conversations": TAGGED},
            ConversationSchema(kind="sharegpt"),
            "sharegpt: conversations[].from/value, roles human->user (3), gpt->assistant (3)",
        ),
        (
            {"conversations": TURNS, "agent": "terminus", "task": "t"},
            ConversationSchema(conversation_column="conversations"),
            "messages: conversations[].role/content, roles user->user (3), assistant->assistant "
            "(3)",
        ),
        (
            {"dialogue": json.dumps(TURNS)},
            ConversationSchema(conversation_column="dialogue"),
            "messages: dialogue[].role/content, roles user->user (3), assistant->assistant (3)",
        ),
        (
            {"messages": CHANNELS},
            ConversationSchema(kind="harmony"),
            "harmony: messages[].role/content, roles user->user (3), assistant->assistant (3)",
        ),
        (
            {"system": "s", "conversations": TAGGED},
            ConversationSchema(kind="sharegpt", system_column="system"),
            "sharegpt: conversations[].from/value, roles human->user (3), gpt->assistant (3), "
            "system -> system",
        ),
        (
            {"instruction": "q", "input": "", "output": "a", "text": "q a"},
            ConversationSchema(kind="alpaca"),
            "alpaca: instruction and input -> user, output -> assistant",
        ),
        (
            {"instruction": "q", "context": "c", "response": "a", "category": "qa"},
            ConversationSchema(kind="dolly"),
            "dolly: instruction and context -> user, response -> assistant",
        ),
        (
            {"instruction": "q", "response": "a"},
            ConversationSchema(kind="instruction"),
            "instruction: instruction -> user, response -> assistant",
        ),
        (
            {"query": "q", "response": "a", "original_question": "q", "type": "t"},
            ConversationSchema(kind="instruction", instruction_column="query"),
            "instruction: query -> user, response -> assistant",
        ),
        (
            {"question": "q", "inferences": [{"completion": "a", "model": "m", "pass_rate": 0.5}]},
            ConversationSchema(
                kind="instruction",
                instruction_column="question",
                response_column="inferences",
                content_key="completion",
                metric_key="pass_rate",
            ),
            "instruction: question -> user, inferences[].completion with the largest pass_rate "
            "-> assistant",
        ),
        (
            {"prompt": "q", "chosen": TURNS, "rejected": TURNS},
            ConversationSchema(kind="preference"),
            "preference: prompt, chosen[].role/content, roles user->user (3), "
            "assistant->assistant (3)",
        ),
        (
            {"prompt": "q", "chosen": "a", "rejected": "b"},
            ConversationSchema(kind="preference"),
            "preference: prompt -> user, chosen -> assistant",
        ),
        (
            {"chosen": TAGGED, "rejected": TAGGED},
            ConversationSchema(kind="preference", role_key="from", content_key="value"),
            "preference: chosen[].from/value, roles human->user (3), gpt->assistant (3)",
        ),
    ],
)
def test_choose_finds_the_only_schema_that_fits(
    row: dict[str, Any], schema: ConversationSchema, text: str
) -> None:
    """
    The proposal is the schema a user would write, says what it rests on, and reads the rows.
    """
    proposal = choose_schema([row, row, row], "rows.jsonl")

    assert proposal.schema == schema
    assert proposal.text() == text
    messages = RowAdapter(proposal.schema).adapt(row).messages
    assert messages[-1] == {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (
            {"messages": TURNS, "conversations": TAGGED},
            ["ConversationSchema()", "ConversationSchema(kind='sharegpt')"],
        ),
        (
            {"prompt": "q", "chosen": TURNS, "rejected": TURNS, "messages": TURNS},
            ["ConversationSchema(kind='preference')", "ConversationSchema()"],
        ),
        (
            {"prompt": "q", "chosen": json.dumps(TURNS), "rejected": json.dumps(TURNS)},
            ["conversation_column='chosen'", "conversation_column='rejected'"],
        ),
        (
            {"question": "q", "answer": "42", "solution": "a"},
            ["response_column='answer'", "response_column='solution'"],
        ),
        (
            {"messages": TURNS, "system": "s", "system_prompt": "t"},
            ["system_column='system'", "system_column='system_prompt'"],
        ),
        (
            {"messages": [{**old, **new} for old, new in zip(TURNS, TAGGED, strict=True)]},
            ["role_key='from'", "content_key='value'"],
        ),
    ],
)
def test_choose_never_guesses_between_schemas_that_fit(
    row: dict[str, Any], names: list[str]
) -> None:
    """
    All that fit are named, with what to write for each.
    """
    with pytest.raises(ChatInputError, match="exactly one schema must fit the rows, got") as caught:
        choose_schema([row], "rows.jsonl")

    for name in names:
        assert name in str(caught.value)


@pytest.mark.parametrize(
    "row",
    [
        {"messages": "hello"},
        {"messages": ["q", "a"]},
        {"messages": [{"role": "user", "content": "q"}]},
        {"messages": [{"role": 1, "content": "q"}, {"role": 2, "content": "a"}]},
        {"messages": [{"role": "user", "text": "q"}, {"role": "assistant", "text": "a"}]},
        {"messages": [{"role": "user", "content": 1}, {"role": "assistant", "content": 2}]},
        {"conversations": None},
        {"instruction": "q", "output": ["a"]},
        {"instruction": "", "output": "a"},
        {"prompt": {"text": "q"}, "chosen": "a", "rejected": "b"},
        {"chosen": "Human: q Assistant: a", "rejected": "Human: q Assistant: b"},
        {"question": "q", "responses": [{"text": "a"}, {"text": "b"}]},
        {"question": "q", "responses": [{"text": "a", "score": 1, "length": 1}]},
        {"question": "q", "responses": [{"text": "a", "is_correct": True}]},
    ],
)
def test_name_alone_does_not_make_a_schema_fit(row: dict[str, Any]) -> None:
    """
    A column with a conventional name and other content is no conversation.
    """
    assert propose_schemas([row]) == []


def test_choose_shows_columns_roles_and_tags_when_nothing_fits() -> None:
    """
    One unknown role is enough to refuse, and the message holds all that is needed to go on.
    """
    rows = [
        {"conversations": [{"from": "hummany", "value": "q"}, TAGGED[1]], "n": 1},
        {"conversations": TAGGED, "n": None},
    ]

    with pytest.raises(ChatInputError) as caught:
        choose_schema(rows, "in.jsonl")

    text = str(caught.value)
    assert text.startswith("layout of in.jsonl: one of the known schemas must fit the rows, got")
    assert "conversations (list of objects with from, value" in text
    assert "from has 'hummany' x1 (unknown), 'gpt' x2, 'human' x1" in text
    assert "n (int)" in text
    assert "user=(...,), assistant=(...,)" in text


def test_choose_refuses_no_rows() -> None:
    """
    Nothing to look at is its own error.
    """
    with pytest.raises(ChatInputError, match="at least one row is needed to find it, got 0"):
        choose_schema([], "in.jsonl")


def test_propose_looks_at_the_first_rows_only() -> None:
    """
    A hundred rows decide, however many are given.
    """
    rows: list[dict[str, Any]] = [{"messages": TURNS}] * 100 + [{"messages": "x"}]

    assert [proposal.schema for proposal in propose_schemas(rows)] == [ConversationSchema()]


def test_choose_keeps_what_the_base_states() -> None:
    """
    Tags and further settings given with kind auto hold for the schema that is found.
    """
    base = ConversationSchema(kind="auto", user=("Kunde",), assistant=("Bot",), id_column="id")
    turns = [{"from": "Kunde", "value": "q"}, {"from": "Bot", "value": "a"}]

    proposal = choose_schema([{"conversations": turns, "id": 7}], "rows.jsonl", base)

    assert proposal.schema == ConversationSchema(
        kind="sharegpt", user=("Kunde",), assistant=("Bot",), id_column="id"
    )
    assert (
        proposal.text()
        == "sharegpt: conversations[].from/value, roles Kunde->user (1), Bot->assistant (1)"
    )
