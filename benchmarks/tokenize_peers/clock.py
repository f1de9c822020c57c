"""How every entrant is timed: warm up, time a small piece and the corpus, then hash the rows.

Runs under Python 3.11 too, with numpy as its only dependency.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

# ids and mask of one conversation
Row = tuple[Any, Any]
# (files of the corpus, empty folder) -> a function that reads the rows that were made
Entrant = Callable[[list[str], str], Callable[[], Iterable[Row]]]


def run_entrant(make_entrant: Callable[[dict[str, Any]], Entrant], *packages: str) -> None:
    """Times the entrant as the job (a JSON file, first argument) asks; writes job["result"].

    The job's keys: template, tokenizer (folder), work (folder), small and large (files), repeats,
    result, cores, and what the entrant itself reads.
    """
    job = json.loads(Path(sys.argv[1]).read_text())
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job["cores"])
    entrant = make_entrant(job)
    work = Path(job["work"])
    seconds_of: dict[str, list[float]] = {"small": [], "large": []}
    cpu_of: dict[str, list[float]] = {"small": [], "large": []}
    hashes, tokens_of = [], {}
    with _quiet():
        entrant(job["small"], _empty(work / "warm-up"))()
        for size, seconds in seconds_of.items():
            read_rows: Callable[[], Iterable[Row]] = list
            for _ in range(job["repeats"]):
                out = _empty(work / size)
                began, used = time.perf_counter(), _cpu_seconds()
                read_rows = entrant(job[size], out)
                seconds.append(time.perf_counter() - began)
                cpu_of[size].append(_cpu_seconds() - used)
            rows = [(row_hash(ids, mask), len(ids)) for ids, mask in read_rows()]
            hashes, tokens_of[size] = [row[0] for row in rows], sum(row[1] for row in rows)
    shutil.rmtree(work)
    result = {
        "seconds": seconds_of["large"],
        "small_seconds": seconds_of["small"],
        "cpu_seconds": cpu_of["large"],
        "small_cpu_seconds": cpu_of["small"],
        "tokens": tokens_of["large"],
        "small_tokens": tokens_of["small"],
        "tokens_per_second": _rate(tokens_of, seconds_of),
        "tokens_per_cpu_second": _rate(tokens_of, cpu_of),
        "rows": len(hashes),
        "row_hashes": hashes,
        "versions": {name: importlib.metadata.version(name) for name in packages}
        | {"python": platform.python_version()},
    }
    Path(job["result"]).write_text(json.dumps(result))


def _rate(tokens: dict[str, int], seconds: dict[str, list[float]]) -> float:
    """Returns tokens per (CPU) second between the two sizes: what starting takes is in both.

    A corpus that takes hardly longer than the small piece counts with the start.
    """
    whole, start = statistics.median(seconds["large"]), statistics.median(seconds["small"])
    if start > 0.8 * whole:
        return tokens["large"] / whole
    return (tokens["large"] - tokens["small"]) / (whole - start)


def _cpu_seconds() -> float:
    """Returns what this process and its ended children have used: it hardly feels other load."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def row_hash(ids: Any, mask: Any) -> str:
    """Returns what is equal for two rows whose ids and masks are equal."""
    digest = hashlib.sha256(np.ascontiguousarray(ids, dtype=np.int32).tobytes())
    digest.update(b"mask" + np.ascontiguousarray(mask, dtype=np.uint8).tobytes())
    return digest.hexdigest()[:16]


def _empty(folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return str(folder)


@contextmanager
def _quiet() -> Iterator[None]:
    """Sends what entrants print to standard error, so that bars don't fill the report."""
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
