"""Low-rank adapters: trained alone, merged, and as PEFT reads them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neve_train.config import ExecutionConfig, LoraConfig, TrainSftConfig
from neve_train.errors import TrainInputError

from steps.train_sft import train_sft

PROGRAM = Path(__file__).with_name("family_run.py")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": 0}, "rank must be a whole number from 1, got 0"),
        ({"alpha": 0.0}, r"alpha must be above 0, got 0\.0"),
        ({"dropout": 1.0}, r"dropout must be from 0 to below 1, got 1\.0"),
    ],
)
def test_adapters_with_a_number_out_of_range_are_refused(
    fields: dict[str, Any], message: str
) -> None:
    """Each is one sentence with rule and value."""
    with pytest.raises(TrainInputError, match=message):
        LoraConfig(**fields)


def test_adapters_on_snowball_are_refused_with_the_families_that_take_them(tmp_path: Path) -> None:
    """Its layers aren't haliax's; that is said before anything heavy is loaded."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "grug_moe"}))
    config = TrainSftConfig(
        model=str(tmp_path),
        tokenizer=str(tmp_path),
        plan=str(tmp_path),
        caches=(str(tmp_path),),
        seq_len=128,
        batch_size=4,
        adapter=LoraConfig(),
        execution=ExecutionConfig(),
    )

    with pytest.raises(TrainInputError, match=r"family with .* \(llama, .*qwen3.*\), got snowball"):
        train_sft(config, str(tmp_path / "out"))


@pytest.fixture(scope="module")
def adapted(run_toy: Callable[..., Any]) -> dict[str, Any]:
    """Results of training adapters of rank 4 on q_proj and down_proj of a Qwen3 of two layers."""
    return run_toy("adapted", program=PROGRAM)


@pytest.mark.full
def test_adapters_begin_as_no_change_and_learn(adapted: dict[str, Any]) -> None:
    """Fresh ones give the base model's logits bit for bit; trained ones lower the held-out loss."""
    assert adapted["fresh_changes_nothing"]
    assert adapted["learned"] > 0.01
    assert adapted["trained"]["heldout_loss"] < adapted["trained"]["heldout_loss_first"]


@pytest.mark.full
def test_training_adapters_resumes_exactly(adapted: dict[str, Any]) -> None:
    """A run stopped after a checkpoint, which holds no base weight, gives the same losses."""
    assert adapted["resumed_from"] == 3
    assert adapted["losses_after_stop"] == adapted["losses"]


@pytest.mark.full
def test_checkpoints_of_adapters_leave_the_base_model_out(adapted: dict[str, Any]) -> None:
    """2 layers x (4 x (64 + 128) + 4 x (96 + 64)) = 2,816 parameters, with two moments in f32."""
    assert adapted["export"]["adapter_parameters"] == 2_816
    assert adapted["checkpoint_bytes"] < adapted["model_bytes"] / 2


@pytest.mark.full
def test_merged_weights_are_base_plus_scaled_product(adapted: dict[str, Any]) -> None:
    """numpy's W + alpha / r * B A from the PEFT folder is the merged folder; all else is the base's.

    Sums of four products of numbers below 1, in f32.
    """
    assert adapted["num_adapted"] == 4
    assert adapted["merge_error"] < 1e-6


@pytest.mark.full
def test_merged_model_gives_the_logits_of_base_and_adapters(adapted: dict[str, Any]) -> None:
    """Two ways to sum the same f32 products, through two layers."""
    assert adapted["logit_error"] < 1e-4
    assert adapted["logit_error"] < adapted["learned"] / 100


@pytest.mark.full
def test_adapter_folder_is_what_peft_reads(adapted: dict[str, Any]) -> None:
    """Names and fields are PEFT's, and the base model is named with its commit."""
    facts = adapted["facts"]

    assert facts["peft_type"] == "LORA"
    assert (facts["r"], facts["lora_alpha"], facts["task_type"]) == (4, 8.0, "CAUSAL_LM")
    assert facts["target_modules"] == ["down_proj", "q_proj"]
    assert facts["base_model_name_or_path"] == "organization/name"
    assert facts["revision"] == "0" * 40
    assert adapted["names"] == sorted(
        f"base_model.model.model.layers.{layer}.{module}.lora_{part}.weight"
        for layer in (0, 1)
        for module in ("self_attn.q_proj", "mlp.down_proj")
        for part in "AB"
    )


@pytest.mark.full
def test_a_target_that_is_no_linear_layer_is_named(adapted: dict[str, Any]) -> None:
    """With the layers that could be meant."""
    assert "got qproj" in adapted["refusal"]
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj" in adapted["refusal"]


@pytest.mark.full
def test_dropout_of_adapters_takes_effect(adapted: dict[str, Any]) -> None:
    """The same training without it ends elsewhere."""
    assert adapted["with_dropout"] != adapted["without_dropout"]
