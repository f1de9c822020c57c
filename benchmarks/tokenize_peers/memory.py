"""The memory that a process and all below it hold, sampled while they run."""

import subprocess
from pathlib import Path

_SECONDS_BETWEEN = 0.25


def wait_and_sample(process: subprocess.Popen[bytes]) -> int | None:
    """Waits for the end of a process; returns the peak of its tree in bytes, None off Linux.

    Shared pages are counted once over the tree (proportional set size), page cache isn't.
    """
    peak = None
    while True:
        try:
            process.wait(_SECONDS_BETWEEN)
            return peak
        except subprocess.TimeoutExpired:
            now = _tree_bytes(process.pid)
            peak = max(peak or 0, now) if now else peak


def _tree_bytes(pid: int) -> int:
    home, total = Path("/proc") / str(pid), 0
    try:
        for line in (home / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total = int(line.split()[1]) * 1024
        children = [c for task in home.glob("task/*/children") for c in task.read_text().split()]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return total + sum(_tree_bytes(int(child)) for child in children)
