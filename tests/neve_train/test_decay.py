"""Which tensors weight decay makes smaller, shown by updates without gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neve_train.config import OptimizerConfig
from neve_train.errors import TrainInputError

Run = Callable[..., Any]

PROGRAM = Path(__file__).with_name("decay_run.py")


@pytest.fixture(scope="module")
def run(run_toy: Run) -> dict[str, Any]:
    """What decay_run.py found."""
    return run_toy("all", 1, PROGRAM)


def untouched(found: dict[str, bool]) -> set[str]:
    """Returns the names of what stays as it is."""
    return {name for name, shrinks in found.items() if not shrinks}


@pytest.mark.full
def test_snowball_keeps_norms_and_router_bias(run: dict[str, Any]) -> None:
    """All scales of norms and the router's bias; gates, router and embeddings are matrices."""
    found = run["shrunk"]["snowball"]

    layers = {f"transformer.blocks.{layer}" for layer in range(2)}
    kept = {
        f"{layer}.{name}"
        for layer in layers
        for name in ("rms_attn.weight", "rms_mlp.weight", "mlp.router_bias")
    }
    assert untouched(found) == kept | {
        "transformer.embed_norm.weight",
        "transformer.final_norm.weight",
    }
    for name in ("token_embed", "output_proj", "blocks.1.mlp.router", "blocks.0.attn.attn_gate"):
        assert found[f"transformer.{name}"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("qwen2", ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"]),
        ("qwen3", ["self_attn.q_norm.weight", "self_attn.k_norm.weight"]),
    ],
)
def test_qwen_keeps_norms_biases_and_embedding(
    family: str, names: list[str], run: dict[str, Any]
) -> None:
    """Nothing else is kept; a head of its own decays like any matrix."""
    found = run["shrunk"][family]

    stem = "transformer.layers.stacked"
    names = [*names, "input_layernorm.weight", "post_attention_layernorm.weight"]
    assert untouched(found) == {
        "embeddings.token_embeddings.weight",
        "transformer.norm.weight",
        *(f"{stem}.{name}" for name in names),
    }
    assert found.get("lm_head.weight", True)


@pytest.mark.full
def test_what_is_asked_for_decays_too(run: dict[str, Any]) -> None:
    """router_bias and the norms before attention, in every layer, and nothing more than before."""
    before, after = run["shrunk"]["snowball"], run["shrunk"]["asked"]

    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        f"transformer.blocks.{layer}.{name}"
        for layer in range(2)
        for name in ("rms_attn.weight", "mlp.router_bias")
    }
    assert all(after[name] for name in changed)


@pytest.mark.full
def test_a_name_that_no_tensor_has_is_refused(run: dict[str, Any]) -> None:
    """Hugging Face's name of it isn't Levanter's; those that there are are listed."""
    assert "decay_also must name trained tensors, got 'router.bias'" in run["refusal"]
    assert "mlp.router_bias" in run["refusal"]


@pytest.mark.parametrize("names", ["router_bias", ("",)])
def test_names_are_a_list_of_parts(names: Any) -> None:
    """A string would be read letter by letter, and an empty part is in every name."""
    with pytest.raises(TrainInputError, match="decay_also must be a list of parts of names"):
        OptimizerConfig(decay_also=names)
