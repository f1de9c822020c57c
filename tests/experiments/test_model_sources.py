"""Where a recipe's model comes from: the hub, an earlier recipe, a native checkpoint."""

import dataclasses
from pathlib import Path

import pytest
from neve import InputError, make_plan

from experiments.sft.configs.snowball_h100 import SPEC
from experiments.sft.launcher import sft_steps
from experiments.sft.sources import HubModel, NativeCheckpoint, TrainedModel
from experiments.sft.spec import LoraConfig, OptimizerConfig, SFTSpec
from steps.export_hf import export_hf
from steps.export_lora import export_lora

DEVICES = "32xH100"
BASE = HubModel(repo="organization/name", revision="0123456789abcdef0123456789abcdef01234567")


def second(first: SFTSpec, **fields: object) -> SFTSpec:
    """Returns a second training of the same data, from what the first one trains."""
    return dataclasses.replace(first, name="second", model=TrainedModel(spec=first), **fields)


def fingerprint(spec: SFTSpec, role: str) -> str:
    """Returns the fingerprint of one step of a spec."""
    step = getattr(sft_steps(spec, DEVICES), role)
    return next(
        row.fingerprint for row in make_plan([step], "/nowhere").rows if row.name == step.name
    )


def test_a_second_training_runs_the_first_one_before_it() -> None:
    """Its checkpoint is the second one's start; the data's steps are shared."""
    names = [
        row.name for row in make_plan([sft_steps(second(SPEC), DEVICES).last], "/nowhere").rows
    ]
    config = sft_steps(second(SPEC), DEVICES).checkpoint.config

    assert names.count("tokenized/openthoughts-agent") == 1
    assert names.index(f"checkpoints/{SPEC.name}") < names.index("checkpoints/second")
    assert f"exports/{SPEC.name}" not in names
    assert config.initial_checkpoint.name == f"checkpoints/{SPEC.name}"
    assert config.model.name.startswith("tokenizers/")


def test_a_second_training_is_another_one_after_another_first() -> None:
    """What the first one learned is part of what the second one is; how it ran isn't."""
    other = dataclasses.replace(SPEC, optimizer=OptimizerConfig(learning_rate=1e-4))
    slower = dataclasses.replace(SPEC, checkpoint_every_seconds=60)

    same = fingerprint(second(SPEC), "checkpoint")
    assert fingerprint(second(other), "checkpoint") != same
    assert fingerprint(second(slower), "checkpoint") == same
    assert fingerprint(second(other), "mixture") == fingerprint(second(SPEC), "mixture")


def test_three_trainings_make_a_chain() -> None:
    """A trained model can itself have started from a trained model."""
    third = dataclasses.replace(SPEC, name="third", model=TrainedModel(spec=second(SPEC)))

    names = [row.name for row in make_plan([sft_steps(third, DEVICES).last], "/nowhere").rows]

    wanted = [f"checkpoints/{name}" for name in (SPEC.name, "second", "third")]
    assert [name for name in names if name.startswith("checkpoints/")] == wanted
    assert third.model.eos_token_ids == SPEC.model.eos_token_ids


def test_a_training_after_adapters_starts_from_the_merged_model() -> None:
    """Checkpoints of adapters hold no base weights, so the folder with merged weights is the start."""
    first = dataclasses.replace(SPEC, adapter=LoraConfig(rank=8))

    config = sft_steps(second(first, adapter=None), DEVICES).checkpoint.config

    assert config.initial_checkpoint is None
    assert config.model.name == f"exports/{SPEC.name}"


def test_adapters_are_exported_merged_and_apart() -> None:
    """The export knows the base weights, the adapters and the repository they belong to."""
    spec = dataclasses.replace(SPEC, model=BASE, adapter=LoraConfig(rank=8))
    export = sft_steps(spec, DEVICES).export

    assert sft_steps(SPEC, DEVICES).export.fn is export_hf
    assert export.fn is export_lora
    assert export.config.model.name.startswith("models/")
    assert (export.config.repo, export.config.revision) == (BASE.repo, BASE.revision)
    assert "adapter/adapter_model.safetensors" in export.outputs


def test_a_native_checkpoint_is_adopted_by_its_content(tmp_path: Path) -> None:
    """The same files elsewhere are the same model; other files are another; nothing is written there."""

    def spec(folder: str, data: str) -> SFTSpec:
        step = tmp_path / folder / "run" / "step-9"
        step.mkdir(parents=True)
        (step / "metadata.json").write_text(data)
        source = NativeCheckpoint(path=str(tmp_path / folder / "run"), model=BASE)
        return dataclasses.replace(SPEC, model=source)

    first, moved, other = spec("a", "one"), spec("b", "one"), spec("c", "two")
    before = sorted(tmp_path.rglob("*"))
    config = sft_steps(first, DEVICES).checkpoint.config

    assert config.initial_checkpoint.name == "models/run"
    assert config.model.name.startswith("tokenizers/")
    assert fingerprint(first, "checkpoint") == fingerprint(moved, "checkpoint")
    assert fingerprint(first, "checkpoint") != fingerprint(other, "checkpoint")
    assert first.model.eos_token_ids == BASE.eos_token_ids
    assert sorted(tmp_path.rglob("*")) == before


def test_a_native_checkpoint_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """At plan, with the path."""
    source = NativeCheckpoint(path=str(tmp_path / "none"), model=BASE)

    with pytest.raises(InputError, match=r"must exist, got nothing at .*none"):
        sft_steps(dataclasses.replace(SPEC, model=source), DEVICES)
