"""Conversations to token caches: ours against the peers, in one run on the same cores.

`python -m benchmarks.tokenize --json`; what is measured and how: docs/reference/benchmarks.md.
"""

import argparse
import itertools
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from neve_chat.pool import num_cores
from neve_chat.templates import load_template
from neve_chat.units import UNIT_BYTES

from benchmarks.agent_corpus import first_lines, write_corpus
from benchmarks.tokenize_peers.environments import REQUIREMENTS, install, python_of
from benchmarks.tokenize_peers.memory import wait_and_sample
from benchmarks.tokenize_peers.real_tokenizer import prepare_tokenizer

ROOT = Path(__file__).resolve().parents[1]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "neve" / "benchmarks"
# name in the report -> module; those of EXACT must give our ids and masks
EXACT = {
    "levanter": "levanter_cache",
    "transformers_batch": "transformers_batch",
    "trl_style": "trl_style",
}
OWN_ENVIRONMENT = {"axolotl": "axolotl_preprocess", "llamafactory": "llamafactory_preprocess"}
TEMPLATE = "llama3"
# Nearly eight of our units of work, so that 1, 2, 4 or 8 cores are equally loaded.
ROWS = 9_300


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Returns the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokenize", description=__doc__)
    add = parser.add_argument
    add("--json", action="store_true", help="the last line is one JSON object, instead of a table")
    add("--rows", type=int, default=ROWS, help="conversations of the corpus (7,800 tokens each)")
    add("--peer_rows", type=int, default=800, help="first rows of it, which peers work on")
    add("--start_rows", type=int, default=48, help="first rows of it, whose time is subtracted")
    add("--scale", type=int, default=10, help="ours once more on so many times the rows; 1: not")
    add("--repeats", type=int, default=3, help="rounds, in which each works once")
    add("--peers", default=",".join([*EXACT, *OWN_ENVIRONMENT]), help="names, or none")
    add("--referee_rows", type=int, help="rows compared with transformers'; default: all")
    add("--tokenizer", type=Path, help="folder; default: Llama 3.1's, fetched with npm")
    add("--peers_env", type=Path, default=CACHE / "peers", help="folder of peers' environments")
    add("--install_peers", action="store_true", help="install the missing ones there: several GB")
    add("--work", type=Path, help="scratch folder, kept, and reused for the corpus")
    options = parser.parse_args(arguments)
    options.peers = [name for name in options.peers.split(",") if name and name != "none"]
    if unknown := set(options.peers) - set(EXACT) - set(OWN_ENVIRONMENT):
        known = ", ".join([*EXACT, *OWN_ENVIRONMENT])
        parser.error(f"--peers: must be of {known}, got {', '.join(sorted(unknown))}")
    if not options.start_rows < options.peer_rows <= options.rows:
        parser.error("--start_rows must be below --peer_rows, and that at most --rows")
    return options


