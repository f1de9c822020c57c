"""
Parity: text, ids and masks of random conversations are those of transformers, in every template.

transformers stops marking a conversation where the first character of a span has no token: a
normalizer removed it, or the tokenizer leaves spaces out. Everything behind would be without loss.
We mark from the first character of the span that has a token to the last one that has one. So where
such a span occurs, masks are compared with a character map instead, and that is counted.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from itertools import batched
from typing import Any

import pytest
from hypothesis import given
from neve_chat.render import ChatRenderer, Rendered
from neve_chat.special_text import SpecialText
from neve_chat.templates import load_template, template_names
from neve_chat.tokens import ChatTokenizer

from tests.neve_chat.conversation_strategies import ROW, SPECIALS, example_settings
from tests.neve_chat.tokenizer_kinds import build_kind

# Byte-level BPE, one that leaves spaces out of its offsets, one that composes characters (NFC), one
# whose normalizer loses characters, and a SentencePiece-like one with byte fallback.
KINDS = ("byte_level", "trimmed", "composed", "folded", "sentence_piece")


@dataclass(frozen=True)
class Bench:
    """
    One tokenizer, ours and theirs, with a renderer for each template.
    """

    kind: str
    ours: tuple[ChatTokenizer, ...]
    theirs: Any
    texts: dict[str, str]
    renderers: dict[str, ChatRenderer]


@pytest.fixture(scope="module", params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    from transformers import PreTrainedTokenizerFast

    kind = request.param
    path = build_kind(kind, tmp_path_factory.mktemp("parity") / kind, specials=SPECIALS)
    ours = [ChatTokenizer(path, encoder="tokenizers")]
    if kind in ("byte_level", "trimmed", "composed"):
        ours.append(ChatTokenizer(path, encoder="fastokens"))
    texts = {name: load_template(name).text for name in template_names()}
    renderers = {
        name: ChatRenderer(text, special_tokens=ours[0].special_tokens)
        for name, text in texts.items()
    }
    theirs = PreTrainedTokenizerFast.from_pretrained(path)
    return Bench(kind, tuple(ours), theirs, texts, renderers)


def compare(bench: Bench, row: dict[str, Any], seen: Counter[str]) -> None:
    """
    One conversation in every template: text, ids and mask.
    """
    rendered = [renderer.render_row(row) for renderer in bench.renderers.values()]
    ours = [tokenizer.encode_rendered(rendered) for tokenizer in bench.ours]
    for index, name in enumerate(bench.renderers):
        arguments = {
            "conversation": row["messages"],
            "tools": row.get("tools"),
            "chat_template": bench.texts[name],
            **row.get("chat_template_kwargs", {}),
        }
        expected = bench.theirs.apply_chat_template(
            **arguments, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        if bench.kind == KINDS[0]:  # the text depends on no tokenizer
            text = bench.theirs.apply_chat_template(**arguments, tokenize=False)
            assert rendered[index].text == text
        mapped, is_cut_short = char_map_mask(expected, rendered[index])
        if not is_cut_short:
            assert mapped == expected["assistant_masks"]
        seen["mask by character map" if is_cut_short else "mask by transformers"] += 1
        for tokens in ours:
            assert tokens[index].ids.tolist() == expected["input_ids"]
            assert tokens[index].mask.tolist() == mapped


def char_map_mask(encoding: Any, rendered: Rendered) -> tuple[list[int], bool]:
    """
    The documented rule, character by character, and whether transformers would stop at a span.
    """
    mask, is_cut_short = [0] * len(encoding["input_ids"]), False
    for start, end in rendered.spans:
        tokens = [encoding.char_to_token(character) for character in range(start, end)]
        is_cut_short |= tokens[0] is None or tokens[-1] is None
        found = [token for token in tokens if token is not None]
        if found:
            mask[min(found) : max(found) + 1] = [1] * (max(found) + 1 - min(found))
    return mask, is_cut_short


def check_parity(bench: Bench, num_rows: int) -> Counter[str]:
    seen: Counter[str] = Counter()

    @example_settings(num_rows)
    @given(row=ROW)
    def run(row: dict[str, Any]) -> None:
        compare(bench, row, seen)

    run()
    return seen


def check_counts(bench: Bench, seen: Counter[str], num_rows: int) -> None:
    """
    Most masks were compared with transformers' own; the others occur only where they can.
    """
    print(f"{bench.kind}: {dict(seen)}")
    assert seen.total() >= num_rows * len(template_names())
    assert seen["mask by transformers"] > seen.total() / 2
    can_lose = bench.kind in ("trimmed", "folded")
    assert can_lose or not seen["mask by character map"]


def test_parity_with_transformers(bench: Bench) -> None:
    """
    No text, id or mask differs, markers in the data kept as they are.
    """
    check_counts(bench, check_parity(bench, 300), 300)


@pytest.mark.full
def test_parity_with_transformers_on_many(bench: Bench) -> None:
    """
    The same on thousands of conversations.
    """
    check_counts(bench, check_parity(bench, 1000), 1000)


def check_markers(bench: Bench, row: dict[str, Any], seen: Counter[str]) -> None:
    """
    Markers in the data are found, and escaped in every template.
    """
    tokenizer = bench.ours[0]
    markers = SpecialText(tokenizer.special_texts, "escape")
    data = json.dumps(row, ensure_ascii=False)
    is_there = any(marker in data for marker in tokenizer.special_texts)
    assert bool(markers.find(row)) == is_there
    # The same conversation without markers: each of them holds a bar.
    clean = json.loads(data.replace("|", "!"))
    conversations: list[Rendered] = []
    for renderer in bench.renderers.values():
        kept = renderer.render_row(row)
        escaped = markers.unescape(renderer.render_row(markers.escape(row)))
        assert (escaped.text, escaped.spans) == (kept.text, kept.spans)
        conversations += [kept, escaped, renderer.render_row(clean)]
    tokens = iter(tokenizer.encode_rendered(conversations))
    for kept, escaped, _ in batched(conversations, 3):
        kept_tokens, escaped_tokens, clean_tokens = next(tokens), next(tokens), next(tokens)
        num_made = tokenizer.num_special(kept_tokens) - tokenizer.num_special(clean_tokens)
        assert tokenizer.num_special(escaped_tokens) == tokenizer.num_special(clean_tokens)
        assert tokenizer.text(escaped_tokens.ids) == kept.text
        if not escaped.cuts:
            assert num_made == 0
            assert escaped_tokens.ids.tolist() == kept_tokens.ids.tolist()
            assert escaped_tokens.mask.tolist() == kept_tokens.mask.tolist()
        seen["with markers" if num_made else "without"] += 1


@pytest.mark.parametrize("bench", ["byte_level", "trimmed"], indirect=True)
def test_parity_of_marker_text(bench: Bench) -> None:
    """
    Marker text is found, under escape it is never a special token, and the bytes stay the same.
    """
    seen: Counter[str] = Counter()

    @example_settings(150)
    @given(row=ROW)
    def run(row: dict[str, Any]) -> None:
        check_markers(bench, row, seen)

    run()
    assert min(seen["with markers"], seen["without"]) > 100


def _said(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


_CALL = {"id": "1", "function": {"name": "f", "arguments": {"x": [1, None, True, 1.5, "é<>&'"]}}}
ODD = (
    _said(("user", "q\x00"), ("assistant", "a\x00b\x00")),
    _said(("user", "\x1b[31m\u202e\ufeff"), ("assistant", "\u2028\x85\x0b\u200b.")),
    _said(("user", "\U0001f468\u200d\U0001f469"), ("assistant", "e\u0301\u0301 \U0001f600")),
    _said(("user", "{{ 7*7 }} {% raw %}"), ("assistant", "{% endgeneration %}{# x #}")),
    _said(("user", "  q\n"), ("assistant", "  a\n\n ")),
    _said(("user", ""), ("assistant", "a")),
    _said(("user", "q"), ("assistant", ""), ("user", "q"), ("assistant", "\n"), ("user", "z")),
    _said(("system", "s1"), ("system", "s2"), ("user", "q"), ("assistant", "a")),
    _said(("user", "q"), ("system", "s"), ("assistant", "a"), ("system", "z")),
    _said(("assistant", "a"), ("assistant", "b"), ("user", "q"), ("assistant", "c")),
    [
        *_said(("user", "q")),
        {"role": "assistant", "content": None, "tool_calls": [_CALL, _CALL]},
        *_said(("tool", {"r": [1, "é"]}), ("tool", "text"), ("assistant", "a")),
    ],
    _said(*[("user", "q"), ("assistant", "a")] * 50),
    _said(("user", "q"), ("assistant", "word the abc " * 300)),
)


@pytest.mark.parametrize("bench", ["byte_level", "sentence_piece"], indirect=True)
def test_parity_of_odd_conversations(bench: Bench) -> None:
    """
    Control characters, Jinja in the data, turns in odd orders, empty ones, many and huge ones.
    """
    seen: Counter[str] = Counter()

    for messages in ODD:
        compare(bench, {"messages": messages}, seen)

    assert seen.total() == len(ODD) * len(template_names())
