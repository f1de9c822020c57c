"""Does a mesh fit the devices, the batch and the model? Arithmetic only, no jax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from neve_train.errors import TrainInputError

__all__ = ["AXES", "ModelSplit", "check_mesh", "export_axes"]

AXES = ("data", "expert", "context", "model")
"""Axes of every mesh: data and expert split the batch, context each row, model the weight matrices."""


@dataclass(frozen=True, kw_only=True)
class ModelSplit:
    """Over which axes a model can be split, and into how many parts."""

    axes: tuple[str, ...] = AXES
    """Axes that may be above 1."""
    sizes: Mapping[tuple[str, ...], Mapping[str, int]] = field(default_factory=dict)
    """By axes: names and sizes of what they split, all of which their product must divide."""


def check_mesh(
    num_devices: int,
    axes: Mapping[str, int],
    batch_size: int,
    seq_len: int,
    split: ModelSplit = ModelSplit(),
) -> dict[str, int]:
    """Returns the size of every axis, with -1 and absent axes filled in.

    Args:
        num_devices: Devices of all processes.
        axes: Axis sizes; absent ones are 1 and one may be -1.
        batch_size: Rows per train step.
        seq_len: Positions per row.
        split: What the model allows; by default all axes, whatever their sizes.

    Raises:
        TrainInputError: An axis is unknown or not allowed, or something doesn't divide.
    """
    sizes: dict[str, int] = dict.fromkeys(AXES, 1)
    for name, size in axes.items():
        if name == "replica" and size == 1:
            continue
        if name not in sizes:
            raise TrainInputError(
                f"mesh: axes must be among {', '.join(AXES)}, got {name}={size}. "
                "No model is split over another axis; use data."
            )
        sizes[name] = size
    if list(sizes.values()).count(-1) > 1 or any(
        size < 1 and size != -1 for size in sizes.values()
    ):
        raise TrainInputError(
            f"mesh: sizes must be 1 or more and at most one -1, got {_text(sizes)}. Change them."
        )
    fixed = math.prod(size for size in sizes.values() if size != -1)
    absorber = next((name for name, size in sizes.items() if size == -1), None)
    if num_devices % fixed or (absorber is None and fixed != num_devices):
        raise TrainInputError(
            f"mesh: axes must multiply to the {num_devices} devices, got {_text(sizes)}. "
            "Change an axis or the number of devices."
        )
    if absorber is not None:
        sizes[absorber] = num_devices // fixed
    unused = {name: size for name, size in sizes.items() if size > 1 and name not in split.axes}
    if unused:
        raise TrainInputError(
            f"mesh: this model's axes can only be {', '.join(split.axes)}, got {_text(unused)}. "
            "Set these to 1 and data to -1."
        )
    _check_divides("batch_size", batch_size, sizes["data"] * sizes["expert"], "data x expert")
    _check_divides("seq_len", seq_len, sizes["context"], "context")
    for split_axes, values in split.sizes.items():
        parts = math.prod(sizes[name] for name in split_axes)
        for name, value in values.items():
            if value % parts:
                raise TrainInputError(
                    f"mesh: {' x '.join(split_axes)} must divide the model's {name} of {value}, got "
                    f"{parts}. Use a divisor of {value}."
                )
    return sizes


def export_axes(num_devices: int, num_experts: int | None) -> dict[str, int]:
    """Returns a mesh that holds the weights in parts wherever num_experts (None: none) allows it."""
    expert = math.gcd(num_devices, num_experts) if num_experts else 1
    return {"data": num_devices // expert, "expert": expert, "context": 1, "model": 1}


def _check_divides(what: str, value: int, parts: int, axes: str) -> None:
    if value % parts:
        raise TrainInputError(
            f"mesh: {what} must be divisible by the {parts} parts of {axes}, got {value}. "
            f"Use {-(-value // parts) * parts} or another mesh."
        )


def _text(sizes: Mapping[str, int]) -> str:
    return " x ".join(f"{name} {size}" for name, size in sizes.items())
