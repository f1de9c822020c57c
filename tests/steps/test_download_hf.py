"""The download step against a real HTTP server and the real hub client."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from neve.errors import InputError

from steps.download_hf import DownloadHfConfig, download_hf, select_names
from tests.hub.fixtures import hub  # noqa: F401  fixture
from tests.hub.server import LocalHub

ROW = b'{"messages": [{"role": "user", "content": "Hi"}]}\n'
TOKEN = "hf_secret_for_tests"


def _config(sha: str, **fields: object) -> DownloadHfConfig:
    return DownloadHfConfig(repo="org/data", repo_type="dataset", revision=sha, **fields)


def _gets(hub: LocalHub) -> list[tuple[str, str | None]]:  # noqa: F811
    return [(r.path.rsplit("/", 1)[1], r.range) for r in hub.requests if "/resolve/" in r.path]


def test_download_writes_the_pinned_revision(hub: LocalHub, tmp_path: Path) -> None:  # noqa: F811
    """Every lookup names the pinned commit, and files of main never appear."""
    sha = hub.add_repo(
        "org/data", "dataset", {"config.json": b"old", "w.bin": b"1" * 99}, lfs_bytes=50
    )
    hub.add_repo("org/data", "dataset", {"config.json": b"new", "tokenizer.json": b"x"})

    results = download_hf(_config(sha), str(tmp_path / "out"))

    assert (tmp_path / "out/config.json").read_bytes() == b"old"
    assert not (tmp_path / "out/tokenizer.json").exists()
    assert results["num_files"] == 2
    # The client also asks /api/agent-harnesses for its user agent; that names no repository.
    lookups = [request.path for request in hub.requests if "org/data" in request.path]
    assert len(lookups) == 3
    assert all(sha in path for path in lookups)


def test_download_lists_all_pages(hub: LocalHub, tmp_path: Path) -> None:  # noqa: F811
    """A listing of three pages is read whole."""
    sha = hub.add_repo("org/data", "dataset", {f"d/{i:03}.txt": b"x" for i in range(205)})

    assert download_hf(_config(sha), str(tmp_path / "out"))["num_files"] == 205


@pytest.mark.parametrize("revision", ["main", "v1", "4f1c0de", None, "A" * 40])
def test_config_refuses_what_is_no_commit(revision: str) -> None:
    """A revision that can move or is cut short is refused with the way to find one."""
    with pytest.raises(
        InputError, match=r"git ls-remote https://huggingface.co/datasets/org/data main"
    ):
        _config(revision)


def test_select_names_gives_ignore_precedence() -> None:
    """Ignore wins over allow, `*` crosses folders, no match is an error with near misses."""
    names = ["README.md", "data/a.fp16.bin", "data/a.bin", "data/sub/b.bin", "old/a.bin"]

    kept = select_names(names, ("data/*.bin",), ("*fp16*",), "repo")

    assert kept == ["data/a.bin", "data/sub/b.bin"]
    with pytest.raises(InputError, match=r"no file matches.*repository has data/a.fp16.bin"):
        select_names(names, ("data/**/*.jsonl",), (), "repo")
    with pytest.raises(InputError, match="all matches are ignored"):
        select_names(names, ("*.bin",), ("*",), "repo")


def test_download_repairs_only_what_is_wrong(
    hub: LocalHub,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A half-empty folder fails offline with every fault named; online fetches only those."""
    names = ["data/train-0.jsonl", "data/train-1.jsonl", "data/test-0.jsonl"]
    sha = hub.add_repo("org/data", "dataset", dict.fromkeys(names, ROW))
    out = tmp_path / "out"
    download_hf(_config(sha), str(out))
    (out / names[1]).rename(out / (names[1] + ".incomplete"))
    (out / (names[1] + ".incomplete")).write_bytes(ROW[:17])
    (out / names[2]).write_bytes(b"")
    hub.requests.clear()

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="has size 0, expected 50") as caught:
        download_hf(_config(sha), str(out))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    download_hf(_config(sha), str(out))

    assert "data/train-1.jsonl: missing (there is an .incomplete)" in str(caught.value)
    assert sorted(_gets(hub)) == [("test-0.jsonl", None), ("train-1.jsonl", "bytes=17-")]
    assert (out / names[1]).read_bytes() == ROW
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert download_hf(_config(sha), str(out))["fetched_files"] == 0
    with pytest.raises(InputError, match="fetched with allow"):
        download_hf(_config(sha, allow=("data/*",)), str(out))


