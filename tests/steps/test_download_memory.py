"""Memory and disk of a download don't grow beyond the data itself."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.hub.server import LocalHub
from tests.steps.resource_peaks import run_and_sample

ROOT = Path(__file__).parents[2]
_NUM_FILES = 8
_FILE_BYTES = 256 << 20

_CHILD = """
import json, sys
from steps.download_hf import DownloadHfConfig, download_hf
from tests.steps.resource_peaks import peak_memory_bytes
config = DownloadHfConfig(repo="org/big", repo_type="dataset", revision=sys.argv[1])
results = download_hf(config, sys.argv[2])
print(json.dumps({"peak": peak_memory_bytes(), "results": results}))
"""


def _write_pattern(path: Path, seed: int) -> Path:
    """Write a file of holes with a few marks, so that it costs no disk and every file differs."""
    with path.open("wb") as file:
        file.truncate(_FILE_BYTES)
        for place in range(0, _FILE_BYTES, 32 << 20):
            file.seek(place)
            file.write(f"{seed} {place}".encode())
    return path


def test_two_gigabytes_pass_through_little_memory_and_disk(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download of 2 GB to a local prefix stays below 2 GB of memory and 5 GB of disk."""
    source, out, scratch = tmp_path / "source", tmp_path / "prefix/raw/big", tmp_path / "scratch"
    source.mkdir()
    scratch.mkdir()
    names = [f"data/train-{i}.parquet" for i in range(_NUM_FILES)]
    files = {name: _write_pattern(source / f"{i}", i) for i, name in enumerate(names)}
    sha = hub.add_repo("org/big", "dataset", files)
    env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}

    try:
        done, peak = run_and_sample(
            [sys.executable, "-c", _CHILD, sha, str(out)],
            [tmp_path / "prefix", scratch],
            timeout=60, env=env, cwd=ROOT,
        )  # fmt: skip
        left = list(scratch.rglob("*"))
    finally:
        shutil.rmtree(tmp_path / "prefix", ignore_errors=True)
        shutil.rmtree(source)

    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    print(f"peak memory {facts['peak'] / 1e6:.0f} MB, peak disk {peak / 1e6:.0f} MB")
    assert facts["results"]["num_bytes"] == _NUM_FILES * _FILE_BYTES
    assert facts["peak"] < 400e6
    assert _NUM_FILES * _FILE_BYTES <= peak < 2.2e9
    assert left == []
