"""The upload step against a real HTTP server and the real hub client."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from neve.errors import InputError

from steps.upload_hf import UploadError, UploadHfConfig, upload_hf
from tests.hub.fixtures import hub  # noqa: F401  fixture
from tests.hub.server import LocalHub

ROOT = Path(__file__).parents[2]
# The client itself does that, where it sends large files to a hub without Xet.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")
TOKEN = "hf_secret_for_tests"
WEIGHTS = {f"model-0000{n}-of-00002.safetensors": bytes([n]) * 3000 for n in (1, 2)}
FILES = {**WEIGHTS, "config.json": b"{}", "tokenizer.json": b'{"a": 1}'}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An exported folder; the token is set, and large files go the way any hub knows."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("steps._hub.retry_seconds", lambda response, tries: 0.0)
    path = tmp_path / "export"
    path.mkdir()
    for name, content in FILES.items():
        (path / name).write_bytes(content)
    return path


def _upload(folder: Path, output: str = "out", **fields: Any) -> dict[str, Any]:
    config = UploadHfConfig(folder=str(folder), repo="org/model", **fields)
    return upload_hf(config, str(folder.parent / output))


def _remote(hub: LocalHub, branch: str = "main") -> dict[str, bytes]:  # noqa: F811
    repo = hub.repos["model", "org/model"]
    blobs = repo.commits[repo.refs[branch]]
    return {name: blob.open().read() for name, blob in blobs.items() if name[0] != "."}


def _puts(hub: LocalHub) -> int:  # noqa: F811
    return sum(request.method == "PUT" for request in hub.requests)


def test_upload_makes_a_private_repository_with_one_commit(
    hub: LocalHub,  # noqa: F811
    folder: Path,
) -> None:
    """All files and a card come in one commit, and the certificate names it and every digest."""
    results = _upload(folder)

    repo = hub.repos["model", "org/model"]
    assert repo.private
    remote = _remote(hub)
    assert {name: remote[name] for name in FILES} == FILES
    assert remote["README.md"].startswith(b"---\n")
    assert len(repo.log) == 1
    certificate = json.loads((folder.parent / "out" / "certificate.json").read_text())
    assert certificate["commit"] == repo.refs["main"] == results["commit"]
    assert sorted(certificate["digests"]) == sorted([*FILES, "README.md"])
    # sha256 of `{}`
    assert certificate["digests"]["config.json"] == (
        "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    )


def test_upload_again_does_nothing(hub: LocalHub, folder: Path) -> None:  # noqa: F811
    """The second run sends nothing and gives the same certificate."""
    first = _upload(folder)
    puts = _puts(hub)

    second = _upload(folder, "again")

    assert (second["num_uploaded"], second["commit"]) == (0, first["commit"])
    assert _puts(hub) == puts
    assert len(hub.repos["model", "org/model"].log) == 1
    texts = [(folder.parent / name / "certificate.json").read_text() for name in ("out", "again")]
    assert texts[0] == texts[1]


def test_upload_completes_what_a_crash_left(hub: LocalHub, folder: Path) -> None:  # noqa: F811
    """Only the missing files are sent, and the card that a human wrote stays (case 062)."""
    name, other = WEIGHTS
    there = {name: WEIGHTS[name], "README.md": b"written by a human"}
    hub.add_repo("org/model", "model", {"x.txt": b"x"}, private=True)
    hub.add_repo("org/model", "model", there, private=True, ref="step-100", lfs_bytes=100)

    results = _upload(folder, branch="step-100")

    remote = _remote(hub, "step-100")
    assert remote["README.md"] == b"written by a human"
    assert {name: remote[name] for name in FILES} == FILES
    assert results["kept"] == ["README.md"]
    ((branch, _, paths),) = hub.repos["model", "org/model"].log
    assert branch == "step-100"
    assert sorted(paths) == ["config.json", other, "neve-upload.json", "tokenizer.json"]
    assert _puts(hub) == 1
    certificate = json.loads((folder.parent / "out" / "certificate.json").read_text())
    assert "README.md" not in certificate["digests"]


def test_upload_that_fails_in_between_commits_nothing_and_goes_on(
    hub: LocalHub,  # noqa: F811
    folder: Path,
) -> None:
    """A file that can't be sent leaves no commit; the next run sends the rest alone."""
    hub.fail("lfs", status=403, skip=1)
    with pytest.raises(InputError, match=r"HF_TOKEN must be allowed to write there, got HTTP 403"):
        _upload(folder)
    assert hub.repos["model", "org/model"].log == []
    assert not (folder.parent / "out").exists()
    puts = _puts(hub)

    _upload(folder)

    assert _puts(hub) == puts + 1  # the first file was kept by the hub
    assert len(hub.repos["model", "org/model"].log) == 1


@pytest.mark.parametrize("fault", [{"status": 503}, {"drop_after": 0}])
def test_upload_survives_a_failing_commit(
    hub: LocalHub,  # noqa: F811
    folder: Path,
    fault: dict[str, int],
) -> None:
    """A refused commit is tried again; one whose answer got lost isn't made twice."""
    hub.fail("commit", **fault)

    results = _upload(folder)

    assert len(hub.repos["model", "org/model"].log) == 1
    assert results["commit"] == hub.repos["model", "org/model"].refs["main"]


