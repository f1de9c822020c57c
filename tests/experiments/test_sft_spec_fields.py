"""The table docs/reference/sft_spec.md against what a change of each field really does."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from neve import make_plan

from experiments.sft.configs.snowball_h100 import SPEC
from experiments.sft.launcher import sft_steps
from experiments.sft.sources import HubDataset, HubModel
from experiments.sft.spec import (
    DatasetSpec,
    LoraConfig,
    LossOptions,
    MeshSpec,
    OptimizerConfig,
    SFTSpec,
    TrackerSpec,
    UploadSpec,
)

TABLE = Path(__file__).resolve().parents[2] / "docs/reference/sft_spec.md"
OTHER_REVISION = "0123456789abcdef0123456789abcdef01234567"
ROLES = {
    "tokenizers": "tokenizer",
    "models": "weights",
    "mixtures": "mixture",
}

CHANGED: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "model": {"model": HubModel(repo="other/model", revision=OTHER_REVISION)},
    "datasets": {
        "datasets": (
            DatasetSpec(
                name="openthoughts-agent",
                source=HubDataset(repo="other/data", revision=OTHER_REVISION),
            ),
        )
    },
    "chat_template": {"chat_template": "chatml"},
    "loss": {"loss": LossOptions(train_turns="last")},
    "validation_fraction": {"validation_fraction": 0.1},
    "optimizer": {"optimizer": OptimizerConfig(learning_rate=1e-4)},
    "adapter": {"adapter": LoraConfig()},
    "seq_len": {"seq_len": 16_384},
    "packing": {"packing": "packed"},
    # Only weights make another way of mixing possible; they change no other step.
    "mixing": {
        "mixing": "weighted",
        "datasets": (dataclasses.replace(SPEC.datasets[0], weight=1.0),),
    },
    "long_conversations": {"long_conversations": "truncate"},
    "batch_size": {"batch_size": 16},
    "num_train_steps": {"num_train_steps": 11},
    "num_train_epochs": {"num_train_steps": None, "num_train_epochs": 1.0},
    "precision": {"precision": "p=f32,c=f32"},
    "seed": {"seed": 1},
    "data_seed": {"data_seed": 1},
    "capacity_factor": {"capacity_factor": 2.0},
    "max_dropped_fraction": {"max_dropped_fraction": 0.01},
    "z_loss": {"z_loss": 1e-4},
    "num_samples": {"num_samples": 5},
    "sample_max_tokens": {"sample_max_tokens": 7},
    "upload": {"upload": UploadSpec(repo="me/model")},
    "version": {"version": "2"},
    "mesh": {"mesh": MeshSpec(context=8, expert=-1)},
    "per_device_batch_size": {"per_device_batch_size": 1},
    "checkpoint_every_train_steps": {"checkpoint_every_train_steps": 5},
    "checkpoint_every_seconds": {"checkpoint_every_seconds": 60},
    "keep_every_train_steps": {"keep_every_train_steps": 10},
    "keep_last_checkpoints": {"keep_last_checkpoints": 2},
    "export_every_train_steps": {"export_every_train_steps": 2},
    "eval_every_train_steps": {"eval_every_train_steps": 5},
    "num_data_processes": {"num_data_processes": 3},
    "tracker": {"tracker": TrackerSpec(kinds=(), project="other", tags=("x",))},
}


def documented() -> dict[str, tuple[str, set[str]]]:
    """Returns {field: (kind, steps that change)} as the table says."""
    rows = re.findall(
        r"^\| (\w+) \| (identity|execution) \| ([^|]+) \|", TABLE.read_text(), re.MULTILINE
    )
    return {
        field: (kind, set() if steps.strip() == "none" else set(steps.strip().split(", ")))
        for field, kind, steps in rows
    }


def fingerprints(spec: SFTSpec) -> dict[str, str]:
    """Returns {role of the step: fingerprint} of a spec's steps on 32 H100s."""
    steps = sft_steps(spec, "32xH100")
    plan = make_plan([steps.last], "/nowhere")
    roles = {row.name: row.name.partition("/")[0] for row in plan.rows}
    return {ROLES.get(roles[row.name], roles[row.name]): row.fingerprint for row in plan.rows}


