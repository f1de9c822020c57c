"""Which conversation comes when: epochs, shares, and orders that others can't change."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neve_chat.errors import ChatInputError
from neve_chat.mixing import MixtureSource, iter_epochs, seeded_order
from neve_chat.mixture_rules import check_mixture


def source(name: str, num_rows: int, **fields: Any) -> MixtureSource:
    return MixtureSource(name=name, num_rows=num_rows, **fields)


def epochs(
    sources: list[MixtureSource], mixing: str, count: int, seed: int = 0
) -> list[list[tuple[str, int]]]:
    """The (name, row) draws of the first epochs."""
    return [
        [
            (sources[label].name, row)
            for label, row in zip(labels.tolist(), rows.tolist(), strict=True)
        ]
        for labels, rows in itertools.islice(iter_epochs(sources, mixing, seed), count)
    ]


def joined(parts: list[list[tuple[str, int]]]) -> list[tuple[str, int]]:
    return list(itertools.chain.from_iterable(parts))


def rows_of(draws: list[tuple[str, int]], name: str) -> list[int]:
    return [row for drawn, row in draws if drawn == name]


def test_each_epoch_is_another_permutation_of_the_rows() -> None:
    """Eight rows, three epochs, seed 42. Source: LlamaFactory#10672, one order for all epochs."""
    three = epochs([source("a", 8)], "concat", 3, seed=42)

    assert all(sorted(epoch) == [("a", row) for row in range(8)] for epoch in three)
    assert len({tuple(epoch) for epoch in three}) == 3
    assert three == epochs([source("a", 8)], "concat", 3, seed=42)
    assert three != epochs([source("a", 8)], "concat", 3, seed=43)


def test_concat_holds_every_row_of_every_data_set_once() -> None:
    """No row is missing and none is there twice. Source: datasets#8626, lost and doubled rows."""
    sources = [source("d1", 3), source("d2", 4), source("d3", 3)]

    (epoch,) = epochs(sources, "concat", 1)

    expected = [(each.name, row) for each in sources for row in range(each.num_rows)]
    assert sorted(epoch) == expected
    names = [name for name, _ in epoch]
    assert names != sorted(names)  # shuffled into each other


@pytest.mark.parametrize(
    ("repeat", "counts"),
    [(1.0, {1: 10}), (2.0, {2: 10}), (0.5, {1: 5}), (1.5, {1: 5, 2: 5}), (2.3, {2: 7, 3: 3})],
)
def test_repeat_counts_rows_per_epoch(repeat: float, counts: dict[int, int]) -> None:
    """2 twice, 0.5 a half, 1.5 every one and a half of them twice; another half each epoch."""
    first, second = epochs([source("a", 10, repeat=repeat), source("b", 3)], "concat", 2)

    for epoch in (first, second):
        assert Counter(Counter(rows_of(epoch, "a")).values()) == counts
        assert sorted(rows_of(epoch, "b")) == [0, 1, 2]
    if repeat % 1:
        assert Counter(rows_of(first, "a")) != Counter(rows_of(second, "a"))


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    repeats=st.lists(st.floats(0.1, 3.0), min_size=4, max_size=4),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=60, deadline=None)
def test_no_row_of_an_epoch_comes_twice_more_often_than_another(
    sizes: list[int], repeats: list[float], seed: int
) -> None:
    """In every epoch of concat a row comes floor(repeat) times or once more."""
    sources = [
        source(str(number), size, repeat=max(repeat, 0.51 / size))
        for number, (size, repeat) in enumerate(zip(sizes, repeats, strict=False))
    ]

    for epoch in epochs(sources, "concat", 2, seed):
        for each in sources:
            counts = np.bincount(rows_of(epoch, each.name), minlength=each.num_rows)
            assert counts.sum() == round(each.repeat * each.num_rows)
            assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("mixing", ["concat", "weighted", "interleave_over"])