def test_upload_gives_up_loudly(hub: LocalHub, folder: Path) -> None:  # noqa: F811
    """A hub that never takes the commit ends the step with an error, and no certificate."""
    hub.fail("commit", status=503, times=99)

    with pytest.raises(UploadError, match=r"must take the files, got HTTP 503"):
        _upload(folder)

    assert not (folder.parent / "out").exists()


def test_upload_of_a_new_export_replaces_its_own_files_alone(
    hub: LocalHub,  # noqa: F811
    folder: Path,
) -> None:
    """Changed files are a new commit, files that went away are removed, others' files stay."""
    _upload(folder)
    repo = hub.repos["model", "org/model"]
    theirs = {**{n: b.open().read() for n, b in repo.commits[repo.refs["main"]].items()}}
    hub.add_repo("org/model", "model", {**theirs, "theirs.txt": b"!"}, private=True, lfs_bytes=100)
    (folder / "config.json").write_bytes(b'{"new": true}')
    (folder / "model-00002-of-00002.safetensors").unlink()

    _upload(folder)

    remote = _remote(hub)
    assert remote["config.json"] == b'{"new": true}'
    assert "model-00002-of-00002.safetensors" not in remote
    assert remote["theirs.txt"] == b"!"
    assert len(repo.log) == 2


def test_upload_refuses_a_file_that_somebody_changed(
    hub: LocalHub,  # noqa: F811
    folder: Path,
) -> None:
    """A remote file that is neither ours nor equal is an error unless overwrite is set."""
    name = min(WEIGHTS)
    hub.add_repo("org/model", "model", {name: b"another"}, private=True)

    with pytest.raises(InputError, match=rf"1 that somebody else wrote, such as {name}"):
        _upload(folder)
    assert _remote(hub) == {name: b"another"}
    _upload(folder, overwrite=True)

    assert _remote(hub)[name] == WEIGHTS[name]


def test_upload_refuses_a_public_repository(hub: LocalHub, folder: Path) -> None:  # noqa: F811
    """Private is the default and is never given up silently."""
    hub.add_repo("org/model", "model", {"x.txt": b"x"}, private=False)

    with pytest.raises(InputError, match="must be private, got a public one"):
        _upload(folder)
    _upload(folder, private=False)

    assert _remote(hub)["config.json"] == b"{}"


@pytest.mark.parametrize(
    ("token", "message"),
    [(None, "HF_TOKEN must hold a token"), ("hf_wrong", "must be allowed to write there")],
)
def test_upload_needs_a_token_that_may_write(
    hub: LocalHub,  # noqa: F811
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
    message: str,
) -> None:
    """Without HF_TOKEN nothing is asked for; with a wrong one the error says what to check."""
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)

    with pytest.raises(InputError, match=message):
        _upload(folder)

    assert token or not hub.requests


@pytest.mark.parametrize("fields", [{"repo": "model"}, {"repo": "o/m", "branch": "a" * 40}])
def test_config_refuses_what_is_no_place(fields: dict[str, str]) -> None:
    """A repository without owner, or a commit as the branch, is refused before any work."""
    with pytest.raises(InputError, match=r"upload: (repo|branch) must be"):
        UploadHfConfig(folder="x", **fields)


_RECIPE = """
from neve import ExecutorStep, executor_main
from steps.download_hf import DownloadHfConfig, download_hf
from steps.upload_hf import UploadHfConfig, upload_hf

base = ExecutorStep(
    name="models/base", fn=download_hf, config=DownloadHfConfig(repo="org/base", revision={sha!r})
)
config = UploadHfConfig(folder=base, repo="org/model", license="apache-2.0")
if __name__ == "__main__":
    executor_main([ExecutorStep(name="uploads/model", fn=upload_hf, config=config)])
"""


def test_upload_as_a_step_fails_alone_and_tells_where_the_model_comes_from(
    hub: LocalHub,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Without a token only the upload fails; with one the card has base, pin and fingerprint."""
    sha = hub.add_repo("org/base", "model", FILES)
    (tmp_path / "recipe.py").write_text(_RECIPE.format(sha=sha))
    env = {
        **{name: value for name, value in os.environ.items() if name != "HF_TOKEN"},
        "MARIN_PREFIX": str(tmp_path / "prefix"),
        "PYTHONPATH": f"{tmp_path}:{ROOT}",
        "HF_HUB_DISABLE_XET": "1",
    }

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "recipe"], env={**env, **more}, cwd=tmp_path,
            capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip

    refused = run()
    states = {
        path.parents[1].name.rpartition("-")[0]: json.loads(path.read_text())["state"]
        for path in (tmp_path / "prefix").glob("*/*/.neve/state.json")
    }
    done = run(HF_TOKEN=TOKEN)

    assert refused.returncode != 0
    assert "HF_TOKEN must hold a token that may write, got none" in refused.stdout + refused.stderr
    assert states == {"base": "SUCCEEDED", "model": "FAILED"}
    assert done.returncode == 0, done.stdout + done.stderr
    card = _remote(hub)["README.md"].decode()
    (folder,) = (tmp_path / "prefix" / "models").iterdir()
    fingerprint = json.loads((folder / ".neve" / "record.json").read_text())["fingerprint"]
    assert 'license: "apache-2.0"\nbase_model: "org/base"\n' in card
    assert f"| models/base | `{fingerprint[:12]}` |" in card
    assert f"| org/base@{sha} |" in card
    assert str(tmp_path) not in card
    written = [path.read_bytes() for path in (tmp_path / "prefix").rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in written)