def test_every_field_is_in_the_table() -> None:
    """A field that nobody classified fails here."""
    fields = {field.name for field in dataclasses.fields(SFTSpec)}

    assert set(documented()) == fields
    assert set(CHANGED) == fields


@pytest.mark.parametrize("field", sorted(CHANGED))
def test_changing_a_field_changes_exactly_the_documented_steps(field: str) -> None:
    """The third column is what happens: no step more, no step less."""
    kind, steps = documented()[field]
    before = fingerprints(SPEC)

    after = fingerprints(dataclasses.replace(SPEC, **CHANGED[field]))

    changed = {role for role in after if before.get(role) != after[role]}
    assert changed == steps
    assert (kind == "execution") == (not changed)


def test_the_accelerator_changes_no_fingerprint() -> None:
    """The same recipe on another number of devices finds the same outputs."""
    eight = dataclasses.replace(SPEC, mesh=MeshSpec(context=2, expert=4))
    steps = sft_steps(eight, "8xcpu")
    plan = make_plan([steps.last], "/nowhere")

    assert {row.fingerprint for row in plan.rows} == set(fingerprints(SPEC).values())


def test_recipes_share_data_steps() -> None:
    """Data steps are named after the data set: another run of the same data finds them done."""
    one, other = fingerprints(SPEC), fingerprints(dataclasses.replace(SPEC, name="other", seed=3))

    for role in ("raw", "conversations", "tokenized", "tokenizer", "weights"):
        assert one[role] == other[role]


def two(**changes: Any) -> SFTSpec:
    """Returns the recipe with two data sets, of which the second has other fields."""
    (first,) = SPEC.datasets
    fields = {"first": {}, "second": {}} | {
        key: changes.pop(key) for key in ("first", "second") if key in changes
    }
    datasets = (
        dataclasses.replace(first, **fields["first"]),
        dataclasses.replace(first, name="second", **fields["second"]),
    )
    return dataclasses.replace(SPEC, datasets=datasets, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": {"weight": 1.0}}, "'second': weight must be given with weighted, got None"),
        ({"mixing": "weighted"}, "weight must be given with weighted"),
        (
            {"mixing": "concat", "first": {"weight": 0.5}},
            "weight must be None with concat, got 0.5",
        ),
        (
            {"first": {"weight": 0.0}, "second": {"weight": 1.0}},
            "weight must be a number above 0, got 0.0",
        ),
        ({"mixing": "interleave_foo"}, "mixing must be one of concat, weighted, interleave_under"),
        (
            {"mixing": "interleave_over", "first": {"weight": 0.9}, "second": {"weight": 0.2}},
            "must sum to 1, got 1.1",
        ),
        ({"mixing": "interleave_under", "first": {"weight": 1.0}}, "must be given with interleave"),
        (
            {"first": {"weight": 1.0, "repeat": 2.0}, "second": {"weight": 1.0}},
            "repeat must be 1 unless mixing is concat, got 2.0 with weighted",
        ),
        ({"second": {"repeat": 0.0}}, "repeat must be a number above 0, got 0.0"),
        ({"second": {"max_conversations": 0}}, "max_conversations must be 1 or more, got 0"),
        (
            {"second": {"long_conversations": "split"}},
            "long_conversations of 'second' must be one of drop, truncate, error, first_turns",
        ),
    ],
)
def test_mixtures_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    """Each combination of mixing, weights and repeats that has no meaning is one clear error."""
    with pytest.raises(ValueError, match=message) as caught:
        two(**changes)

    assert getattr(caught.value, "exit_code", None) == 2


def test_no_weights_mean_concat_and_weights_mean_weighted() -> None:
    """Saying what is meant anyway changes no fingerprint."""
    weighted = {"first": {"weight": 3.0}, "second": {"weight": 1.0}}

    assert fingerprints(two()) == fingerprints(two(mixing="concat"))
    assert fingerprints(two(**weighted)) == fingerprints(two(**weighted, mixing="weighted"))
    assert fingerprints(two())["mixture"] != fingerprints(two(**weighted))["mixture"]
