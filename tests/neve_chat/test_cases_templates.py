"""
Failures that people met with templates and masks, each as the smallest input and the right value.

What the other modules of this folder test already is not repeated here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from neve_chat.cache import TreeCacheWriter
from neve_chat.cache_reader import CacheReader
from neve_chat.errors import ChatInputError
from neve_chat.fitting import fit_rows
from neve_chat.render import ChatRenderer
from neve_chat.templates import check_generation_marks
from neve_chat.terminator import find_terminator
from neve_chat.tokens import ChatTokenizer, Tokens

END_INSIDE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
)
END_OUTSIDE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
)
NO_END = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<|user|>' + m['content'] }}{% else %}"
    "{{ '<|assistant|>' }}{% generation %}{{ m['content'] }}{% endgeneration %}{% endif %}{% endfor %}"
)
TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "bye"},
    {"role": "assistant", "content": "abc"},
]


def encode(
    tokenizer: ChatTokenizer, template: str, messages: list[dict[str, Any]], **kwargs: Any
) -> Tokens:
    renderer = ChatRenderer(template, special_tokens=tokenizer.special_tokens)
    return tokenizer.encode_rendered([renderer.render(messages, **kwargs)])[0]


def trained_text(tokenizer: ChatTokenizer, tokens: Tokens) -> str:
    return tokenizer.text(tokens.ids[tokens.mask == 1])


def reference(tokenizer_path: str) -> Any:
    return transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer_path)


def test_marks_decide_what_is_trained(tokenizer_path: str) -> None:
    """
    A template with marks trains the answers and their ends; marks in a comment are none (trl 4879).
    """
    tokenizer = ChatTokenizer(tokenizer_path)

    tokens = encode(tokenizer, END_INSIDE, TALK)

    assert trained_text(tokenizer, tokens) == "ok<|im_end|>abc<|im_end|>"
    assert int(tokens.mask.sum()) == 4
    commented = "{# {% generation %} is only mentioned #}{% for m in messages %}x{% endfor %}"
    with pytest.raises(ChatInputError, match=r"'base-model'.* no token would be trained"):
        check_generation_marks("base-model", commented)


@pytest.mark.parametrize(
    ("template", "behind"), [(END_OUTSIDE, r"<\|im_end\|>"), (NO_END, "with '' outside")]
)
def test_turn_that_never_ends_is_refused(tokenizer_path: str, template: str, behind: str) -> None:
    """
    The end of the turn outside the loss, or only told by the next role's marker (axolotl 3754).
    """
    tokenizer = ChatTokenizer(tokenizer_path)

    with pytest.raises(ChatInputError, match=rf"{behind}.*not learn to stop"):
        find_terminator(ChatRenderer(template), tokenizer, "t")


def test_cut_answer_keeps_its_loss_and_a_cut_prompt_has_none(tmp_path: Path) -> None:
    """
    Cut within the answer, what is left stays trained and is counted; cut before it, the row goes
    (transformers 34494: the whole mask was lost).
    """
    ids = np.arange(26, dtype=np.int32)
    mask = ((ids >= 20) & (ids <= 24)).astype(np.int32)  # four tokens of the answer and its end
    with TreeCacheWriter(
        str(tmp_path / "train"), scratch=tmp_path / "scratch", preprocessor_metadata={}
    ) as writer:
        writer.append(ids, mask)
        writer.append(ids[18:], mask[18:])  # fits as it is
    reader = CacheReader(str(tmp_path / "train"))

    cut = fit_rows(reader, "d", seq_len=22, long_conversations="truncate")
    gone = fit_rows(reader, "d", seq_len=20, long_conversations="truncate")

    assert (cut.lengths.tolist(), cut.trained.tolist()) == ([22, 8], [2, 5])
    assert (cut.counts["cut"], cut.counts["cut_inside_an_answer"]) == (1, 1)
    assert (cut.counts["tokens_lost"], cut.counts["trained_tokens_lost"]) == (4, 3)
    assert gone.rows.tolist() == [1]
    assert gone.counts["dropped"]["no trained token left"] == 1
    assert (gone.counts["tokens_lost"], gone.counts["trained_tokens_lost"]) == (26, 5)


def test_tool_schemas_keep_their_order_and_characters(tokenizer_path: str) -> None:
    """
    Neither sorted nor escaped, as transformers renders them (marin PR 7210).
    """
    fields = {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}
    tool = {
        "type": "function",
        "function": {
            "name": "w",
            "description": "a <b> & 'c' é",
            "parameters": {"type": "object", "properties": fields},
        },
    }
    template = "{% for t in tools %}{{ t | tojson }}{{ '\n' }}{% endfor %}" + END_INSIDE

    text = ChatRenderer(template).render(TALK, tools=[tool]).text

    assert text.splitlines()[0] == (
        '{"type": "function", "function": {"name": "w", "description": "a <b> & \'c\' é", '
        '"parameters": {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": '
        '{"type": "integer"}}}}}'
    )
    theirs = reference(tokenizer_path).apply_chat_template(
        TALK, tools=[tool], chat_template=template, tokenize=False
    )
    assert text == theirs


def test_conversation_is_rendered_whole(tokenizer_path: str) -> None:
    """
    A template that needs the user's turn works; turn by turn it would refuse each answer (verl 7807).
    """
    tokenizer = ChatTokenizer(tokenizer_path)
    picky = (
        "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
        "{{ raise_exception('No user query found') }}{% endif %}"
    ) + END_INSIDE

    tokens = encode(tokenizer, picky, TALK)

    assert trained_text(tokenizer, tokens) == "ok<|im_end|>abc<|im_end|>"


@pytest.mark.parametrize("fixture", ["tokenizer_path", "auto_bos_tokenizer_path"])
@pytest.mark.parametrize("has_bos", [True, False])
def test_template_alone_decides_on_the_begin_of_text(
    fixture: str, has_bos: bool, request: pytest.FixtureRequest
) -> None:
    """
    One token or none, whatever the tokenizer would add by itself; ids as in one step of transformers
    (OpenRLHF 393: rendering and then encoding gives two).
    """
    path = request.getfixturevalue(fixture)
    tokenizer = ChatTokenizer(path)
    template = ("{{ bos_token }}" if has_bos else "") + END_INSIDE

    ids = encode(tokenizer, template, TALK).ids.tolist()

    # <|begin_of_text|> is 2 and <|im_start|> is 3 in the tiny tokenizer.
    assert ids[: 1 + has_bos] == ([2, 3] if has_bos else [3])
    assert ids.count(2) == has_bos
    theirs = reference(path).apply_chat_template(TALK, chat_template=template, return_dict=True)
    assert ids == theirs["input_ids"]


def test_answer_that_starts_with_a_space_stays_trained_from_there(tokenizer_path: str) -> None:
    """
    A merge over the border of the answer gives the reference's ids and mask (marin PR 7210).
    """
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{{ 'x:' }}{% generation %}"
        "{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] }}"
        "{% endif %}{% endfor %}"
    )
    messages = [TALK[0], {"role": "assistant", "content": " the the"}]

    tokens = encode(ChatTokenizer(tokenizer_path), template, messages)

    theirs = reference(tokenizer_path).apply_chat_template(
        messages, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    assert tokens.ids.tolist() == theirs["input_ids"]
    assert tokens.mask.tolist() == theirs["assistant_masks"]
    assert trained_text(ChatTokenizer(tokenizer_path), tokens) == " the the<|im_end|>"
