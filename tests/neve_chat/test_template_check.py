"""
A template fits a tokenizer if its markers are tokens and every turn's end is trained.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from neve_chat.errors import ChatInputError
from neve_chat.render import ChatRenderer
from neve_chat.template_check import check_template_fits
from neve_chat.templates import check_generation_marks, load_template, template_names
from neve_chat.terminator import find_terminator
from neve_chat.tokens import ChatTokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

SPECIALS = ("<|pad|>", "<|endoftext|>", "<|bos|>", "<|im_start|>", "<|im_end|>", "<|tool|>")
MERGES = ["H i", "o k", "t h", "th e", "Ġ the", "Ċ Ċ", ": Ġ", "a b", "ab c"]
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>")
CONVERSATION = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "abc"},
]
HEAD = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}"
INSIDE = (
    HEAD + "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% endfor %}"
)
OUTSIDE = (
    HEAD + "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
)
CLOSED_BY_NEXT = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>' + m['content'] }}{% else %}"
    "{{ '<|assistant|>' }}{% generation %}{{ m['content'] }}{% endgeneration %}{% endif %}{% endfor %}"
)
GEMMA = INSIDE.replace("<|im_start|>", "<start_of_turn>").replace("<|im_end|>", "<end_of_turn>")


def build(
    folder: Path, *, specials: tuple[str, ...] = SPECIALS, bos: str = "", has_auto_bos: bool = False
) -> ChatTokenizer:
    """
    Special tokens, 256 bytes, 9 merges; the ids never move.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=_byte)
    merged = [merge.replace(" ", "") for merge in MERGES]
    vocab = {token: index for index, token in enumerate((*specials, *alphabet, *merged))}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    bos = bos or specials[2]
    if has_auto_bos:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocab[bos])]
        )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": bos, "eos_token": specials[1]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return ChatTokenizer(str(folder))


def _byte(letter: str) -> int:
    """
    Letters that stand for themselves have their own number; the others follow 255 in order.
    """
    if ord(letter) < 0x100:
        return ord(letter)
    rest = [*range(0x21), *range(0x7F, 0xA1), 0xAD]
    return rest[ord(letter) - 0x100]


def renderer(template: str, tokenizer: ChatTokenizer) -> ChatRenderer:
    return ChatRenderer(template, special_tokens=tokenizer.special_tokens, name="t")


def trained(template: str, tokenizer: ChatTokenizer) -> tuple[str, int]:
    tokens = tokenizer.encode_rendered([renderer(template, tokenizer).render(CONVERSATION)])[0]
    return tokenizer.text(tokens.ids[tokens.mask == 1]), len(tokens.ids)


def test_chatml_on_a_llama_tokenizer_is_refused_with_both_names(tmp_path: Path) -> None:
    """
    Its markers would be spelled out in letters.
    """
    tokenizer = build(tmp_path, specials=(*LLAMA, "<|eot_id|>"), bos=LLAMA[0])
    chatml = renderer(load_template("chatml").text, tokenizer)

    with pytest.raises(ChatInputError) as caught:
        check_template_fits(chatml, tokenizer, "chatml", "llama-3")

    message = str(caught.value)
    assert message.startswith("template 'chatml' on tokenizer 'llama-3': every marker")
    # <|im_start|> has 12 characters and <|im_end|> 10, all of one byte and in no merge
    assert "got <|im_start|> (12 tokens), <|im_end|> (10 tokens)." in message
    assert "Pass a template made for this tokenizer" in message


@pytest.mark.parametrize("name", template_names())
def test_built_in_templates_end_every_turn(name: str, tmp_path: Path) -> None:
    """
    Answers and tool calls end inside the loss, on a tokenizer whose special tokens are the markers
    that stand in the template's source.
    """
    template = load_template(name).text
    markers = dict.fromkeys(re.findall(r"<\|\w+\|>", template))
    tokenizer = build(tmp_path, specials=tuple(dict.fromkeys((*SPECIALS, *markers))))

    check_template_fits(renderer(template, tokenizer), tokenizer, name, "x")


@pytest.mark.parametrize(
    ("addition", "marker"),
    [
        ("{% if tools %}<|tools|>{% endif %}", "<|tools|> (9 tokens)"),
        ("{% if add_generation_prompt %}[INST]{% endif %}", "[INST] (6 tokens)"),
        ("{% if messages[0].role == 'system' %}<s>{% endif %}", "<s> (3 tokens)"),
        (
            "{% if messages[1] is defined and messages[1].reasoning_content %}<|r|>{% endif %}",
            "<|r|> (5 tokens)",
        ),
        ("{% if messages[2] is defined and messages[2].role == 'tool' %}</s>{% endif %}", "</s>"),
        # U+FF5C has three bytes
        ("\uff5cx<\uff5cEnd\uff5c>", "<\uff5cEnd\uff5c> (11 tokens)"),
    ],
)
def test_markers_are_found_where_only_some_conversations_have_them(
    addition: str, marker: str, tmp_path: Path
) -> None:
    """
    Tools, an open header, a system prompt, reasoning, a tool's reply.
    """
    tokenizer = build(tmp_path)

    with pytest.raises(ChatInputError) as caught:
        check_template_fits(renderer(addition + INSIDE, tokenizer), tokenizer, "t", "x")

    assert f"got {marker}" in str(caught.value)


