"""
Every layout becomes the same canonical messages, and a schema has one canonical spelling.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings, strategies
from neve_chat.adapt import Conversation, RowAdapter, RowRejected
from neve_chat.errors import ChatInputError
from neve_chat.schemas import KINDS, ConversationSchema


def adapt(row: dict[str, Any], **schema: Any) -> Conversation:
    return RowAdapter(ConversationSchema(**schema)).adapt(row)


def pairs(conversation: Conversation) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in conversation.messages]


QA = [("user", "q"), ("assistant", "a")]
TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("row", "schema"),
    [
        ({"messages": TURNS}, {}),
        ({"conversations": TURNS, "agent": "terminus"}, {"conversation_column": "conversations"}),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
            {"kind": "sharegpt"},
        ),
        (
            {"log": [{"who": "Kunde", "said": "q"}, {"who": "Bot", "said": "a"}]},
            {
                "conversation_column": "log",
                "role_key": "who",
                "content_key": "said",
                "user": ("Kunde", "Gast"),
                "assistant": ("Bot",),
            },
        ),
        ({"instruction": "q", "response": "a"}, {"kind": "instruction"}),
        ({"instruction": "q", "input": "", "output": "a"}, {"kind": "alpaca"}),
        ({"instruction": "q", "context": "", "response": "a"}, {"kind": "dolly"}),
        ({"prompt": "q", "chosen": "a", "rejected": "b"}, {"kind": "preference"}),
        ({"prompt": "q", "chosen": TURNS[1:]}, {"kind": "preference"}),
        ({"prompt": "q", "chosen": TURNS}, {"kind": "preference"}),
        ({"chosen": TURNS}, {"kind": "preference"}),
        ({"prompt": TURNS[:1], "chosen": TURNS[1]}, {"kind": "preference"}),
        ({"instruction": TURNS[:1], "response": "a"}, {"kind": "instruction"}),
        (
            {"instruction": "q", "response": [{"content": "a"}, {"content": "b"}]},
            {"kind": "instruction", "use_first_response": True},
        ),
        (
            {"instruction": "q", "response": ["a", "b"]},
            {"kind": "instruction", "use_first_response": True},
        ),
        ({"messages": [TURNS[0], {**TURNS[1], "channel": "final"}]}, {"kind": "harmony"}),
    ],
)
def test_schema_reads_a_question_and_an_answer(row: dict[str, Any], schema: dict[str, Any]) -> None:
    """
    One conversation in sixteen spellings.
    """
    conversation = adapt(row, **schema)

    assert pairs(conversation) == QA
    assert conversation.notes == []


def test_alpaca_reads_system_history_and_input() -> None:
    """
    All five columns of Alpaca become turns, in the order in which they were said.
    """
    row = {
        "instruction": "sum",
        "input": "1 2",
        "output": "3",
        "system": "s",
        "history": [["q1", "a1"]],
    }

    assert pairs(adapt(row, kind="alpaca")) == [
        ("system", "s"),
        ("user", "q1"),
        ("assistant", "a1"),
        ("user", "sum\n\n1 2"),
        ("assistant", "3"),
    ]


def test_dolly_puts_the_context_below_the_instruction() -> None:
    """
    The context is part of the question (marin's adapters left it out).
    """
    row = {"instruction": "when?", "context": "In 1905.", "response": "1905", "category": "qa"}

    question = pairs(adapt(row, kind="dolly", context_separator="\n"))[0]

    assert question == ("user", "when?\nIn 1905.")


@pytest.mark.parametrize(("metrics", "answer"), [((0.1, 0.9, 0.5), "b"), ((0, 1, 1.0), "b")])
def test_metric_takes_the_best_completion(metrics: tuple[float, ...], answer: str) -> None:
    """
    The largest metric wins, of equal ones the first.
    """
    completions = [
        {"completion": text, "pass_rate": metric}
        for text, metric in zip("abc", metrics, strict=True)
    ]
    row = {"question": "q", "inferences": completions}

    conversation = adapt(
        row,
        kind="instruction",
        instruction_column="question",
        response_column="inferences",
        content_key="completion",
        metric_key="pass_rate",
    )

    assert pairs(conversation) == [("user", "q"), ("assistant", answer)]


FUNCTION_CALL = '{"name": "f", "arguments": {"x": 1}}'


@pytest.mark.parametrize("value", [FUNCTION_CALL, f"[{FUNCTION_CALL}]"])
def test_sharegpt_function_call_becomes_a_tool_call(value: str) -> None:
    """
    A function_call turn is the assistant's call, an observation its reply; nothing stays as text.
    """
    tags = [("human", "q"), ("function_call", value), ("observation", "1"), ("gpt", "one")]
    row = {
        "conversations": [{"from": role, "value": text} for role, text in tags],
        "system": "s",
        "tools": '[{"name": "f"}]',
    }

    conversation = adapt(row, kind="sharegpt", system_column="system")

    call = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert conversation.messages == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "one"},
    ]
    assert conversation.tools == [{"name": "f"}]
    assert conversation.notes == []


def test_system_column_gives_way_to_a_system_turn() -> None:
    """
    There is one system text: the turn's, with a note where the column says something else.
    """
    row = {"messages": [{"role": "system", "content": "turn"}, *TURNS], "system": "column"}

    conversation = adapt(row, system_column="system")

    assert pairs(conversation) == [("system", "turn"), *QA]
    assert conversation.notes == ["system column not used, a system turn differs"]
    assert adapt({**row, "system": "turn"}, system_column="system").notes == []


def harmony(*turns: dict[str, Any]) -> Conversation:
    parts = [
        {**turn, "content": [{"type": "text", "text": turn["content"]}]}
        if "content" in turn
        else turn
        for turn in turns
    ]
    return adapt({"messages": parts}, kind="harmony")


def assistant(channel: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "channel": channel, "content": content, **fields}


USER = {"role": "user", "content": "q"}


def test_harmony_channels_become_reasoning_and_calls() -> None:
    """
    Analysis is the next message's reasoning, commentary to a function its call, in one message.
    """
    conversation = harmony(
        USER,
        assistant("analysis", "need two"),
        assistant("commentary", "Let me look."),
        assistant("commentary", '{"x": 1}', recipient="functions.f"),
        assistant("commentary", "{}", recipient="functions.g"),
        {"role": "tool", "name": "functions.f", "content": "1"},
        {"role": "functions.g", "content": "2"},
        assistant("analysis", "both"),
        assistant("analysis", "done"),
        assistant("final", "12"),
    )

    assert conversation.messages == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "Let me look.",
            "reasoning_content": "need two",
            "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
                {"type": "function", "function": {"name": "g", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "1", "name": "f"},
        {"role": "tool", "content": "2", "name": "g"},
        {"role": "assistant", "content": "12", "reasoning_content": "both\ndone"},
    ]
    assert conversation.notes == []


def test_harmony_keeps_analysis_without_an_answer() -> None:
    """
    Analysis that nothing follows is kept as a turn and noted.
    """
    conversation = harmony(USER, assistant("analysis", "hm"), {**USER, "content": "go on"})

    answer = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    assert conversation.messages[1] == answer
    assert conversation.notes == ["analysis without an answer", "last turn not trainable"]


@pytest.mark.parametrize(
    ("row", "schema", "reason", "detail"),
    [
        (
            {"messages": [USER, assistant("thoughts", "x")]},
            {"kind": "harmony"},
            "unknown channel",
            "thoughts",
        ),
        (
            {"messages": [USER, assistant("commentary", "x", recipient="python")]},
            {"kind": "harmony"},
            "unknown recipient",
            "python",
        ),
        (
            {"prompt": "other", "chosen": TURNS},
            {"kind": "preference"},
            "prompt not in chosen",
            "other",
        ),
        ({"chosen": "Human: q"}, {"kind": "preference"}, "prompt not in chosen", "'prompt'"),
        (
            {"instruction": "q", "output": "a", "history": ["q1", "a1"]},
            {"kind": "alpaca"},
            "bad history",
            "q1",
        ),
        (
            {"instruction": "q", "response": [{"content": "a"}, {"content": "b", "score": 1}]},
            {"kind": "instruction", "metric_key": "score"},
            "bad completions",
            "'score'",
        ),
        (
            {"instruction": "q", "response": "a"},
            {"kind": "instruction", "metric_key": "score"},
            "bad completions",
            "not JSON",
        ),
        (
            {"instruction": "q", "response": [{"content": "a"}, {"content": "b"}]},
            {"kind": "instruction"},
            "content is not text",
            "turn 1",
        ),
        (
            {"conversations": [{"from": "function_call", "value": "f(1)"}]},
            {"kind": "sharegpt"},
            "bad tool calls",
            "f(1)",
        ),
        ({"messages": TURNS, "s": 1}, {"system_column": "s"}, "bad system text", "'s'"),
        (
            {"messages": [{"role": "User", "content": "q"}, TURNS[1]]},
            {},
            "unknown role",
            "'User'",
        ),
    ],
)
def test_schema_guesses_nothing(
    row: dict[str, Any], schema: dict[str, Any], reason: str, detail: str
) -> None:
    """
    A row that doesn't have the layout is refused with the reason and the value.
    """
    with pytest.raises(RowRejected) as caught:
        adapt(row, **schema)

    assert caught.value.reason == reason
    assert detail in caught.value.detail


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"kind": "openai"}, "kind must be one of messages, sharegpt, instruction"),
        ({"user": "human"}, "must be a tuple"),
        ({"user": ("gpt",)}, "under both user and assistant"),
        ({"function_call": ("gpt",)}, "under both assistant and function_call"),
        ({"assistant": ()}, "Nothing would be trained"),
        ({"response_column": "answer"}, "response_column must be left out for kind messages"),
        ({"kind": "alpaca", "conversation_column": "x"}, "conversation_column must be left out"),
        ({"kind": "auto", "role_key": "from"}, "role_key must be left out for kind auto"),
        (
            {"kind": "instruction", "metric_key": "m", "use_first_response": True},
            "chosen from in one way",
        ),
        ({"reasoning_tags": ("<think>", "")}, "reasoning_tags must be two texts"),
        ({"kind": "harmony", "reasoning_keys": ()}, "reasoning_keys must not be empty"),
    ],
)
def test_schema_refuses_what_it_cannot_mean(fields: dict[str, Any], problem: str) -> None:
    """
    A contradictory schema fails where it is written, not in the step.
    """
    with pytest.raises(ChatInputError, match=problem):
        ConversationSchema(**fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            {"kind": "sharegpt"},
            {"conversation_column": "conversations", "role_key": "from", "content_key": "value"},
        ),
        ({"user": ("user", "human")}, {"user": ("human", "user", "human")}),
        ({"kind": "dolly"}, {"kind": "instruction", "context_column": "context"}),
        ({"conversation_column": "messages"}, {}),
    ],
)
def test_resolved_schema_does_not_depend_on_spelling(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """
    Two spellings of a layout are one schema once resolved, and resolving again changes nothing.
    """
    resolved = ConversationSchema(**one).resolved()

    assert resolved == ConversationSchema(**other).resolved()
    assert resolved == resolved.resolved()


@pytest.mark.parametrize(
    ("fields", "required", "optional"),
    [
        ({}, ("messages",), ("tools", "chat_template_kwargs")),
        (
            {"kind": "alpaca"},
            ("instruction", "output"),
            ("input", "history", "system", "tools", "chat_template_kwargs"),
        ),
        (
            {"kind": "preference", "tools_column": ""},
            ("chosen",),
            ("prompt", "chat_template_kwargs"),
        ),
        ({"kind": "auto"}, (), ("tools", "chat_template_kwargs")),
    ],
)
def test_schema_names_the_columns_that_it_reads(
    fields: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...]
) -> None:
    """
    Readers of columnar files fetch these columns and no others.
    """
    schema = ConversationSchema(**fields)

    assert schema.required_columns() == required
    assert schema.optional_columns() == optional


def test_schema_expression_holds_what_was_changed() -> None:
    """
    What a user is told to write makes the same schema.
    """
    schema = ConversationSchema(kind="sharegpt", user=("human", "me"))

    assert schema.expression() == "ConversationSchema(kind='sharegpt', user=('human', 'me'))"


def test_schemas_and_policies_are_light_to_import() -> None:
    """
    Planning a recipe reads no data library.
    """
    program = (
        "import sys, neve_chat.schemas, neve_chat.checks, neve_chat.detect, neve_chat.dataset_info;"
        "heavy = {'jax', 'pyarrow', 'orjson', 'tokenizers', 'transformers', 'datasets', 'numpy'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")


VALUES = strategies.recursive(
    strategies.sampled_from([None, True, 1, "", "text", "user", "analysis", "functions.f", "[{}]"]),
    lambda inner: (
        strategies.lists(inner, max_size=2)
        | strategies.dictionaries(
            strategies.sampled_from(["role", "name", "function", "content", "type", "text"]),
            inner,
            max_size=2,
        )
    ),
    max_leaves=4,
)
TURN = strategies.fixed_dictionaries(
    {
        "role": strategies.sampled_from(["user", "assistant", "tool", "functions.f"]),
        "from": strategies.sampled_from(["human", "gpt", "function_call"]),
        "content": strategies.sampled_from(["q", "<think>t</think>a", "<tool_response>{"]) | VALUES,
        "value": strategies.sampled_from(["a", '{"name": "f"}']),
        "name": strategies.sampled_from([0.5, "f"]),
    },
    optional=dict.fromkeys(["channel", "recipient", "tool_calls", "reasoning"], VALUES),
)
CELLS = strategies.lists(TURN, min_size=1, max_size=4) | strategies.just("text") | VALUES
KIND_SCHEMAS = [
    ConversationSchema(kind=kind, reasoning_tags=("<think>", "</think>"))
    for kind in KINDS
    if kind != "auto"
] + [
    ConversationSchema(kind="instruction", metric_key="name"),
    ConversationSchema(kind="instruction", use_first_response=True),
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    data=strategies.data(),
    schema=strategies.sampled_from(KIND_SCHEMAS),
    is_padded=strategies.booleans(),
)
def test_any_row_is_kept_or_refused(
    data: strategies.DataObject, schema: ConversationSchema, is_padded: bool
) -> None:
    """
    No row of JSON values ends a run: it becomes canonical messages or a reason, and stays as it is.
    """
    required = dict.fromkeys(schema.required_columns(), CELLS)
    optional = dict.fromkeys(schema.optional_columns(), strategies.just("s") | VALUES)
    row = data.draw(strategies.fixed_dictionaries(required, optional=optional))
    before = repr(row)
    adapter = RowAdapter(schema)

    try:
        conversation = adapter.adapt(row, is_padded=is_padded)
    except RowRejected:
        conversation = None

    assert repr(row) == before
    if conversation is not None:
        roles = {message["role"] for message in conversation.messages}
        assert "assistant" in roles <= {"user", "assistant", "system", "tool"}
        assert all(list(m)[:2] == ["role", "content"] for m in conversation.messages)


@pytest.mark.parametrize("arguments", ['{"x": NaN}', '{"x": -Infinity}', "[" * 100_000])
def test_what_python_reads_and_json_does_not_is_no_argument(arguments: str) -> None:
    """
    NaN would be written as null, and deep nesting would end the run.
    """
    call = {"name": "f", "arguments": arguments}
    row = {"messages": [USER, {"role": "assistant", "tool_calls": [call]}]}

    with pytest.raises(RowRejected, match="bad tool arguments: turn 1, function 'f'"):
        adapt(row)