class Bench:
    """The corpora, the tokenizer and how an entrant is run on them."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options, self.work = options, work
        has_affinity = hasattr(os, "sched_getaffinity")
        self.cores = sorted(os.sched_getaffinity(0)) if has_affinity else list(range(num_cores()))
        self.template = load_template(TEMPLATE).text
        tell(f"Corpus of {options.rows * options.scale:,} conversations, and the tokenizer ...")
        largest = self._corpus(options.rows * options.scale)
        self.small = self._head(largest, "small", options.start_rows)
        self.prefix = self._head(largest, "prefix", options.peer_rows)
        self.corpus = self._head(largest, "corpus", options.rows)
        self.start = self._start()
        self.largest = largest
        self.tokenizer = work / "tokenizer"
        self.origin = prepare_tokenizer(options.tokenizer, CACHE, self.tokenizer, self.template)

    def _corpus(self, rows: int) -> Path:
        path = self.work / f"seed-0-{rows}.jsonl"
        if not path.exists():
            write_corpus(path, rows=rows)
        return path

    def _head(self, path: Path, name: str, rows: int) -> Path:
        head = self.work / name / f"{name}.jsonl"
        head.parent.mkdir(exist_ok=True)
        with head.open("wb") as file:
            file.writelines(first_lines(path, rows))
        return head

    def _start(self) -> Path:
        """Returns a piece that gives each core one unit of work, if the corpus is twice as large.

        Ours starts processes only where there are units for them; what they take to start is
        measured, and subtracted, only if the small piece starts them too.
        """
        row_bytes = self.corpus.stat().st_size / self.options.rows
        rows = int(0.97 * UNIT_BYTES * len(self.cores) / row_bytes)
        if rows * 2 > self.options.rows:
            return self.small
        return self._head(self.corpus, "start", rows)

    def _pieces(self, path: Path) -> list[str]:
        """Returns the file cut into one for each core, for who works on files in parallel."""
        lines = path.read_bytes().splitlines(keepends=True)
        size = -(-len(lines) // len(self.cores))
        pieces = []
        for index in range(0, len(lines), size):
            piece = path.with_name(f"{path.stem}-{index:08d}.jsonl")
            piece.write_bytes(b"".join(lines[index : index + size]))
            pieces.append(str(piece))
        return pieces

    def measure(self, name: str, module: str, large: Path, **more: Any) -> dict[str, Any]:
        """Returns the result of an entrant's program, and the peak of its memory."""
        tell(f"{name} on {large.stem} ...")
        cut = self._pieces if name == "levanter" else lambda path: [str(path)]
        small = self.start if module == "ours" else self.small
        job = {"small": cut(small), "large": cut(large), "repeats": 1}
        return self.run(name, module, **(job | more))

    def run(self, name: str, module: str, python: Path | str = sys.executable, **job: Any) -> Any:
        """Returns what a program of tokenize_peers writes as its result."""
        job_path, result = self.work / f"{name}.job.json", self.work / f"{name}.result.json"
        job |= {
            "tokenizer": str(self.tokenizer), "template": self.template, "cores": self.cores,
            "template_name": TEMPLATE, "work": str(self.work / f"{name}.work"),
            "result": str(result),
        }  # fmt: skip
        job_path.write_text(json.dumps(job))
        words = [str(python), "-m", f"benchmarks.tokenize_peers.{module}", str(job_path)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
        with (self.work / f"{name}.log").open("w+b") as log:
            with subprocess.Popen(
                words, cwd=ROOT, stdout=log, stderr=log, env=environment
            ) as process:
                peak = wait_and_sample(process)
            if process.returncode:
                log.seek(0)
                tail = log.read().decode(errors="replace")[-3000:]
                raise SystemExit(f"{tail}\n{name}: must finish, got exit {process.returncode}.")
        return json.loads(result.read_text()) | {"peak_memory_bytes": peak}


def run_benchmark(bench: Bench) -> dict[str, Any]:
    """Returns the report."""
    options = bench.options
    pythons: dict[str, str] = {}
    peers: dict[str, Any] = {}
    for name in options.peers:
        if name in OWN_ENVIRONMENT and options.install_peers:
            install(name, options.peers_env)
        python = sys.executable if name in EXACT else python_of(name, options.peers_env)
        if python:
            pythons[name] = str(python)
        else:
            peers[name] = f"not installed ({' '.join(REQUIREMENTS[name])}); --install_peers"
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in ("neve", *pythons)}
    modules = EXACT | OWN_ENVIRONMENT
    for _ in range(options.repeats):  # in turns: a machine that gets slower does so for everyone
        rounds["neve"].append(bench.measure("neve", "ours", bench.corpus))
        for name, python in pythons.items():
            done = bench.measure(name, modules[name], bench.prefix, python=python)
            rounds[name].append(done)
    ours, *measured = map(merged, rounds.values())
    peers |= dict(zip(pythons, measured, strict=True))
    again = {}
    if options.scale > 1:
        again = bench.measure("neve_again", "ours", bench.largest)
    tell("Rows compared with transformers' ...")
    rows = options.rows if options.referee_rows is None else options.referee_rows
    referee = bench.run("referee", "referee", corpus=str(bench.corpus), rows=rows)
    facts = {
        "scale": options.scale, "cores": len(bench.cores), "repeats": options.repeats,
        "tokenizer": bench.origin, "template": TEMPLATE,
    }  # fmt: skip
    hashes = referee["row_hashes"]
    return make_report(options.rows, options.peer_rows, ours, again, peers, hashes) | facts


