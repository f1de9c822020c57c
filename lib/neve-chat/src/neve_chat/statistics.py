"""
Counts of one split.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from neve_chat.tokens import Tokens

__all__ = ["SplitCounts"]


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
        self.lengths[1 << max(0, (length - 1).bit_length())] += 1

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
