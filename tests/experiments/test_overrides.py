"""`--spec.` flags: all changes are made at once, then the spec is checked; what is wrong is one sentence."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest
from neve import InputError

from experiments.sft.configs.snowball_tiny import SPEC
from experiments.sft.launcher import run_sft_cli
from experiments.sft.overrides import apply_overrides
from experiments.sft.sources import TrainedModel
from experiments.sft.spec import LoraConfig, UploadSpec


def test_fields_that_exclude_each_other_change_together() -> None:
    """Steps can give way to epochs from the command line, in either order."""
    for nothing in ("null", "None"):
        flags = [["--spec.num_train_steps", nothing], ["--spec.num_train_epochs=2"]]
        for order in (flags, flags[::-1]):
            spec = apply_overrides(SPEC, [word for pair in order for word in pair])
            assert (spec.num_train_steps, spec.num_train_epochs) == (None, 2.0)


def test_fields_inside_groups_change_one_by_one() -> None:
    """Changes at several depths leave the rest as it was."""
    flags = ["--spec.optimizer.learning_rate", "5e-5", "--spec.datasets.0.name=other"]

    spec = apply_overrides(SPEC, [*flags, "--spec.datasets.0.special_text", "escape"])

    assert spec.optimizer.learning_rate == 5e-5
    assert spec.optimizer.beta2 == SPEC.optimizer.beta2
    assert (spec.datasets[0].name, spec.datasets[0].special_text) == ("other", "escape")
    assert spec.datasets[0].source == SPEC.datasets[0].source


def test_a_group_that_is_left_out_is_made_from_its_fields() -> None:
    """Adapters and an upload can be asked for from the command line, and taken back."""
    flags = ["--spec.upload.repo=me/model", "--spec.upload.private=false", "--spec.adapter.rank=4"]

    spec = apply_overrides(SPEC, flags)

    assert spec.upload == UploadSpec(repo="me/model", private=False)
    assert spec.adapter == LoraConfig(rank=4)
    assert apply_overrides(spec, ["--spec.adapter", "null"]).adapter is None


def test_fields_of_an_earlier_training_change_through_the_model() -> None:
    """A second stage's flags reach the spec that it goes on from."""
    second = dataclasses.replace(SPEC, name="second", model=TrainedModel(spec=SPEC))

    spec = apply_overrides(second, ["--spec.model.spec.seed", "3"])

    assert (spec.model.spec.seed, spec.seed) == (3, 0)