def merged(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns one result of an entrant's rounds: every timing, median rates, rows that never differ."""
    whole = dict(rounds[0])
    for key in ("seconds", "small_seconds", "cpu_seconds", "small_cpu_seconds"):
        whole[key] = [value for each in rounds for value in each[key]]
    whole["rates"] = [each["tokens_per_second"] for each in rounds]
    for key in ("tokens_per_second", "tokens_per_cpu_second"):
        whole[key] = statistics.median(each[key] for each in rounds)
    whole["peak_memory_bytes"] = max(each["peak_memory_bytes"] or 0 for each in rounds)
    whole["row_hashes"] = [
        hashes[0] if len(set(hashes)) == 1 else "differs"
        for hashes in itertools.zip_longest(*(each["row_hashes"] for each in rounds))
    ]
    return whole


def make_report(
    rows: int,
    peer_rows: int,
    ours: dict[str, Any],
    again: dict[str, Any],
    peers: dict[str, Any],
    referee: list[str],
) -> dict[str, Any]:
    """Returns what the last line says.

    Args:
        rows: Conversations that ours was given.
        peer_rows: Conversations that each peer was given.
        ours: Result of our program on the corpus.
        again: Its result on the larger corpus, or empty.
        peers: Name -> result, or why there is none.
        referee: Hashes of the first rows by transformers.
    """
    measured = {name: peer for name, peer in peers.items() if isinstance(peer, dict)}
    expected = ours["row_hashes"]
    compared = {
        name: (measured[name]["row_hashes"], peer_rows) for name in EXACT if name in measured
    }
    compared["transformers_all_rows"] = referee, len(referee)
    if again:
        compared["neve_10x"] = again["row_hashes"][:rows], rows
    differing = {
        name: sum(a != b for a, b in itertools.zip_longest(hashes, expected[:count]))
        for name, (hashes, count) in compared.items()
    }
    rate = ours["tokens_per_second"]
    return {
        "tokens_per_second": round(rate),
        "ratio_to_peers": {
            name: round(statistics.median(map(operator.truediv, ours["rates"], peer["rates"])), 2)
            for name, peer in measured.items()
        },
        "identical": ours["rows"] == rows and not any(differing.values()),
        "peak_memory_bytes": ours["peak_memory_bytes"],
        "tokens_per_second_10x": round(again["tokens_per_second"]) if again else None,
        "peak_memory_bytes_10x": again.get("peak_memory_bytes"),
        "rows": ours["rows"],
        "tokens": ours["tokens"],
        "rows_10x": again.get("rows"),
        "tokens_10x": again.get("tokens"),
        "rows_compared": {name: count for name, (_, count) in compared.items()},
        "rows_differing": differing,
        "entrants": {
            name: _facts(entrant) if isinstance(entrant, dict) else entrant
            for name, entrant in {"neve": ours, **peers, **({"neve_10x": again} if again else {})}.items()
        },
    }  # fmt: skip


def _facts(entrant: dict[str, Any]) -> dict[str, Any]:
    facts = {key: value for key, value in entrant.items() if key != "row_hashes"}
    for key in ("seconds", "small_seconds", "cpu_seconds", "small_cpu_seconds"):
        facts[key] = [round(seconds, 3) for seconds in facts[key]]
    for key in ("tokens_per_second", "tokens_per_cpu_second"):
        facts[key] = round(facts[key])
    facts["rates"] = [round(rate) for rate in facts.get("rates", ())]
    return facts


def table(report: dict[str, Any]) -> str:
    """Returns the report as lines for people."""
    lines = [f"{'':20}{'tok/s':>12}{'ours is':>9}{'tokens':>13}{'seconds':>9}{'peak MiB':>10}"]
    for name, entrant in report["entrants"].items():
        if isinstance(entrant, str):
            lines.append(f"{name:20}{entrant}")
            continue
        ratio = report["ratio_to_peers"].get(name)
        seconds = sorted(entrant["seconds"])[len(entrant["seconds"]) // 2]
        memory = (entrant["peak_memory_bytes"] or 0) / 2**20
        lines.append(
            f"{name:20}{entrant['tokens_per_second']:>12,}{f'{ratio}x' if ratio else '':>9}"
            f"{entrant['tokens']:>13,}{seconds:>9.2f}{memory:>10,.0f}"
        )
    differing, compared = report["rows_differing"], report["rows_compared"]
    for name, count in differing.items():
        lines.append(f"{name}: {count:,} of {compared[name]:,} rows differ from ours")
    lines.append(f"{report['cores']} cores; tokenizer: {report['tokenizer']}; see --help")
    return "\n".join(lines)


def tell(text: str) -> None:
    """Shows what is going on, apart from the report."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _work_folder(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept
        return
    with tempfile.TemporaryDirectory(prefix="neve-tokenize-") as folder:
        yield Path(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs everything and prints the report."""
    options = parse(arguments)
    with _work_folder(options.work) as work:
        report = run_benchmark(Bench(options, work.resolve()))
    print(json.dumps(report) if options.json else table(report))


if __name__ == "__main__":
    main()
