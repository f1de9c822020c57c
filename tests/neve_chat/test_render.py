"""
Rendered text and masks: worked-out values, and parity with transformers.
"""

from __future__ import annotations

from typing import Any

import pytest
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer, Rendered, TemplateRefusal, rendering_notes
from neve_chat.templates import load_template, template_names
from neve_chat.tokens import ChatTokenizer

BOS = "<|begin_of_text|>"
CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
    {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
]


def header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n"


def message(role: str, content: Any = None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def marked(rendered: Rendered) -> str:
    text = rendered.text
    for start, end in reversed(rendered.spans):
        text = f"{text[:start]}⟦{text[start:end]}⟧{text[end:]}"
    return text


def marin() -> ChatRenderer:
    return ChatRenderer(load_template("marin").text, special_tokens={"bos_token": BOS})


TWO_TURNS = [
    message("system", "S "),
    message("user", " hi"),
    message("assistant", " yo "),
    message("user", "again"),
    message("assistant", "ok"),
]
TOOLS = [
    message("user", "hi"),
    message("assistant", tool_calls=CALLS),
    message("tool", "42", tool_call_id="c1"),
    message("assistant", "done"),
]
VECTORS: list[tuple[list[dict[str, Any]], dict[str, Any], str]] = [
    (
        TWO_TURNS,
        {},
        f"{BOS}{header('system')}S<|eot_id|>\n{header('user')}hi<|eot_id|>\n{header('assistant')}"
        f"⟦yo<|eot_id|>⟧{header('user')}again<|eot_id|>\n{header('assistant')}⟦ok<|eot_id|>⟧",
    ),
    (
        [message("user", "hi"), message("assistant", "yo", reasoning_content="r")],
        {"enable_thinking": True},
        f"{BOS}<|start_header_id|>system<|end_header_id|>Reasoning: "
        f"/think<|eot_id|>{header('user')}"
        f"hi<|eot_id|>\n{header('assistant')}⟦<|start_think|>r<|end_think|>yo<|eot_id|>⟧",
    ),
    (
        TOOLS,
        {},
        f"{BOS}{header('user')}hi<|eot_id|>\n{header('assistant')}"
        '⟦<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
        '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|eot_id|>⟧'
        f'{header("tool")}<tool_response name="f">42</tool_response><|eot_id|>\n'
        f"{header('assistant')}⟦done<|eot_id|>⟧",
    ),
    (
        [message("user", "hi")],
        {"add_generation_prompt": True},
        f"{BOS}{header('user')}hi<|eot_id|>\n{header('assistant')}",
    ),
    (
        [message("user", "hi")],
        {"enable_thinking": False, "custom_instructions": " be nice "},
        f"{BOS}<|start_header_id|>system<|end_header_id|>Reasoning: /nothinkbe nice<|eot_id|>"
        f"{header('user')}hi<|eot_id|>\n",
    ),
    (
        [
            message("user", [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]),
            message("tool", {"k": 1}),
            message("tool", None),
            message("ipython", "3"),
        ],
        {},
        f"{BOS}{header('user')}xy<|eot_id|>\n"
        f'{header("tool")}<tool_response>{{"k": 1}}</tool_response><|eot_id|>\n'
        f"{header('tool')}<tool_response></tool_response><|eot_id|>\n"
        f'{header("ipython")}{{"output": "3"}}<|eot_id|>\n',
    ),
]


@pytest.mark.parametrize(("messages", "kwargs", "expected"), VECTORS)
def test_marin_template_gives_the_known_renders(
    messages: list[dict[str, Any]], kwargs: dict[str, Any], expected: str
) -> None:
    """
    Text and trained spans are those of Marin's chat models, quirks included.
    """
    assert marked(marin().render(messages, **kwargs)) == expected


@pytest.mark.parametrize("name", template_names())
def test_render_equals_transformers(name: str, tokenizer_path: str) -> None:
    """
    Text, ids and mask are what transformers' apply_chat_template gives for the same input.
    """
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tokenizer_path)
    template = load_template(name).text
    ours = ChatTokenizer(tokenizer_path)
    renderer = ChatRenderer(template, special_tokens=ours.special_tokens)
    signature = {"type": "function", "function": {"name": "w", "description": "a <b> & 'c' é 😀"}}
    cases = [
        (TWO_TURNS, {}),
        (TOOLS, {"tools": [signature]}),
        (TWO_TURNS, {"enable_thinking": True}),
    ]
    for messages, kwargs in cases:
        expected = theirs.apply_chat_template(
            messages,
            chat_template=template,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
            **kwargs,
        )
        rendered = renderer.render(messages, **kwargs)
        tokens = ours.encode_rendered([rendered])[0]

        text = theirs.apply_chat_template(
            messages, chat_template=template, tokenize=False, **kwargs
        )
        assert rendered.text == text
        assert tokens.ids.tolist() == expected["input_ids"]
        assert tokens.mask.tolist() == expected["assistant_masks"]


