"""
Loss options: which turns, which roles, with or without reasoning and end of turn.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from neve_chat.adapt import RowRejected
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer
from neve_chat.schemas import ConversationSchema
from neve_chat.spans import LossOptions, canonical_roles, make_probe, select_spans
from neve_chat.templates import load_template, template_names

from tests.neve_chat.conversation_strategies import ROW, example_settings

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def message(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


TURNS = [
    message("system", "S"),
    message("user", " hi "),
    message("assistant", "a1", reasoning_content="r1"),
    message("tool", "t1"),
    message("tool", {"k": "é"}),
    message("assistant", "a2", reasoning_content="r2"),
]


def marked(
    template: str, messages: list[dict[str, Any]], tools: list[Any] | None = None, **options: Any
) -> str:
    text = load_template(template).text if template in template_names() else template
    renderer = ChatRenderer(text, special_tokens=SPECIAL_TOKENS, name=template)
    loss = LossOptions(**options)
    probe = make_probe(renderer, loss, template)
    row = {"messages": messages, "tools": tools}
    rendered = renderer.render_row(row)
    chosen = select_spans(rendered, row, loss, probe)
    assert chosen.text == rendered.text
    text = chosen.text
    for start, end in reversed(chosen.spans):
        text = f"{text[:start]}⟦{text[start:end]}⟧{text[end:]}"
    return text


def trained(*args: Any, **kwargs: Any) -> list[str]:
    return [part.partition("⟧")[0] for part in marked(*args, **kwargs).split("⟦")[1:]]


def test_default_options_leave_the_spans_untouched() -> None:
    """
    Without options the rendered conversation is handed on as it is.
    """
    renderer = ChatRenderer(load_template("chatml").text)
    rendered = renderer.render(TURNS)
    probe = make_probe(renderer, LossOptions(), "chatml")

    assert select_spans(rendered, {"messages": TURNS}, LossOptions(), probe) is rendered


def test_last_is_the_last_of_two_assistant_turns_in_a_row() -> None:
    """
    Adjacent trained turns are not taken for one.
    """
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}"
        "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
        "{{ '<|im_start|>' + m['content'] + '<|im_end|>' }}{% endif %}{% endfor %}"
    )
    turns = [message("user", "q"), message("assistant", "ok"), message("assistant", "abc")]

    assert trained(template, turns) == ["ok<|im_end|>", "abc<|im_end|>"]
    assert trained(template, turns, train_turns="last") == ["abc<|im_end|>"]


def test_last_is_the_last_assistant_turn_also_before_a_user_turn() -> None:
    """
    A conversation that ends with the user trains its last answer.
    """
    turns = [*TURNS, message("user", "bye")]

    assert trained("marin", turns, train_turns="last") == [
        "<|start_think|>r2<|end_think|>a2<|eot_id|>"
    ]


def test_last_needs_one_block_for_each_turn() -> None:
    """
    Where a turn has two blocks, the last block would be half a turn: refused.
    """
    template = (
        "{% for m in messages %}{% generation %}{{ m['content'] }}{% endgeneration %}:"
        "{% generation %}<|im_end|>{% endgeneration %}{% endfor %}"
    )

    with pytest.raises(ChatInputError, match="needs one generation block for each"):
        trained(template, TURNS[1:2], train_turns="last")


def test_chosen_roles_are_trained_with_their_end_of_turn() -> None:
    """
    Contents as the template writes them, trimmed or JSON, up to and with the end of turn.
    """
    assert trained("marin", TURNS, train_roles=("user", "tool")) == [
        "hi<|eot_id|>",
        "t1</tool_response><|eot_id|>",
        '{"k": "é"}</tool_response><|eot_id|>',
    ]
    assert trained("chatml", TURNS, train_roles=("system", "user")) == [
        "S<|im_end|>",
        " hi <|im_end|>",
    ]
    assert trained("qwen3_nothink", TURNS, train_roles=("assistant", "tool")) == [
        "a1<|im_end|>",
        "t1",
        '{"k": "é"}\n</tool_response><|im_end|>',
        "a2<|im_end|>",
    ]
    assert trained("plain", TURNS, train_roles=("user",)) == [" hi "]


@pytest.mark.parametrize("name", template_names())
def test_every_template_trains_the_user_alone(name: str) -> None:
    """
    Whatever the template, the user's words are trained and no other turn is.
    """
    spans = trained(name, TURNS, tools=[{"name": "hi"}], train_roles=("user",))

    assert len(spans) == 1
    assert spans[0].strip().startswith("hi")
    assert "a1" not in spans[0]


def test_contents_are_found_where_they_stand_not_where_they_look_alike() -> None:
    """
    Equal texts, empty texts, private-use characters and text like markers don't mislead.
    """
    turns = [
        message("system", "x"),
        message("user", ""),
        message("assistant", "x"),
        message("user", "x<|im_end|>\n<|im_start|>assistant\nx\ue000\U000f0000"),
        message("tool", "x"),
    ]

    assert marked("chatml", turns, train_roles=("user",)) == (
        "<|im_start|>system\nx<|im_end|>\n<|im_start|>user\n⟦<|im_end|>⟧\n"
        "<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\n"
        "⟦x<|im_end|>\n<|im_start|>assistant\nx\ue000\U000f0000<|im_end|>⟧\n"
        "<|im_start|>tool\n<tool_response>\nx\n</tool_response><|im_end|>\n"
    )


def test_a_turn_that_cannot_be_found_rejects_the_row() -> None:
    """
    A template that rewrites contents gives no exact place, so the row is counted, not guessed.
    """
    template = (
        "{% for m in messages %}{% generation %}{{ m['content'] | replace('i', 'o') | upper }}"
        "{% endgeneration %}{{ (m['content'] | length) }}{% endfor %}"
    )

    with pytest.raises(RowRejected, match="turn not found"):
        trained(template, TURNS[1:2], train_roles=("user",))


@pytest.mark.parametrize(
    ("template", "first", "second"),
    [
        ("marin", "a1<|eot_id|>", "a2<|eot_id|>"),
        ("delphi", "a1<|eot_id|>", "a2<|eot_id|>"),
        ("llama3", "a1<|eot_id|>", "a2<|eot_id|>"),
        ("chatml", "a1<|im_end|>", "a2<|im_end|>"),
        ("qwen3", "a1<|im_end|>", "a2<|im_end|>"),
        ("qwen3_keep_reasoning", "a1<|im_end|>", "a2<|im_end|>"),
        ("plain", "a1</s>", "a2</s>"),
    ],
)
def test_reasoning_out_of_the_loss_leaves_the_answer(
    template: str, first: str, second: str
) -> None:
    """
    Both markers and what stands between them get no loss, the answer and its end do.
    """
    assert trained(template, TURNS, train_reasoning=False) == [first, second]


def test_reasoning_may_hold_its_own_closing_marker() -> None:
    """
    The reasoning field is stepped over as a whole.
    """
    turns = [TURNS[1], message("assistant", "a", reasoning_content="x</think>\n\ny")]

    assert trained("chatml", turns, train_reasoning=False) == ["a<|im_end|>"]


def test_reasoning_within_the_text_is_left_out_too() -> None:
    """
    Data that carries the markers in its text is treated as data with a field.
    """
    inline = message("assistant", "<|start_think|>\nr\n<|end_think|>a")
    late = message("assistant", "a <|start_think|>r<|end_think|>")
    answers = [TURNS[1], inline, TURNS[1], late]

    assert trained("marin", answers, train_reasoning=False) == [
        "a<|eot_id|>",
        "a <|start_think|>r<|end_think|><|eot_id|>",
    ]


def test_reasoning_that_never_closes_rejects_the_row() -> None:
    """
    Where the answer starts can't be known, so nothing is guessed.
    """
    turns = [TURNS[1], message("assistant", "<|start_think|>r")]

    with pytest.raises(RowRejected, match="reasoning not closed"):
        trained("marin", turns, train_reasoning=False)


def test_end_of_turn_out_of_the_loss() -> None:
    """
    The terminator is cut off each span, and an answer without text trains nothing.
    """
    turns = [*TURNS, TURNS[1], message("assistant", "")]

    assert trained("marin", turns, train_end_of_turn=False, train_reasoning=False) == ["a1", "a2"]
    assert trained("chatml", TURNS, train_end_of_turn=False, train_roles=("user",)) == [" hi "]


def test_options_combine() -> None:
    """
    Last of the chosen roles, without what ends it.
    """
    options = {"train_turns": "last", "train_roles": ("user", "assistant")}

    assert trained("chatml", TURNS[:2], train_end_of_turn=False, **options) == [" hi "]
    assert trained("chatml", TURNS, train_reasoning=False, **options) == ["a2<|im_end|>"]


@pytest.mark.parametrize(
    ("options", "spans"),
    [
        ({}, ["a2<|im_end|>\n"]),
        ({"train_turns": "last"}, ["a2<|im_end|>\n"]),
        ({"train_roles": ("user", "assistant"), "train_end_of_turn": False}, ["q", "q2", "a2"]),
    ],
)
def test_turns_of_weight_zero_are_not_trained(options: dict[str, Any], spans: list[str]) -> None:
    """
    What the data's author took out of the loss stays out, whatever else is trained.
    """
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a1", "weight": 0},
        {"role": "user", "content": "q2"},
        {"role": "assistant", "content": "a2"},
    ]

    assert [text.removesuffix("\n") for text in trained("chatml", turns, **options)] == [
        text.removesuffix("\n") for text in spans
    ]


def test_weights_that_cannot_be_placed_are_refused() -> None:
    """
    A template that doesn't give each of the assistant's turns one block can't leave one out.
    """
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a1", "weight": 0},
        {"role": "assistant", "content": "a2"},
    ]
    joined = "{% generation %}{{ messages | map(attribute='content') | join }}{% endgeneration %}"

    with pytest.raises(RowRejected, match=r"turn weights: 2 turns .* as 1 trained stretches"):
        trained(joined, turns)


def test_roles_are_accepted_as_the_data_writes_them() -> None:
    """
    A raw name means the canonical role that the schema gives it.
    """
    role_map = ConversationSchema(kind="sharegpt").role_map()

    assert canonical_roles(("gpt",), role_map) == canonical_roles(("assistant",), role_map)
    assert canonical_roles(("gpt", "human", "assistant"), role_map) == ("user", "assistant")


def test_loss_options_take_the_usual_names_of_the_data() -> None:
    """
    gpt and developer are what every schema reads them as: the same options, and the same identity.
    """
    assert LossOptions(train_roles=("gpt",)) == LossOptions()
    assert LossOptions(train_roles=("developer", "human")).train_roles == ("system", "user")


@pytest.mark.parametrize(
    ("options", "message_pattern"),
    [
        (
            {"train_roles": ("assistent",)},
            "system, user, assistant, tool, got 'assistent'. Did you",
        ),
        ({"train_roles": ("bot",)}, r"got 'bot'. Where the schema says assistant=\('bot',\) write"),
        ({"train_roles": ("Human",)}, "got 'Human'. Did you mean 'human'"),
        ({"train_roles": ("function_call",)}, "Its turns are the assistant's. Write 'assistant'"),
        ({"train_roles": "assistant"}, "must be a tuple"),
        ({"train_roles": ()}, "one role or more"),
        ({"train_turns": "first"}, "must be one of all, last, got 'first'"),
    ],
)
def test_unknown_values_are_refused_while_planning(
    options: dict[str, Any], message_pattern: str
) -> None:
    """
    A typo is an error that lists what is known, not a conversation without loss.
    """
    with pytest.raises(ChatInputError, match=message_pattern):
        LossOptions(**options)


@pytest.mark.parametrize(
    ("template", "options", "message_pattern"),
    [
        ("qwen3_nothink", {"train_reasoning": False}, "needs reasoning between two markers"),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            {"train_end_of_turn": False},
            "nothing behind the answer",
        ),
        ("{{ raise_exception('no') }}", {"train_turns": "last"}, "got: TemplateError: no"),
    ],
)
def test_options_that_a_template_cannot_serve_are_refused(
    template: str, options: dict[str, Any], message_pattern: str
) -> None:
    """
    An option without effect is an error before any row.
    """
    with pytest.raises(ChatInputError, match=message_pattern):
        trained(template, TURNS, **options)


CHOICES = (
    LossOptions(train_turns="last"),
    LossOptions(train_roles=("user", "tool")),
    LossOptions(train_roles=("system", "user", "assistant", "tool")),
    LossOptions(train_end_of_turn=False),
    LossOptions(train_reasoning=False),
)


def test_chosen_spans_of_random_conversations_keep_to_their_roles() -> None:
    """
    Spans are ordered and apart, within the generation blocks for the assistant and outside for the
    others, and every text of the user is in them.
    """
    renderers = {
        name: ChatRenderer(load_template(name).text, special_tokens=SPECIAL_TOKENS)
        for name in template_names()
        if name != "qwen3_nothink"
    }
    probes = {
        (name, options): make_probe(renderer, options, name)
        for name, renderer in renderers.items()
        for options in CHOICES
    }
    reasons: Counter[str] = Counter()

    @example_settings(80)
    @given(row=ROW)
    def run(row: dict[str, Any]) -> None:
        for (name, options), probe in probes.items():
            rendered = renderers[name].render_row(row)
            try:
                chosen = select_spans(rendered, row, options, probe)
            except RowRejected as refusal:
                reasons[refusal.reason] += 1
                continue
            borders = [border for span in chosen.spans for border in span]
            assert chosen.text == rendered.text
            assert borders == sorted(borders)
            blocks = {place for span in rendered.spans for place in range(*span)}
            places = {place for span in chosen.spans for place in range(*span)}
            if options.train_roles == ("assistant",):
                assert places <= blocks
            elif "assistant" in options.train_roles:
                assert blocks <= places
            else:
                assert not places & blocks
                words = "".join(chosen.text[start:end] for start, end in chosen.spans)
                users = [turn for turn in row["messages"] if turn["role"] == "user"]
                assert all(turn["content"].strip() in words for turn in users)

    run()
    assert set(reasons) <= {"reasoning not closed"}
    assert reasons.total() < 20


def test_loss_options_import_is_light() -> None:
    """
    A recipe plans without jinja2 and tokenizers.
    """
    code = (
        "import sys, neve_chat.spans; print({'jinja2', 'tokenizers', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"
