"""
Does the template fit the tokenizer? Markers that the tokenizer doesn't know are spelled out in
letters, and the model learns to write them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from neve_chat.errors import ChatInputError
from neve_chat.probes import PROBES
from neve_chat.render import ChatRenderer, TemplateRefusal
from neve_chat.terminator import find_terminator
from neve_chat.tokens import ChatTokenizer

__all__ = ["check_template_fits"]

_MARKER = re.compile(
    r"<\|[^|<>\s]{1,64}\|>|<\uff5c[^\uff5c<>\s]{1,64}\uff5c>"
    r"|</?s>|<start_of_turn>|<end_of_turn>|\[/?INST\]"
)


def check_template_fits(
    renderer: ChatRenderer, tokenizer: ChatTokenizer, template_name: str, tokenizer_name: str
) -> None:
    """
    Every marker that the template writes is one token, and every trained turn ends with one.

    Shown by probes: with and without system prompt, reasoning, tools, tool calls and an open
    header; those that the template refuses are passed over.

    Raises:
        ChatInputError: a marker of several tokens, or a turn whose end isn't trained.
    """
    markers = dict.fromkeys(
        marker for text in _probe_texts(renderer) for marker in _markers(text, tokenizer)
    )
    encoded = zip(markers, tokenizer.encode(list(markers)), strict=True)
    spelled = [f"{marker} ({len(ids)} tokens)" for marker, ids in encoded if len(ids) != 1]
    if spelled:
        raise ChatInputError(
            f"template {template_name!r} on tokenizer {tokenizer_name!r}: every marker that the "
            f"template writes must be one token, got {', '.join(spelled)}. Pass a template made "
            "for this tokenizer, or a tokenizer that has these as special tokens."
        )
    find_terminator(renderer, tokenizer, template_name)


def _probe_texts(renderer: ChatRenderer) -> Iterator[str]:
    for messages, tools in PROBES:
        for is_open in (False, True):
            try:
                yield renderer.render(messages, tools=tools, add_generation_prompt=is_open).text
            except TemplateRefusal:
                continue


def _markers(text: str, tokenizer: ChatTokenizer) -> Iterator[str]:
    yield from _MARKER.findall(text)
    for name in ("bos_token", "eos_token"):
        marker = tokenizer.special_tokens.get(name)
        if marker and marker in text:
            yield marker
