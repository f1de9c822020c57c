"""The download step where things end badly: kills, redirects, clashing names and secrets."""

import logging
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from neve.errors import InputError

from steps._hub import DownloadError
from steps.download_hf import DownloadHfConfig, download_hf
from tests.hub.server import LocalHub

TOKEN = "hf_secret_for_tests"
ROOT = Path(__file__).parents[2]
CONTENT = bytes(range(250)) * 8000

_CHILD = """
import sys
from steps.download_hf import DownloadHfConfig, download_hf
download_hf(DownloadHfConfig(repo="org/data", repo_type="dataset", revision=sys.argv[1]), sys.argv[2])
"""

_RECIPE = """
import sys
from neve import ExecutorStep, executor_main
from steps.download_hf import DownloadHfConfig, download_hf
config = DownloadHfConfig(repo="org/data", repo_type="dataset", revision=sys.argv.pop(1))
step = ExecutorStep(name="raw/data", fn=download_hf, config=config, resumable=True)
if __name__ == "__main__":
    executor_main([step])
"""


def _config(sha: str, **fields: object) -> DownloadHfConfig:
    return DownloadHfConfig(repo="org/data", repo_type="dataset", revision=sha, **fields)


def _gets(hub: LocalHub) -> list[tuple[str, str | None]]:
    return [(r.path.rsplit("/", 1)[1], r.range) for r in hub.requests if "/resolve/" in r.path]


def _names(out: Path) -> set[str]:
    return {p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file()}


def test_download_goes_on_after_a_kill(hub: LocalHub, tmp_path: Path) -> None:
    """After kill -9 the finished files are not fetched again and the broken one is resumed."""
    sha = hub.add_repo("org/data", "dataset", {"a.bin": CONTENT, "b.bin": CONTENT[::-1]})
    hub.fail("b.bin", hang_after=1_500_000)
    out = tmp_path / "out"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen([sys.executable, "-c", _CHILD, sha, str(out)], env=env, cwd=ROOT)
    try:
        assert hub.hanging.wait(30)
        part = out / ".neve-parts/b.bin"
        for _ in range(300):
            if (out / "a.bin").exists() and part.exists() and part.stat().st_size >= 1 << 20:
                break
            hub.released.wait(0.05)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        hub.released.set()
    have = part.stat().st_size
    hub.requests.clear()

    results = download_hf(_config(sha), str(out))

    assert 0 < have < len(CONTENT)
    assert _gets(hub) == [("b.bin", f"bytes={have}-")]
    assert results["fetched_files"] == 1
    assert (out / "b.bin").read_bytes() == CONTENT[::-1]
    assert _names(out) == {"a.bin", "b.bin", ".neve-download.json"}


def test_download_keeps_files_named_like_parts(hub: LocalHub, tmp_path: Path) -> None:
    """A repository's own x.incomplete beside x is a file like any other, also when x is resumed."""
    files = {"x": CONTENT, "x.incomplete": b"mine", "x.incomplete.incomplete": b"too"}
    sha = hub.add_repo("org/data", "dataset", files, lfs_bytes=1)
    hub.fail("x", drop_after=1_500_000)
    out = tmp_path / "out"

    download_hf(_config(sha), str(out))

    assert {name: (out / name).read_bytes() for name in files} == files
    assert _names(out) == {*files, ".neve-download.json"}
    (out / "x").unlink()
    assert download_hf(_config(sha), str(out))["fetched_files"] == 1
    assert {name: (out / name).read_bytes() for name in files} == files
    download_hf(_config(sha, allow=("x.incomplete",)), str(out))
    assert _names(out) == {"x.incomplete", ".neve-download.json"}


def test_download_refuses_names_of_neve(hub: LocalHub, tmp_path: Path) -> None:
    """A file that would hide in neve's own folders is refused until it is ignored."""
    sha = hub.add_repo("org/data", "dataset", {"x": b"x", ".neve-parts/x": b"y", "a/.neve/z": b"z"})

    with pytest.raises(InputError, match=r"'\.neve-parts/x': .*Leave it out with ignore"):
        download_hf(_config(sha), str(tmp_path / "out"))

    config = _config(sha, ignore=(".neve*", "*/.neve/*"))
    assert download_hf(config, str(tmp_path / "out"))["num_files"] == 1


@pytest.mark.parametrize("status", [None, 403])
def test_download_keeps_the_token_from_other_hosts(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    """A redirect to another server carries no token; an expired address there is asked for anew."""
    sha = hub.add_repo("org/data", "dataset", {"x": CONTENT}, private=True)
    storehouse = LocalHub()
    assert storehouse.add_repo("org/data", "dataset", {"x": CONTENT}) == sha
    if status:
        storehouse.fail("x", status=status)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    with storehouse.serving() as address:
        hub.fail("x", redirect_to=address, times=9)
        download_hf(_config(sha), str(tmp_path / "out"))

    assert (tmp_path / "out/x").read_bytes() == CONTENT
    assert all(request.has_token for request in hub.requests if "org/data" in request.path)
    assert [request.has_token for request in storehouse.requests] == [False] * (2 if status else 1)


@pytest.mark.parametrize("fault", [{"status": 500, "retry_after": 0}, {"status": 404}])
@pytest.mark.parametrize("name", ["x", ""])
def test_errors_never_show_the_token(
    hub: LocalHub,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: dict,
    name: str,
) -> None:
    """Neither the traceback with its causes nor the log at its finest level holds the token."""
    sha = hub.add_repo("org/data", "dataset", {"x": b"x"}, private=True)
    hub.fail(name, **fault, times=99)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    caplog.set_level(logging.DEBUG)

    with pytest.raises(DownloadError) as caught:
        download_hf(_config(sha), str(tmp_path / "out"))

    shown = "".join(traceback.TracebackException.from_exception(
        caught.value, capture_locals=True
    ).format())  # fmt: skip
    assert TOKEN not in shown
    assert TOKEN not in caplog.text
    assert "HTTP" in str(caught.value)


@pytest.mark.parametrize("place", ["HF_TOKEN", "file"])
def test_a_run_never_stores_the_token(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """No file of the prefix and no line of a run that fails and then works holds the token.

    From a file neve doesn't know the token as a secret, so that masking can't hide a leak.
    """
    sha = hub.add_repo("org/data", "dataset", {"x": b"x"}, private=True)
    hub.fail("x", status=500, retry_after=0, times=6)
    if place == "file":
        Path(os.environ["HF_HOME"], "token").write_text(TOKEN)
    else:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    prefix = tmp_path / "prefix"
    (tmp_path / "recipe.py").write_text(_RECIPE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("MARIN_PREFIX", str(prefix))

    runs = [
        subprocess.run(
            [sys.executable, "-m", "recipe", sha], capture_output=True, cwd=tmp_path, check=False
        )
        for _ in range(2)
    ]

    assert [run.returncode for run in runs] == [1, 0], runs
    assert b"HTTP 500" in runs[0].stdout + runs[0].stderr
    stored = [path for path in tmp_path.rglob("*") if path.is_file()]
    kinds = {"step.json", "record.json", "error.json", "log.txt", "x"}
    assert kinds <= {path.name for path in stored}
    assert [path for path in stored if TOKEN.encode() in path.read_bytes()] == []
    assert all(TOKEN.encode() not in run.stdout + run.stderr for run in runs)
