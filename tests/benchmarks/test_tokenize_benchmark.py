"""The comparison of tokenizing: its corpus, its verdict and a small run of the whole program."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import tokenize
from benchmarks.agent_corpus import first_lines, make_conversation, write_corpus
from benchmarks.tokenize_peers.clock import row_hash
from tests.neve_chat.tiny_tokenizer import build_tokenizer


def result(hashes: list[str], rate: float) -> dict[str, Any]:
    """Returns what an entrant's program would write."""
    return {
        "tokens_per_second": rate, "rates": [rate, rate], "rows": len(hashes), "tokens": 10, "row_hashes": hashes,
        "seconds": [1.0], "small_seconds": [0.1], "cpu_seconds": [1.0], "small_cpu_seconds": [0.1],
        "tokens_per_cpu_second": rate, "peak_memory_bytes": 5,
    }  # fmt: skip


def test_corpus_is_a_function_of_seed_and_row_number() -> None:
    """Published rates mean this corpus: a change of it makes them incomparable."""
    text = json.dumps(make_conversation(0, 0)).encode()

    assert hashlib.sha256(text).hexdigest().startswith("0d527053609da91b")
    assert make_conversation(1, 0) != make_conversation(0, 0)


def test_larger_corpus_begins_with_the_smaller(tmp_path: Path) -> None:
    """Rows don't depend on how many there are, nor on the process that made them."""
    write_corpus(tmp_path / "small.jsonl", rows=3)
    write_corpus(tmp_path / "large.jsonl", rows=40)

    assert [*first_lines(tmp_path / "large.jsonl", 3)] == [
        *first_lines(tmp_path / "small.jsonl", 9)
    ]
    rows = [json.loads(line) for line in first_lines(tmp_path / "large.jsonl", 99)]
    assert [row["id"] for row in rows] == [f"0-{index:07d}" for index in range(40)]
    assert rows[39] == make_conversation(0, 39)


def test_conversations_alternate_and_end_on_an_answer() -> None:
    """Trainers that insist on alternating turns can read them."""
    for index in range(20):
        roles = [message["role"] for message in make_conversation(0, index)["messages"]]

        assert roles[:2] == ["system", "user"]
        assert roles[-1] == "assistant"
        assert all(a != b for a, b in itertools.pairwise(roles))


def test_row_hash_sees_ids_and_masks() -> None:
    """One other id, one other mask bit, or the same numbers as another type."""
    base = row_hash([1, 2, 3], [0, 1, 1])

    assert row_hash((1, 2, 3), (False, True, True)) == base
    assert row_hash([1, 2, 4], [0, 1, 1]) != base
    assert row_hash([1, 2, 3], [0, 0, 1]) != base


@pytest.mark.parametrize(
    ("peer_hashes", "referee", "differing"),
    [
        (["a", "b"], ["a", "b", "c"], (0, 0)),
        (["a", "x"], ["a", "b", "c"], (1, 0)),
        (["a"], ["a", "b", "c"], (1, 0)),
        (["a", "b"], ["a", "b", "x"], (0, 1)),
    ],
)
def test_report_is_identical_only_if_every_row_is(
    peer_hashes: list[str], referee: list[str], differing: tuple[int, int]
) -> None:
    """A differing or missing row of an exact peer, or of the referee, is counted."""
    peers = {"levanter": result(peer_hashes, 2.0), "axolotl": "not installed"}

    report = tokenize.make_report(3, 2, result(["a", "b", "c"], 30.0), {}, peers, referee)

    counts = report["rows_differing"]
    assert (counts["levanter"], counts["transformers_all_rows"]) == differing
    assert report["identical"] is (differing == (0, 0))
    assert report["ratio_to_peers"] == {"levanter": 15.0}
    assert "axolotl             not installed" in tokenize.table(
        report | {"cores": 2, "tokenizer": "t"}
    )


def run_small(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, peers: str, scale: int
) -> dict[str, Any]:
    """Returns the last line of a run on a few conversations."""
    tokenizer = build_tokenizer(tmp_path / "tokenizer")
    tokenize.main([
        "--json", "--rows", "9", "--peer_rows", "6", "--start_rows", "2", "--repeats", "1",
        "--scale", str(scale), "--peers", peers, "--tokenizer", str(tokenizer),
        "--peers_env", str(tmp_path / "absent"), "--work", str(tmp_path / "work"),
    ])  # fmt: skip
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_benchmark_runs_and_finds_rows_identical(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Our two steps give transformers' ids and masks; peers that aren't there are said to be so."""
    report = run_small(capsys, tmp_path, "transformers_batch,axolotl", 1)

    assert report["identical"] is True
    assert report["rows_compared"] == {"transformers_batch": 6, "transformers_all_rows": 9}
    assert report["tokens_per_second"] > 0
    assert report["ratio_to_peers"].keys() == {"transformers_batch"}
    assert report["entrants"]["axolotl"].startswith("not installed")
    assert report["entrants"]["neve"]["tokens"] == report["tokens"] > 100_000


@pytest.mark.full
def test_benchmark_finds_all_exact_peers_identical(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Levanter's cache build and TRL's map agree as well, and the larger corpus with the smaller."""
    report = run_small(capsys, tmp_path, "levanter,trl_style", 2)

    assert report["identical"] is True
    assert report["rows_compared"] == {
        "levanter": 6, "trl_style": 6, "transformers_all_rows": 9, "neve_10x": 9
    }  # fmt: skip
    assert report["rows_10x"] == 18
    assert report["ratio_to_peers"].keys() == {"levanter", "trl_style"}


def test_unknown_peers_and_impossible_sizes_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is generated."""
    for arguments, said in (
        (["--peers", "levantr"], "got levantr"),
        (["--rows", "10", "--peer_rows", "20"], "at most --rows"),
    ):
        with pytest.raises(SystemExit, match="2"):
            tokenize.main(arguments)
        assert said in capsys.readouterr().err
