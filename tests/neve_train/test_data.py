"""Plans that don't fit what is trained on are refused before anything is trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.cache import TreeCacheWriter
from neve_chat.errors import ChatInputError
from neve_chat.row_plan import SEGMENT, RowPlan
from neve_train.config import TrainSftConfig
from neve_train.errors import TrainInputError

from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # on the import of Levanter

LENGTHS = (4, 6, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two data sets of three rows and a plan of two train steps of three rows of 8 tokens."""
    for name in ("a", "b"):
        split = tmp_path / name / "train"
        writer = TreeCacheWriter(str(split), scratch=split / "scratch", preprocessor_metadata={})
        with writer:
            for length in LENGTHS:
                writer.append(np.arange(length, dtype=np.int32), np.ones(length, np.int32))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    config = MixDatasetsConfig(
        datasets=tuple(MixedDataset(name=name, cache=str(tmp_path / name)) for name in ("a", "b")),
        seq_len=8,
        batch_size=3,
        num_train_steps=2,
        model_config=str(tmp_path / "model"),
    )
    mix_datasets(config, str(tmp_path / "plan"))
    return tmp_path


def read(folder: Path, **changes: Any) -> Any:
    from haliax import Axis
    from neve_train.data import read_data, read_plan

    values: dict[str, Any] = {
        "model": "x",
        "tokenizer": "x",
        "plan": str(folder / "plan"),
        "caches": (str(folder / "a"), str(folder / "b")),
        "seq_len": 8,
        "batch_size": 3,
    }
    config = TrainSftConfig(**(values | changes))
    return read_data(config, read_plan(config), Axis("position", 8))


def test_a_plan_that_fits_is_read(folder: Path) -> None:
    """Its rows, and no held-out ones."""
    data = read(folder)

    assert data.train.plan.num_rows == 6
    assert data.validation == []


def test_loss_weights_survive_packing(tmp_path: Path) -> None:
    """Rows of 5, 3 and 6 tokens in rows of 8; weights follow the masks, whatever the tokens are.

    Token 14 after an inner end of text (1) keeps its weight, the first row's inner end keeps its 0;
    all weights together are those of the rows alone. Source: trl#3728.
    """
    rows = [
        ([3, 10, 1, 11, 1], [0, 0, 0, 1, 1]),
        ([3, 12, 1], [0, 1, 1]),
        ([3, 13, 1, 14, 15, 1], [0, 1, 1, 1, 1, 1]),
    ]
    split = tmp_path / "a" / "train"
    with TreeCacheWriter(str(split), scratch=split / "scratch", preprocessor_metadata={}) as writer:
        for ids, mask in rows:
            writer.append(np.array(ids, np.int32), np.array(mask, np.int32))
    (tmp_path / "config.json").write_text("{}")
    mix_datasets(
        MixDatasetsConfig(
            datasets=(MixedDataset(name="a", cache=str(tmp_path / "a")),),
            seq_len=8,
            batch_size=2,
            num_train_epochs=1,
            packing="packed",
            model_config=str(tmp_path),
        ),
        str(tmp_path / "plan"),
    )

    data = read(tmp_path, caches=(str(tmp_path / "a"),), batch_size=2)

    examples = data.train.as_sync_dataset().get_batch([0, 1])
    # The weight at a position is that of the next token: moved right by one they stand at the tokens.
    got = sorted(
        (
            example.tokens.array.tolist(),
            [0, *example.loss_weight.array.astype(int).tolist()[:-1]],
            example.attn_mask.segment_ids[0].array.tolist(),
        )
        for example in examples
    )
    assert got == [
        ([3, 10, 1, 11, 1, 3, 12, 1], [0, 0, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]),
        ([3, 13, 1, 14, 15, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0, -1, -1]),
    ]
    assert sum(sum(weights) for _, weights, _ in got) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 2}, r"batch_size must be the one of the mixture .*, got 2 and 3 there"),
        ({"seq_len": 16}, r"seq_len must be the one of the mixture .*, got 16 and 8 there"),
        ({"caches": ("only",)}, r"number of caches must be .*, got 1 and 2 there"),
        ({"plan": "/nowhere"}, r"must hold plan\.json, got none"),
    ],
)
def test_a_plan_for_something_else_is_refused(
    folder: Path, changes: dict[str, Any], message: str
) -> None:
    """Both values are told. Source: verl#7401, a resume with another batch size."""
    with pytest.raises(TrainInputError, match=message):
        read(folder, **changes)


