"""
Built-in templates, names, and the check for generation marks.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer, Rendered
from neve_chat.template_environment import CompiledTemplate
from neve_chat.templates import (
    check_generation_marks,
    load_template,
    template_names,
    template_tokens,
)

MARKED = "{% generation %}{{ m }}{% endgeneration %}"


SPECIAL_TOKENS = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
SIGNATURE = {"type": "function", "function": {"name": "f", "description": "a <b> & 'c' é"}}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": {"z": "<é>", "a": [1, None]}},
}
EVERYTHING: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1", "reasoning_content": "r1", "tool_calls": [CALL]},
    {"role": "tool", "content": "t1", "tool_call_id": "c1"},
    {"role": "tool", "content": "t2"},
    {"role": "assistant", "content": "a2"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a3", "reasoning_content": "r3"},
]


def rendered(name: str, messages: list[dict[str, Any]], **kwargs: Any) -> Rendered:
    renderer = ChatRenderer(load_template(name).text, special_tokens=SPECIAL_TOKENS, name=name)
    return renderer.render(messages, **kwargs)


def marked(conversation: Rendered) -> str:
    text = conversation.text
    for start, end in reversed(conversation.spans):
        text = f"{text[:start]}⟦{text[start:end]}⟧{text[end:]}"
    return text


def test_load_template_gives_every_built_in_with_marks() -> None:
    """
    Each built-in template marks what is trained.
    """
    assert template_names() == (
        "chatml",
        "delphi",
        "delphi_think",
        "llama3",
        "marin",
        "plain",
        "qwen3",
        "qwen3_keep_reasoning",
        "qwen3_nothink",
    )
    for name in template_names():
        check_generation_marks(name, load_template(name).text)


def test_load_template_reads_a_file_verbatim(tmp_path: Path) -> None:
    """
    A file's text is kept byte for byte, for it is the identity.
    """
    path = tmp_path / "own.jinja"
    path.write_bytes(b"{{ 'x' }}\n\n")

    assert load_template(str(path)).text == "{{ 'x' }}\n\n"


def test_load_template_suggests_a_near_name() -> None:
    """
    A misspelt name is answered with the near one and exit code 2.
    """
    with pytest.raises(ChatInputError, match="Did you mean 'marin'") as caught:
        load_template("marine")

    assert caught.value.exit_code == 2


@pytest.mark.parametrize("mark", ["{% generation %}", "{%- generation -%}", "{%+generation%}"])
def test_check_generation_marks_accepts_whitespace_forms(mark: str) -> None:
    """
    Every whitespace form of the tag that Jinja knows counts.
    """
    check_generation_marks("t", mark + "{{ '}} {#' }}x{% endgeneration %}")


@pytest.mark.parametrize(
    "text",
    [
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{# " + MARKED + " #}{{ messages }}",
        "{% raw %}" + MARKED + "{% endraw %}",
        "{{ '" + MARKED + "' }}",
        "{% set x = '%} " + MARKED + "' %}",
        "{% generation_x %}{% endgeneration_x %}",
    ],
)
def test_check_generation_marks_refuses_marks_that_do_not_count(text: str) -> None:
    """
    Marks in comments, raw blocks and strings train nothing, so they are refused.
    """
    with pytest.raises(ChatInputError, match="no token would be trained"):
        check_generation_marks("t", text)


def test_templates_import_is_light() -> None:
    """
    A recipe plans without jinja2, tokenizers, pyarrow or tensorstore.
    """
    heavy = {"jinja2", "tokenizers", "pyarrow", "tensorstore", "numpy", "orjson", "zstandard"}
    code = (
        "import sys, steps.tokenize_chat, steps.transform_conversations, neve_chat.schemas;"
        f"print(sorted(set(sys.modules) & {heavy!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", template_names())
def test_every_template_trains_answers_calls_and_ends_and_nothing_else(name: str) -> None:
    """
    Answer, reasoning, tool call and end of turn are inside the marks, other turns outside.
    """
    conversation = rendered(name, EVERYTHING, tools=[SIGNATURE])
    trained = [conversation.text[start:end] for start, end in conversation.spans]
    end_of_turn = {"llama3": "<|eot_id|>", "marin": "<|eot_id|>", "plain": "<|end_of_text|>"}
    end = end_of_turn.get(name, "<|eot_id|>" if "delphi" in name else "<|im_end|>")

    assert len(trained) == 3
    for text, answer in zip(trained, ("a1", "a2", "a3"), strict=True):
        assert answer in text
        assert text.endswith(end)
        assert text.count(end) == 1
        assert not re.search(r"S|q1|q2|t1|t2|start_header_id|im_start", text)
    assert '{"z": "<é>", "a": [1, null]}' in trained[0]
    kept = [] if name == "qwen3_nothink" else ["r3"] if name == "qwen3" else ["r1", "r3"]
    assert re.findall("r[13]", "".join(trained)) == kept
    assert json.dumps(SIGNATURE, ensure_ascii=False) in conversation.text


@pytest.mark.parametrize("name", template_names())
def test_every_marker_that_a_template_writes_is_named_in_its_first_line(name: str) -> None:
    """
    The first line of a template names each special token that a render of it holds.
    """
    text = rendered(name, EVERYTHING, tools=[SIGNATURE], add_generation_prompt=True).text

    written = set(re.findall(r"<\|\w+\|>", text)) - {SPECIAL_TOKENS["eos_token"]}

    assert written == set(template_tokens(name))


def test_delphi_gives_the_known_render() -> None:
    """
    A system turn always, tools in it, think and tool tokens on lines of their own.
    """
    messages = [
        {"role": "user", "content": " q "},
        {"role": "assistant", "content": "<think>\nr\n</think>\n\na", "tool_calls": [CALL]},
        {"role": "tool", "content": "t"},
        {"role": "assistant", "content": "b", "reasoning_content": "\ns\n"},
    ]

    def header(role: str) -> str:
        return f"<|start_header_id|>{role}<|end_header_id|>\n\n"

    assert marked(rendered("delphi", messages)) == (
        f"<|begin_of_text|>{header('system')}<|eot_id|>{header('user')} q <|eot_id|>"
        f"{header('assistant')}⟦<|start_think|>\nr\n<|end_think|>\n\na\n<|tool_call|>\n"
        '{"name": "f", "arguments": {"z": "<é>", "a": [1, null]}}\n<|tool_call_end|><|eot_id|>⟧'
        f"{header('tool')}<|tool_result|>\nt\n<|tool_result_end|><|eot_id|>"
        f"{header('assistant')}⟦<|start_think|>\ns\n<|end_think|>\n\nb<|eot_id|>⟧"
    )
    with_tools = rendered("delphi", EVERYTHING[:2], tools=[{"a": 1}, {"b": 2}]).text
    assert with_tools == (
        f"<|begin_of_text|>{header('system')}S\n\n# Tools\n\nYou may call one or more of the "
        'following functions. Emit each call as a JSON object {"name": ..., "arguments": ...} '
        'between <|tool_call|> and <|tool_call_end|>:\n\n{"a": 1}\n{"b": 2}<|eot_id|>'
        f"{header('user')}q1<|eot_id|>"
    )


@pytest.mark.parametrize(
    ("name", "enable_thinking", "prompt"),
    [
        ("delphi", True, ""),
        ("delphi", False, "<|start_think|>\n\n<|end_think|>\n\n"),
        ("delphi_think", False, "<|start_think|>\n"),
        ("qwen3", True, ""),
        ("qwen3", False, "<think>\n\n</think>\n\n"),
        ("qwen3_keep_reasoning", False, "<think>\n\n</think>\n\n"),
        ("qwen3_nothink", False, ""),
    ],
)
def test_enable_thinking_touches_the_generation_prompt_only(
    name: str, enable_thinking: bool, prompt: str
) -> None:
    """
    The switch changes what the open assistant turn starts with, and no training text.
    """
    plain = rendered(name, EVERYTHING)
    switched = rendered(name, EVERYTHING, enable_thinking=enable_thinking)
    opened = rendered(name, EVERYTHING, enable_thinking=enable_thinking, add_generation_prompt=True)
    header = (
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        if "delphi" in name
        else "<|im_start|>assistant\n"
    )

    assert switched == plain
    assert opened.text == plain.text + header + prompt
    assert opened.spans == plain.spans


QWEN3_TAIL = (
    "<|im_start|>user\nq1<|im_end|>\n<|im_start|>assistant\n⟦{first}a1\n<tool_call>\n"
    '{{"name": "f", "arguments": {{"z": "<é>", "a": [1, null]}}}}\n</tool_call><|im_end|>⟧\n'
    "<|im_start|>user\n<tool_response>\nt1\n</tool_response>\n<tool_response>\nt2\n"
    "</tool_response><|im_end|>\n<|im_start|>assistant\n⟦a2<|im_end|>⟧\n"
    "<|im_start|>user\nq2<|im_end|>\n<|im_start|>assistant\n⟦{last}a3<|im_end|>⟧\n"
)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("qwen3", "", "<think>\nr3\n</think>\n\n"),
        ("qwen3_keep_reasoning", "<think>\nr1\n</think>\n\n", "<think>\nr3\n</think>\n\n"),
        ("qwen3_nothink", "", ""),
    ],
)
def test_qwen3_gives_the_known_render(name: str, first: str, last: str) -> None:
    """
    Tool replies share a user turn; which reasoning stays is the only difference of the variants.
    """
    conversation = rendered(name, EVERYTHING)

    assert marked(conversation) == (
        "<|im_start|>system\nS<|im_end|>\n" + QWEN3_TAIL.format(first=first, last=last)
    )


def test_qwen3_writes_tools_into_the_system_turn() -> None:
    """
    The signatures stand in <tools> behind the system text, in the words the models know.
    """
    text = rendered("qwen3", EVERYTHING[:2], tools=[{"a": 1}, {"b": 2}]).text

    assert text == (
        "<|im_start|>system\nS\n\n# Tools\n\nYou may call one or more functions to assist with the "
        "user query.\n\nYou are provided with function signatures within <tools></tools> XML "
        'tags:\n<tools>\n{"a": 1}\n{"b": 2}\n</tools>\n\nFor each function call, return a json '
        "object with function name and arguments within <tool_call></tool_call> XML "
        'tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\nq1<|im_end|>\n"
    )


def test_qwen3_keeps_the_reasoning_of_an_open_tool_loop() -> None:
    """
    Turns behind the last user query keep their reasoning; the last one has a block in any case.
    """
    loop = [*EVERYTHING[1:6]]

    spans = rendered("qwen3", loop)
    trained = [spans.text[start:end] for start, end in spans.spans]

    assert trained[0].startswith("<think>\nr1\n</think>\n\na1\n<tool_call>")
    assert trained[1] == "<think>\n\n</think>\n\na2<|im_end|>"


@pytest.mark.parametrize("name", ["qwen3", "qwen3_keep_reasoning", "delphi"])
def test_inline_reasoning_is_taken_out_of_the_text(name: str) -> None:
    """
    <think> within the text becomes the template's own reasoning block.
    """
    inline = [EVERYTHING[1], {"role": "assistant", "content": "<think>\nr\n</think>\n\na"}]
    field = [EVERYTHING[1], {"role": "assistant", "content": "a", "reasoning_content": "r"}]

    assert rendered(name, inline) == rendered(name, field)


def test_marin_finds_the_caller_of_a_tool_reply_by_the_latest_call_of_its_id() -> None:
    """
    A reply without a name gets that of the last call before it with its id.
    """
    first = {"id": "c1", "function": {"name": "old", "arguments": {}}}
    second = {"id": "c1", "function": {"name": "new", "arguments": {}}}
    reply = {"role": "tool", "content": "t", "tool_call_id": "c1"}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [first]},
        reply,
        {"role": "assistant", "content": None, "tool_calls": [second]},
        reply,
        {**reply, "tool_call_id": "c2"},
    ]

    found = re.findall("<tool_response.*?>", rendered("marin", messages).text)

    assert found == [
        '<tool_response name="old">',
        '<tool_response name="new">',
        "<tool_response>",
    ]


@pytest.mark.parametrize("name", template_names())
def test_every_template_renders_where_undefined_names_are_errors(name: str) -> None:
    """
    Levanter renders with strict undefined values: absent keys and variables are asked for first.
    """
    text = load_template(name).text
    environment = CompiledTemplate(text).environment.overlay(undefined=jinja2.StrictUndefined)
    template = environment.from_string(text)
    messages = [*EVERYTHING, {"role": "assistant", "content": None, "tool_calls": [CALL]}]

    for tools in (None, [SIGNATURE]):
        strict = template.render(
            messages=messages, tools=tools, add_generation_prompt=False, **SPECIAL_TOKENS
        )

        assert strict == rendered(name, messages, tools=tools).text


def test_load_template_leaves_the_tokenizers_own_for_later() -> None:
    """
    While planning no tokenizer is there yet: the text is empty, the name tells what is meant.
    """
    template = load_template("tokenizer")

    assert (template.name, template.text) == ("tokenizer", "")


def test_marin_writes_the_tool_list_that_its_models_know() -> None:
    """
    Other words would be another prompt than the one of pre-training and of serving.
    """
    renderer = ChatRenderer(load_template("marin").text, special_tokens={"bos_token": "<B>"})
    tools = [{"name": "f", "parameters": {"b": 1, "a": 2}}]

    text = renderer.render([{"role": "user", "content": "hi"}], tools=tools).text

    assert text == (
        "<B><|start_header_id|>system<|end_header_id|>\n### Tools\n\n"
        "You may call one or more functions to assist with the user query.\n"
        "You are provided with function signatures within <tools> </tools> tags:\n\n"
        '<tools>\n{"name": "f", "parameters": {"b": 1, "a": 2}}\n\n</tools>\n\n'
        "For each function call, pass a json object with function name and arguments within "
        "<tool_call> </tool_call> tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>\n\n'
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\nhi<|eot_id|>\n"
    )
