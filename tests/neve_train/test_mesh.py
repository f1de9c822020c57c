"""Mesh arithmetic."""

import subprocess
import sys

import pytest
from neve_train.errors import TrainInputError
from neve_train.mesh import ModelSplit, check_mesh, export_axes


def test_check_mesh_fills_in_the_axis_that_takes_what_is_left() -> None:
    """32 devices over context 4 leave 8 for the experts."""
    sizes = check_mesh(32, {"context": 4, "expert": -1}, 8, 32_768)

    assert sizes == {"data": 1, "expert": 8, "context": 4, "model": 1}


@pytest.mark.parametrize(
    ("num_devices", "axes", "batch_size", "seq_len", "match"),
    [
        (8, {"data": 3}, 9, 128, "must multiply to the 8 devices"),
        (8, {"expert": -1}, 12, 128, "batch_size must be divisible by the 8 parts.*Use 16"),
        (4, {"data": -1}, 6, 128, "batch_size must be divisible by the 4 parts.*got 6. Use 8"),
        (8, {"context": 8}, 8, 100, "seq_len must be divisible by the 8 parts"),
        (8, {"expert": 8}, 8, 128, "expert must divide the model's num_experts of 4, got 8"),
        (
            8,
            {"data": 4, "context": 2},
            8,
            128,
            "data x context must divide .*hidden_size of 12, got 8",
        ),
        (8, {"expert": -1, "data": -1}, 8, 128, "at most one -1"),
        (8, {"replica": 2, "data": 4}, 8, 128, "axes must be among"),
    ],
)
def test_check_mesh_names_what_does_not_divide(
    num_devices: int, axes: dict[str, int], batch_size: int, seq_len: int, match: str
) -> None:
    """Each misfit is one sentence about it."""
    split = ModelSplit(
        sizes={("data", "context"): {"hidden_size": 12}, ("expert",): {"num_experts": 4}}
    )
    with pytest.raises(TrainInputError, match=match):
        check_mesh(num_devices, axes, batch_size, seq_len, split)


def test_export_axes_hold_the_weights_in_as_many_parts_as_experts_allow() -> None:
    """12 devices and 8 experts: 4 expert shards, each over 3 devices."""
    assert export_axes(12, 8) == {"data": 3, "expert": 4, "context": 1, "model": 1}


def test_steps_and_light_modules_import_no_jax() -> None:
    """What recipes import to plan loads neither jax nor Levanter."""
    code = (
        "import sys, steps.train_sft, steps.export_hf, steps.generate_samples, neve_train.mesh;"
        "print({'jax', 'levanter', 'haliax', 'transformers', 'numpy'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "set()"
