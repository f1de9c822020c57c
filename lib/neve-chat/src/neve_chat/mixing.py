"""
Which conversation comes when: the endless, seeded sequence of a mixture, epoch by epoch.

A data set is walked in passes; a pass holds each of its rows once, in an order drawn from the data
seed, the data set's name, the epoch and the pass. Other data sets never change it.

    concat            an epoch holds every row `repeat` times, the data sets shuffled into each
                      other; a fraction of a pass is the head of that pass's order
    weighted          data set i is due at the times (k + phase_i) / weight_i, k = 0, 1, ...; so
                      after any number of draws its count is within 1 + weight_i * (data sets) of
                      its share. The passes go on over the epochs; an epoch is as many draws as the
                      data sets have rows together
    interleave_under  as Hugging Face datasets' interleave_datasets(first_exhausted): draws by
                      probability until one data set has given all its rows
    interleave_over   (all_exhausted): until each has, the shorter ones starting over
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from neve_chat.errors import ChatInputError

__all__ = ["MixtureSource", "iter_epochs", "seeded_generator", "seeded_order"]

_DRAW_BLOCK = 1000  # Hugging Face datasets draws so many at a time; another number draws others


@dataclass(frozen=True, kw_only=True)
class MixtureSource:
    """
    One data set of a mixture.
    """

    name: str
    """Seeds its order."""
    num_rows: int
    """Rows that can be drawn, 1 or more."""
    weight: float | None = None
    """Share (weighted, any scale) or probability (interleave), above 0; None with concat."""
    repeat: float = 1.0
    """Times that an epoch of concat holds each row, above 0."""


def seeded_generator(*what: str | int) -> np.random.Generator:
    """
    A random generator that depends on the words alone.
    """
    digest = hashlib.sha256("\0".join(map(str, what)).encode("utf-8")).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def seeded_order(seed: int, name: str, epoch: int, number: int, num_rows: int) -> np.ndarray:
    """
    int64[num_rows]: the order of pass `number` of an epoch, a permutation.
    """
    return seeded_generator("order", seed, name, epoch, number).permutation(num_rows)


def iter_epochs(
    sources: list[MixtureSource], mixing: str, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """
    Epoch after epoch without end.

    Args:
        sources: data sets, in the order of the recipe.
        mixing: one of mixture_rules.MIXINGS.
        seed: 0 or more; interleave draws exactly what Hugging Face datasets draws with it.

    Yields:
        (int32[draw] number of the data set, int64[draw] row of it).

    Raises:
        ChatInputError: a data set is empty or so small that an epoch would hold no row of it.
    """
    for source in sources:
        least = source.num_rows if mixing != "concat" else round(source.repeat * source.num_rows)
        if least < 1:
            raise ChatInputError(
                f"mixture {source.name!r}: an epoch must hold at least one row, got "
                f"{source.repeat:g} times {source.num_rows} rows. Raise repeat or leave it out."
            )
    if mixing == "weighted":
        yield from _weighted_epochs(sources, seed)
    epoch = 0
    while True:
        if mixing == "concat":
            labels = _concat_labels(sources, seed, epoch)
        else:
            labels = _interleave_labels(sources, seed, until_all=mixing == "interleave_over")
        rows = np.empty(len(labels), dtype=np.int64)
        for index, source in enumerate(sources):
            is_here = labels == index
            rows[is_here] = _walk(source, seed, epoch, 0, int(is_here.sum()))
        yield labels, rows
        epoch += 1


def _walk(source: MixtureSource, seed: int, epoch: int, start: int, count: int) -> np.ndarray:
    """
    Rows number `start` to `start + count` of a data set's passes.
    """
    size = source.num_rows
    first, last = start // size, -(-(start + count) // size)
    passes = [seeded_order(seed, source.name, epoch, number, size) for number in range(first, last)]
    rows = np.concatenate(passes) if passes else np.zeros(0, dtype=np.int64)
    return rows[start - first * size :][:count]


def _concat_labels(sources: list[MixtureSource], seed: int, epoch: int) -> np.ndarray:
    counts = [round(source.repeat * source.num_rows) for source in sources]
    labels = np.repeat(np.arange(len(sources), dtype=np.int32), counts)
    return seeded_generator("shuffle", seed, epoch).permutation(labels)


def _interleave_labels(sources: list[MixtureSource], seed: int, *, until_all: bool) -> np.ndarray:
    generator = np.random.default_rng(seed)
    probabilities = np.array([source.weight for source in sources], dtype=np.float64)
    sizes = np.array([source.num_rows for source in sources])
    counts = np.zeros(len(sources), dtype=np.int64)
    blocks = []
    while True:
        block = generator.choice(len(sources), size=_DRAW_BLOCK, p=probabilities)
        blocks.append(block.astype(np.int32))
        counts += np.bincount(block, minlength=len(sources))
        is_exhausted = counts >= sizes
        if is_exhausted.all() if until_all else is_exhausted.any():
            break
    labels = np.concatenate(blocks)
    ends = [
        int(np.flatnonzero(labels == index)[size - 1]) + 1 if counts[index] >= size else len(labels)
        for index, size in enumerate(sizes)
    ]
    return labels[: max(ends) if until_all else min(ends)]


def _weighted_epochs(
    sources: list[MixtureSource], seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    weights = np.array([source.weight for source in sources], dtype=np.float64)
    weights /= weights.sum()
    phases = [seeded_generator("phase", seed, source.name).random() for source in sources]
    size = sum(source.num_rows for source in sources)
    taken = np.zeros(len(sources), dtype=np.int64)
    while True:
        # More than a data set can be due for within `size` draws, whatever the others do.
        due = np.ceil(weights * (size + 2 * len(sources))).astype(np.int64) + 2
        times = [
            (np.arange(start, start + count) + phase) / weight
            for start, count, phase, weight in zip(taken, due, phases, weights, strict=True)
        ]
        order = np.argsort(np.concatenate(times), kind="stable")[:size]
        labels = np.repeat(np.arange(len(sources), dtype=np.int32), due)[order]
        rows = np.empty(size, dtype=np.int64)
        for index, source in enumerate(sources):
            is_here = labels == index
            count = int(is_here.sum())
            assert count < due[index]
            rows[is_here] = _walk(source, seed, 0, int(taken[index]), count)
            taken[index] += count
        yield labels, rows