def test_a_plan_of_another_form_is_refused(folder: Path) -> None:
    """What an older version wrote has no rows."""
    path = folder / "plan" / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 1}))

    with pytest.raises(TrainInputError, match="must have format 2, got 1"):
        read(folder)


def test_a_plan_with_fewer_rows_than_train_steps_is_refused(folder: Path) -> None:
    """Training never ends early without a word."""
    RowPlan.load(str(folder / "plan" / "train")).rows(0, 5).save(str(folder / "plan" / "train"))

    with pytest.raises(TrainInputError, match="must hold 6 rows for 2 train steps, got 5"):
        read(folder)


@pytest.mark.parametrize(
    ("segment", "message"),
    [
        ((2, 0, 0, 4), "data set 2 of 2 caches"),
        ((1, 3, 0, 4), "row 3 of 3"),
        ((0, 1, 0, 7), "tokens beyond the end of a row"),
        ((0, 1, 4, 4), "tokens beyond the end of a row"),
    ],
)
def test_a_plan_beyond_its_caches_is_refused(
    folder: Path, segment: tuple[int, int, int, int], message: str
) -> None:
    """Rows and tokens that aren't there are found before the first train step."""
    segments = np.array([segment] * 6, dtype=SEGMENT)
    RowPlan(segments, np.arange(1, 7)).save(str(folder / "plan" / "train"))

    with pytest.raises(TrainInputError, match=message):
        read(folder)


def test_rows_that_are_too_long_are_refused(folder: Path) -> None:
    """Two whole conversations that don't fit in 8 tokens."""
    segments = np.array([(0, 1, 0, 6), (0, 0, 0, 4)] * 6, dtype=SEGMENT)
    RowPlan(segments, np.arange(2, 13, 2)).save(str(folder / "plan" / "train"))

    with pytest.raises(TrainInputError, match="10 tokens in a row of 8"):
        read(folder)


def test_a_cache_made_anew_since_the_plan_is_refused(folder: Path) -> None:
    """Or one in another's place: its rows aren't those that were planned."""
    split = folder / "c" / "train"
    with TreeCacheWriter(str(split), scratch=split / "scratch", preprocessor_metadata={}) as writer:
        for length in (*LENGTHS, 5):
            writer.append(np.arange(length, dtype=np.int32), np.ones(length, np.int32))

    with pytest.raises(
        TrainInputError,
        match=r"c must be the one of data set 'b', with 3 rows of up to 8 tokens, got 4 of up to 8",
    ):
        read(folder, caches=(str(folder / "a"), str(folder / "c")))


def test_another_tokenizer_than_that_of_the_tokens_is_refused(folder: Path) -> None:
    """Token ids of another tokenizer train without an error, and to no use."""
    (folder / "model" / "tokenizer.json").write_text("abc")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # sha256 of abc
    (folder / "a" / "stats.json").write_text(json.dumps({"tokenizer_digest": digest}))
    read(folder, tokenizer=str(folder / "model"))
    (folder / "model" / "tokenizer.json").write_text("abd")

    with pytest.raises(TrainInputError, match=r"tokens in .*/a, got sha256 \w+ for ba7816bf8f01"):
        read(folder, tokenizer=str(folder / "model"))


def test_a_cache_that_is_gone_is_refused(folder: Path) -> None:
    """The path is named."""
    with pytest.raises(ChatInputError, match=r"gone/train: must be a finished cache"):
        read(folder, caches=(str(folder / "a"), str(folder / "gone")))