def test_other_data_sets_never_change_an_order(mixing: str) -> None:
    """Rows of one data set come in the same order alone, with others, and behind them."""
    weight = None if mixing == "concat" else 0.5
    mine = source("mine", 9, weight=None if weight is None else 1.0)
    half = source("mine", 9, weight=weight)
    other, third = source("other", 20, weight=weight), source("x", 20, weight=weight)

    def order(sources: list[MixtureSource]) -> list[int]:
        return rows_of(epochs(sources, mixing, 1, seed=5)[0], "mine")[:9]

    alone = order([mine])
    assert sorted(alone) == list(range(9))
    for others in ([half, other], [other, half], [third, half]):
        got = order(others)
        assert got == alone[: len(got)]
        assert len(got) > 5


@given(
    sizes=st.lists(st.integers(1, 200), min_size=2, max_size=5),
    weights=st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_weighted_shares_hold_in_every_stretch(
    sizes: list[int], weights: list[float], seed: int
) -> None:
    """Any two places differ from the shares by at most two rows and two per data set's weight."""
    sources = [
        source(str(number), size, weight=weight)
        for number, (size, weight) in enumerate(zip(sizes, weights, strict=False))
    ]
    shares = np.array([each.weight for each in sources])
    shares = shares / shares.sum()
    draws = joined(epochs(sources, "weighted", 4, seed))
    labels = np.array([int(name) for name, _ in draws])
    counts = np.cumsum(labels[:, None] == np.arange(len(sources)), axis=0)
    targets = shares * np.arange(1, len(labels) + 1)[:, None]

    bound = 1 + shares * len(sources)

    assert (np.abs(counts - targets) <= bound + 1e-6).all()


def test_weighted_walks_each_data_set_in_passes_over_the_epochs() -> None:
    """Every row once before any comes again, a new order each pass."""
    sources = [source("a", 7, weight=3.0), source("b", 5, weight=1.0)]

    draws = rows_of(joined(epochs(sources, "weighted", 6)), "a")

    passes = [draws[start : start + 7] for start in range(0, len(draws) - 6, 7)]
    assert len(passes) == 7  # 6 epochs of 12 rows, three quarters of them
    assert all(sorted(each) == list(range(7)) for each in passes)
    assert len({tuple(each) for each in passes}) == 7


def test_a_tiny_weight_is_drawn_in_its_turn() -> None:
    """1 in 1,000 comes once in about every 1,000 rows. Source: levanter's blocks of 8 lose it."""
    sources = [source("d1", 500, weight=0.999), source("d2", 500, weight=0.001)]

    draws = joined(epochs(sources, "weighted", 10))

    assert len(draws) == 10_000
    assert 9 <= len(rows_of(draws, "d2")) <= 11


@pytest.mark.parametrize(
    ("mixing", "total", "counts"),
    [("interleave_under", 5544, [5000, 544]), ("interleave_over", 10103, [9103, 1000])],
)
def test_interleave_gives_the_published_numbers(mixing: str, total: int, counts: list[int]) -> None:
    """Sizes 5000 and 1000, probabilities .9 and .1, seed 42, as LLaMA-Factory mixes them."""
    sources = [source("a", 5000, weight=0.9), source("b", 1000, weight=0.1)]

    labels, _ = next(iter_epochs(sources, mixing, 42))

    assert len(labels) == total
    assert np.bincount(labels).tolist() == counts


@pytest.mark.parametrize(
    ("mixing", "strategy"),
    [("interleave_under", "first_exhausted"), ("interleave_over", "all_exhausted")],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_interleave_draws_what_hugging_face_datasets_draws(mixing: str, strategy: Any) -> None:
    """The same data set at every place, for several sizes, probabilities and seeds."""
    from datasets import Dataset, interleave_datasets

    rng = np.random.default_rng(0)
    for seed in range(12):
        sizes = rng.integers(1, 400, rng.integers(1, 4)).tolist()
        probabilities = rng.dirichlet(np.ones(len(sizes))).tolist()
        theirs = interleave_datasets(
            [Dataset.from_dict({"label": [index] * size}) for index, size in enumerate(sizes)],
            probabilities=probabilities,
            seed=seed,
            stopping_strategy=strategy,
        )
        sources = [
            source(str(index), size, weight=probability)
            for index, (size, probability) in enumerate(zip(sizes, probabilities, strict=True))
        ]

        labels, rows = next(iter_epochs(sources, mixing, seed))

        assert labels.tolist() == theirs["label"][:]
        for index, size in enumerate(sizes):
            counts = np.bincount(rows[labels == index], minlength=size)
            assert counts.max() - counts.min() <= 1


def test_interleaved_epochs_draw_new_rows_of_the_larger_data_set() -> None:
    """LLaMA-Factory takes the same head in every epoch; here each epoch has its own."""
    sources = [source("big", 1000, weight=0.5), source("small", 50, weight=0.5)]

    first, second = epochs(sources, "interleave_under", 2)

    assert len(first) == len(second)
    for epoch in (first, second):
        assert max(Counter(epoch).values()) == 1
    assert set(rows_of(first, "big")) != set(rows_of(second, "big"))
    one, two = rows_of(first, "small"), rows_of(second, "small")
    assert sorted(one) == sorted(two) == list(range(50))
    assert one != two


def test_a_data_set_without_rows_is_refused() -> None:
    """Neither a doubled row nor an IndexError. Source: datasets#7147."""
    with pytest.raises(
        ChatInputError, match="mixture 'empty': an epoch must hold at least one row"
    ):
        next(iter_epochs([source("left", 2), source("empty", 0)], "concat", 0))


def test_a_repeat_that_rounds_to_nothing_is_refused() -> None:
    """0.1 of 3 rows is no row."""
    with pytest.raises(ChatInputError, match=r"got 0\.1 times 3 rows"):
        next(iter_epochs([source("a", 3, repeat=0.1)], "concat", 0))


def test_orders_are_permutations_that_only_the_named_things_change() -> None:
    """Seed, name, epoch and pass each give another order; the same ones the same."""
    base = (1, "a", 0, 0)
    first = seeded_order(*base, 50).tolist()

    assert sorted(first) == list(range(50))
    assert seeded_order(*base, 50).tolist() == first
    for changed in ((2, "a", 0, 0), (1, "b", 0, 0), (1, "a", 1, 0), (1, "a", 0, 1)):
        assert seeded_order(*changed, 50).tolist() != first


def check(**changes: Any) -> str:
    values: dict[str, Any] = {
        "names": ["d1", "d2"],
        "mixing": None,
        "weights": [None, None],
        "repeats": [1.0, 1.0],
        "max_conversations": [None, None],
    }
    return check_mixture("mixture 'm'", **(values | changes))


def test_a_mixture_that_is_right_tells_its_strategy() -> None:
    """No weights: concat; weights: weighted; else what was said."""
    assert check() == "concat"
    assert check(weights=[0.2, 7.0]) == "weighted"
    assert check(weights=[0.9, 0.1], mixing="interleave_under") == "interleave_under"
    assert check(repeats=[2.0, 0.5]) == "concat"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": []}, "must have one or more data sets"),
        ({"names": ["d1", "d1"]}, "of different names"),
        ({"names": ["d1", "d2", "d9"]}, "got names d1, d2, d9 with 2"),
        ({"mixing": "interleave"}, "mixing must be one of"),
        ({"weights": [1.0, 0.0]}, "'d2': weight must be a number above 0, got 0.0"),
        ({"weights": [1.0, -2.0]}, "'d2': weight must be a number above 0, got -2.0"),
        ({"weights": [1.0, float("nan")]}, "got nan"),
        ({"weights": [1.0, None]}, "'d2': weight must be given with weighted"),
        ({"weights": [0.5, 0.5], "mixing": "concat"}, "'d1': weight must be None with concat"),
        ({"weights": [0.5, 0.6], "mixing": "interleave_over"}, "must sum to 1, got 1.1"),
        ({"mixing": "interleave_under"}, "'d1': weight must be given with interleave_under"),
        ({"repeats": [1.0, 0.0]}, "'d2': repeat must be a number above 0, got 0.0"),
        ({"repeats": [1.0, float("inf")]}, "'d2': repeat must be a number above 0, got inf"),
        ({"weights": [1.0, 1.0], "repeats": [2.0, 1.0]}, "repeat must be 1 unless"),
        ({"max_conversations": [0, None]}, "'d1': max_conversations must be 1 or more, got 0"),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    """Every rule has one sentence with the value seen."""
    with pytest.raises(ChatInputError, match=message):
        check(**changes)
