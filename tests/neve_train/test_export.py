"""Export: of the toy, trained on eight virtual devices, of a small Qwen3, and of a larger model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neve_chat.templates import load_template, serving_template, tokenizer_template
from neve_train.errors import TrainInputError
from neve_train.tokenizer_files import check_template

PROGRAM = Path(__file__).with_name("export_run.py")
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def meshed(run_toy: Run) -> dict[str, Any]:
    """Results of training, export and comparison on context 2 x expert 4."""
    return run_toy("meshed", num_devices=8, program=PROGRAM)


def test_export_is_the_checkpoint_bit_for_bit(meshed: dict[str, Any]) -> None:
    """Tensors are those that Levanter writes of the whole model, and so are the logits."""
    assert meshed["num_devices"] == 8
    assert meshed["different"] == []
    assert meshed["num_tensors"] == 46  # 19 a layer, and 8
    assert meshed["is_equal"]
    assert meshed["dtype"] == "bfloat16"
    assert meshed["spread"] > 0.1  # the logits are not all alike
    assert meshed["trained"]["heldout_loss"] < meshed["trained"]["heldout_loss_first"]


def test_verify_compares_every_tensor_and_names_what_differs(meshed: dict[str, Any]) -> None:
    """One flipped bit in one file of several is found."""
    assert meshed["verified"]["num_tensors"] == 46
    assert meshed["verified"]["train_step"] == 8
    assert meshed["verified"]["parameters"] == meshed["export"]["parameters"]
    assert "1 wrong" in meshed["refusal"]
    assert "differs in 1 of" in meshed["refusal"]


def test_export_splits_files_at_the_limit(meshed: dict[str, Any], toy: Path) -> None:
    """No file with several tensors is over the limit, and the index names every tensor."""
    folder = toy / "hf"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))

    assert sorted(set(index["weight_map"].values())) == files
    assert len(files) > 2
    assert len(index["weight_map"]) == meshed["num_tensors"]
    assert index["metadata"]["total_size"] == 2 * meshed["export"]["parameters"]
    for name in files:
        num_tensors = sum(file == name for file in index["weight_map"].values())
        assert num_tensors == 1 or (folder / name).stat().st_size < 100_000 + 8192


def test_export_holds_the_template_and_every_end_of_turn(meshed: dict[str, Any], toy: Path) -> None:
    """Template without marks in both places, all end ids in both configs, tokenizer unchanged."""
    folder = toy / "hf"
    template = load_template("marin").text
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    ends = sorted([7, ids["<|end_of_text|>"], ids["<|eot_id|>"]])

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    generation = json.loads((folder / "generation_config.json").read_text())
    config = json.loads((folder / "config.json").read_text())

    served = (folder / "chat_template.jinja").read_text()
    assert served == serving_template(template) == settings["chat_template"]
    assert tokenizer_template(str(folder)).text == template
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert generation["eos_token_id"] == ends == config["eos_token_id"]
    assert (generation["temperature"], generation["top_p"]) == (0.6, 0.9)
    assert meshed["export"]["eos_token_ids"] == ends
    assert config["dtype"] == "bfloat16"
    original = toy / "tokenizer" / "tokenizer.json"
    assert (folder / "tokenizer.json").read_bytes() == original.read_bytes()


def test_export_of_stacked_layers_is_what_levanter_writes(run_toy: Run) -> None:
    """A small Qwen3, whose layers lie in one array each: the same file, byte for byte."""
    results = run_toy("qwen3", program=PROGRAM)

    assert results["different"] == []
    assert results["same_file"]
    assert results["is_equal"]
    assert results["spread"] > 0.1
    assert results["verified"]["num_tensors"] == results["num_tensors"] == 3 * 11 + 3


@pytest.mark.full
def test_export_needs_memory_for_a_tensor_not_for_the_model(run_toy: Run, toy: Path) -> None:
    """Of a model of 77 MB the process grows by a few of its largest tensors."""
    run_toy("large", program=PROGRAM)  # saves it in another process

    results = run_toy("large", program=PROGRAM)

    assert results["checkpoint_bytes"] > 70 << 20
    assert results["written_bytes"] > results["checkpoint_bytes"] // 2
    assert results["grown_bytes"] < results["checkpoint_bytes"] // 4
    shutil.rmtree(toy / "large")


def test_check_template_refuses_another_template_than_the_tokens(tmp_path: Path) -> None:
    """The template that goes with the weights is the one that the tokens were made with."""
    # sha256 of "abc"
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    (tmp_path / "stats.json").write_text(json.dumps({"template_digest": digest}))

    check_template("abc", [str(tmp_path)])
    with pytest.raises(TrainInputError, match=r"must be the one of the tokens in .* ba7816bf8f01"):
        check_template("abd", [str(tmp_path)])
