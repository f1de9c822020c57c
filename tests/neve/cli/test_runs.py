import json
from pathlib import Path

RECIPE = "toy_recipe"


def test_plan_writes_nothing(neve, tmp_path: Path) -> None:
    """`neve plan` shows every step and leaves the prefix empty."""
    shown = neve("plan", RECIPE, prefix=tmp_path)

    assert shown.returncode == 0
    assert "Plan for" in shown.stdout
    assert list(tmp_path.iterdir()) == []


def test_run_then_hit_then_status(neve, tmp_path: Path) -> None:
    """A second run is all hits, and `status` shows the latest run."""
    first = neve("run", RECIPE, prefix=tmp_path)
    second = neve("run", RECIPE, prefix=tmp_path)
    status = json.loads(neve("status", "--json", prefix=tmp_path).stdout)

    assert "Done: 0 hit, 2 ran, 0 failed" in first.stdout
    assert "Done: 1 hit, 0 ran, 0 failed" in second.stdout
    assert second.stdout.splitlines()[-1].startswith(f"  {tmp_path}/toy/total-")
    assert status["run"]["exit_code"] == 0
    assert [row["name"] for row in status["steps"]] == ["toy/numbers", "toy/total"]


def test_why_of_a_recipe_compares_the_plan_with_the_newest_output(neve, tmp_path: Path) -> None:
    """`why STEP MODULE` follows a dependency that never ran to its changed field."""
    neve("run", RECIPE, prefix=tmp_path)

    changed = neve("why", "toy/total", RECIPE, "count=5", prefix=tmp_path)
    same = neve("why", "toy/total", RECIPE, prefix=tmp_path)

    lines = changed.stdout.splitlines()
    assert lines[1].startswith("  config.input: toy/numbers-")
    assert lines[2:] == ["    config.count: 3 -> 5"]
    assert "is a hit: complete." in same.stdout


def test_failed_run_exits_1_with_reason_log_and_retry(neve, tmp_path: Path) -> None:
    """The summary of a failure says why, where the log is and how to retry."""
    shown = neve("run", RECIPE, "scale=-1", prefix=tmp_path)

    assert shown.returncode == 1
    assert "Step toy/total failed: ValueError: scale is negative" in shown.stdout
    assert "/.neve/attempts/1/log.txt" in shown.stdout
    assert "To retry: " in shown.stdout


def test_wrong_words_exit_2_without_a_traceback(neve, tmp_path: Path) -> None:
    """An unknown module, step or run ends with one sentence."""
    module = neve("run", "nothere", prefix=tmp_path)
    step = neve("plan", RECIPE, "--force", "toy/totl", prefix=tmp_path)
    run = neve("status", prefix=tmp_path)

    assert [shown.returncode for shown in (module, step, run)] == [2, 2, 2]
    assert "Did you mean 'toy/total'?" in step.stderr
    assert "Traceback" not in module.stderr + step.stderr + run.stderr
