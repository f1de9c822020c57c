"""
What encoders take and give: texts in pieces, ids with their loss mask.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np

from neve_chat.render import Rendered

__all__ = ["Tokens", "text_pieces"]


@dataclass(frozen=True)
class Tokens:
    """
    One tokenized conversation.
    """

    ids: np.ndarray
    """int32[token], 0 <= id < vocab_size."""
    mask: np.ndarray
    """int32[token], 1 where the token is trained."""

    @functools.cached_property
    def num_trained(self) -> int:
        """
        How many tokens are trained.
        """
        return int(np.count_nonzero(self.mask))


def text_pieces(rendered: Rendered) -> list[str]:
    """
    The text, taken apart at its cuts.
    """
    if not rendered.cuts:
        return [rendered.text]
    borders = (0, *rendered.cuts, len(rendered.text))
    return [rendered.text[start:end] for start, end in itertools.pairwise(borders)]
