"""Does a training fit its accelerator, and which single change would make it fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from neve_train.accelerators import Accelerator
from neve_train.errors import TrainInputError
from neve_train.mesh import ModelSplit, check_mesh
from neve_train.preflight_memory import ArrayLeaf, Memory, ModelShape, Workload, estimate

__all__ = ["Planned", "gigabytes", "reasons_against", "would_fit"]

_LENGTH = "--spec.seq_len {}"
_ROWS = "--spec.per_device_batch_size {}"
_TYPES = "--spec.precision p=bfloat16,c=bfloat16"
_SHORTEST_TRY = 2048
_MOST_DEVICES = 4096


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A training and where it is to run."""

    name: str
    """Of the recipe."""
    family: str
    """Of the model."""
    accelerator: Accelerator
    """Kind of device."""
    leaves: tuple[ArrayLeaf, ...]
    """Arrays of the training state."""
    shape: ModelShape
    """The model."""
    split: ModelSplit = field(default_factory=ModelSplit)
    """Over which mesh axes the model can be split."""
    work: Workload
    """The train step."""
    num_train_steps: int | None
    """Train steps of the run, where they are known."""
    host_bytes: Mapping[str, int]
    """What a process holds in host memory, by what for."""
    export_itemsize: int = 2
    """Bytes of an exported parameter."""

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        return sum(leaf.size for leaf in self.leaves if leaf.part == "weights")

    def memory(self) -> Memory:
        """Returns the memory on each device."""
        return estimate(self.leaves, self.shape, self.work)

    def fits(self) -> bool:
        """Whether the fullest moment fits a device; a CPU isn't judged."""
        usable = self.accelerator.usable_bytes
        return usable is None or self.memory().peak <= usable

    def with_work(self, **changes: Any) -> Planned | None:
        """Returns the same training with another train step, or None if that can't be run."""
        work = dataclasses.replace(self.work, **changes)
        try:
            check_mesh(
                work.num_devices,
                work.sizes,
                work.batch_size,
                work.seq_len,
                self.split,
            )
        except TrainInputError:
            return None
        parts = work.sizes.get("data", 1) * work.sizes.get("expert", 1)
        if (work.batch_size // parts) % work.rows:
            return None
        return dataclasses.replace(self, work=work)

    def in_bfloat16(self) -> Planned | None:
        """Returns the same training with all types bfloat16, or None if they are already."""
        leaves = tuple(
            dataclasses.replace(leaf, itemsize=2) if leaf.itemsize == 4 and leaf.shape else leaf
            for leaf in self.leaves
        )
        work = dataclasses.replace(self.work, compute_itemsize=2)
        changed = dataclasses.replace(self, leaves=leaves, work=work)
        return None if changed == self else changed


def reasons_against(planned: Planned, memory: Memory) -> list[str]:
    """Returns why the training can't run there; empty if it can."""
    usable, work, shape = planned.accelerator.usable_bytes, planned.work, planned.shape
    reasons = []
    if work.seq_len > shape.max_seq_len:
        reasons.append(
            f"seq_len must be at most the model's {shape.max_seq_len:,}, got {work.seq_len:,}"
        )
    if usable is not None and memory.peak > usable:
        name = planned.accelerator.name
        state = f"{gigabytes(memory.state)} of it weights and optimizer"
        reasons.append(
            f"a device needs {gigabytes(memory.peak)} ({state}), and {gigabytes(usable)} of a {name} can be used"
        )
    return reasons


def would_fit(planned: Planned) -> list[dict[str, Any]]:
    """Returns a row for each thing that can be changed: its mildest value that fits, or the best tried.

    One thing at a time; only where none of them is enough, rows, length and types together, and then
    more devices.
    """
    rows = [_mildest(what, tries) for what, tries in _changes(planned)]
    if not any(row["fits"] for row in rows):
        rows += [_mildest("all of these", _together(planned))]
        rows += [_mildest("devices", _more_devices(planned))]
    return rows


_Tries = Iterator[tuple[str, Planned | None]]


def _mildest(what: str, tries: _Tries) -> dict[str, Any]:
    row = {"what": what, "change": None, "fits": False, "peak": None}
    for change, changed in tries:
        if changed is None:
            continue
        peak = changed.memory().peak
        if changed.fits() and changed.work.seq_len <= changed.shape.max_seq_len:
            return row | {"change": change, "fits": True, "peak": peak}
        if row["peak"] is None or peak < row["peak"]:
            row |= {"change": change, "peak": peak}
    return row


def _changes(planned: Planned) -> list[tuple[str, _Tries]]:
    work = planned.work
    lengths = list(_halves(min(work.seq_len, 2 * planned.shape.max_seq_len), _SHORTEST_TRY))
    return [
        ("row length", ((_LENGTH.format(n), planned.with_work(seq_len=n)) for n in lengths)),
        (
            "rows at a time",
            (
                (_ROWS.format(n), planned.with_work(per_device_batch_size=n))
                for n in _halves(work.rows, 1)
            ),
        ),
        ("context axis", _longer_contexts(planned)),
        ("type of weights and optimizer", iter([(_TYPES, planned.in_bfloat16())])),
    ]


def _together(planned: Planned) -> _Tries:
    narrow = planned.in_bfloat16()
    if narrow is None:
        return
    for length in _halves(2 * planned.work.seq_len, _SHORTEST_TRY):
        changes = f"{_TYPES} {_ROWS.format(1)} {_LENGTH.format(length)}"
        yield changes, narrow.with_work(seq_len=length, per_device_batch_size=1)


def _longer_contexts(planned: Planned) -> _Tries:
    """Yields longer context axes, taken from the expert or the data axis.

    Fewer parts of the batch leave each device more rows, so that as many rows at a time as before
    are tried too.
    """
    work = planned.work
    before = work.sizes.get("context", 1)
    for context in _doubles(before, work.num_devices):
        for axis in ("expert", "data"):
            size = work.sizes.get(axis, 1)
            if size % (context // before):
                continue
            sizes = {**work.sizes, axis: size // (context // before), "context": context}
            change = f"--spec.mesh.context {context} with mesh.{axis} {sizes[axis]}"
            yield change, planned.with_work(sizes=sizes)
            rows = f" and {_ROWS.format(work.rows)}"
            yield change + rows, planned.with_work(sizes=sizes, per_device_batch_size=work.rows)


def _more_devices(planned: Planned) -> _Tries:
    """Yields twice the devices, again and again, on the expert or the data axis."""
    work, name = planned.work, planned.accelerator.name
    for num_devices in _doubles(work.num_devices, _MOST_DEVICES):
        factor = num_devices // work.num_devices
        for axis in ("expert", "data"):
            sizes = {**work.sizes, axis: work.sizes.get(axis, 1) * factor}
            rows = max(work.batch_size, sizes.get("data", 1) * sizes.get("expert", 1))
            change = f"--accelerator {num_devices}x{name} with mesh.{axis} {sizes[axis]}"
            if rows != work.batch_size:
                change += f" and --spec.batch_size {rows}"
            yield change, planned.with_work(sizes=sizes, batch_size=rows)


def _halves(value: int, least: int) -> Iterator[int]:
    while value // 2 >= least:
        value //= 2
        yield value


def _doubles(value: int, most: int) -> Iterator[int]:
    while value * 2 <= most:
        value *= 2
        yield value


def gigabytes(value: int) -> str:
    """Returns a number of bytes as people read it."""
    return f"{value / 1e9:,.1f} GB" if value >= 1e8 else f"{value / 1e6:,.1f} MB"
