"""Hugging Face folders that are made while training goes on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("step_exports_run.py")


@pytest.fixture(scope="module")
def made(run_toy: Callable[..., Any]) -> dict[str, Any]:
    """What the program saw."""
    return run_toy("made", program=PROGRAM)


@pytest.mark.full
def test_folders_are_made_beside_the_training_and_equal_those_of_the_export_step(
    made: dict[str, Any],
) -> None:
    assert made["folders"] == ["step-2", "step-5"]
    assert [mark["train_step"] for mark in made["marks"]] == [3, 6]
    assert made["differences"] == []
    assert made["results"]["exports"] == ["exports/step-2", "exports/step-5"]
    assert made["results"]["failed_exports"] == 0
    assert made["results"]["num_train_steps"] == 8


@pytest.mark.full
def test_a_stopped_training_makes_its_folder_when_it_goes_on(made: dict[str, Any]) -> None:
    assert made["when_stopped"] is False
    assert made["results"]["resumed_from"] == 3
    assert any("after train step 3 exported" in message for message in made["messages"])


@pytest.mark.full
def test_a_folder_that_cannot_be_made_is_told_and_training_goes_on(made: dict[str, Any]) -> None:
    assert made["blocked"]["exports"] == ["exports/step-2"]
    assert made["blocked"]["failed_exports"] == 1
    assert made["blocked"]["heldout_loss"] == made["results"]["heldout_loss"]
    assert any("step-5 could not be made" in message for message in made["said"])


@pytest.mark.full
def test_folders_need_the_template_of_the_tokens(made: dict[str, Any]) -> None:
    assert "needs a token cache whose stats.json holds its template" in made["unnoted"]