def test_download_refuses_the_folder_of_another_repo(hub: LocalHub, tmp_path: Path) -> None:  # noqa: F811
    """A folder of one repository never takes files of another."""
    sha_a = hub.add_repo("org/a", "model", {"w": b"A"})
    sha_b = hub.add_repo("org/b", "model", {"w": b"B"})
    out = tmp_path / "out"
    download_hf(DownloadHfConfig(repo="org/a", revision=sha_a), str(out))

    with pytest.raises(InputError, match=f"target holds org/a@{sha_a}"):
        download_hf(DownloadHfConfig(repo="org/b", revision=sha_b), str(out))

    assert (out / "w").read_bytes() == b"A"


@pytest.mark.parametrize(
    "fault",
    [
        {"drop_after": 30_000},
        {"wrong_bytes": True},
        {"truncate_to": 9},
        {"status": 503},
        {"status": 429, "retry_after": 1},
    ],
)
def test_download_recovers_from_a_fault(hub: LocalHub, tmp_path: Path, fault: dict) -> None:  # noqa: F811
    """Drops, wrong bytes, short files and busy answers end in the right bytes."""
    content = bytes(range(250)) * 400
    sha = hub.add_repo("org/data", "dataset", {"x.bin": content}, lfs_bytes=1)
    hub.fail("x.bin", **fault)

    download_hf(_config(sha), str(tmp_path / "out"))

    assert (tmp_path / "out/x.bin").read_bytes() == content
    assert len(_gets(hub)) == 2


def test_download_of_a_private_repo_needs_the_token(
    hub: LocalHub,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a good token the error names HF_TOKEN; the secret is in no file and no message."""
    sha = hub.add_repo("org/data", "dataset", {"x": b"x"}, private=True)
    out = tmp_path / "out"

    with pytest.raises(InputError, match="no HF_TOKEN"):
        download_hf(_config(sha), str(out))
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_value")
    with pytest.raises(InputError, match="HTTP 401 with the token in HF_TOKEN") as caught:
        download_hf(_config(sha), str(out))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    results = download_hf(_config(sha), str(out))

    assert "hf_wrong_value" not in str(caught.value)
    assert TOKEN not in json.dumps(results)
    assert all(TOKEN.encode() not in p.read_bytes() for p in out.rglob("*") if p.is_file())


def test_download_explains_what_is_not_there(hub: LocalHub, tmp_path: Path) -> None:  # noqa: F811
    """An absent revision and a gated repository each get their own sentence."""
    hub.add_repo("org/data", "dataset", {"x": b"x"})
    gated = hub.add_repo("org/gated", "model", {"x": b"x"}, gated=True)

    with pytest.raises(InputError, match="must be a commit of the repository"):
        download_hf(_config("0" * 40), str(tmp_path / "a"))
    with pytest.raises(InputError, match=r"Accept the terms at http.*/org/gated"):
        download_hf(DownloadHfConfig(repo="org/gated", revision=gated), str(tmp_path / "b"))


def test_the_public_hub_is_meant_where_the_environment_names_none() -> None:
    """In a process of its own: others have loaded more of the hub's library than a step has."""
    code = (
        "from steps import _hub; source = _hub.open_source('a/b', 'model', 40 * '0');"
        "print(source.endpoint)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "HF_ENDPOINT"}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("https://huggingface.co\n", "")
