"""
What a model must beat: count models of the trained tokens, in nats per token of the validation
split.

Unigram: p(t) = (count(t) + 1) / (N + V), add-one over the whole vocabulary, so that it sums to one.
Bigram: Witten-Bell, p(t | s) = (count(s, t) + kinds(s) * p(t)) / (count(s) + kinds(s)), where
kinds(s) is the number of different tokens seen after s; it sums to one for every s and has nothing
to tune. The previous token s may be one that isn't trained. Both are fitted on trained tokens of
the training split, and on its first few millions at most.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from neve import storage

from neve_chat.cache_reader import CacheReader

__all__ = ["BaselineCounter", "count_baselines"]


@dataclass(kw_only=True)
class _Pairs:
    """
    The first pairs (previous token, token) of a split, up to a limit; 16 bytes a pair at most.
    """

    limit: int
    parts: list[np.ndarray] = field(default_factory=list)
    num_pairs: int = 0

    def add(self, keys: np.ndarray) -> None:
        keys = keys[: self.limit - self.num_pairs]
        if len(keys):
            self.parts.append(keys)
            self.num_pairs += len(keys)
        if len(self.parts) > 4_096:
            self.parts = [np.concatenate(self.parts)]

    def joined(self) -> np.ndarray:
        return np.concatenate(self.parts) if self.parts else np.zeros(0, dtype=np.int64)


class BaselineCounter:
    """
    Sees every row once, then tells the losses.
    """

    def __init__(
        self, vocab_size: int, *, fit_limit: int = 4_000_000, evaluate_limit: int = 1_000_000
    ) -> None:
        """
        Args:
            vocab_size: V, all ids are below it.
            fit_limit: trained tokens of the training split that are counted, from its start.
            evaluate_limit: trained tokens of the validation split that are scored, from its start.
        """
        self._vocab_size = vocab_size
        self._splits = {
            "train": _Pairs(limit=fit_limit),
            "validation": _Pairs(limit=evaluate_limit),
        }

    def add(self, split: str, ids: np.ndarray, mask: np.ndarray) -> None:
        """
        Note one row of a split.

        Args:
            split: train or validation.
            ids: int32[token].
            mask: int32[token], 1 where trained; position 0 is never predicted and not counted.
        """
        pairs = self._splits[split]
        trained = np.flatnonzero(mask[1:])
        wide = ids.astype(np.int64)
        pairs.add(wide[trained] * self._vocab_size + wide[trained + 1])

    def is_full(self, split: str) -> bool:
        """
        Whether further rows of a split change nothing.
        """
        pairs = self._splits[split]
        return pairs.num_pairs >= pairs.limit

    def losses(self) -> dict[str, Any]:
        """
        unigram_loss and bigram_loss in nats per trained validation token, None without validation;
        and on how many tokens they rest.
        """
        fit, held_out = self._splits["train"].joined(), self._splits["validation"].joined()
        facts: dict[str, Any] = {
            "unigram_loss": None,
            "bigram_loss": None,
            "fit_tokens": len(fit),
            "evaluated_tokens": len(held_out),
        }
        if len(fit) and len(held_out):
            facts |= self._score(fit, held_out)
        return facts

    def _score(self, fit: np.ndarray, held_out: np.ndarray) -> dict[str, float]:
        size = self._vocab_size
        unigram = (np.bincount(fit % size, minlength=size) + 1.0) / (len(fit) + size)
        keys, counts = np.unique(fit, return_counts=True)
        followers = np.bincount(keys // size, weights=counts, minlength=size)
        kinds = np.bincount(keys // size, minlength=size)
        previous, token = held_out // size, held_out % size
        at = np.minimum(np.searchsorted(keys, held_out), len(keys) - 1)
        seen = np.where(keys[at] == held_out, counts[at], 0)
        known = followers[previous] + kinds[previous]
        weighted = (seen + kinds[previous] * unigram[token]) / np.maximum(known, 1.0)
        bigram = np.where(known > 0, weighted, unigram[token])
        return {
            "unigram_loss": float(-np.log(unigram[token]).mean()),
            "bigram_loss": float(-np.log(bigram).mean()),
        }


def count_baselines(output_path: str, vocab_size: int) -> dict[str, Any]:
    """
    The losses of the count models for `train/` and `validation/` below a path.

    Args:
        output_path: folder with the caches; without a validation split nothing is read.
        vocab_size: V, all ids are below it.

    Returns:
        What BaselineCounter.losses gives.
    """
    counter = BaselineCounter(vocab_size)
    if storage.exists(storage.join(output_path, "validation", "shard_ledger.json")):
        for split in ("train", "validation"):
            for _, lengths, ids, mask in CacheReader(storage.join(output_path, split)).blocks():
                if counter.is_full(split):
                    break
                edges = np.cumsum(lengths)[:-1]
                for row in zip(np.split(ids, edges), np.split(mask, edges), strict=True):
                    counter.add(split, *row)
    return counter.losses()
