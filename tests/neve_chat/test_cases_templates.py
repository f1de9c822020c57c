"""
Failures that people met with templates and masks, each as the smallest input and the right value.

Generation tags, ends of turns, begin of text: test_template_check. Last turn only, roles: test_spans.
Cuts inside an answer: test_row_plan. Masks of packed rows: tests/neve_train/test_cache_interop.
"""

from __future__ import annotations

from typing import Any

import transformers
from neve_chat.render import ChatRenderer
from neve_chat.tokens import ChatTokenizer, Tokens

END_INSIDE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
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