# Templates as people write them: attribute access, namespaces, macros, filters, loop controls.
OWN_TEMPLATES = [
    "{% for t in tools %}{{ t | tojson }}{{ '\n' }}{% endfor %}{% for m in messages %}"
    "{{ '<|im_start|>' + m.role + '\n' }}{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
    "{% set ns = namespace(last=0) %}\n{% for m in messages %}\n"
    "    {% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}\n{% endfor %}\n"
    "{%- for m in messages %}\n  {%- if loop.index0 < ns.last %}{% continue %}{% endif %}\n"
    "{{ m.role | title }}\r\n{%- generation %}{{ m.content.split('a') | join('b') }}"
    "{% endgeneration %}\n{% if loop.last %}{% break %}{% endif %}{% endfor %}",
    "{% macro turn(m) %}[{{ m.get('role') }}]{{ m.content or '' }}{% endmacro %}"
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
    "{% for m in messages %}{% generation %}{{ turn(m) }}{% endgeneration %}{% endfor %}"
    "{{ tools | tojson(indent=2) }}{{ 'a<b' | tojson }}{{ unknown }}",
    # A block is a scope of its own, sees the loop around it, and may hold loops.
    "{% for m in messages %}{% set x = m.role %}{% with y = 'w' %}{% if loop.index > 1 %}"
    "{% generation %}{% set x = x ~ loop.index ~ y %}{{ x }}{% for c in m.content %}"
    "{% if c == 'g' %}{% break %}{% endif %}{{ c }}{{ loop.index }}{% endfor %}{% endgeneration %}"
    "{% generation %}{% endgeneration %}{% generation %}const{% endgeneration %}"
    "{% endif %}{{ x }}{% endwith %}{% endfor %}{{ x }}",
    # Entries before attributes in brackets, attributes first behind a dot, absent ones undefined.
    "{% for m in messages %}{{ m.absent is defined }}{{ m['absent'] | default('-') }}"
    "{{ m.absent }}{{ m['keys']() | list }}{{ m.items() | list }}{{ m.content.absent is defined }}"
    "{{ m['role']['upper']() }}{{ m.role.upper() }}{{ m[0] is defined }}"
    "{% generation %}{{ m['content'] }}{% endgeneration %}{% endfor %}",
    # Names that mean something inside a macro.
    "{% for m in messages %}{% generation %}{{ kwargs }}{{ varargs }}{% endgeneration %}{% endfor %}",
]


