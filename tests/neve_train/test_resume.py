"""What a training that goes on must have in common with its checkpoints."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from neve_chat.cache import TreeCacheWriter
from neve_train.config import ExecutionConfig, LoraConfig, OptimizerConfig, TrainSftConfig
from neve_train.errors import TrainInputError

from steps.mix_datasets import MixDatasetsConfig, MixedDataset, mix_datasets

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # on the import of Levanter

MODEL = {"model_type": "llama", "hidden_size": 8, "eos_token_id": 1, "rope_theta": 10000.0}


@pytest.fixture
def config(tmp_path: Path) -> TrainSftConfig:
    """A training on one data set."""
    _write_cache(tmp_path, (4, 6, 8))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(MODEL))
    mix_datasets(
        MixDatasetsConfig(
            datasets=(MixedDataset(name="a", cache=str(tmp_path / "a")),),
            seq_len=8,
            batch_size=3,
            num_train_steps=2,
            model_config=str(tmp_path / "model"),
        ),
        str(tmp_path / "plan"),
    )
    return TrainSftConfig(
        model=str(tmp_path / "model"),
        tokenizer=str(tmp_path / "model"),
        plan=str(tmp_path / "plan"),
        caches=(str(tmp_path / "a"),),
        seq_len=8,
        batch_size=3,
    )


def _write_cache(folder: Path, lengths: tuple[int, ...]) -> None:
    split = folder / "a" / "train"
    with TreeCacheWriter(
        str(split), scratch=folder / "scratch", preprocessor_metadata={}
    ) as writer:
        for length in lengths:
            writer.append(np.arange(length, dtype=np.int32), np.ones(length, np.int32))


def describe(config: TrainSftConfig) -> dict[str, Any]:
    from haliax import Axis
    from neve_train.data import read_data, read_plan
    from neve_train.resume import describe_training

    return describe_training(
        config, read_data(config, read_plan(config), Axis("position", 8)).train
    )


def check(folder: Path, config: TrainSftConfig) -> None:
    from neve_train.resume import check_resumed

    check_resumed(str(folder), describe(config))


@pytest.fixture
def started(tmp_path: Path, config: TrainSftConfig) -> Path:
    """Output of a training that has begun."""
    folder = tmp_path / "output"
    folder.mkdir()
    (folder / "training.json").write_text(json.dumps(describe(config)))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"optimizer": OptimizerConfig(learning_rate=1e-4)},
            r"optimizer learning_rate must be .*, 5e-05, got 0\.0001\. Set it back",
        ),
        (
            {"optimizer": OptimizerConfig(schedule="linear")},
            "optimizer schedule .*, cosine, got linear",
        ),
        ({"precision": "p=f32,c=f32"}, "precision must be .*, p=f32,c=bfloat16, got p=f32,c=f32"),
        ({"seed": 1}, "seed must be .*, 0, got 1"),
        ({"z_loss": 0.1}, "z_loss must be"),
        ({"capacity_factor": 2.0}, "capacity_factor must be"),
        ({"adapter": LoraConfig()}, "adapter must be .*, None, got"),
    ],
)
def test_a_changed_choice_is_refused_with_both_values(
    started: Path, config: TrainSftConfig, change: dict[str, Any], message: str
) -> None:
    """Going on would train something else than both configs, without a word."""
    with pytest.raises(TrainInputError, match=message):
        check(started, dataclasses.replace(config, **change))


def test_a_training_may_go_on_in_another_way(started: Path, config: TrainSftConfig) -> None:
    """Mesh, microbatches and cadences are no part of what is trained."""
    execution = ExecutionConfig(mesh=(("data", 3),), per_device_batch_size=1, trackers=())

    check(started, dataclasses.replace(config, execution=execution))


def test_another_config_json_is_refused(started: Path, config: TrainSftConfig) -> None:
    """A resumed training and an export: no array tells another rotary base. End ids may change."""
    from neve_train.resume import check_model

    path = Path(config.model) / "config.json"
    path.write_text(json.dumps(MODEL | {"eos_token_id": [1, 7], "dtype": "bfloat16"}))
    check(started, config)
    check_model(str(started), config.model)
    path.write_text(json.dumps(MODEL | {"rope_theta": 5e5}))

    with pytest.raises(
        TrainInputError, match=r"model rope_theta must be .*, 10000\.0, got 500000\.0"
    ):
        check(started, config)
    for checkpoint in (started, started / "checkpoints", started / "checkpoints" / "step-3"):
        with pytest.raises(TrainInputError, match=r"rope_theta .*of the training, 10000\.0, got 5"):
            check_model(str(checkpoint), config.model)


def test_caches_made_anew_are_refused(
    started: Path, config: TrainSftConfig, tmp_path: Path
) -> None:
    """As many rows, up to as many tokens, but others: the rows at hand aren't those of before."""
    import shutil

    shutil.rmtree(tmp_path / "a")
    _write_cache(tmp_path, (4, 7, 8))

    with pytest.raises(TrainInputError, match="caches_digest must be"):
        check(started, config)


def test_caches_of_another_template_are_refused(
    started: Path, config: TrainSftConfig, tmp_path: Path
) -> None:
    """Rows of the same lengths with other masks, as far as the cache tells what it was made with."""
    (tmp_path / "a" / "stats.json").write_text(json.dumps({"template_digest": "other"}))

    with pytest.raises(TrainInputError, match="caches_digest must be"):
        check(started, config)
