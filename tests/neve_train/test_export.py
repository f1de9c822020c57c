"""Export of the toy, trained on eight virtual devices."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neve_chat.templates import load_template


@pytest.fixture(scope="module")
def exported(run_toy: Callable[..., tuple[int, Any]]) -> dict[str, Any]:
    """Results of training, export and comparison on context 2 x expert 4."""
    return run_toy("exported", num_devices=8)[1]


def test_export_gives_the_logits_of_the_checkpoint_bit_for_bit(exported: dict[str, Any]) -> None:
    """The folder, loaded again on the same mesh, is the checkpoint cast to bfloat16."""
    assert exported["num_devices"] == 8
    assert exported["is_equal"]
    assert exported["dtype"] == "bfloat16"
    assert exported["spread"] > 0.1  # the logits are not all alike
    assert exported["capacity"] == 1.25
    assert exported["trained"]["heldout_loss"] < exported["trained"]["heldout_loss_first"]


def test_export_holds_the_training_template_and_every_end_of_turn(
    exported: dict[str, Any], toy: Path
) -> None:
    """Template in both places, end of text and end of turn in both configs, tokenizer unchanged."""
    folder = toy / "hf"
    template = load_template("marin").text
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ends = sorted([ids["<|end_of_text|>"], ids["<|eot_id|>"]])

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())

    assert (folder / "chat_template.jinja").read_text() == template == settings["chat_template"]
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert generation["eos_token_id"] == ends == config["eos_token_id"]
    assert exported["export"]["eos_token_ids"] == ends
    assert config["dtype"] == "bfloat16"
    original = toy / "tokenizer" / "tokenizer.json"
    assert (folder / "tokenizer.json").read_bytes() == original.read_bytes()
