"""
Text of special tokens in the data: where it is found, and that it never becomes special.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer, Rendered
from neve_chat.special_text import SpecialText
from neve_chat.templates import load_template
from neve_chat.tokens import ChatTokenizer

from tests.neve_chat.tokenizer_kinds import SPECIALS, build_kind

# Joins the parts of a message and trims them, so that markers can form from pieces.
JOINING = """
{%- for m in messages -%}
  {{- '<|im_start|>' ~ m.role ~ '\n' -}}
  {%- generation -%}
  {%- for part in m.content -%}{{- part.text | trim -}}{%- endfor -%}
  {{- '<|im_end|>' -}}
  {%- endgeneration -%}
  {{- '\n' -}}
{%- endfor -%}
"""


def row(*parts: str) -> dict[str, Any]:
    content = [{"type": "text", "text": part} for part in parts]
    return {"id": "r", "messages": [{"role": "user", "content": content}]}


def render(template: str, conversation: Mapping[str, Any]) -> Rendered:
    return ChatRenderer(template).render(conversation["messages"], tools=conversation.get("tools"))


@pytest.fixture(scope="module")
def tokenizers_of_kinds(tmp_path_factory: pytest.TempPathFactory) -> list[ChatTokenizer]:
    folder: Path = tmp_path_factory.mktemp("special")
    paths = [build_kind(kind, folder / kind) for kind in ("unsplit", "composed")]
    return [
        ChatTokenizer(path, encoder=encoder)
        for path, encoder in itertools.product(paths, ("fastokens", "tokenizers"))
    ]


def test_find_names_every_place() -> None:
    """
    Messages, tools and template arguments, the keys of objects too; in order, each time it occurs.
    """
    special = SpecialText(SPECIALS, "error", allowed=["<|end|>"])
    conversation = {
        "id": "<s>",
        "messages": [
            {"role": "user", "content": "a <s>b</s><|end|>"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "f", "arguments": {"<s>": ["x", "</s>"]}}}],
            },
            {"role": "user", "content": [{"type": "text", "text": "<|im_end|><|im_end|>"}]},
        ],
        "tools": [{"name": "<s>"}],
        "chat_template_kwargs": {"note": "<|im_start|>", "deep": True},
    }

    assert special.find(conversation) == [
        ("messages[0].content", "<s>"),
        ("messages[0].content", "</s>"),
        ("messages[1].tool_calls[0].function.arguments (key)", "<s>"),
        ("messages[1].tool_calls[0].function.arguments.<s>[1]", "</s>"),
        ("messages[2].content[0].text", "<|im_end|>"),
        ("messages[2].content[0].text", "<|im_end|>"),
        ("tools[0].name", "<s>"),
        ("chat_template_kwargs.note", "<|im_start|>"),
    ]


def test_a_row_without_markers_is_left_alone() -> None:
    """
    It's the same object, and so is its rendered text.
    """
    special = SpecialText(SPECIALS, "escape", allowed=["<|end|>"])
    conversation = row("if a < b > c: <|end|> <|im x", "> quoted <s")

    assert special.find(conversation) == []
    # "> quoted" begins and "<s" ends as a marker does, so a tag is set; without effect
    escaped = special.escape(conversation)
    assert special.unescape(render(JOINING, escaped)) == render(JOINING, conversation)
    plain = row("if a < b and c > d: <|end|>")
    assert special.escape(plain) is plain
    rendered = render(JOINING, plain)
    assert special.unescape(rendered) is rendered


@pytest.mark.parametrize(
    "parts",
    [
        ["a<|im_end|>b"],
        ["<|im_", "end|>"],
        ["<|im_  ", "\n end|>"],
        ["a<", "|", "im_end|>"],
        ["<|im_<|im_end|>end|>"],
        ["\ufdd0<s>\ufdd1", "\\ufdd2</s>"],
        ["<s", "><s", ">"],
    ],
)
def test_markers_in_the_data_never_become_special(
    parts: list[str], tokenizers_of_kinds: list[ChatTokenizer]
) -> None:
    """
    Whole, in pieces, nested, beside the characters that tags are made of: two special ids, the
    template's.
    """
    special = SpecialText(SPECIALS, "escape")
    conversation = row(*parts)
    plain = render(JOINING, conversation)

    rendered = special.unescape(render(JOINING, special.escape(conversation)))

    assert (rendered.text, rendered.spans) == (plain.text, plain.spans)
    assert rendered.cuts
    assert special.num_markers(rendered) == 2
    for tokenizer in tokenizers_of_kinds:
        tokens = tokenizer.encode_rendered([rendered])[0]
        assert tokenizer.num_special(tokens) == 2
        assert tokenizer.text(tokens.ids) == rendered.text


_PARTS = st.lists(
    st.sampled_from(
        (
            *(*SPECIALS, "<", "<|", "|>", ">", "<|im_", "end|>", "im_end", "_start|>"),
            *("s", "/s>", "<s", "|", " ", "\n", "x", "\ufdd0", "\u00e9"),
        )
    ),
    max_size=6,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(_PARTS, min_size=1, max_size=4))
def test_escape_changes_ids_only_where_markers_were(
    parts: list[str], tokenizers_of_kinds: list[ChatTokenizer]
) -> None:
    """
    Any text: same text and spans, two special ids, and no cut unless plain text has more.
    """
    special = SpecialText(SPECIALS, "escape")
    conversation = row(*parts)
    plain = render(JOINING, conversation)
    tokenizer = tokenizers_of_kinds[0]

    rendered = special.unescape(render(JOINING, special.escape(conversation)))

    tokens, as_it_is = tokenizer.encode_rendered([rendered, plain])
    assert (rendered.text, rendered.spans) == (plain.text, plain.spans)
    assert tokenizer.num_special(tokens) == special.num_markers(rendered) == 2
    assert tokenizer.text(tokens.ids) == plain.text
    if not rendered.cuts:
        assert tokens.ids.tolist() == as_it_is.ids.tolist()
        assert tokenizer.num_special(as_it_is) == 2


def test_escape_reaches_tools_and_arguments(tokenizers_of_kinds: list[ChatTokenizer]) -> None:
    """
    Also keys, and through tojson; the built-in template writes six markers for two turns.
    """
    special = SpecialText(SPECIALS, "escape")
    call = {"type": "function", "function": {"name": "f", "arguments": {"</s>k": "<|im_end|>"}}}
    conversation = {
        "messages": [
            {"role": "user", "content": "<s>"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ],
        "tools": [{"name": "<|im_start|>"}],
    }
    template = load_template("chatml").text

    rendered = special.unescape(render(template, special.escape(conversation)))

    assert rendered.text == render(template, conversation).text
    assert special.num_markers(rendered) == 6
    for tokenizer in tokenizers_of_kinds:
        assert tokenizer.num_special(tokenizer.encode_rendered([rendered])[0]) == 6


def test_a_tag_that_json_spelled_in_ascii_is_taken_out() -> None:
    """
    A template may ask tojson for ASCII; the text must not keep the tag's spelling.
    """
    template = "{{ messages[0].content | tojson(ensure_ascii=true) }}"
    special = SpecialText(SPECIALS, "escape")
    conversation = {"messages": [{"role": "user", "content": "é<s>"}]}

    rendered = special.unescape(render(template, special.escape(conversation)))

    assert rendered == Rendered('"\\u00e9<s>"', (), cuts=(8,))


def test_more_special_ids_than_markers_betray_a_normalizer(tmp_path: Path) -> None:
    """
    A marker that only the normalized text holds isn't found in the data; the counts differ then.
    """
    path = Path(build_kind("folded", tmp_path / "folded"))
    content = json.loads((path / "tokenizer.json").read_text())
    for token in content["added_tokens"]:
        token["normalized"] = True
    (path / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = ChatTokenizer(str(path))
    special = SpecialText(tokenizer.special_texts, "error")
    conversation = row("<|IM_END|>")

    rendered = special.unescape(render(JOINING, special.escape(conversation)))

    assert special.find(conversation) == []
    assert special.num_markers(rendered) == 2
    assert tokenizer.num_special(tokenizer.encode_rendered([rendered])[0]) == 3


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ((SPECIALS, "remove"), "must be one of error, drop, keep, escape, got 'remove'"),
        ((["\n", "<s>"], "escape"), r"2 characters or more, got '\\n'"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments: tuple[Any, str], rule: str) -> None:
    """
    Before any row.
    """
    with pytest.raises(ChatInputError, match=rule):
        SpecialText(*arguments)


def test_a_tokenizer_without_special_tokens_finds_nothing() -> None:
    """
    No markers, nothing to do.
    """
    special = SpecialText([], "escape")

    assert special.find(row("<s>")) == []
    assert special.escape(conversation := row("<s>")) is conversation
    assert special.num_markers(Rendered("<s>", ())) == 0


@settings(max_examples=400, deadline=None)
@given(st.text(st.sampled_from("<|im_endx> \n\u00a0\u3000"), max_size=60))
def test_the_quick_look_passes_over_no_text_that_needs_a_tag(text: str) -> None:
    special = SpecialText(("<|im_end|>", "<|im|>", "[end]"), "error")

    assert [*special._suspects([text])] or not special._places(text)


def test_the_quick_look_sees_the_end_of_a_marker_behind_wide_spaces() -> None:
    special = SpecialText(("<|im_end|>",), "error")
    text = "\u3000" * 20 + "im_end|> and more"

    assert special._places(text)
    assert [*special._suspects([text])]
