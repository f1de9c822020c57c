"""
Ids and masks: the fast encoder gives what the tokenizers library gives, or isn't used.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neve_chat.errors import ChatInputError
from neve_chat.render import Rendered
from neve_chat.tokens import ChatTokenizer, Tokens
from tokenizers import Tokenizer

from tests.neve_chat.tokenizer_kinds import FAST_KINDS, KINDS, SPECIALS, build_kind

_NASTY = (
    *("<|im_", "end|>", " ", "    ", "\t\n", "\r\n\r\n", "the cat", " the", "ok", "123456", "e"),
    *("\u00e9", "e\u0301", "\u0301", "\u212b", "\U0001f600", "\U0001f469\u200d\U0001f4bb"),
    *("\u4f60\u597d", "\xa0", "\u3000", "\u0130", "\u1e9b\u0323"),
)
_PIECES = st.one_of(st.text(max_size=12), st.sampled_from((*SPECIALS, *_NASTY)))


@st.composite
def conversations(draw: st.DrawFn) -> Rendered:
    text = "".join(draw(st.lists(_PIECES, max_size=12)))
    places = st.integers(0, len(text))
    borders = sorted(draw(st.sets(places, max_size=6)))
    spans = tuple(zip(borders[::2], borders[1::2], strict=False))
    cuts = tuple(sorted(draw(st.one_of(st.just(set()), st.sets(places, max_size=3)))))
    return Rendered(text, spans, cuts)


@pytest.fixture(scope="session")
def kind_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("kinds")
    return {kind: build_kind(kind, folder / kind) for kind in KINDS}


@pytest.fixture(scope="session")
def pairs(kind_paths: dict[str, str]) -> dict[str, tuple[ChatTokenizer, ChatTokenizer]]:
    """
    The fast and the slow encoder of each kind that has both.
    """
    return {
        kind: (
            ChatTokenizer(kind_paths[kind], encoder="fastokens"),
            ChatTokenizer(kind_paths[kind], encoder="tokenizers"),
        )
        for kind in FAST_KINDS
    }


def assert_equal(left: list[Tokens], right: list[Tokens]) -> None:
    for one, other in zip(left, right, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.mask.tolist() == other.mask.tolist()
        assert one.ids.dtype == one.mask.dtype == np.int32


def by_hand(tokenizer: Tokenizer, rendered: Rendered) -> Tokens:
    """
    The rule itself, token by token, from the offsets of the tokenizers library.
    """
    mask: list[int] = []
    ids: list[int] = []
    borders = (0, *rendered.cuts, len(rendered.text))
    owners: dict[int, int] = {}
    for start, end in itertools.pairwise(borders):
        encoding = tokenizer.encode(rendered.text[start:end], add_special_tokens=False)
        for index, (first, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            for character in range(start + first, start + stop):
                owners.setdefault(character, len(ids))
            ids.append(index)
            mask.append(0)
    for start, end in rendered.spans:
        tokens = [owners[character] for character in range(start, end) if character in owners]
        for token in range(tokens[0], tokens[-1] + 1) if tokens else ():
            mask[token] = 1
    return Tokens(np.array(ids, np.int32), np.array(mask, np.int32))


@pytest.mark.parametrize("kind", FAST_KINDS)
@settings(max_examples=200, deadline=None)
@given(batch=st.lists(conversations(), max_size=4))
def test_fast_encoder_gives_the_ids_and_masks_of_tokenizers(
    kind: str, batch: list[Rendered], pairs: dict[str, tuple[ChatTokenizer, ChatTokenizer]]
) -> None:
    """
    Whatever the text, its trained spans and its cuts: merges over borders, split characters.
    """
    fast, slow = pairs[kind]

    assert_equal(fast.encode_rendered(batch), slow.encode_rendered(batch))

    assert fast.encoder_name == "fastokens"
    assert fast.num_differences == 0
    assert not fast.suspect


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(rendered=conversations())
def test_masks_follow_the_rule(kind: str, rendered: Rendered, kind_paths: dict[str, str]) -> None:
    """
    From the token of a span's first character to the first token of its last one.
    """
    bare, ours = _loaded(kind_paths[kind])

    assert_equal(ours.encode_rendered([rendered]), [by_hand(bare, rendered)])


@functools.cache
def _loaded(path: str) -> tuple[Tokenizer, ChatTokenizer]:
    bare = Tokenizer.from_file(str(Path(path) / "tokenizer.json"))
    return bare, ChatTokenizer(path, encoder="tokenizers")


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - FAST_KINDS.keys()))
def test_fastokens_is_not_used_where_it_cannot_be_exact(
    kind: str, kind_paths: dict[str, str]
) -> None:
    """
    auto stays with tokenizers and says why; asking for fastokens is an error.
    """
    tokenizer = ChatTokenizer(kind_paths[kind])
    rendered = [Rendered("the cat " * 200_000, ((0, 3),))]

    tokenizer.encode_rendered(rendered)

    assert tokenizer.encoder_name == "tokenizers"
    assert tokenizer.num_differences == 0
    assert tokenizer.encoder_report()["message"].startswith("its ")
    with pytest.raises(ChatInputError, match="fastokens must give what tokenizers gives, got: its"):
        ChatTokenizer(kind_paths[kind], encoder="fastokens")


def _edited(path: str, folder: Path, **changes: Any) -> str:
    content = json.loads((Path(path) / "tokenizer.json").read_text())
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(content | changes))
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pre_tokenizer": None}, "pre-tokenizer does not end in ByteLevel"),
        (
            {
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            },
            "without a prefix space",
        ),
        (
            {
                "post_processor": {
                    "type": "ByteLevel",
                    "add_prefix_space": True,
                    "trim_offsets": True,
                    "use_regex": True,
                }
            },
            "trims a prefix space",
        ),
        ({"normalizer": {"type": "NFKC"}}, "normalizer is not NFC"),
        (
            {
                "added_tokens": [
                    {
                        "id": 1000,
                        "content": "<mask>",
                        "single_word": False,
                        "lstrip": True,
                        "rstrip": False,
                        "normalized": False,
                        "special": True,
                    }
                ]
            },
            "'<mask>' takes in the text around it",
        ),
    ],
)
def test_what_speaks_against_fastokens(
    changes: dict[str, Any], reason: str, kind_paths: dict[str, str], tmp_path: Path
) -> None:
    """
    Every part of a tokenizer that adds, drops or moves bytes is named.
    """
    path = _edited(kind_paths["byte_level"], tmp_path / "edited", **changes)

    with pytest.raises(ChatInputError, match=reason):
        ChatTokenizer(path, encoder="fastokens")


def test_auto_goes_over_to_fastokens_with_the_same_results(kind_paths: dict[str, str]) -> None:
    """
    Small inputs never load fastokens; from a megabyte on the ids stay what they were.
    """
    tokenizer = ChatTokenizer(kind_paths["byte_level"])
    rendered = Rendered("the cat <|im_end|>é😀\n" * 10_000, ((4, 30), (50, 51)))

    first = tokenizer.encode_rendered([rendered])
    names = [tokenizer.encoder_name]
    last = first
    for _ in range(6):
        last = tokenizer.encode_rendered([rendered])
        names.append(tokenizer.encoder_name)

    # 200,000 characters each: the fifth batch completes the million
    assert names == ["tokenizers"] * 4 + ["fastokens"] * 3
    assert_equal(first, last)
    assert tokenizer.encoder_report()["num_fast"] == 3


def _collision(path: str, folder: Path, *contents: str) -> str:
    """
    A file whose added tokens all claim the id of byte 0xFF, which is in no text: the libraries
    give the token different ids.
    """
    taken = json.loads((Path(path) / "tokenizer.json").read_text())["model"]["vocab"]["\xff"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    flags |= {"normalized": False, "special": False}
    added = [{"id": taken, "content": content, **flags} for content in contents]
    return _edited(path, folder, added_tokens=added)


def test_a_difference_in_a_sample_ends_the_fast_encoder(
    kind_paths: dict[str, str], tmp_path: Path
) -> None:
    """
    What is returned stays right, the difference is counted, earlier conversations are suspect.
    """
    path = _collision(kind_paths["byte_level"], tmp_path / "collision", "qqqq")
    tokenizer = ChatTokenizer(path, encoder="fastokens")
    good, bad = Rendered("the cat", ((0, 3),)), Rendered("a qqqq b", ((0, 3),))
    slow = ChatTokenizer(path, encoder="tokenizers")

    assert_equal(tokenizer.encode_rendered([good] * 3), slow.encode_rendered([good] * 3))
    assert not tokenizer.suspect
    batch = [good, bad, good, bad]
    assert_equal(tokenizer.encode_rendered(batch), slow.encode_rendered(batch))

    report = tokenizer.encoder_report()
    assert tokenizer.encoder_name == "tokenizers"
    assert tokenizer.suspect
    # conversations 4 and 6 (the first is 0), both among the first 8
    assert tokenizer.num_differences == 2
    assert "conversation 4 wrong" in report["message"]
    assert report["num_fast"] == 4


def test_bytes_that_do_not_sum_are_seen_in_every_conversation(
    kind_paths: dict[str, str], tmp_path: Path
) -> None:
    """
    Also where no sample is taken: conversation 100 of one batch.
    """
    path = _collision(kind_paths["byte_level"], tmp_path / "collision", "qqqq", "wwwww")
    tokenizer = ChatTokenizer(path, encoder="fastokens")
    batch = [Rendered("the cat", ((0, 3),))] * 200
    batch[100] = Rendered("a qqqq b", ((0, 3),))

    tokens = tokenizer.encode_rendered(batch)

    assert_equal(tokens, ChatTokenizer(path, encoder="tokenizers").encode_rendered(batch))
    assert tokenizer.encoder_report()["num_fast"] == 100
    assert tokenizer.num_differences == 1
    assert tokenizer.suspect


def test_text_that_is_not_in_normal_form_goes_to_tokenizers(kind_paths: dict[str, str]) -> None:
    """
    It is no difference, and the fast encoder goes on.
    """
    tokenizer = ChatTokenizer(kind_paths["composed"], encoder="fastokens")
    batch = [Rendered("e\u0301 a", ((0, 1),)), Rendered("\u00e9 a", ((0, 1),))]

    tokens = tokenizer.encode_rendered(batch)

    assert tokens[0].ids.tolist() == tokens[1].ids.tolist()
    assert tokenizer.encoder_report()["num_fast"] == 1
    assert tokenizer.num_differences == 0


def test_cuts_keep_marker_text_from_becoming_special(kind_paths: dict[str, str]) -> None:
    """
    A piece ends inside the marker, so both encoders read letters; the text stays the same.
    """
    for kind in FAST_KINDS:
        for encoder in ("fastokens", "tokenizers"):
            tokenizer = ChatTokenizer(kind_paths[kind], encoder=encoder)
            rendered = Rendered("a<|im_end|>b<|im_end|>", ((0, 12),), cuts=(3,))

            tokens = tokenizer.encode_rendered([rendered])[0]

            assert tokenizer.num_special(tokens) == 1
            assert tokenizer.text(tokens.ids) == rendered.text
            assert tokenizer.keeps_text_at_cuts


def test_a_prefix_space_at_cuts_is_known(kind_paths: dict[str, str]) -> None:
    """
    A tokenizer that begins each text with a space can't be cut without changing the text.
    """
    assert not ChatTokenizer(kind_paths["sentence_piece"]).keeps_text_at_cuts


def test_number_of_threads_is_set_for_the_process(
    kind_paths: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Both libraries read it from the same variable.
    """
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")

    ChatTokenizer(kind_paths["byte_level"], num_threads=1)

    assert os.environ["RAYON_NUM_THREADS"] == "1"


@pytest.mark.parametrize("wrong", [{"encoder": "fast"}, {"num_threads": 0}])
def test_wrong_arguments_are_refused(wrong: dict[str, Any], kind_paths: dict[str, str]) -> None:
    """
    The choices are named.
    """
    with pytest.raises(ChatInputError, match=r"must be (one of auto|at least 1)"):
        ChatTokenizer(kind_paths["byte_level"], **wrong)
