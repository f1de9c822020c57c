"""
Conversations that are too long, shortened at turn borders: never inside a turn.

A turn is a message of the user with everything behind it up to the next one; leading system
messages belong to every piece. What comes out is rendered and tokenized anew, as serving would see
it.

| policy | result |
|---|---|
| first_turns | the longest beginning that fits and ends with the assistant |
| last_turns | the most turns from the end that fit |
| windows | pieces that overlap by one turn, if it fits; each answer is trained once |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from neve_chat.tokens import Tokens

__all__ = ["Shortener"]

Message = dict[str, Any]


class Shortener:
    """
    Applies one policy; counts what it did.
    """

    def __init__(
        self,
        policy: str,
        max_tokens: int,
        tokenize: Callable[[dict[str, Any]], Tokens],
        count_spans: Callable[[dict[str, Any]], int],
    ) -> None:
        """
        Args:
            policy: first_turns, last_turns or windows.
            max_tokens: tokens that a piece may have, >= 1.
            tokenize: a row -> its tokens.
            count_spans: a row -> the number of its trained stretches.
        """
        self._policy = policy
        self._max_tokens = max_tokens
        self._tokenize = tokenize
        self._count_spans = count_spans
        self.notes: Counter[str] = Counter()

    def shorten(self, row: dict[str, Any]) -> list[tuple[dict[str, Any], Tokens]]:
        """
        The pieces of a row that is too long, in order, each within max_tokens. May be none.
        """
        pieces = {
            "first_turns": self._first_turns,
            "last_turns": self._last_turns,
            "windows": self._windows,
        }[self._policy](row)
        if pieces:
            self.notes[f"long conversations shortened ({self._policy})"] += 1
        return [(piece, tokens) for piece, tokens in pieces if tokens.num_trained]

    def _first_turns(self, row: dict[str, Any]) -> list[tuple[dict[str, Any], Tokens]]:
        messages = row["messages"]
        ends = [i + 1 for i, message in enumerate(messages) if message["role"] == "assistant"]
        best = self._longest(row, len(ends), lambda index: messages[: ends[index]])
        return [best[1]] if best else []

    def _last_turns(self, row: dict[str, Any]) -> list[tuple[dict[str, Any], Tokens]]:
        system, turns = _turns(row["messages"])
        last = len(turns) - 1
        best = self._longest(row, last, lambda index: [*system, *_flat(turns[last - index :])])
        return [best[1]] if best else []

    def _windows(self, row: dict[str, Any]) -> list[tuple[dict[str, Any], Tokens]]:
        system, turns = _turns(row["messages"])
        pieces: list[tuple[dict[str, Any], Tokens]] = []
        done = 0
        while done < len(turns):
            first = max(0, done - 1)
            found = self._window(row, system, turns[first:], done - first)
            if not found and first < done:  # without the turn that was seen
                first = done
                found = self._window(row, system, turns[first:], 0)
            if not found:
                self.notes["turns dropped, longer than a row"] += 1
                done += 1
                continue
            index, (piece, tokens) = found
            piece["id"] = f"{row['id']}#{len(pieces)}"
            if first < done:
                tokens = self._untrained(piece, [*system, *turns[first]], tokens)
            pieces.append((piece, tokens))
            done += index + 1
        return pieces

    def _untrained(self, piece: dict[str, Any], seen: list[Message], tokens: Tokens) -> Tokens:
        """
        The same tokens without a loss on the messages that an earlier piece trained.
        """
        mask = tokens.mask.copy()
        starts = np.flatnonzero(np.diff(mask, prepend=0) == 1)
        num_seen = self._count_spans({**piece, "messages": seen})
        mask[: starts[num_seen] if num_seen < len(starts) else None] = 0
        return Tokens(tokens.ids, mask)

    def _window(
        self,
        row: dict[str, Any],
        system: list[Message],
        turns: Sequence[list[Message]],
        num_seen: int,
    ) -> tuple[int, tuple[dict[str, Any], Tokens]] | None:
        """
        The longest piece from the first of these turns on, with one turn that wasn't seen or more.
        """
        return self._longest(
            row,
            len(turns) - num_seen,
            lambda index: [*system, *_flat(turns[: num_seen + index + 1])],
        )

    def _longest(
        self, row: dict[str, Any], num_choices: int, choice: Callable[[int], list[Message]]
    ) -> tuple[int, tuple[dict[str, Any], Tokens]] | None:
        """
        The last choice that fits, with its number; every choice is longer than the one before it.

        Doubles from the shortest one and then halves, so that what is tokenized is in proportion to
        what fits, however long the conversation is.
        """
        low, high, best = 0, num_choices, None
        is_doubling, middle = True, 0
        while low < high:
            piece = {**row, "messages": choice(middle)}
            tokens = self._tokenize(piece)
            if len(tokens.ids) <= self._max_tokens:
                best, low = (middle, (piece, tokens)), middle + 1
            else:
                high, is_doubling = middle, False
            middle = min(2 * low, high - 1) if is_doubling else (low + high) // 2
        return best


def _turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """
    Leading system messages, and the turns behind them.
    """
    start = next(
        (i for i, message in enumerate(messages) if message["role"] != "system"), len(messages)
    )
    turns: list[list[Message]] = []
    for message in messages[start:]:
        if message["role"] == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return list(messages[:start]), turns


def _flat(turns: Sequence[list[Message]]) -> list[Message]:
    return [message for turn in turns for message in turn]
