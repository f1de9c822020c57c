"""
Which conversations of a token cache can be trained on at a row length, and what is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neve_chat.cache_reader import CacheReader
from neve_chat.errors import ChatInputError
from neve_chat.mixing import seeded_generator
from neve_chat.mixture_rules import TURN_POLICIES

__all__ = ["FittedRows", "fit_rows"]


@dataclass(frozen=True, kw_only=True)
class FittedRows:
    """
    The conversations of one data set that are used, and counts of the others.
    """

    rows: np.ndarray
    """int64[conversation], rows of the cache, ascending."""
    lengths: np.ndarray
    """int32[conversation], tokens of each, from 1 to seq_len."""
    trained: np.ndarray
    """int64[conversation], trained tokens of each."""
    counts: dict[str, Any]
    """What is used, dropped and cut, under the names of plan.json."""


def fit_rows(
    reader: CacheReader,
    name: str,
    *,
    seq_len: int,
    long_conversations: str,
    max_conversations: int | None = None,
    seed: int = 0,
) -> FittedRows:
    """
    The conversations that fit, or are made to.

    A conversation of which no trained token is left is dropped. The cap keeps the first of a seeded
    order that depends on nothing but seed, name and number of conversations that fit.

    Args:
        reader: the cache.
        name: what to call the data set in messages; seeds the cap.
        seq_len: tokens of a row.
        long_conversations: one of mixture_rules.LONG_CONVERSATIONS. "truncate" keeps the first
            seq_len tokens, and cuts inside an answer where it must; the rules that the tokenize
            step carries out leave nothing to cut, so a longer row is an error.
        max_conversations: conversations that are used at most, or None.
        seed: of the cap.

    Raises:
        ChatInputError: a conversation is too long for the rule.
    """
    lengths, trained = reader.lengths, reader.trained_tokens()
    is_long = lengths > seq_len
    num_long, longest = int(is_long.sum()), int(lengths.max(initial=0))
    if num_long and long_conversations not in ("drop", "truncate"):
        raise _too_long(name, lengths, is_long, seq_len, long_conversations)
    is_cut = is_long if long_conversations == "truncate" else np.zeros_like(is_long)
    kept = np.minimum(lengths, seq_len)
    kept_trained = trained
    if is_cut.any():
        kept_trained = np.where(is_cut, reader.trained_tokens(seq_len), trained)
    is_dropped = is_long & ~is_cut
    is_untrained = (kept_trained == 0) & ~is_dropped
    rows = np.flatnonzero(~is_dropped & ~is_untrained)
    cut = rows[is_cut[rows]]
    num_over = 0
    if max_conversations is not None and len(rows) > max_conversations:
        num_over = len(rows) - max_conversations
        order = seeded_generator("cap", seed, name).permutation(len(rows))
        rows = np.sort(rows[order[:max_conversations]])
        cut = rows[is_cut[rows]]
    out = np.flatnonzero(is_dropped | is_untrained)
    counts = {
        "name": name,
        "conversations": len(lengths),
        "used": len(rows),
        "longest": longest,
        "too_long": num_long,
        "dropped": {
            "too long": int(is_dropped.sum()),
            "no trained token left": int((is_untrained & is_cut).sum()),
            "no trained token": int((is_untrained & ~is_cut).sum()),
            "over max_conversations": num_over,
        },
        "cut": len(cut),
        "cut_inside_an_answer": int((trained[cut] > kept_trained[cut]).sum()),
        "tokens_lost": int(lengths[out].sum() + (lengths[cut] - kept[cut]).sum()),
        "trained_tokens_lost": int(trained[out].sum() + (trained[cut] - kept_trained[cut]).sum()),
        "tokens": int(kept[rows].sum()),
        "trained_tokens": int(kept_trained[rows].sum()),
    }
    return FittedRows(
        rows=rows.astype(np.int64),
        lengths=kept[rows].astype(np.int32),
        trained=kept_trained[rows],
        counts=counts,
    )


def _too_long(
    name: str, lengths: np.ndarray, is_long: np.ndarray, seq_len: int, policy: str
) -> ChatInputError:
    first = int(np.argmax(is_long))
    got = (
        f"got {int(is_long.sum()):,} of {len(lengths):,} that are longer, up to "
        f"{int(lengths.max()):,} (the first is row {first} with {int(lengths[first]):,})"
    )
    if policy in TURN_POLICIES:
        advice = f"Tokenize again with {policy} and this seq_len."
    else:
        advice = 'Raise seq_len or set long_conversations to "drop" or "truncate".'
    return ChatInputError(
        f"mixture {name!r}: every conversation must fit in seq_len {seq_len:,} tokens, {got}. "
        f"{advice}"
    )
