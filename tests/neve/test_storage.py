"""Storage: whole objects or nothing, on local disk and on fsspec stores."""

from pathlib import Path

import pytest
from neve import storage
from neve.errors import InputError


@pytest.fixture(params=["local", "file", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder on each kind of store."""
    return {"local": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory:/{tmp_path}"}[
        request.param
    ]


def _write_badly(path: str) -> None:
    with storage.open_file(path, "wb") as file:
        file.write(b'{"rows": [')
        raise ConnectionError("source went away")


def test_open_file_publishes_nothing_after_an_exception(base: str) -> None:
    """Case 016: a failed write leaves the old version, or nothing, and no temporary file."""
    path = storage.join(base, "x.json")
    with pytest.raises(ConnectionError, match="away"):
        _write_badly(path)
    assert not storage.exists(path)
    storage.write_bytes(path, b"good")
    with pytest.raises(ConnectionError, match="away"):
        _write_badly(path)

    assert storage.read_bytes(path) == b"good"
    assert [info.name for info in storage.list_files(base)] == ["x.json"]
    if storage.is_local(base):
        assert [p.name for p in Path(storage.local_path(base)).iterdir()] == ["x.json"]


def test_list_files_is_relative_sorted_and_without_neve(base: str) -> None:
    """Listing names every file below a folder with its size, but none of .neve/."""
    storage.write_bytes(storage.join(base, "b/c.txt"), b"123")
    storage.write_bytes(storage.join(base, "a.txt"), b"1")
    storage.write_bytes(storage.join(base, ".neve/state.json"), b"1")

    found = storage.list_files(base)

    assert [(info.name, info.size) for info in found] == [("a.txt", 1), ("b/c.txt", 3)]
    assert storage.list_files(storage.join(base, "nothing")) == []


def test_files_move_between_store_and_disk(base: str, tmp_path: Path) -> None:
    """Uploads and downloads keep the bytes; removing a tree removes all of it."""
    local = tmp_path / "other" / "local.bin"
    local.parent.mkdir()
    local.write_bytes(b"\x00\xff")

    storage.upload_file(local, storage.join(base, "up/file.bin"))
    storage.download_file(storage.join(base, "up/file.bin"), tmp_path / "other" / "down.bin")

    assert (tmp_path / "other" / "down.bin").read_bytes() == b"\x00\xff"
    assert storage.size(storage.join(base, "up/file.bin")) == 2
    assert storage.is_dir(storage.join(base, "up"))
    storage.remove_tree(storage.join(base, "up"))
    assert not storage.exists(storage.join(base, "up/file.bin"))


def test_local_path_refuses_remote_urls() -> None:
    """A remote URL is no local path."""
    with pytest.raises(InputError, match="must be local"):
        storage.local_path("s3://bucket/x")
