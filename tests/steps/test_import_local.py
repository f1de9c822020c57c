"""The import step: content is identity, and what was planned is what is copied."""

import json
import os
import time
from pathlib import Path

import pytest
from neve.errors import InputError

from steps.import_local import ImportLocalConfig, import_local, local_source


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the memory of digests out of the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/neve/file_digests.json"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a folder with two data files."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.jsonl").write_text("a\n")
    (folder / "sub/b.jsonl").write_text("b\n")
    return folder


def _run(config: ImportLocalConfig, source: Path, out: Path) -> dict:
    """Run the step as the worker does, with the unhashed value in place."""
    return import_local(ImportLocalConfig(source=str(source), digests=config.digests), str(out))


def test_identity_is_the_content(source: Path, tmp_path: Path) -> None:
    """A moved folder and a file:// URL have the same digests, another byte has others."""
    before = local_source(str(source)).digests
    moved = source.rename(tmp_path / "elsewhere")

    assert local_source(f"file://{moved}").digests == before
    assert [name for name, _ in before] == ["a.jsonl", "sub/b.jsonl"]
    (moved / "a.jsonl").write_text("A\n")
    assert local_source(str(moved)).digests != before


def test_import_copies_every_byte(source: Path, tmp_path: Path) -> None:
    """The output holds the files under their names; a single file keeps its own."""
    config = local_source(str(source))

    assert _run(config, source, tmp_path / "out") == {"num_files": 2, "num_bytes": 4}

    assert (tmp_path / "out/sub/b.jsonl").read_text() == "b\n"
    one = source / "a.jsonl"
    _run(local_source(str(one)), one, tmp_path / "one")
    assert (tmp_path / "one/a.jsonl").read_text() == "a\n"


def test_import_refuses_a_file_changed_after_planning(source: Path, tmp_path: Path) -> None:
    """A changed or vanished file fails with the file's name and leaves nothing under that name."""
    config = local_source(str(source))
    (source / "sub/b.jsonl").write_text("B\n")

    with pytest.raises(InputError, match=r"sub/b\.jsonl: must not change") as caught:
        _run(config, source, tmp_path / "out")
    (source / "sub/b.jsonl").unlink()
    with pytest.raises(InputError, match=r"sub/b\.jsonl: must stay there"):
        _run(config, source, tmp_path / "out")

    assert caught.value.exit_code == 2
    assert not (tmp_path / "out/sub/b.jsonl").exists()


def test_local_source_explains_what_is_not_there(tmp_path: Path) -> None:
    """A missing path, a folder without files and a dead link each get one sentence."""
    with pytest.raises(InputError, match="must be a file or a folder, got nothing there"):
        local_source(str(tmp_path / "absent"))
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / ".hidden").write_text("x")
    with pytest.raises(InputError, match="must hold files, got none"):
        local_source(str(empty))
    (empty / "dead").symlink_to(tmp_path / "absent")
    with pytest.raises(InputError, match=r"must be readable, got .*empty/dead"):
        local_source(str(empty))


def test_local_source_leaves_hidden_files_out(source: Path, tmp_path: Path) -> None:
    """Hidden files, bytecode and pipes don't count; a linked folder does, a looping link doesn't."""
    before = local_source(str(source)).digests
    for name in (".DS_Store", ".git/config", "__pycache__/x.pyc"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("x")
    os.mkfifo(source / "pipe")
    (source / "loop").symlink_to(source)

    assert local_source(str(source)).digests == before
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "c.jsonl").write_text("c\n")
    (source / "link").symlink_to(linked)
    assert [name for name, _ in local_source(str(source)).digests][1] == "link/c.jsonl"


def test_digests_are_remembered(source: Path, cache: Path) -> None:
    """Planning again reads no settled file, and a damaged memory costs a read, no more."""
    time.sleep(1.1)
    config = local_source(str(source))
    known = json.loads(cache.read_text())
    key = str((source / "a.jsonl").resolve())
    known[key][-1] = "remembered"
    cache.write_text(json.dumps(known))

    assert dict(local_source(str(source)).digests)["a.jsonl"] == "remembered"
    for damage in ("{", "[]", json.dumps({key: []}), json.dumps({key: "x"})):
        cache.write_text(damage)
        assert local_source(str(source)).digests == config.digests


def test_digests_are_never_stale(source: Path) -> None:
    """A change of the same size is seen, whether at once or with the old time put back."""
    file = source / "a.jsonl"
    seen = {local_source(str(file)).digests}
    for text in ("b\n", "c\n"):
        file.write_text(text)
        seen.add(local_source(str(file)).digests)
    time.sleep(1.1)
    seen.add(local_source(str(file)).digests)
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    file.write_text("d\n")
    os.utime(file, ns=times)
    seen.add(local_source(str(file)).digests)

    assert len(seen) == 4


def test_a_cache_folder_that_cannot_be_written_is_no_error(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a place for the memory the digests are the same."""
    before = local_source(str(source)).digests
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    time.sleep(1.1)

    assert local_source(str(source)).digests == before
