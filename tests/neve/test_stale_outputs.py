"""Outputs that were deleted, steps that return nothing, values that were computed."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

from neve import ExecutorStep, make_plan

from tests.neve.sample_steps import SampleConfig, write_files

Run = Callable[..., tuple[int, str]]

CHAIN = """
def step(name, fn, *inputs):
    config = SampleConfig(text=name, inputs=inputs, calls=unhashed({calls!r}))
    return ExecutorStep(name=name, fn=fn, config=config)
a = step("a", write_files)
b = step("b", {second}, a / "out.txt")
steps = [a, b]
"""


def test_deleted_output_runs_again_and_is_a_hit_afterwards(run_recipe: Run, tmp_path: Path) -> None:
    """Case A19: what is gone is made again once; no old record makes it run for ever."""
    calls = tmp_path / "calls.txt"
    body = CHAIN.format(calls=str(calls), second="write_files")
    assert run_recipe(body)[0] == 0
    for path in tmp_path.rglob("state.json"):
        if path.parents[1].name.startswith("a-"):
            shutil.rmtree(path.parents[1])
    calls.write_text("")

    assert run_recipe(body)[0] == 0
    assert run_recipe(body)[0] == 0

    assert calls.read_text().splitlines() == ["a"]


def test_step_that_returns_nothing_is_a_hit(run_recipe: Run, tmp_path: Path) -> None:
    """Cases A14, A24, A25: neither a result nor its absence enters a dependent's identity."""
    calls = tmp_path / "calls.txt"
    calls.write_text("b\n")  # fail_first succeeds from its second call on, and returns None
    body = CHAIN.format(calls=str(calls), second="fail_first")
    assert run_recipe(body)[0] == 0
    before = calls.read_text()

    assert run_recipe(body)[0] == 0

    assert calls.read_text() == before


def test_computed_value_counts_as_what_it_came_to() -> None:
    """Case A15: a value enters identity resolved, however a recipe computed it."""

    def fingerprint(factor: int) -> str:
        config = dataclasses.replace(SampleConfig(), text="x" * (2 * factor))
        step = ExecutorStep(name="a", fn=write_files, config=config)
        return make_plan([step], "/nowhere").rows[0].fingerprint

    assert fingerprint(1) != fingerprint(2)
    assert fingerprint(2) == fingerprint(2)
