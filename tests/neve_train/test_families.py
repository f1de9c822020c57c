"""Models of other kinds than Snowball: the same spec, the same steps."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neve_train.errors import TrainInputError
from neve_train.families import FAMILIES, family_of, model_split
from neve_train.mesh import check_mesh

from steps.train_sft import ExecutionConfig, TrainSftConfig, train_sft

PROGRAM = Path(__file__).with_name("family_run.py")
Run = Callable[..., Any]


def folder_of(path: Path, **values: Any) -> str:
    """Writes a config.json and returns its folder."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(values))
    return str(path)


def test_family_of_names_the_families_that_there_are(tmp_path: Path) -> None:
    """A model_type that nothing reads is one sentence with those that are read."""
    folder = folder_of(tmp_path / "model", model_type="bert")

    with pytest.raises(TrainInputError, match=r"must be one of grug_moe, llama, .*, got 'bert'"):
        family_of(folder)


def test_family_of_says_what_is_wrong_with_levanters_other_models(tmp_path: Path) -> None:
    """Levanter would train a Gemma 3 with another attention than its own, without a word."""
    folder = folder_of(tmp_path / "model", model_type="gemma3_text")

    with pytest.raises(TrainInputError, match=r"'gemma3_text', which Levanter has but computes an"):
        family_of(folder)


def test_family_of_asks_for_a_config(tmp_path: Path) -> None:
    """A folder without config.json is no model."""
    with pytest.raises(TrainInputError, match=r"must hold config\.json, got none"):
        family_of(str(tmp_path))


@pytest.mark.parametrize("axis", ["expert", "context"])
def test_mesh_axes_that_a_family_cannot_be_split_over_are_refused(
    axis: str, tmp_path: Path
) -> None:
    """Levanter's dense models are split over data and model; Snowball over all four axes."""
    split = model_split(folder_of(tmp_path / "model", model_type="qwen3"))

    with pytest.raises(TrainInputError, match=f"can only be data, model, got {axis} 4"):
        check_mesh(8, {"data": 2, axis: 4}, 8, 128, split)

    sizes = check_mesh(8, {"data": 4, "model": 2}, 8, 128, split)
    assert sizes == {"data": 4, "expert": 1, "context": 1, "model": 2}
    assert FAMILIES["grug_moe"].mesh_axes == ("data", "expert", "context", "model")


SNOWBALL = {
    "model_type": "grug_moe", "vocab_size": 128_256, "hidden_size": 2560, "num_experts": 256,
    "num_attention_heads": 20, "num_key_value_heads": 5, "moe_intermediate_size": 1280,
    "shared_expert_intermediate_size": 2560,
}  # fmt: skip
QWEN3_MOE = {"model_type": "qwen3_moe", "hidden_size": 60, "moe_intermediate_size": 31}


@pytest.mark.parametrize(
    ("config", "mesh", "rule"),
    [
        (
            SNOWBALL,
            {"expert": 4, "model": 2},
            "model must divide .* num_key_value_heads of 5, got 2",
        ),
        (SNOWBALL | {"vocab_size": 7}, {"data": 4, "model": 2}, "vocab_size of 7, got 2"),
        (SNOWBALL | {"hidden_size": 60}, {"data": 4, "context": 2}, "data x context .* 60, got 8"),
        (SNOWBALL | {"num_experts": 6}, {"data": 2, "expert": 4}, "num_experts of 6, got 4"),
        (QWEN3_MOE, {"data": 4, "model": 2}, "moe_intermediate_size of 31, got 2"),
        (QWEN3_MOE, {"data": 8}, "data must divide the model's hidden_size of 60, got 8"),
    ],
)
def test_sizes_that_a_mesh_cannot_split_evenly_are_refused(
    config: dict[str, Any], mesh: dict[str, int], rule: str, tmp_path: Path
) -> None:
    """The step says so before it imports what would break down over it; 4 x 8 devices hold Snowball."""
    folder = folder_of(tmp_path / "model", **config)
    training = TrainSftConfig(
        model=folder, tokenizer=folder, plan=folder, caches=(folder,), seq_len=128, batch_size=8,
        execution=ExecutionConfig(mesh=tuple(mesh.items())),
    )  # fmt: skip

    with pytest.raises(TrainInputError, match=rule):
        train_sft(training, str(tmp_path / "output"))

    published = model_split(folder_of(tmp_path / "published", **SNOWBALL))
    check_mesh(32, {"context": 4, "expert": 8}, 8, 32_768, published)
    check_mesh(8, {"data": 8}, 8, 32_768, published)


