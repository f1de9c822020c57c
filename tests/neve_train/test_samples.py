"""Greedy samples of the toy: a step called by itself."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("export_run.py")


def test_samples_stand_side_by_side_and_stop_at_an_end_id(
    toy: Path, run_toy: Callable[..., Any]
) -> None:
    """Both models answer the first prompts, and an answer ends at an end id or at its limit."""
    results = run_toy("sampled", program=PROGRAM)
    samples = json.loads((toy / "samples" / "samples.json").read_text())

    assert results["plain"]["num_prompts"] == len(samples) == 3
    assert [sample["messages"][0]["content"] for sample in samples] == [
        "count to 3",
        "count to 4",
        "count to 5",
    ]
    assert "[after training]" in (toy / "samples" / "samples.txt").read_text()
    # The first token of the first answer is made an end id: that answer is this token alone.
    assert results["forced"]["num_stopped"] >= 1
    assert results["forced_ids"][0] == results["first_ids"][0][:1]
    # Every end id counts: each answer is cut at the first of the two that it holds.
    for ids, whole in zip(results["either_ids"], results["first_ids"], strict=True):
        stops = [place for place, token in enumerate(whole) if token in results["ends"]]
        assert ids == whole[: stops[0] + 1]
    assert results["either_stopped"] == [True, True]
    assert all(len(ids) <= 12 for ids in results["first_ids"])
    # A native checkpoint of the same weights answers with the same tokens.
    assert results["native_ids"] == results["first_ids"]
