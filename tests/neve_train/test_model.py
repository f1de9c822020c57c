"""Reading a Snowball's config: choices are kept, other models are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from neve_train.errors import TrainInputError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # on the import of Levanter

VALUES: dict[str, Any] = {
    "model_type": "grug_moe",
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}


def read(folder: str, **choices: Any) -> Any:
    """Reads the config; imported late, where the warnings of Levanter's import are let pass."""
    from neve_train.families import read_model_config

    return read_model_config(folder, **choices)


def folder(tmp_path: Path, **changes: Any) -> str:
    """Writes config.json."""
    (tmp_path / "config.json").write_text(json.dumps(VALUES | changes))
    return str(tmp_path)


def test_a_config_keeps_shape_and_choices(tmp_path: Path) -> None:
    """The shape comes from the folder; capacity and segments from the caller."""
    config = read(folder(tmp_path), capacity_factor=2.0, uses_segments=True)

    assert (config.num_experts, config.hidden_dim, config.num_layers) == (8, 64, 2)
    assert (config.capacity_factor, config.uses_segments) == (2.0, True)
    assert read(folder(tmp_path)).capacity_factor == 1.25


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    """What is missing is named."""
    with pytest.raises(TrainInputError, match=r"must hold config\.json, got none"):
        read(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type must be one of grug_moe, .*, got 'bert'"),
        ({"grugmoe_attention_mode": "other"}, "grugmoe_attention_mode"),
        ({"num_key_value_heads": 3}, "num_kv_heads"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Other types, other recipes and impossible shapes are one clear error."""
    with pytest.raises(TrainInputError, match=message):
        read(folder(tmp_path, **changes))
