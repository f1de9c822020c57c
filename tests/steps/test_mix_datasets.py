"""The plan of a mixture: rows, tokens, shares, and number of train steps."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve.errors import InputError
from neve_chat.cache import TreeCacheWriter
from neve_chat.errors import ChatInputError
from neve_chat.row_plan import RowPlan

from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets

ROWS = {"short": ((4, 2), (6, 3), (8, 4)), "long": ((10, 5), (12, 6))}
"""Per data set: tokens of each row, and how many of them, at its end, are trained."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caches")
    for name, rows in ROWS.items():
        write_split(folder / name / "train", rows)
    (folder / "model").mkdir()
    write_model(folder / "model", max_position_embeddings=16, largest_id=31)
    return folder


def write_split(split: Path, rows: tuple[tuple[int, int], ...]) -> None:
    writer = TreeCacheWriter(str(split), scratch=split / "scratch", preprocessor_metadata={})
    with writer:
        for length, num_trained in rows:
            mask = np.zeros(length, np.int32)
            mask[length - num_trained :] = 1
            writer.append(np.arange(length, dtype=np.int32), mask)


def write_model(folder: Path, *, max_position_embeddings: int, largest_id: int) -> None:
    config = {"max_position_embeddings": max_position_embeddings, "vocab_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {
        "added_tokens": [{"id": largest_id, "content": "<|eot_id|>"}],
        "model": {"vocab": {"a": 0, "b": 1}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def make_config(
    folder: Path,
    names: tuple[str, ...] = ("short",),
    datasets: dict[str, dict[str, Any]] | None = None,
    **changes: Any,
) -> MixDatasetsConfig:
    """Returns a config of some data sets; `datasets` changes fields of the named ones."""
    fields = datasets or {}
    values: dict[str, Any] = {
        "datasets": tuple(
            dataclasses.replace(
                MixedDataset(name=name, cache=str(folder / name)), **fields.get(name, {})
            )
            for name in names
        ),
        "seq_len": 16,
        "batch_size": 2,
        "num_train_steps": 5,
        "model_config": str(folder / "model"),
    }
    if changes.get("num_train_epochs") is not None:
        values["num_train_steps"] = None
    return MixDatasetsConfig(**(values | changes))


def test_plan_counts_rows_tokens_and_passes(folder: Path, tmp_path: Path) -> None:
    """plan.json and the results hold the same counts, worked out by hand."""
    result = mix_datasets(make_config(folder, num_train_epochs=2, batch_size=3), str(tmp_path))

    assert json.loads((tmp_path / "plan.json").read_text()) == result
    (source,) = result.pop("sources")
    assert source == {
        "name": "short",
        "conversations": 3,
        "used": 3,
        "longest": 8,
        "too_long": 0,
        "dropped": {
            "too long": 0,
            "no trained token left": 0,
            "no trained token": 0,
            "over max_conversations": 0,
        },
        "cut": 0,
        "cut_inside_an_answer": 0,
        "tokens_lost": 0,
        "trained_tokens_lost": 0,
        "tokens": 18,
        "trained_tokens": 9,
        "drawn": 6,
        "passes": 2.0,
        "drawn_tokens": 36,
        "drawn_trained_tokens": 18,
        "row_share": 1.0,
        "share": 1.0,
    }
    empty = {"num_rows": 0, "num_segments": 0, "tokens": 0, "fill": 0.0, "padding": 1.0}
    assert result == {
        "format": 2,
        "seq_len": 16,
        "batch_size": 3,
        "packing": "separate",
        "mixing": "concat",
        "data_seed": 0,
        "num_train_steps": 2,
        "num_train_epochs": 2.0,
        "rows_per_epoch": 3,
        "num_rows": 6,
        "num_segments": 6,
        "tokens": 36,
        "fill": 0.375,  # 36 of 6 x 16 positions
        "padding": 0.625,
        "validation": {**empty, "sources": []},
    }


def test_plan_is_rows_on_disk_with_the_same_bytes_each_time(folder: Path, tmp_path: Path) -> None:
    """train/ and validation/ hold the arrays; planning again writes the same."""
    for name in ("one", "two"):
        mix_datasets(make_config(folder, ("short", "long"), packing="packed"), str(tmp_path / name))

    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert [str(file) for file in files] == [
        "plan.json",
        "train/row_ends.npy",
        "train/segments.npy",
        "validation/row_ends.npy",
        "validation/segments.npy",
    ]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    plan = RowPlan.load(str(tmp_path / "one" / "train"))
    assert plan.num_rows == 5 * 2
    lengths = {(0, row): length for row, (length, _) in enumerate(ROWS["short"])}
    lengths |= {(1, row): length for row, (length, _) in enumerate(ROWS["long"])}
    for source, row, start, length in plan.segments.tolist():
        assert (start, length) == (0, lengths[source, row])


@pytest.mark.parametrize(
    ("epochs", "batch_size", "steps"),
    [(1, 2, 2), (2, 2, 3), (1, 3, 1), (0.5, 2, 1), (4, 5, 3), (1, 100, 1)],
)
def test_epochs_become_train_steps_rounded_up(
    folder: Path, tmp_path: Path, epochs: float, batch_size: int, steps: int
) -> None:
    """The number of train steps is the ceiling of epochs x 3 rows / batch size."""
    config = make_config(folder, num_train_epochs=epochs, batch_size=batch_size)

    assert mix_datasets(config, str(tmp_path))["num_train_steps"] == steps


def test_weights_are_shares_of_rows_and_share_counts_trained_tokens(
    folder: Path, tmp_path: Path
) -> None:
    """Weights 2 and 6 draw a quarter and three quarters of the rows; longer rows train more."""
    weights = {"short": {"weight": 2.0}, "long": {"weight": 6.0}}
    config = make_config(folder, ("short", "long"), weights, num_train_epochs=24, batch_size=4)

    result = mix_datasets(config, str(tmp_path))

    short, long = result["sources"]
    assert (result["mixing"], result["num_rows"]) == ("weighted", 120)  # 24 epochs x 5 rows
    assert (short["drawn"], long["drawn"]) == (30, 90)
    assert (short["passes"], long["passes"]) == (10.0, 45.0)
    assert (short["row_share"], long["row_share"]) == (0.25, 0.75)
    # 10 passes of 9 trained tokens against 45 passes of 11.
    assert (short["drawn_trained_tokens"], long["drawn_trained_tokens"]) == (90, 495)
    assert short["share"] == pytest.approx(90 / 585, abs=1e-6)


def test_repeats_are_passes(folder: Path, tmp_path: Path) -> None:
    """An epoch of three short rows twice and two long ones once has eight rows."""
    config = make_config(
        folder, ("short", "long"), {"short": {"repeat": 2.0}}, num_train_epochs=1, batch_size=8
    )

    result = mix_datasets(config, str(tmp_path))

    assert [source["passes"] for source in result["sources"]] == [2.0, 1.0]
    assert result["num_rows"] == result["rows_per_epoch"] == 8


def test_interleaved_data_sets_stop_as_said(folder: Path, tmp_path: Path) -> None:
    """Under stops when one is used up, over when both are."""
    halves = {"short": {"weight": 0.5}, "long": {"weight": 0.5}}
    sizes = {}
    for mixing in ("interleave_under", "interleave_over"):
        config = make_config(
            folder, ("short", "long"), halves, mixing=mixing, num_train_epochs=1, batch_size=1
        )
        result = mix_datasets(config, str(tmp_path / mixing))
        sizes[mixing] = [source["passes"] for source in result["sources"]]

    assert min(sizes["interleave_over"]) >= 1
    assert max(sizes["interleave_under"]) == 1


def test_a_cap_leaves_the_others_out_and_says_so(folder: Path, tmp_path: Path) -> None:
    """Two of three conversations are used, each once a pass."""
    config = make_config(folder, datasets={"short": {"max_conversations": 2}}, num_train_epochs=1)

    (source,) = mix_datasets(config, str(tmp_path))["sources"]

    assert (source["used"], source["drawn"]) == (2, 2)
    assert source["dropped"]["over max_conversations"] == 1


def test_drop_leaves_long_rows_out(folder: Path, tmp_path: Path) -> None:
    """Rows over seq_len are counted and leave tokens and epochs."""
    config = make_config(folder, seq_len=6, num_train_epochs=2)

    result = mix_datasets(config, str(tmp_path))

    (source,) = result["sources"]
    assert (source["used"], source["too_long"], source["tokens"]) == (2, 1, 10)
    assert (source["tokens_lost"], source["trained_tokens_lost"]) == (8, 4)
    assert source["trained_tokens"] == 5
    assert result["num_train_steps"] == 2


def test_packed_rows_make_the_epochs(folder: Path, tmp_path: Path) -> None:
    """8 and 6 share a row of 16 and leave no room for 4: 2 rows, 3 updates in 3 epochs."""
    config = make_config(folder, packing="packed", num_train_epochs=3)

    result = mix_datasets(config, str(tmp_path))

    assert result["rows_per_epoch"] == 2
    assert (result["num_train_steps"], result["num_rows"], result["num_segments"]) == (3, 6, 9)
    assert result["fill"] == pytest.approx(18 / 32)


def test_truncate_cuts_the_end_of_long_rows(folder: Path, tmp_path: Path) -> None:
    """A row of 8 whose last 4 are trained keeps 6 tokens, 2 of them trained."""
    config = make_config(folder, datasets={"short": {"long_conversations": "truncate"}}, seq_len=6)

    (source,) = mix_datasets(config, str(tmp_path))["sources"]

    assert (source["used"], source["cut"], source["tokens"]) == (3, 1, 16)
    assert (source["trained_tokens"], source["cut_inside_an_answer"]) == (7, 1)
    plan = RowPlan.load(str(tmp_path / "train"))
    assert set(plan.segments["length"].tolist()) == {4, 6}


def test_each_data_set_has_its_own_rule_for_long_rows(folder: Path, tmp_path: Path) -> None:
    """One is cut, the other dropped where it doesn't fit."""
    rules = {"short": {"long_conversations": "truncate"}}

    short, long = mix_datasets(
        make_config(folder, ("short", "long"), rules, seq_len=10), str(tmp_path / "a")
    )["sources"]

    assert (short["used"], long["used"]) == (3, 1)
    assert long["dropped"]["too long"] == 1


def test_error_names_count_and_longest(folder: Path, tmp_path: Path) -> None:
    """With "error" a long row stops the run: how many, and how long the longest is."""
    config = make_config(folder, datasets={"short": {"long_conversations": "error"}}, seq_len=5)

    with pytest.raises(ChatInputError, match=r"2 of 3 that are longer, up to 8") as caught:
        mix_datasets(config, str(tmp_path))

    assert caught.value.exit_code == 2
    assert not (tmp_path / "plan.json").exists()


def test_nothing_left_is_refused(folder: Path, tmp_path: Path) -> None:
    """A data set of which every row is too long is an input error that names it."""
    config = make_config(folder, ("long",), seq_len=9)

    with pytest.raises(InputError, match=r"mixture 'long'.*2 are longer than seq_len 9, up to 12"):
        mix_datasets(config, str(tmp_path))


def test_a_data_set_that_is_never_drawn_is_refused(folder: Path, tmp_path: Path) -> None:
    """A weight too small for the planned train steps is an error that names the data set."""
    weights = {"short": {"weight": 1e-9}, "long": {"weight": 1.0}}

    with pytest.raises(ChatInputError, match=r"got none of short in the 10 rows"):
        mix_datasets(make_config(folder, ("short", "long"), weights), str(tmp_path))


def test_a_short_training_says_what_it_does_without(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One row of an epoch of five holds nothing of one of the two: concat tells it."""
    config = make_config(folder, ("short", "long"), num_train_steps=1, batch_size=1)

    result = mix_datasets(config, str(tmp_path))

    missing = [source["name"] for source in result["sources"] if not source["drawn"]]
    assert len(missing) == 1
    assert f"{missing[0]}: NOTHING of it is in these train steps" in capsys.readouterr().out


def test_held_out_rows_are_planned_under_the_same_rules(folder: Path, tmp_path: Path) -> None:
    """A long row is dropped there too; every other one comes once, packed like the rest."""
    write_split(tmp_path / "cache" / "train", ROWS["short"])
    write_split(tmp_path / "cache" / "validation", ((4, 2), (9, 2), (5, 1), (3, 1)))
    config = make_config(
        folder,
        ("long", "short"),
        {"short": {"cache": str(tmp_path / "cache")}, "long": {"long_conversations": "truncate"}},
        seq_len=8,
        packing="packed",
    )

    held_out = mix_datasets(config, str(tmp_path / "out"))["validation"]

    (source,) = held_out["sources"]
    assert (source["name"], source["source"]) == ("short (held out)", 1)
    assert (source["used"], source["dropped"]["too long"], source["num_rows"]) == (3, 1, 2)
    plan = RowPlan.load(str(tmp_path / "out" / "validation"))
    assert plan.row(0)["row"].tolist() == [2, 3]  # 5 + 3 = 8
    assert plan.row(1)["row"].tolist() == [0]
    assert set(plan.segments["source"].tolist()) == {1}


def test_seq_len_beyond_the_model_is_refused(folder: Path, tmp_path: Path) -> None:
    """Both numbers and the value to use are in the sentence."""
    with pytest.raises(
        InputError, match=r"max_position_embeddings 16, got 17. Lower seq_len to 16"
    ):
        mix_datasets(make_config(folder, seq_len=17), str(tmp_path))


def test_token_ids_beyond_the_model_are_refused(folder: Path, tmp_path: Path) -> None:
    """A tokenizer with an id at or over the model's vocab_size is not the model's."""
    write_model(tmp_path, max_position_embeddings=16, largest_id=32)

    with pytest.raises(InputError, match=r"below the model's vocab_size 32, got 32"):
        mix_datasets(make_config(folder, model_config=str(tmp_path)), str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": {"short": {"weight": 0.0}}}, "weight must be a number above 0, got 0.0"),
        ({"mixing": "weighted"}, "'short': weight must be given with weighted, got None"),
        ({"names": ("short", "short")}, "of different names"),
        ({"names": ()}, "must have one or more data sets"),
        ({"num_train_steps": 5, "num_train_epochs": 1.0}, "one of num_train_steps"),
        ({"num_train_steps": None}, "one of num_train_steps"),
        ({"num_train_steps": 0}, "num_train_steps must be 1 or more"),
        ({"num_train_epochs": 0.0}, "num_train_epochs must be a number"),
        ({"seq_len": 0}, "seq_len must be 1 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"data_seed": -1}, "data_seed must be 0 or more"),
        ({"packing": "dense"}, "packing must be one of separate, packed"),
        (
            {"datasets": {"short": {"long_conversations": "skip"}}},
            "long_conversations of 'short' must be one of drop, truncate",
        ),
    ],
)
def test_bad_values_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    """Every value that makes no mixture is refused when the config is made."""
    with pytest.raises(ValueError, match=message) as caught:
        make_config(folder, **changes)

    assert getattr(caught.value, "exit_code", None) == 2


def test_missing_cache_is_refused(folder: Path, tmp_path: Path) -> None:
    """A folder without a finished cache is named."""
    config = make_config(folder, datasets={"short": {"cache": str(tmp_path)}})

    with pytest.raises(ChatInputError, match=r"must be a finished cache, got no shard_ledger.json"):
        mix_datasets(config, str(tmp_path / "out"))


def test_table_is_shown(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user sees the counts, what is lost, and the number of train steps."""
    mix_datasets(make_config(folder, seq_len=6), str(tmp_path))

    lines = capsys.readouterr().out.splitlines()
    header = ["data", "set", "rows", "tokens", "trained", "row", "share", "share", "passes"]
    assert lines[0].split() == header
    assert lines[1].split() == ["short", "2", "10", "5", "100.0%", "100.0%", "5.00"]
    assert lines[2:] == [
        "short: 1 of 3 conversations dropped, too long (seq_len 6, longest 8)",
        "short: 8 tokens lost, 4 of them trained",
        "10 conversations in 10 rows of 6 tokens (separate): 83.3% full, 16.7% padding",
        "5 train steps of 2 rows x 6 tokens, 5.00 epochs (concat)",
    ]