@pytest.fixture(scope="module")
def round_trips(run_toy: Run) -> dict[str, Any]:
    """Results of writing, reading and packing with a small model of each family."""
    return run_toy("round_trips", program=PROGRAM)


@pytest.mark.full
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"grug_moe"}))
def test_each_family_is_read_and_written_without_loss(
    family: str, round_trips: dict[str, Any]
) -> None:
    """All tensors of the folder come back bit for bit, under the same names."""
    result = round_trips[family]

    assert result["num_tensors"] > 10
    assert result["is_equal"]


@pytest.mark.full
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"grug_moe"}))
def test_each_family_keeps_conversations_of_a_row_apart(
    family: str, round_trips: dict[str, Any]
) -> None:
    """Logits in a packed row are those of the conversation alone, up to the order of f32 sums.

    Rotary angles at other positions round differently: a few units of 1e-7 per term, through two layers.
    """
    result = round_trips[family]

    assert result["spread"] > 0.05
    assert result["packed"] < 1e-3 * result["spread"]
    assert result["unmasked"] > 0.1 * result["spread"]


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "mistral", "olmo3", "qwen2", "qwen3"])
def test_a_folder_gives_the_logits_of_its_formulas(
    family: str, round_trips: dict[str, Any]
) -> None:
    """numpy in float64 reads the same config.json and tensors; what differs is f32's rounding."""
    result = round_trips[family]

    assert result["reference_error"] < 1e-4 * max(result["spread"], 1.0)


@pytest.mark.full
def test_a_config_that_levanter_would_compute_otherwise_is_refused(
    round_trips: dict[str, Any],
) -> None:
    """What Levanter's config would drop without a word is named, before any weight is read."""
    lost = [
        "attention_bias=True", "head_dim=32", "sliding_window=64", "sliding_window=64",
        "head_dim=32", *["attention_bias=True"] * 2, "rope_parameters=",
    ]  # fmt: skip

    *refusals, invalid = round_trips["refusals"]
    assert len(refusals) == len(lost)
    for text, name in zip(refusals, lost, strict=True):
        assert f"doesn't carry out, got {name}" in text
    assert "must be one that Levanter's LlamaConfig reads, got " in invalid


@pytest.mark.full
def test_olmo3s_rotary_parameters_by_kind_of_layer_are_the_flat_ones(
    round_trips: dict[str, Any],
) -> None:
    """Newer transformers write them so: scaled under full attention, and unscaled with a window."""
    assert round_trips["rope_by_kind_is_equal"]


@pytest.fixture(scope="module")
def trained(run_toy: Run) -> dict[str, Any]:
    """Results of training a Qwen3 on packed rows and a Llama on separate ones."""
    return run_toy("trained", program=PROGRAM)


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_dense_model_trains_and_resumes_like_snowball(
    family: str, trained: dict[str, Any]
) -> None:
    """Held-out loss falls, and a run stopped after a checkpoint gives the same losses bit for bit."""
    result = trained[family]

    assert result["trained"]["heldout_loss"] < result["trained"]["heldout_loss_first"]
    assert result["resumed_from"] == 3
    assert result["losses_after_stop"] == result["losses"]
    assert len(result["losses"]) == 9


@pytest.mark.full
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_dense_models_export_is_its_checkpoint_in_bfloat16(
    family: str, trained: dict[str, Any]
) -> None:
    """The folder, read again, gives the logits of the checkpoint cast to bfloat16."""
    result = trained[family]

    assert result["is_equal"]
    assert result["spread"] > 0.05
    assert result["train_step"] == 8
    assert result["config"]["model_type"] == family
    assert result["config"]["dtype"] == "bfloat16"


@pytest.mark.full
def test_a_dense_model_trains_alike_on_one_and_eight_devices(
    trained: dict[str, Any], run_toy: Run
) -> None:
    """Data 4 x model 2 sums the same f32 terms in another order, eight train steps long."""
    one = trained["qwen3"]["trained"]

    eight = run_toy("meshed", num_devices=8, program=PROGRAM)

    for name in ("final_loss", "heldout_loss_first", "heldout_loss"):
        assert eight[name] == pytest.approx(one[name], abs=1e-4)


@pytest.mark.full
def test_a_second_training_starts_from_the_weights_of_the_first(trained: dict[str, Any]) -> None:
    """Its held-out loss begins where the first one's ended, at train step 0, with a fresh optimizer."""
    first, second = trained["qwen3"]["trained"], trained["second_stage"]

    assert second["heldout_loss_first"] == pytest.approx(first["heldout_loss"], abs=1e-6)
    assert second["resumed_from"] is None
    assert second["heldout_loss"] < second["heldout_loss_first"]
