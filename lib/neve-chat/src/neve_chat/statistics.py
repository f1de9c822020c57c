"""
Counts of one split, and its length histogram.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neve_chat.tokens import Tokens

__all__ = ["LengthClass", "SplitCounts", "length_classes"]


@dataclass(kw_only=True)
class SplitCounts:
    """
    What a split holds; grows row by row.
    """

    num_rows: int = 0
    """Conversations."""
    num_tokens: int = 0
    """Tokens in all."""
    num_trained_tokens: int = 0
    """Tokens with a loss."""
    max_tokens: int = 0
    """Tokens of the longest conversation."""
    lengths: Counter[int] = field(default_factory=Counter)
    """Upper bound of a length class, a power of two -> conversations in it."""

    def add(self, tokens: Tokens) -> None:
        """
        Count one conversation.
        """
        length = len(tokens.ids)
        self.num_rows += 1
        self.num_tokens += length
        self.num_trained_tokens += tokens.num_trained
        self.max_tokens = max(self.max_tokens, length)
        self.lengths[1 << max(length - 1, 0).bit_length()] += 1

    def merge(self, other: SplitCounts) -> None:
        """
        Add what another one counted; the order of merges doesn't matter.
        """
        self.num_rows += other.num_rows
        self.num_tokens += other.num_tokens
        self.num_trained_tokens += other.num_trained_tokens
        self.max_tokens = max(self.max_tokens, other.max_tokens)
        self.lengths.update(other.lengths)

    @classmethod
    def from_lengths(cls, lengths: np.ndarray, num_trained_tokens: int) -> SplitCounts:
        """
        The counts of many rows at once.

        Args:
            lengths: int64[row], tokens of every row.
            num_trained_tokens: tokens with a loss in all of them.
        """
        # 2**exponent >= length, exact below 2**53
        fraction, exponents = np.frexp(lengths.astype(np.float64))
        exponents = np.maximum(exponents - (fraction == 0.5), 0)
        classes, counts = np.unique(exponents, return_counts=True)
        pairs = zip(classes.tolist(), counts.tolist(), strict=True)
        return cls(
            num_rows=len(lengths),
            num_tokens=int(lengths.sum()),
            num_trained_tokens=num_trained_tokens,
            max_tokens=int(lengths.max(initial=0)),
            lengths=Counter({1 << exponent: count for exponent, count in pairs}),
        )

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> SplitCounts:
        """
        The counts that as_json gave.
        """
        return cls(
            num_rows=counts["rows"],
            num_tokens=counts["tokens"],
            num_trained_tokens=counts["trained_tokens"],
            max_tokens=counts["max_tokens"],
            lengths=Counter({int(key): n for key, n in counts["length_histogram"].items()}),
        )

    def as_json(self) -> dict[str, Any]:
        """
        The counts under the names of the step's results.
        """
        return {
            "rows": self.num_rows,
            "tokens": self.num_tokens,
            "trained_tokens": self.num_trained_tokens,
            "max_tokens": self.max_tokens,
            "length_histogram": {str(bound): self.lengths[bound] for bound in sorted(self.lengths)},
        }


@dataclass(frozen=True, kw_only=True)
class LengthClass:
    """
    One bar of a length histogram.
    """

    first: int
    """Smallest length in it, tokens."""
    last: int
    """Largest length in it, tokens; a power of two."""
    num_rows: int
    """Conversations in it."""
    share_of_rows: float
    """num_rows over all conversations, 0 to 1."""
    height: float
    """num_rows over that of the largest class, 0 to 1."""


def length_classes(counts: SplitCounts) -> list[LengthClass]:
    """
    The histogram from its shortest to its longest class, empty ones between them included.
    """
    if not counts.lengths:
        return []
    largest = max(counts.lengths.values())
    bounds, bound = [], min(counts.lengths)
    while bound <= max(counts.lengths):
        bounds.append(bound)
        bound *= 2
    return [
        LengthClass(
            first=bound // 2 + 1,
            last=bound,
            num_rows=counts.lengths[bound],
            share_of_rows=counts.lengths[bound] / max(counts.num_rows, 1),
            height=counts.lengths[bound] / largest,
        )
        for bound in bounds
    ]
