"""The plan of a mixture: rows, tokens, shares, and number of train steps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve.errors import InputError
from neve_chat.cache import TreeCacheWriter
from neve_chat.cache_reader import read_row_lengths, read_trained_tokens
from neve_chat.errors import ChatInputError

from steps.mix_datasets import MixDatasetsConfig, mix_datasets

ROWS = {"short": ((4, 2), (6, 3), (8, 4)), "long": ((10, 5), (12, 6))}
"""Per data set: tokens of each row, and how many of them, at its end, are trained."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("caches")
    for name, rows in ROWS.items():
        split = folder / name / "train"
        writer = TreeCacheWriter(str(split), scratch=folder / "scratch", preprocessor_metadata={})
        with writer:
            for length, num_trained in rows:
                mask = np.zeros(length, np.int32)
                mask[length - num_trained :] = 1
                writer.append(np.arange(length, dtype=np.int32), mask)
    (folder / "model").mkdir()
    write_model(folder / "model", max_position_embeddings=16, largest_id=31)
    return folder


def write_model(folder: Path, *, max_position_embeddings: int, largest_id: int) -> None:
    config = {"max_position_embeddings": max_position_embeddings, "vocab_size": 32}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {
        "added_tokens": [{"id": largest_id, "content": "<|eot_id|>"}],
        "model": {"vocab": {"a": 0, "b": 1}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def make_config(
    folder: Path, names: tuple[str, ...] = ("short",), **changes: Any
) -> MixDatasetsConfig:
    values: dict[str, Any] = {
        "names": names,
        "caches": tuple(str(folder / name) for name in names),
        "weights": (1.0,) * len(names),
        "seq_len": 16,
        "batch_size": 2,
        "num_train_steps": 5,
        "model_config": str(folder / "model"),
    }
    return MixDatasetsConfig(**(values | changes))


def test_plan_counts_rows_tokens_and_passes(folder: Path, tmp_path: Path) -> None:
    """plan.json and the results hold the same counts, worked out by hand."""
    result = mix_datasets(make_config(folder), str(tmp_path))

    assert json.loads((tmp_path / "plan.json").read_text()) == result
    (source,) = result["sources"]
    assert source == {
        "name": "short",
        "rows": 3,
        "rows_used": 3,
        "rows_packed": 3,
        "too_long": 0,
        "longest": 8,
        "tokens": 18,
        "trained_tokens": 9,
        "weight": 1.0,
        "passes": pytest.approx(10 / 3),  # 5 steps of 2 rows over 3 rows
        "share": 1.0,
    }
    assert result["num_train_steps"] == 5


@pytest.mark.parametrize(
    ("epochs", "batch_size", "steps"),
    [(1, 2, 2), (2, 2, 3), (1, 3, 1), (0.5, 2, 1), (4, 5, 3), (1, 100, 1)],
)
def test_epochs_become_train_steps_rounded_up(
    folder: Path, tmp_path: Path, epochs: float, batch_size: int, steps: int
) -> None:
    """The number of train steps is the ceiling of epochs x 3 rows / batch size."""
    config = make_config(
        folder, num_train_steps=None, num_train_epochs=epochs, batch_size=batch_size
    )

    assert mix_datasets(config, str(tmp_path))["num_train_steps"] == steps


def test_weights_are_shares_of_rows_and_share_counts_trained_tokens(
    folder: Path, tmp_path: Path
) -> None:
    """Weights 2 and 6 draw a quarter and three quarters of the rows; longer rows train more."""
    config = make_config(
        folder, ("short", "long"), weights=(2.0, 6.0), num_train_steps=None, num_train_epochs=2
    )

    result = mix_datasets(config, str(tmp_path))

    short, long = result["sources"]
    assert result["num_train_steps"] == 5  # 2 epochs x 5 rows / 2
    assert (short["weight"], long["weight"]) == (0.25, 0.75)
    # 10 rows drawn: 2.5 of 3 and 7.5 of 2.
    assert short["passes"] == pytest.approx(2.5 / 3)
    assert long["passes"] == pytest.approx(3.75)
    # Trained tokens per row 3 and 5.5: 0.25 x 3 = 0.75 against 0.75 x 5.5 = 4.125.
    assert short["share"] == pytest.approx(0.75 / 4.875)


def test_drop_leaves_long_rows_out(folder: Path, tmp_path: Path) -> None:
    """Rows over seq_len are counted and leave tokens and epochs."""
    config = make_config(folder, seq_len=6, num_train_steps=None, num_train_epochs=2)

    result = mix_datasets(config, str(tmp_path))

    (source,) = result["sources"]
    assert (source["rows_used"], source["too_long"], source["tokens"]) == (2, 1, 10)
    assert source["trained_tokens"] == 5
    assert result["num_train_steps"] == 2


def test_packed_rows_make_the_epochs(folder: Path, tmp_path: Path) -> None:
    """Rows of 4 and 6 share a row of 16 and leave no room for the one of 8: 2 rows, 3 updates in 3 epochs."""
    config = make_config(folder, packing="packed", num_train_steps=None, num_train_epochs=3)

    result = mix_datasets(config, str(tmp_path))

    assert result["sources"][0]["rows_packed"] == result["num_rows"] == 2
    assert result["num_train_steps"] == 3


def test_truncate_cuts_the_end_of_long_rows(folder: Path, tmp_path: Path) -> None:
    """A row of 8 whose last 4 are trained keeps 6 tokens, 2 of them trained."""
    config = make_config(folder, seq_len=6, long_conversations="truncate")

    (source,) = mix_datasets(config, str(tmp_path))["sources"]

    assert (source["rows_used"], source["too_long"], source["tokens"]) == (3, 1, 16)
    assert source["trained_tokens"] == 7


def test_error_names_count_and_longest(folder: Path, tmp_path: Path) -> None:
    """With "error" a long row stops the run: how many, and how long the longest is."""
    config = make_config(folder, seq_len=5, long_conversations="error")

    with pytest.raises(InputError, match=r"2 of 3 that are longer, up to 8") as caught:
        mix_datasets(config, str(tmp_path))

    assert caught.value.exit_code == 2
    assert not (tmp_path / "plan.json").exists()


def test_nothing_left_is_refused(folder: Path, tmp_path: Path) -> None:
    """A data set of which every row is too long is an input error that names it."""
    config = make_config(folder, ("long",), seq_len=9)

    with pytest.raises(InputError, match=r"mixture 'long'.*2 are longer than seq_len 9, up to 12"):
        mix_datasets(config, str(tmp_path))


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
        ({"weights": (0.0,)}, "weight must be a number above 0, got 0.0"),
        ({"weights": (-1.0,)}, "weight must be a number above 0, got -1.0"),
        ({"weights": (float("nan"),)}, "weight must be a number above 0, got nan"),
        ({"weights": (1.0, 2.0)}, "one entry per data set, got 1, 1 and 2"),
        ({"names": (), "caches": (), "weights": ()}, "one entry per data set, got 0"),
        ({"num_train_epochs": 1.0}, "at most one of num_train_steps"),
        ({"num_train_steps": 0}, "num_train_steps must be 1 or more"),
        ({"num_train_steps": None, "num_train_epochs": 0.0}, "num_train_epochs must be a number"),
        ({"seq_len": 0}, "seq_len must be 1 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"long_conversations": "skip"}, "long_conversations must be one of drop, truncate"),
    ],
)
def test_bad_values_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    """Every value that makes no mixture is refused when the config is made."""
    with pytest.raises(InputError, match=message):
        make_config(folder, **changes)


def test_missing_cache_is_refused(folder: Path, tmp_path: Path) -> None:
    """A folder without a finished cache is named."""
    with pytest.raises(ChatInputError, match=r"must be a finished cache, got no shard_ledger.json"):
        mix_datasets(make_config(folder, caches=(str(tmp_path),)), str(tmp_path / "out"))


def test_reader_gives_lengths_and_trained_tokens(folder: Path) -> None:
    """Lengths and trained tokens come back as they were written, whole or cut."""
    split = str(folder / "short" / "train")

    lengths = read_row_lengths(split)

    assert lengths.tolist() == [4, 6, 8]
    assert read_trained_tokens(split, lengths, 100).tolist() == [2, 3, 4]
    assert read_trained_tokens(split, lengths, 5).tolist() == [2, 2, 1]


def test_table_is_shown(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user sees the counts, what is dropped, and the number of train steps."""
    mix_datasets(make_config(folder, seq_len=6), str(tmp_path))

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["data", "set", "rows", "tokens", "trained", "share", "passes"]
    assert lines[1].split() == ["short", "2", "10", "5", "100.0%", "5.00"]
    assert lines[2] == (
        "short: 1 of 3 conversations are longer than 6 tokens (up to 8) and are dropped"
    )
    assert lines[3] == "5 train steps of 2 rows x 6 tokens, 5.00 epochs"
