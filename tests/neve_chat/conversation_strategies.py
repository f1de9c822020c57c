"""
Random canonical rows: every script and plane, markers, tools, reasoning, empty and odd texts.
"""

from __future__ import annotations

import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from neve_chat.templates import template_names, template_tokens

PLACES = (*random.Random(0).sample(range(0x370, 0xD800), 30), 0xE000, 0xFDD0, 0xFFFD, 0xFFFF)
SPECIALS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    *sorted(
        {token for name in template_names() for token in template_tokens(name)}
        - {"<|begin_of_text|>"}
    ),
)
NASTY = (
    *("", " ", "\n", "\r\n", "\n\n", "\t", "\x00", "\x85", "\u2028", "\u200b", "\ufeff", "\ufffd"),
    *(
        "hi",
        " the cat",
        "é",
        "e\u0301",
        "\u0301",
        "ﬁ",
        "İ",
        "ß",
        "你好",
        "👩‍💻",
        "\U000f0000",
        "\u1112\u1161",
    ),
    *("<think>", "</think>", "<think>\nr\n</think>\n\na", "<tool_response>", "</tool_response>"),
    *("<tool_call>", "{% generation %}", "{{ x }}", '"\\', "<|im_", "end|>", "|>", "<|", "▁", "Ġ"),
)
# Latin and combining characters, and some of every plane but the surrogates.
ALPHABET = [
    *map(chr, (*range(0x250), *range(0x300, 0x370))),
    *(chr(plane + place) for plane in range(0, 0x110000, 0x10000) for place in PLACES),
]
TEXT = st.lists(
    st.one_of(st.sampled_from((*NASTY, *SPECIALS)), st.text(ALPHABET, max_size=6)), max_size=4
).map("".join)
WORD = st.sampled_from(("f", "run it", "é", "a.b", "<|eot_id|>"))
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(TEXT, inner, max_size=2)),
    max_leaves=4,
)
OBJECT = st.dictionaries(st.one_of(WORD, TEXT), JSON, max_size=2)
CALL = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": WORD, "arguments": OBJECT})},
    optional={"id": st.sampled_from(("c1", "c2"))},
)
ASSISTANT = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.one_of(TEXT, st.none())},
    optional={"reasoning_content": TEXT, "tool_calls": st.lists(CALL, max_size=2)},
)
TOOL = st.fixed_dictionaries(
    {"role": st.just("tool"), "content": st.one_of(TEXT, OBJECT)},
    optional={"tool_call_id": st.sampled_from(("c1", "c2")), "name": WORD},
)
OTHER = st.fixed_dictionaries({"role": st.sampled_from(("user", "system")), "content": TEXT})
ROW = st.fixed_dictionaries(
    {"messages": st.lists(st.one_of(ASSISTANT, OTHER, ASSISTANT, TOOL), min_size=1, max_size=6)},
    optional={
        "tools": st.lists(OBJECT, min_size=1, max_size=2),
        "chat_template_kwargs": st.fixed_dictionaries({"enable_thinking": st.booleans()}),
    },
)


def example_settings(num_rows: int) -> settings:
    """
    The same rows in every run.
    """
    return settings(
        max_examples=num_rows,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