def test_an_eos_text_that_is_no_token_is_refused(tmp_path: Path) -> None:
    """
    tokenizer_config.json may name a token that tokenizer.json doesn't have.
    """
    build(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[END]"}))
    tokenizer = ChatTokenizer(str(tmp_path))
    template = INSIDE.replace("'<|im_end|>'", "eos_token")

    with pytest.raises(ChatInputError, match=r"got \[END\] \(5 tokens\)"):
        check_template_fits(renderer(template, tokenizer), tokenizer, "t", "x")


def test_probes_that_the_template_refuses_are_passed_over(tmp_path: Path) -> None:
    """
    No system prompt and no tools in this one, and two turns at most.
    """
    tokenizer = build(tmp_path)
    template = (
        "{% if messages | length > 2 or tools %}{{ raise_exception('no') }}{% endif %}" + INSIDE
    )

    check_template_fits(renderer(template, tokenizer), tokenizer, "t", "x")

    assert find_terminator(renderer(template, tokenizer), tokenizer, "t").text == "<|im_end|>"


def test_templates_without_generation_tags_are_refused(tmp_path: Path) -> None:
    """
    Case 031: none, or only in a comment; with tags the answers and their ends are trained.
    """
    no_tags = HEAD + "{{ m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    for bad in (no_tags, "{# {% generation %} is only mentioned #}" + no_tags):
        with pytest.raises(ChatInputError, match=r"'t': .* no token would be trained. Pass a bu"):
            check_generation_marks("t", bad)
    check_generation_marks("t", INSIDE)

    assert trained(INSIDE, build(tmp_path)) == ("ok<|im_end|>abc<|im_end|>", 48)


def test_end_of_turn_must_be_trained(tmp_path: Path) -> None:
    """
    Case 032: inside is right, outside or only before the next turn is not; eos doesn't matter.
    """
    tokenizer = build(tmp_path / "case")
    gemma = build(tmp_path / "gemma", specials=(*SPECIALS, "<start_of_turn>", "<end_of_turn>"))

    assert find_terminator(renderer(INSIDE, tokenizer), tokenizer, "t").ids == (4,)
    assert find_terminator(renderer(GEMMA, tokenizer), tokenizer, "t").text == "<end_of_turn>"
    check_template_fits(renderer(GEMMA, gemma), gemma, "t", "x")
    with pytest.raises(ChatInputError, match=r"<end_of_turn> \(13 tokens\)"):
        check_template_fits(renderer(GEMMA, tokenizer), tokenizer, "t", "x")
    with pytest.raises(ChatInputError, match=r"with '<\|im_end\|>\\n' outside .* Move"):
        find_terminator(renderer(OUTSIDE, tokenizer), tokenizer, "t")
    with pytest.raises(ChatInputError, match=r"with '' outside .* not learn to stop. Let the temp"):
        find_terminator(renderer(CLOSED_BY_NEXT, tokenizer), tokenizer, "t")


def test_every_trained_answer_must_end(tmp_path: Path) -> None:
    """
    A terminator behind the last answer alone isn't enough; one in a block of its own is.
    """
    tokenizer = build(tmp_path)
    last_only = CLOSED_BY_NEXT.replace(
        "{{ m['content'] }}{% endgen",
        "{{ m['content'] + ('<|im_end|>' if loop.last else '') }}{% endgen",
    )
    own_block = INSIDE.replace(
        "{{ m['content'] + '<|im_end|>' }}{% endgen",
        "{{ m['content'] }}{% endgeneration %}{% generation %}{{ '<|im_end|>' }}{% endgen",
    )

    assert find_terminator(renderer(own_block, tokenizer), tokenizer, "t").text == "<|im_end|>"
    with pytest.raises(ChatInputError, match=r"bare answer with '<.user.>neveprobeq.*' outside"):
        find_terminator(renderer(last_only, tokenizer), tokenizer, "t")


def test_turns_of_tool_calls_must_end_too(tmp_path: Path) -> None:
    """
    With the same token or another special one, inside the block.
    """
    tokenizer = build(tmp_path)
    calls = "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}"
    inside = INSIDE.replace("{% endgen", calls + "{{ '<|tool|>' if m.tool_calls }}{% endgen")
    outside = INSIDE.replace("{% endgeneration %}", calls + "{% endgeneration %}{{ '<|tool|>' }}")

    check_template_fits(renderer(inside, tokenizer), tokenizer, "t", "x")
    with pytest.raises(
        ChatInputError, match=r"turn with tool calls must end .* '\"}}}' at its end"
    ):
        check_template_fits(renderer(outside, tokenizer), tokenizer, "t", "x")


@pytest.mark.parametrize("has_auto_bos", [False, True])
def test_begin_of_text_is_what_the_template_says(has_auto_bos: bool, tmp_path: Path) -> None:
    """
    Case 039: one at the front if the template writes it, none otherwise, whatever the tokenizer
    adds by itself.
    """
    tokenizer = build(tmp_path, has_auto_bos=has_auto_bos)

    for template, count, start in (("{{ bos_token }}" + INSIDE, 1, [2, 3, 123]), (INSIDE, 0, [3])):
        rendered = renderer(template, tokenizer).render(CONVERSATION)
        ids = tokenizer.encode_rendered([rendered])[0].ids.tolist()

        assert ids.count(2) == count
        assert ids[: len(start)] == start
