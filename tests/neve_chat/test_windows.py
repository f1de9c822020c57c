"""
Conversations longer than a row, shortened at turn borders.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neve_chat.render import ChatRenderer
from neve_chat.templates import load_template
from neve_chat.tokens import ChatTokenizer, Tokens
from neve_chat.windows import Shortener


def conversation(*pairs: tuple[str, str], system: str | None = None) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system is not None else []
    for question, answer in pairs:
        messages += [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
    return {"id": "row", "messages": messages}


class Bench:
    """
    A tokenizer and the chatml template with one policy.
    """

    def __init__(self, tokenizer_path: str, policy: str, max_tokens: int) -> None:
        self.tokenizer = ChatTokenizer(tokenizer_path)
        self.renderer = ChatRenderer(load_template("chatml").text)
        self.max_tokens = max_tokens
        self.shortener = Shortener(
            policy,
            max_tokens,
            self.tokenize,
            lambda row: len(self.renderer.render(row["messages"]).spans),
        )

    def tokenize(self, row: dict[str, Any]) -> Tokens:
        return self.tokenizer.encode_rendered([self.renderer.render(row["messages"])])[0]

    def length(self, row: dict[str, Any]) -> int:
        return len(self.tokenize(row).ids)

    def trained(self, tokens: Tokens) -> str:
        return self.tokenizer.text(tokens.ids[tokens.mask == 1])


def contents(row: dict[str, Any]) -> list[str]:
    return [message["content"] for message in row["messages"]]


ROW = conversation(("q1", "one"), ("q2", "two"), ("q3", "three"), system="s")


def test_first_turns_keeps_the_longest_beginning_that_fits(tokenizer_path: str) -> None:
    """
    The beginning ends with an answer, and one token less would lose it.
    """
    two = Bench(tokenizer_path, "first_turns", 10_000).length(
        {**ROW, "messages": ROW["messages"][:5]}
    )

    for limit, kept in ((two, 5), (two - 1, 3)):
        bench = Bench(tokenizer_path, "first_turns", limit)
        ((piece, tokens),) = bench.shortener.shorten(ROW)
        assert contents(piece) == contents(ROW)[:kept]
        assert len(tokens.ids) <= limit
        assert bench.shortener.notes == {"long conversations shortened (first_turns)": 1}


def test_last_turns_keeps_the_system_message_and_whole_turns(tokenizer_path: str) -> None:
    """
    Turns go from the front; the system message stays.
    """
    kept = conversation(("q2", "two"), ("q3", "three"), system="s")
    bench = Bench(tokenizer_path, "last_turns", 10_000)
    bench.shortener._max_tokens = bench.length(kept)

    ((piece, tokens),) = bench.shortener.shorten(ROW)

    assert contents(piece) == ["s", "q2", "two", "q3", "three"]
    assert bench.trained(tokens) == "two<|im_end|>three<|im_end|>"


def test_windows_overlap_and_train_every_answer_once(tokenizer_path: str) -> None:
    """
    The turn that a window repeats is context only; ids say which window it is.
    """
    pair = conversation(("q2", "two"), ("q3", "three"), system="s")
    bench = Bench(tokenizer_path, "windows", 10_000)
    bench.shortener._max_tokens = bench.length(pair)

    pieces = bench.shortener.shorten(ROW)

    assert [contents(piece) for piece, _ in pieces] == [
        ["s", "q1", "one", "q2", "two"],
        ["s", "q2", "two", "q3", "three"],
    ]
    assert [bench.trained(tokens) for _, tokens in pieces] == [
        "one<|im_end|>two<|im_end|>",
        "three<|im_end|>",
    ]
    assert [piece["id"] for piece, _ in pieces] == ["row#0", "row#1"]


def test_a_turn_longer_than_a_row_is_dropped_and_counted(tokenizer_path: str) -> None:
    """
    The turns around it are kept.
    """
    row = conversation(("q1", "one"), ("q2", "x" * 500), ("q3", "three"))
    bench = Bench(tokenizer_path, "windows", 60)

    pieces = bench.shortener.shorten(row)

    assert [contents(piece) for piece, _ in pieces] == [["q1", "one"], ["q3", "three"]]
    assert bench.shortener.notes["turns dropped, longer than a row"] == 1


@pytest.mark.parametrize("policy", ["first_turns", "last_turns", "windows"])
def test_nothing_comes_out_where_no_turn_fits(tokenizer_path: str, policy: str) -> None:
    """
    The row is refused by the caller then, never cut.
    """
    bench = Bench(tokenizer_path, policy, 20)

    assert bench.shortener.shorten(conversation(("q", "y" * 300))) == []


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=2, max_size=12),
    limit=st.integers(50, 250),
)
@settings(max_examples=60, deadline=None)
def test_windows_lose_only_what_they_count(
    tokenizer_path: str, sizes: list[tuple[int, int]], limit: int
) -> None:
    """
    Every answer that fits is trained exactly once, in order, within the limit.
    """
    pairs = [
        ("q" * question, f"{index}:" + "a" * answer)
        for index, (question, answer) in enumerate(sizes)
    ]
    bench = Bench(tokenizer_path, "windows", limit)

    pieces = bench.shortener.shorten(conversation(*pairs))

    fits = [pair for pair in pairs if bench.length(conversation(pair)) <= limit]
    trained = "".join(bench.trained(tokens) for _, tokens in pieces)
    assert trained == "".join(f"{answer}<|im_end|>" for _, answer in fits)
    assert all(len(tokens.ids) <= limit for _, tokens in pieces)
    assert bench.shortener.notes["turns dropped, longer than a row"] == len(pairs) - len(fits)


@pytest.mark.parametrize(
    ("policy", "most"), [("first_turns", 10), ("last_turns", 10), ("windows", 20)]
)
def test_the_work_is_in_proportion_to_what_fits(
    tokenizer_path: str, policy: str, most: int
) -> None:
    """
    Ten thousand turns: what is tokenized on the way is a few times what comes out, not its square.
    """
    row = conversation(*[("q", "a")] * 5_000)
    bench = Bench(tokenizer_path, policy, 400)
    num_tokenized = 0

    def tokenize(piece: dict[str, Any]) -> Tokens:
        nonlocal num_tokenized
        tokens = bench.tokenize(piece)
        num_tokenized += len(tokens.ids)
        return tokens

    shortener = Shortener(policy, 400, tokenize, lambda piece: len(piece["messages"]) // 2)

    pieces = shortener.shorten(row)

    assert pieces
    assert num_tokenized <= most * sum(len(tokens.ids) for _, tokens in pieces)
