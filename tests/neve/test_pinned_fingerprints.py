"""A change here orphans every stored artifact."""

import datetime
from pathlib import Path

import numpy
from neve import ExecutorStep, this_output_path, unhashed
from neve.identity import fingerprint_of
from sample_steps import SampleConfig, write_files


def steps() -> dict[str, ExecutorStep]:
    """Return steps that use every form of the canonical encoding."""
    plain = ExecutorStep(name="plain", fn=write_files, config=SampleConfig(text="x"))
    values = [1, 1.5, True, None, "é", b"b", (1,), {2, 1}, Path("p"), numpy.int16([1, 2])]
    times = [datetime.timedelta(days=1), datetime.datetime(2026, 1, 2, 3)]
    return {
        "plain": plain,
        "values": ExecutorStep(name="values", fn=write_files, config={"v": values, 1: times}),
        "refs": ExecutorStep(
            name="refs",
            fn=write_files,
            version="2",
            config=(plain / "out.txt", this_output_path("y"), unhashed(3), write_files),
        ),
    }


PINNED = {
    "plain": "2842cf2c9f668cb70771d2347e29720a705de86a34f89fb8d19609c78124f6dd",
    "values": "de9d1c8293499c01b89dfe1f30bb598a9079aae3ad4e5342f9e9af97d10be5ed",
    "refs": "b64c6a004672af808a9a4669952080548752eb083b4b9090915b1e8d654199a0",
}


def test_fingerprints_are_pinned() -> None:
    """The identity scheme is what it was when artifacts were stored."""
    assert {name: fingerprint_of(step) for name, step in steps().items()} == PINNED