WRONG = [
    # No such option, or nothing that an option could be given.
    ("foo", "argument foo: must be a known option"),
    ("--seq_len 3", "Write --spec.seq_len VALUE."),
    ("--optimizer.learning_rate=3", "Write --spec.optimizer.learning_rate VALUE."),
    ("--spec 3", "Write --spec.<field> VALUE."),
    ("--dry-run", "Did you mean '--dry_run'?"),
    ("--accelerator foo", "must be a count and a kind such as 8xH100, got 'foo'"),
    ("--accelerator 3xcpu", "Pass --spec.batch_size 9."),
    ("--only nothing", "--only nothing: must name a step"),
    ("--preflight", "must be given without --dry_run"),
    ("--spec.seq_len", "must be followed by a value, got nothing"),
    ("--spec. 3", "must name a field of SFTSpec, got ''"),
    ("--spec.data_sed 3", "Did you mean 'data_seed'?"),
    ("--spec.seq_len.x 3", "must hold fields of its own"),
    # Numbers.
    ("--spec.seq_len 4k", "--spec.seq_len: must be int, got '4k'"),
    ("--spec.seq_len 4096.5", "must be int, got '4096.5'"),
    ("--spec.seq_len true", "must be int, got 'true'"),
    ("--spec.seq_len null", "must be int, got 'null'"),
    ("--spec.seq_len {", "must be int, got '{'"),
    ("--spec.seq_len -1", "must be a whole number from 2 to 16,777,216, got -1"),
    ("--spec.z_loss nan", "must be a number from 0 to 1,000,000, got nan"),
    ("--spec.z_loss true", "must be float, got 'true'"),
    ("--spec.validation_fraction 0.6", "must be a share from 0 to 0.5, got 0.6"),
    ("--spec.optimizer.learning_rate nan", "learning_rate must be above 0, got nan"),
    ("--spec.num_train_steps null", "give one of num_train_steps and num_train_epochs"),
    ("--spec.mesh.data 2", "must multiply to the 1 devices"),
    ("--spec.model.shape.num_layers 0", "num_layers must be 1 or more, got 0"),
    ("--spec.model.eos_token_ids [-5]", "0 or more, got (-5,)"),
    # Words.
    ("--spec.name=", "name must not be empty"),
    ("--spec.precision f33", "must be a jmp policy such as p=f32,c=bfloat16, got 'f33'"),
    ("--spec.packing tight", "packing must be one of separate, packed, got 'tight'"),
    ("--spec.datasets.0.long_conversations=", "must be one of drop, truncate"),
    ("--spec.datasets.0.schema.kind x", "kind must be one of messages"),
    ("--spec.datasets.0.source.path /nowhere", "must be a file or a folder"),
    ("--spec.datasets.0.source.path=", "must be a file or a folder"),
    ("--spec.upload.repo me", "repo must be owner/name, got 'me'"),
    ("--spec.upload.private perhaps", "must be bool, got 'perhaps'"),
    # Lists.
    ("--spec.tracker.kinds wandb", "must be a list, got 'wandb'"),
    ("--spec.tracker.kinds [mlflow]", "kinds must be among wandb, tensorboard, trackio"),
    ("--spec.tracker.tags.0 x", "Write --spec.tracker.tags '[a, b]'."),
    ("--spec.datasets.0.replacements [[a]]", "must be tuple[tuple[str, str], ...], got '[[a]]'"),
    ("--spec.datasets.0.files []", "files must hold one glob or more, got ()"),
    # Groups of fields.
    ("--spec.upload me/model", "Write --spec.upload.<field>; fields: repo, branch"),
    ("--spec.upload.private false", "must have repo, got none. Add --spec.upload.repo."),
    ("--spec.model x", "must be changed field by field, got 'x'"),
    ("--spec.datasets x", "Write --spec.datasets.0.<field>"),
    ("--spec.datasets.0 x", "Write --spec.datasets.0.<field>"),
    ("--spec.datasets.7.name x", "must name an element from 0 to 0, got '7'"),
    ("--spec.datasets.0.source x", "fields: path."),
    ("--spec.adapter.rnk 4", "Did you mean 'rank'?"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_a_wrong_word_is_one_sentence_and_exit_2(
    words: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Each kind of mistake is told before any work; nothing is written."""
    prefix = tmp_path / "prefix"
    argv = ["recipe", "--dry_run", "--prefix", str(prefix), *words.split(" ")]
    monkeypatch.setattr(sys, "argv", argv)

    with pytest.raises(SystemExit) as stopped:
        run_sft_cli(SPEC, default_accelerator="1xcpu")

    told = capsys.readouterr()
    assert stopped.value.code == 2
    assert sentence in told.err
    assert (told.err.count("\n"), told.out) == (1, "")
    assert not prefix.exists()


@pytest.mark.parametrize(
    "fields",
    [{"batch_size": 8.0}, {"seed": True}, {"seq_len": None}, {"num_samples": "4"}],
)
def test_numbers_of_a_recipe_have_their_type(fields: dict[str, Any]) -> None:
    """8.0 would be another identity than 8, so a recipe can't say it."""
    with pytest.raises(InputError, match="must be a whole number"):
        dataclasses.replace(SPEC, **fields)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"model": "org/name"}, "model must be a source of one, got 'org/name'"),
        ({"datasets": ()}, "datasets must be a tuple of one or more DatasetSpec"),
        ({"datasets": SPEC.datasets[0]}, "datasets must be a tuple of one or more DatasetSpec"),
        ({"datasets": ("chats",)}, "datasets must be a tuple of one or more DatasetSpec"),
    ],
)
def test_a_recipe_names_a_source_where_one_belongs(fields: dict[str, Any], rule: str) -> None:
    """A repository's name or a missing comma is told, not found by a traceback."""
    with pytest.raises(InputError, match=rule):
        dataclasses.replace(SPEC, **fields)

    with pytest.raises(InputError, match=r"source must say where the rows are, got 'a\.jsonl'"):
        dataclasses.replace(SPEC.datasets[0], source="a.jsonl")


def test_help_names_every_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--help ends well and tells what --spec. can change."""
    monkeypatch.setattr(sys, "argv", ["recipe", "--help"])

    with pytest.raises(SystemExit) as stopped:
        run_sft_cli(SPEC, default_accelerator="1xcpu")

    told = " ".join(capsys.readouterr().out.split())
    assert not stopped.value.code
    assert "--preflight" in told
    for field in dataclasses.fields(SPEC):
        assert field.name in told
