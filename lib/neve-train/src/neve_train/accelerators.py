"""What preflight must know of an accelerator: memory, peak speed, devices of one machine."""

from __future__ import annotations

import re
from dataclasses import dataclass

from neve_train.errors import TrainInputError

__all__ = ["ACCELERATORS", "USABLE_FRACTION", "Accelerator", "parse_accelerator"]

GB = 10**9
GIB = 2**30

USABLE_FRACTION = 0.92
"""Share of the memory that a program may plan with; driver, collectives and gaps take the rest."""


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
        return None if self.memory_bytes is None else int(self.memory_bytes * USABLE_FRACTION)


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
