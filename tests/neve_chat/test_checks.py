"""
Each fault has a policy, and each policy does what its table says.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from neve_chat.adapt import Conversation, RowAdapter, RowRejected
from neve_chat.checks import REASONS, RowPolicies
from neve_chat.errors import ChatInputError
from neve_chat.schemas import ConversationSchema


def adapt(messages: list[dict[str, Any]], **policies: str) -> Conversation:
    adapter = RowAdapter(ConversationSchema(), RowPolicies(**policies))
    return adapter.adapt({"messages": messages}, where="in.jsonl:7")


def turns(*pairs: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


QA = (("user", "q"), ("assistant", "a"))
CALL = {"id": "c", "function": {"name": "f", "arguments": "[1, 2]"}}
BAD_ARGUMENTS = [
    *turns(("user", "q")),
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
]
FAULTY = {
    "unknown_role": turns(("hummany", "q"), ("assistant", "a")),
    "wrong_order": turns(("user", "q"), *QA),
    "null_content": turns(("user", None), ("assistant", "a")),
    "empty_answer": turns(("user", "q"), ("assistant", " ")),
    "no_assistant_turn": turns(("user", "q")),
    "orphan_tool_reply": turns(*QA, ("tool", "1"), ("assistant", "a")),
    "bad_arguments": BAD_ARGUMENTS,
}
KEPT = ("wrong_order", "null_content", "empty_answer", "orphan_tool_reply", "bad_arguments")


@pytest.mark.parametrize("fault", FAULTY)
def test_policy_error_stops_and_names_place_rule_value_and_flag(fault: str) -> None:
    """
    The step's message finds the row and tells which flag lets it pass.
    """
    with pytest.raises(ChatInputError) as caught:
        adapt(FAULTY[fault], **{fault: "error"})

    text = str(caught.value)
    assert text.startswith(f"row in.jsonl:7: {REASONS[fault]} is not allowed, got ")
    others = "'drop' or 'keep'" if fault in KEPT else "'drop'"
    assert text.endswith(f"set the policy {fault} to {others}.")


@pytest.mark.parametrize("fault", FAULTY)
def test_policy_drop_refuses_for_a_constant_reason(fault: str) -> None:
    """
    A dropped row is counted under the fault's own name.
    """
    with pytest.raises(RowRejected) as caught:
        adapt(FAULTY[fault], **{fault: "drop"})

    assert caught.value.reason == REASONS[fault]


@pytest.mark.parametrize("fault", KEPT)
def test_policy_keep_leaves_a_note(fault: str) -> None:
    """
    A row that is kept in spite of a fault is counted too.
    """
    conversation = adapt(FAULTY[fault], **{fault: "keep"})

    assert conversation.notes == [REASONS[fault]]
    assert len(conversation.messages) == len(FAULTY[fault])


def test_policy_keep_of_bad_arguments_is_the_text_as_it_was() -> None:
    """
    Nothing is repaired: the template sees the original text.
    """
    call = adapt(BAD_ARGUMENTS, bad_arguments="keep").messages[1]["tool_calls"][0]

    assert call["function"]["arguments"] == "[1, 2]"


def test_policy_keep_of_null_content_is_empty_text() -> None:
    """
    A template never meets a null that no call explains.
    """
    messages = adapt(FAULTY["null_content"], null_content="keep").messages

    assert messages[0] == {"role": "user", "content": ""}


@pytest.mark.parametrize("fault", ["unknown_role", "no_assistant_turn"])
def test_policies_refuse_to_keep_what_cannot_be_trained(fault: str) -> None:
    """
    keep is refused where it has no meaning.
    """
    with pytest.raises(ChatInputError, match=f"{fault} must be one of error, drop, got 'keep'"):
        RowPolicies(**{fault: "keep"})


def test_policies_refuse_an_unknown_word() -> None:
    """
    A policy is one of three words.
    """
    with pytest.raises(ChatInputError, match="duplicate_rows must be one of error, drop, keep"):
        RowPolicies(duplicate_rows="ignore")


@pytest.mark.parametrize(
    ("pairs", "detail"),
    [
        ((("user", "q"), *QA), "turn 1 is the user's again: user, user, assistant"),
        ((*QA, ("assistant", "b")), "turn 2 is the assistant's again"),
        ((("system", "s"), ("assistant", "hi"), *QA), "the first turn is the assistant's"),
        ((*QA, ("system", "s"), *QA), "turn 2 is the system's"),
    ],
)
def test_wrong_order_names_the_turn(pairs: tuple[tuple[str, str], ...], detail: str) -> None:
    """
    Repeated roles, a start that isn't the user's and a late system turn are out of order.
    """
    with pytest.raises(RowRejected) as caught:
        adapt(turns(*pairs), wrong_order="drop")

    assert detail in caught.value.detail


def test_parallel_replies_are_in_order() -> None:
    """
    Several replies in a row belong to several calls of one turn.
    """
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in "fg"]
    messages = [
        *turns(("user", "q")),
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "f"},
        {"role": "tool", "content": "2", "tool_call_id": "g"},
        *turns(("assistant", "12")),
    ]

    assert adapt(messages, wrong_order="error", orphan_tool_reply="error").notes == []


@pytest.mark.parametrize(
    ("reply", "detail"),
    [
        ({"tool_call_id": "c2"}, "turn 2: no earlier call has the id 'c2'"),
        ({"tool_call_id": "c1"}, ""),
        ({}, ""),
    ],
)
def test_orphan_reply_is_one_that_no_call_asked_for(reply: dict[str, str], detail: str) -> None:
    """
    An id must be that of an earlier call; without an id some call must stand before.
    """
    call = {"id": "c1", "function": {"name": "f", "arguments": {}}}
    messages = [
        *turns(("user", "q")),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", **reply},
        *turns(("assistant", "a")),
    ]

    problem = ""
    try:
        adapt(messages, orphan_tool_reply="drop")
    except RowRejected as refusal:
        problem = refusal.detail

    assert problem == detail


def test_call_in_text_is_a_call() -> None:
    """
    A reply to a Hermes call, which stands in the text, is no orphan.
    """
    call = '<tool_call>{"name": "sh", "arguments": {}}</tool_call>'
    messages = turns(("user", "q"), ("assistant", call), ("tool", "1"), ("assistant", "a"))

    assert adapt(messages, orphan_tool_reply="error").notes == []


def test_default_policies_account_for_every_row() -> None:
    """
    Thirteen rows, each kept, kept with a note, or refused for a reason; the counts add up.
    """
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    parts = [{"type": "text", "text": "q"}]
    rows = {
        "plain": turns(*QA),
        "system_first": turns(("system", "s"), *QA),
        "two_users": turns(("user", "q1"), *QA),
        "assistant_first": turns(("assistant", "hello"), *QA),
        "two_assistants": turns(*QA, ("assistant", "a2")),
        "ends_with_user": turns(*QA, ("user", "thanks")),
        "no_assistant": turns(("user", "q")),
        "empty": [],
        "none_content": turns(("user", None), ("assistant", "a")),
        "empty_answer": turns(("user", "q"), ("assistant", "")),
        "parts": turns(("user", parts), ("assistant", "a")),
        "developer": turns(("developer", "s"), *QA),
        "tool": [
            *turns(("user", "q")),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "1"},
            *turns(("assistant", "a")),
        ],
    }
    adapter = RowAdapter(ConversationSchema())
    outcomes: dict[str, str] = {}

    for name, messages in rows.items():
        try:
            notes = adapter.adapt({"messages": messages}).notes
            outcomes[name] = ", ".join(["kept", *notes])
        except RowRejected as refusal:
            outcomes[name] = refusal.reason

    assert Counter(outcomes.values()) == {
        "kept": 5,
        "kept, wrong order": 3,
        "kept, last turn not trainable": 1,
        "no assistant turn": 1,
        "empty conversation": 1,
        "null content": 1,
        "empty answer": 1,
    }
    assert outcomes["developer"] == outcomes["parts"] == outcomes["tool"] == "kept"
