"""
What a preview shows: text decoded from ids, trained parts marked, nothing that a screen obeys.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neve_chat.preview import Decoder, example_json, example_text, parts, token_table, visible
from neve_chat.tokens import ChatTokenizer, Tokens
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def tokens_of(tokenizer: ChatTokenizer, *pieces: tuple[str, int]) -> Tokens:
    """
    Texts one after the other, each with its mask.
    """
    encoded = [(tokenizer.encode([text])[0], mask) for text, mask in pieces]
    ids = [index for part, _ in encoded for index in part]
    mask = [mask for part, mask in encoded for _ in part]
    return Tokens(np.array(ids, dtype=np.int32), np.array(mask, dtype=np.int32))


@pytest.fixture(scope="module")
def byte_level(tokenizer_path: str) -> ChatTokenizer:
    return ChatTokenizer(tokenizer_path)


@pytest.fixture(scope="module")
def metaspace(tmp_path_factory: pytest.TempPathFactory) -> ChatTokenizer:
    """
    Like SentencePiece: a space belongs to the word behind it, unknown characters become bytes.
    """
    folder = tmp_path_factory.mktemp("metaspace")
    words = ["<unk>", *(f"<0x{value:02X}>" for value in range(256)), "▁", "a", "b", "▁a", "▁b"]
    vocab = {word: index for index, word in enumerate(words)}
    merges = [("▁", "a"), ("▁", "b")]
    model = models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )  # fmt: skip
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    return ChatTokenizer(str(folder))


@given(text=_TEXTS)
def test_pieces_joined_are_the_decoded_text(text: str, byte_level: ChatTokenizer) -> None:
    """
    No character is lost or doubled where it is cut into pieces, in any script.
    """
    tokens = tokens_of(byte_level, (text, 0))

    pieces = Decoder(byte_level).pieces(tokens)

    assert "".join(piece.text for piece in pieces) == text
    assert [index for piece in pieces for index in piece.ids] == tokens.ids.tolist()


@pytest.mark.parametrize("text", ["a b a", " a", "b", "<s> a b", "a é 日本 😀 b"])
def test_pieces_keep_the_spaces_of_sentencepiece(text: str, metaspace: ChatTokenizer) -> None:
    """
    A space that a decoder strips at the start of a text is there inside of it.
    """
    tokens = tokens_of(metaspace, (text, 0))

    pieces = Decoder(metaspace).pieces(tokens)

    assert "".join(piece.text for piece in pieces) == metaspace.text(tokens.ids)
    assert "\ufffd" not in "".join(piece.text for piece in pieces)


def test_pieces_end_where_the_loss_ends(byte_level: ChatTokenizer) -> None:
    """
    A character whose bytes are half trained is shown as two broken halves, not as either.
    """
    tokens = tokens_of(byte_level, ("é", 0))
    half = Tokens(tokens.ids, np.array([0, 1], dtype=np.int32))

    pieces = Decoder(byte_level).pieces(half)

    assert [(piece.text, piece.is_trained) for piece in pieces] == [("�", False), ("�", True)]


@given(masks=st.lists(st.integers(0, 1), min_size=1, max_size=30))
def test_parts_alternate(masks: list[int], byte_level: ChatTokenizer) -> None:
    """
    Neighboring parts differ in kind, and together they have every token.
    """
    ids = np.resize(byte_level.encode(["ab<|im_end|>the "])[0], len(masks)).astype(np.int32)
    tokens = Tokens(ids, np.array(masks, dtype=np.int32))

    found = list(parts(Decoder(byte_level).pieces(tokens)))

    kinds = [(part.is_trained, part.is_special) for part in found]
    assert all(a != b for a, b in pairwise(kinds))
    assert sum(part.num_tokens for part in found) == len(masks)


def test_example_text_marks_what_is_trained(byte_level: ChatTokenizer) -> None:
    """
    Trained text stands between marks, its special tokens inside, with and without color.
    """
    tokens = tokens_of(byte_level, ("<|im_start|>q<|im_end|>", 0), ("ok\nthe<|im_end|>", 1))

    plain = example_text(tokens, byte_level, use_color=False)
    colored = example_text(tokens, byte_level, use_color=True)

    assert plain == "<|im_start|>q<|im_end|>⟦ok\nthe<|im_end|>⟧"
    # Each line is colored by itself, else terminals paint to their right edge.
    assert "\x1b[30;42mok\x1b[0m\n\x1b[30;42mthe\x1b[0m" in colored


def test_example_text_has_nothing_that_a_terminal_obeys(byte_level: ChatTokenizer) -> None:
    """
    Control characters, direction marks and invisible tags of the data are escaped.
    """
    text = "\x1b[2J\x07\x00\r\u202e\u2066\u200b\U000e0041\x9b ok\t\n"
    tokens = tokens_of(byte_level, (text, 1))

    shown = example_text(tokens, byte_level, use_color=False)

    assert shown == (
        "⟦\\x1b[2J\\x07\\x00\\x0d\\u202e\\u2066\\u200b\\U000e0041\\x9b ok\t\n⟧"
    )  # fmt: skip


def test_visible_leaves_joiners_and_accents(byte_level: ChatTokenizer) -> None:
    """
    What scripts and emoji need is no attack.
    """
    text = "👩\u200d💻 e\u0301 नमस्ते می\u200cخواهم"

    assert visible(text) == text


def test_example_text_counts_what_it_leaves_out(byte_level: ChatTokenizer) -> None:
    """
    A long conversation is shortened in the middle, and says by how much.
    """
    turn = (("q", 0), ("ok", 1))
    tokens = tokens_of(byte_level, ("x" * 30, 0), ("ok", 1), *turn * 4)

    shown = example_text(tokens, byte_level, use_color=False, max_chars=10)

    # 10 parts of 1 token, but the first: the first and last 4 are shown
    assert shown == (
        "xxxxx [... 20 characters ...] xxxxx⟦ok⟧q⟦ok⟧\n[... 2 parts, 2 tokens ...]\nq⟦ok⟧q⟦ok⟧"
    )


def test_token_table_has_a_line_for_each_token(byte_level: ChatTokenizer) -> None:
    """
    Index, id, loss and text; tokens that only together make a character say so.
    """
    tokens = tokens_of(byte_level, ("the", 0), ("é\n", 1))
    ids = tokens.ids.tolist()

    lines = token_table(tokens, byte_level, use_color=False, show_all=True).splitlines()

    assert lines == [
        "   index       id * text",
        f"       0 {ids[0]:>8}   'the'",
        f"       1 {ids[1]:>8} * 'é' (part 1 of 2)",
        f"       2 {ids[2]:>8} * 'é' (part 2 of 2)",
        f"       3 {ids[3]:>8} * '\\n'",
    ]


def test_token_table_is_shortened_in_the_middle(byte_level: ChatTokenizer) -> None:
    """
    The first and last 100 tokens are shown, the others counted.
    """
    tokens = tokens_of(byte_level, ("x" * 250, 0))

    lines = token_table(tokens, byte_level, use_color=False, show_all=False).splitlines()

    assert len(lines) == 202
    assert lines[101] == "[... 50 tokens ...]"


def test_example_json_holds_ids_mask_and_parts(byte_level: ChatTokenizer, tmp_path: Path) -> None:
    """
    A program finds the same, unescaped.
    """
    tokens = tokens_of(byte_level, ("q\x1b", 0), ("ok<|im_end|>", 1))

    facts = example_json({"id": "1", "source": "a:0"}, tokens, byte_level)

    assert json.loads(json.dumps(facts)) == {
        "id": "1",
        "source": "a:0",
        "num_tokens": 4,
        "num_trained_tokens": 2,
        "parts": [
            {"trained": False, "text": "q\x1b"},
            {"trained": True, "text": "ok<|im_end|>"},
        ],
        "input_ids": tokens.ids.tolist(),
        "assistant_masks": [0, 0, 1, 1],
    }
