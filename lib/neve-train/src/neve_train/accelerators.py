"""What preflight must know of an accelerator: memory, peak speed, devices of one machine."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from neve_train.errors import TrainInputError

__all__ = [
    "ACCELERATORS",
    "USABLE_FRACTION",
    "Accelerator",
    "memory_variables",
    "parse_accelerator",
    "usable_fraction",
]

GB = 10**9
GIB = 2**30

USABLE_FRACTION = 0.92
"""Share of the memory that a program may plan with; driver, collectives and gaps take the rest."""

_FRACTION_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""What jax takes as its share of a GPU, 0.75 where neither is set: name of today, and of before."""


def usable_fraction() -> float:
    """Returns the share of a device's memory that a program may plan with.

    That is what the environment has jax take of a GPU, else USABLE_FRACTION.

    Raises:
        TrainInputError: The environment's isn't above 0 and at most 1.
    """
    for name in _FRACTION_VARIABLES:
        if text := os.environ.get(name):
            try:
                fraction = float(text)
            except ValueError:
                fraction = 0.0
            if not 0 < fraction <= 1:
                raise TrainInputError(
                    f"environment: {name} must be above 0 and at most 1, got {text!r}. Change it, or "
                    f"remove it to use {USABLE_FRACTION}."
                )
            return fraction
    return USABLE_FRACTION


def memory_variables() -> dict[str, str]:
    """Returns the variables that have jax take usable_fraction of a GPU; none where that is set.

    They must be there before jax sees its devices. Other accelerators pass over them.
    """
    if any(os.environ.get(name) for name in _FRACTION_VARIABLES):
        return {}
    return {_FRACTION_VARIABLES[0]: str(USABLE_FRACTION)}


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """One kind of device."""

    name: str
    """As it is written on the command line."""
    memory_bytes: int | None
    """Memory of one device; None: a CPU's, which preflight doesn't judge."""
    peak_flops: float | None
    """Dense bfloat16 FLOP/s of one device, without sparsity; None for a CPU."""
    devices_per_host: int
    """Devices of one machine, which its host memory is shared by."""

    @property
    def usable_bytes(self) -> int | None:
        """Memory that a program may plan with."""
        return None if self.memory_bytes is None else int(self.memory_bytes * usable_fraction())


# name: memory of one device, dense bfloat16 FLOP/s, devices of the usual machine.
# Data sheets print speeds with 2:4 sparsity from Hopper on; half of that is dense. NVIDIA's memory
# is taken at the GB of the data sheet as powers of ten, a little less than drivers report.
_KNOWN: dict[str, tuple[int, float, int]] = {
    # NVIDIA A100 data sheet: 40 or 80 GB, 312 TFLOP/s.
    "A100": (40 * GB, 312e12, 8),
    "A100-40G": (40 * GB, 312e12, 8),
    "A100-80G": (80 * GB, 312e12, 8),
    # NVIDIA H100 data sheet, SXM: 80 GB, 1,979 TFLOP/s sparse.
    "H100": (80 * GB, 989e12, 8),
    # NVIDIA H200 data sheet, SXM: 141 GB, 1,979 TFLOP/s sparse.
    "H200": (141 * GB, 989e12, 8),
    # NVIDIA GH200 data sheet: 96 GB HBM3, 990 TFLOP/s dense; one to a module.
    "GH200": (96 * GB, 989e12, 1),
    # NVIDIA Blackwell data sheet, HGX B200: 180 GB, 4.5 PFLOP/s sparse.
    "B200": (180 * GB, 2250e12, 8),
    # The same for the GB200 NVL72: 186 GB, 5 PFLOP/s sparse; four to a tray.
    "GB200": (186 * GB, 2500e12, 4),
    # Google Cloud documentation, TPU v4: 32 GiB, 275 TFLOP/s a chip; four chips to a host.
    "v4": (32 * GIB, 275e12, 4),
    # The same, TPU v5e: 16 GiB, 197 TFLOP/s; slices of several hosts have four chips to each.
    "v5e": (16 * GIB, 197e12, 4),
    # The same, TPU v5p: 95 GiB, 459 TFLOP/s; four chips to a host.
    "v5p": (95 * GIB, 459e12, 4),
    # The same, TPU v6e: 32 GiB, 918 TFLOP/s; slices of several hosts have four chips to each.
    "v6e": (32 * GIB, 918e12, 4),
}

ACCELERATORS: dict[str, Accelerator] = {
    name.lower(): Accelerator(
        name=name, memory_bytes=memory, peak_flops=flops, devices_per_host=devices
    )
    for name, (memory, flops, devices) in _KNOWN.items()
}
"""Kinds by lower-case name."""

_FORM = re.compile(r"([1-9][0-9]*)x(.+)")


def parse_accelerator(text: str) -> tuple[int, Accelerator]:
    """Returns number and kind of the devices of `32xH100`, `16xv5p` or `8xcpu`.

    Raises:
        TrainInputError: Not of that form, or of a kind that isn't in the table.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        raise TrainInputError(
            f"accelerator: must be <count>x<kind> such as 32xH100, got {text!r}. Write it that way."
        )
    count, kind = int(match[1]), match[2]
    if kind.lower() == "cpu":
        return count, Accelerator(
            name="cpu", memory_bytes=None, peak_flops=None, devices_per_host=count
        )
    found = ACCELERATORS.get(kind.lower())
    if found is None:
        raise TrainInputError(
            f"accelerator: kind must be cpu or one of {', '.join(_KNOWN)}, got {kind!r}. "
            "Pick the one with its memory."
        )
    return count, found
