"""The most memory of a process, and the most disk space of folders while one ran."""

import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path


def peak_memory_bytes() -> int:
    """Return the most memory this process held.

    On Linux ru_maxrss would start at what the parent held, so the kernel's own mark is read.
    """
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def disk_bytes(folders: list[Path]) -> int:
    """Return the sizes of all files below folders, also while they come and go."""
    total = 0
    for folder in folders:
        for root, _, names in os.walk(folder):
            for name in names:
                try:
                    total += os.lstat(os.path.join(root, name)).st_size
                except FileNotFoundError:
                    continue
    return total


def run_and_sample(
    words: list[str], folders: list[Path], *, timeout: float, **options: object
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run a process to its end; return it and the peak of disk_bytes, sampled 20 times a second.

    A process that runs longer than timeout seconds is killed and fails the test.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    peak, deadline = 0, time.monotonic() + timeout
    with subprocess.Popen(words, **pipes, **options) as process:
        try:
            while True:
                peak = max(peak, disk_bytes(folders))
                try:
                    out, err = process.communicate(timeout=0.05)
                    break
                except subprocess.TimeoutExpired:
                    assert time.monotonic() < deadline, f"must end within {timeout} s"
        finally:
            process.kill()
    peak = max(peak, disk_bytes(folders))
    return subprocess.CompletedProcess(words, process.returncode, out, err), peak
