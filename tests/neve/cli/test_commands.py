import json
import shutil
from pathlib import Path


def _outputs(prefix: Path, name: str, state: str) -> list[Path]:
    found = sorted(prefix.glob(f"{name}-*"))
    return [p for p in found if json.loads((p / ".neve/state.json").read_text())["state"] == state]


def test_ls_names_every_output_with_its_state(neve, toy_prefix) -> None:
    """`ls --json` gives one row per output, complete or not."""
    rows = json.loads(neve("ls", "--json", prefix=toy_prefix).stdout)

    states = sorted((row["name"], row["state"]) for row in rows)
    assert states == [
        ("toy/numbers", "SUCCEEDED"), ("toy/numbers", "SUCCEEDED"),
        ("toy/total", "FAILED"), ("toy/total", "SUCCEEDED"), ("toy/total", "SUCCEEDED"),
    ]  # fmt: skip


def test_why_follows_dependencies_to_the_changed_leaf(neve, toy_prefix) -> None:
    """`why` on an output names the own field and, indented, the fields of the dependency."""
    shown = neve("why", "toy/total", prefix=toy_prefix)

    assert shown.returncode == 0
    lines = shown.stdout.splitlines()
    assert lines[1].startswith("  config.input: toy/numbers-")
    assert lines[2:] == ["    config.count: 3 -> 4", "    config.limits.seq_len: 128 -> 256"]


def test_why_json_holds_the_same_tree(neve, toy_prefix) -> None:
    """`why --json` nests the reasons of a dependency below it."""
    shown = json.loads(neve("why", "toy/total", "--json", prefix=toy_prefix).stdout)

    (reason,) = shown["differences"]
    assert reason["field"] == "config.input"
    assert [inner["field"] for inner in reason["because"]] == [
        "config.count", "config.limits.seq_len",
    ]  # fmt: skip


def test_diff_compares_config_dependencies_and_results(neve, toy_prefix) -> None:
    """`diff` tells what differs between two records, and which parts are the same."""
    first, second = _outputs(toy_prefix, "toy/numbers", "SUCCEEDED")

    shown = json.loads(neve("diff", str(first), str(second), "--json", prefix=toy_prefix).stdout)

    assert set(shown["identity"]) == {"config.count", "config.limits.seq_len"}
    assert sorted(shown["results"]["rows"]) == ["3", "4"]
    assert shown["dependencies"] == shown["unhashed"] == {}


def test_show_gives_config_dependencies_and_results(neve, toy_prefix) -> None:
    """`show` works with a whole path and without a prefix."""
    path = _outputs(toy_prefix, "toy/total", "SUCCEEDED")[0]

    shown = neve("show", str(path / "total.txt")).stdout

    assert "toy/total  SUCCEEDED" in shown
    assert "  scale: 1.0" in shown
    assert "  config.input: toy/numbers-" in shown
    assert "total.txt" in shown


def test_show_of_a_failed_step_says_why(neve, toy_prefix) -> None:
    """`show` of a failed output names the error."""
    (path,) = _outputs(toy_prefix, "toy/total", "FAILED")

    assert "ValueError: scale is negative" in neve("show", str(path)).stdout


def test_logs_are_whole_and_hold_no_secret(neve, toy_prefix) -> None:
    """`logs` prints what the step wrote with secrets masked and colors stripped."""
    path = _outputs(toy_prefix, "toy/numbers", "SUCCEEDED")[0]

    shown = neve("logs", str(path)).stdout

    # stdout and messages travel through two pipes: their order is not part of the contract.
    assert sorted(shown.splitlines()) == ["red message", "the token is ***"]


def test_logs_of_an_unknown_attempt_name_those_there(neve, toy_prefix) -> None:
    """`logs --attempt 7` exits 2 and lists the attempts."""
    path = _outputs(toy_prefix, "toy/numbers", "SUCCEEDED")[0]

    shown = neve("logs", str(path), "--attempt", "7")

    assert shown.returncode == 2
    assert "It has attempts 1." in shown.stderr


def test_verify_finds_changed_missing_and_new_files(neve, toy_prefix, tmp_path) -> None:
    """`verify` exits 0 for an untouched output and 1 for each kind of damage."""
    prefix = tmp_path / "copy"
    shutil.copytree(toy_prefix, prefix)
    path = _outputs(prefix, "toy/numbers", "SUCCEEDED")[0]
    file = path / "numbers.txt"

    assert neve("verify", str(path)).returncode == 0

    text = file.read_text()
    file.write_text("9" + text[1:])
    assert "content differs" in neve("verify", str(path)).stdout
    file.rename(path / "other.txt")
    shown = neve("verify", str(path))
    assert shown.returncode == 1
    assert "numbers.txt: missing" in shown.stdout
    assert "other.txt: not in the manifest" in shown.stdout


def test_ambiguous_names_list_the_candidates(neve, toy_prefix) -> None:
    """A name with several outputs exits 2 with every candidate and no traceback."""
    shown = neve("show", "toy/num", prefix=toy_prefix)

    assert shown.returncode == 2
    assert shown.stderr.count("toy/numbers-") == 2
    assert "Traceback" not in shown.stderr


def test_unknown_names_get_a_suggestion(neve, toy_prefix) -> None:
    """A misspelt output or command exits 2 with a did-you-mean."""
    output = neve("show", "toy/nunbers", prefix=toy_prefix)
    command = neve("lss")

    assert (output.returncode, command.returncode) == (2, 2)
    assert "Did you mean 'toy/numbers'?" in output.stderr
    assert "Did you mean 'ls'?" in command.stderr


def test_missing_prefix_is_one_sentence(neve) -> None:
    """Without a prefix, `ls` exits 2 and says what to set."""
    shown = neve("ls")

    assert shown.returncode == 2
    assert "Export MARIN_PREFIX" in shown.stderr
    assert "Traceback" not in shown.stderr
