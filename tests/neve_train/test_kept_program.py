"""The compiled train step in a file: when it is read, and that it is the one that was compiled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

PROGRAM = Path(__file__).with_name("kept_run.py")


@pytest.fixture(scope="module")
def kept(run_toy: Run) -> dict[str, Any]:
    """What the program on two devices found."""
    return run_toy("kept", 2, PROGRAM)


def test_a_program_that_was_read_computes_the_same_bits(kept: dict[str, Any]) -> None:
    """Three train steps with sums over devices and random numbers; the state is used up as before."""
    assert kept["absent"] == {"is_there": False, "messages": [], "is_faulty": False}
    assert kept["written"] == {"is_there": True, "messages": [], "is_faulty": False}
    assert kept["same"]
    assert kept["used_up"]
    # Each of three: weight, Adam's count and two moments, step and key; six results, three texts more.
    assert kept["num_told"] >= 3 * (6 + 6 + 3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("another batch", "takes another state or batch"),
        ("another fixed part", "takes another state or batch"),
        ("one bit", "damaged"),
        ("cut", "damaged"),
        ("empty", "damaged"),
        ("of another version", ""),
    ],
)
def test_a_file_that_cannot_be_used_is_told(kept: dict[str, Any], name: str, reason: str) -> None:
    """One message with the file and the reason; nothing of it is run."""
    found = kept[name]

    assert not found["is_there"]
    assert found["is_faulty"]
    (message,) = found["messages"]
    assert f"can't be used ({reason}" in message
    assert message.endswith("; compiling it anew.")
    assert "a" * 64 in message


def test_a_program_is_compiled_anew_in_place_of_a_faulty_file(kept: dict[str, Any]) -> None:
    """jax's own cache isn't asked, as what comes from there can't be written on a CPU."""
    assert kept["is_hit"] == [False, True]  # the first program and the last, not the one between
    assert kept["written anew"]["is_there"]
    assert kept["repaired"]


def test_a_file_that_cannot_be_written_is_told(kept: dict[str, Any]) -> None:
    """Training goes on without it."""
    (message,) = kept["blocked"]

    assert "train step can't be kept in" in message


def test_all_that_bears_on_a_program_is_in_its_key(run_toy: Run) -> None:
    """Config, model, mesh, code, packages, environment; not secrets, nor where things lie."""
    found = run_toy("keys", 2, PROGRAM)

    assert found["same"] == dict.fromkeys(found["same"], True)
    assert len(found["same"]) == 7
    assert found["num_different"] == len(found["different"]) == 15