@pytest.mark.parametrize("template", OWN_TEMPLATES)
def test_any_template_renders_as_in_transformers(template: str) -> None:
    """
    Text and marks of a user's file are those of transformers' own renderer.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    tools = [{"z": "a <b> & 'c' é", "a": {"k": [1, None, True]}}]
    for messages in (TWO_TURNS, [message("user", "aé\r\n😀"), message("assistant", "")]):
        texts, marks = render_jinja_template(
            [messages], tools=tools, chat_template=template, return_assistant_tokens_mask=True
        )
        rendered = ChatRenderer(template).render(messages, tools=tools)

        assert rendered.text == texts[0]
        assert rendered.spans == tuple((start, end) for start, end in marks[0] if start < end)


def test_sandbox_refuses_what_transformers_refuses_also_when_asked_twice() -> None:
    """
    A verdict that is kept for a type and a name stays the right one.
    """
    renderer = ChatRenderer("{{ messages.append(1) }}")

    for _ in range(2):
        with pytest.raises(TemplateRefusal, match="append"):
            renderer.render([])
    with pytest.raises(TemplateRefusal, match="unsafe"):
        ChatRenderer("{{ messages.__class__.mro() }}").render([])
    assert ChatRenderer("{{ messages.index(1) }}").render([1]).text == "0"  # type: ignore[list-item]


def test_reasoning_of_earlier_turns_is_dropped_as_at_serving_and_counted() -> None:
    """
    A template that drops old reasoning gets the whole conversation; the loss is noted.
    """
    template = (
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m['role'] == 'user' %}"
        "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
        "{{ '<|im_start|>' + m['role'] + '\n' }}{% if m['role'] == 'assistant' %}{% generation %}"
        "{% if loop.index0 > ns.last and m.get('reasoning_content') %}"
        "{{ '<think>' + m['reasoning_content'] + '</think>' }}{% endif %}"
        "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    )
    messages = [
        message("user", "q1"),
        message("assistant", "a1", reasoning_content="r1"),
        message("user", "q2"),
        message("assistant", "a2", reasoning_content="r2"),
    ]

    rendered = ChatRenderer(template).render(messages)

    trained = "".join(rendered.text[start:end] for start, end in rendered.spans)
    assert trained == "a1<|im_end|><think>r2</think>a2<|im_end|>"
    assert sorted(rendering_notes(messages, rendered.text)) == [
        "reasoning fields",
        "reasoning fields",
        "reasoning fields dropped by the template",
    ]


def test_rendering_notes_name_a_turn_that_the_template_leaves_out() -> None:
    """
    Delphi has no place for a later system turn: its absence is noted, trimming is not.
    """
    messages = [message("user", " q "), message("system", "later"), message("assistant", "q")]

    def notes(name: str) -> list[str]:
        text = ChatRenderer(load_template(name).text, special_tokens={"bos_token": BOS})
        return list(rendering_notes(messages, text.render(messages).text))

    assert notes("delphi") == ["system text changed or dropped by the template"]
    assert notes("marin") == []


def test_render_row_passes_tools_and_variables_but_no_reserved_name() -> None:
    """
    A row's own variables reach the template; none of them replaces what the row itself gives.
    """
    renderer = ChatRenderer("{{ mode }}{{ tools | tojson }}{{ messages[0].content }}")
    row = {
        "messages": [message("user", "hi")],
        "tools": [{"a": 1}],
        "chat_template_kwargs": {"mode": "m", "tools": [], "add_generation_prompt": True},
    }

    assert renderer.render_row(row).text == 'm[{"a": 1}]hi'


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ 1 / (messages | length - 1) }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages[0].content.missing.more }}", "UndefinedError"),
    ],
)
def test_render_tells_what_fails_for_one_row_as_that_rows_refusal(
    template: str, error: str
) -> None:
    """
    An error within the template is a property of the row that it met.
    """
    with pytest.raises(TemplateRefusal, match=error):
        ChatRenderer(template).render([message("user", "hi")])


def test_tojson_keeps_order_and_characters() -> None:
    """
    JSON in a prompt is neither sorted nor escaped (Jinja's own filter does both).
    """
    renderer = ChatRenderer("{{ tools[0] | tojson }}")

    text = renderer.render([], tools=[{"z": "a <b> & 'c' é", "a": 1}]).text

    assert text == '{"z": "a <b> & \'c\' é", "a": 1}'


@pytest.mark.parametrize("fixture", ["tokenizer_path", "auto_bos_tokenizer_path"])
def test_begin_of_text_appears_as_often_as_the_template_says(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    """
    A tokenizer that adds a begin-of-text token by itself doesn't double the template's.
    """
    tokenizer = ChatTokenizer(request.getfixturevalue(fixture))
    bos_id = tokenizer.encode([BOS])[0][0]
    for name, expected in (("marin", 1), ("chatml", 0)):
        renderer = ChatRenderer(load_template(name).text, special_tokens=tokenizer.special_tokens)
        tokens = tokenizer.encode_rendered([renderer.render(TWO_TURNS)])[0]

        assert tokens.ids.tolist().count(bos_id) == expected


def test_render_reports_what_the_template_refuses() -> None:
    """
    raise_exception in a template is a property of the row, told with its text.
    """
    with pytest.raises(TemplateRefusal, match="roles must alternate"):
        ChatRenderer("{{ raise_exception('roles must alternate') }}").render([])


def test_render_names_the_line_of_bad_jinja() -> None:
    """
    A template with a syntax error is refused with its line.
    """
    with pytest.raises(ChatInputError, match="'t' line 2"):
        ChatRenderer("a\n{% for %}", name="t")


def test_render_refuses_a_generation_block_whose_place_is_unknown() -> None:
    """
    A block inside a macro would give a shifted mask, so it is an error.
    """
    block = "{% generation %}y{% endgeneration %}"
    for template in (
        "{% macro m() %}x" + block + "{% endmacro %}ab{{ m() }}",
        "{% set t %}x" + block + "{% endset %}ab{{ t }}",
        "{% generation %}first{% endgeneration %}ab{% filter upper %}x" + block + "{% endfilter %}",
        "ab{% for m in [[[], []]] recursive %}x" + block + "{{ loop(m) }}{% endfor %}",
    ):
        with pytest.raises(ChatInputError, match="main text"):
            ChatRenderer(template).render([])


def test_a_block_in_a_macro_that_happens_to_be_in_place_has_its_span() -> None:
    """
    What a macro writes first stands where the macro is called.
    """
    template = (
        "{% macro m() %}{% generation %}y{% endgeneration %}{% endmacro %}a{{ m() }}b"
        "{% generation %}c{% endgeneration %}"
    )

    assert marked(ChatRenderer(template).render([])) == "a⟦y⟧b⟦c⟧"
