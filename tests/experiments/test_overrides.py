"""`--spec.` flags: all changes are made at once, and then the spec is checked."""

from experiments.sft.configs.snowball_tiny import SPEC
from experiments.sft.overrides import apply_overrides


def test_fields_that_exclude_each_other_change_together() -> None:
    """Steps can give way to epochs from the command line, in either order."""
    flags = [["--spec.num_train_steps", "null"], ["--spec.num_train_epochs=2"]]

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
