"""The import of remote objects: what was listed is what is copied, on S3 and on Google's store."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from neve import ExecutorStep, storage
from neve.errors import InputError
from neve.identity import fingerprint_of
from neve_chat.schemas import ConversationSchema
from neve_chat.shards import iter_conversations

from steps.import_remote import ImportRemoteConfig, import_remote, remote_source
from steps.transform_conversations import TransformConversationsConfig, transform_conversations

if TYPE_CHECKING:
    from tests.s3.s3_server import S3Server

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["s3", "gs"])
def bucket(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty bucket on either store."""
    return request.getfixturevalue({"s3": "s3_bucket", "gs": "gcs_bucket"}[request.param])


def run(config: ImportRemoteConfig, out: Path | str) -> dict[str, Any]:
    """Run the step as the worker does, with the unhashed value in place."""
    return import_remote(
        ImportRemoteConfig(source=config.source.value, files=config.files), str(out)
    )


def test_folder_is_copied_as_it_was_listed(bucket: str, tmp_path: Path) -> None:
    """Every object arrives under its name; hidden ones and other folders don't."""
    big = random.Random(0).randbytes(20_000_000)
    for name, data in {"data/a.jsonl": b"a\n", "data/sub/b": big, "data/empty": b""}.items():
        storage.write_bytes(f"{bucket}/{name}", data)
    storage.write_bytes(f"{bucket}/data/.hidden", b"x")
    storage.write_bytes(f"{bucket}/data-2/c", b"x")

    config = remote_source(f"{bucket}/data")
    results = run(config, tmp_path)

    assert [(name, size) for name, size, _ in config.files] == [
        ("a.jsonl", 2), ("empty", 0), ("sub/b", 20_000_000),
    ]  # fmt: skip
    assert results == {"num_files": 3, "num_bytes": 20_000_002}
    assert (tmp_path / "a.jsonl").read_bytes() == b"a\n"
    assert (tmp_path / "sub/b").read_bytes() == big
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.jsonl", "b", "empty", "sub"]


def test_one_object_keeps_its_name(bucket: str, tmp_path: Path) -> None:
    """The URL of an object gives a folder with that file."""
    storage.write_bytes(f"{bucket}/data/a.jsonl", b"abc")

    run(remote_source(f"{bucket}/data/a.jsonl"), tmp_path)

    assert (tmp_path / "a.jsonl").read_bytes() == b"abc"


def test_output_may_be_remote_too(bucket: str) -> None:
    """Objects are copied from one place of a store to another."""
    storage.write_bytes(f"{bucket}/in/a", b"abc")

    run(remote_source(f"{bucket}/in"), f"{bucket}/out")

    assert storage.read_bytes(f"{bucket}/out/a") == b"abc"


def test_identity_is_the_listing(bucket: str) -> None:
    """Another content of the same size is another step; the same content elsewhere is the same."""
    for folder in ("x", "y"):
        storage.write_bytes(f"{bucket}/{folder}/a", b"abc")

    def identity(folder: str) -> str:
        config = remote_source(f"{bucket}/{folder}")
        return fingerprint_of(ExecutorStep(name="raw/x", fn=import_remote, config=config))

    before = identity("x")
    assert before == identity("y")
    storage.write_bytes(f"{bucket}/x/a", b"abd")
    assert identity("x") != before


def test_an_object_changed_after_planning_fails(bucket: str, tmp_path: Path) -> None:
    """The changed or vanished object is named, and nothing stands under its name."""
    for name in ("a", "b"):
        storage.write_bytes(f"{bucket}/in/{name}", name.encode())
    config = remote_source(f"{bucket}/in")
    storage.write_bytes(f"{bucket}/in/b", b"B")

    with pytest.raises(InputError, match=rf"{bucket}/in/b: must stay as it was planned"):
        run(config, tmp_path)
    storage.remove_tree(f"{bucket}/in/b")
    with pytest.raises(InputError, match=r"in/b: must stay .* \(there\), got nothing"):
        run(config, tmp_path)

    assert not (tmp_path / "b").exists()


def test_an_object_changed_while_it_is_copied_fails(
    s3_bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    """A write between two reads of one object is seen, and the mixture is not published."""
    storage.write_bytes(f"{s3_bucket}/in/a", b"x" * 20_000_000)
    config = remote_source(f"{s3_bucket}/in")
    ranges: list[str] = []

    def change(environ: dict[str, Any]) -> None:
        if environ["REQUEST_METHOD"] == "GET" and "HTTP_RANGE" in environ:
            ranges.append(environ["HTTP_RANGE"])
            if len(ranges) == 2:
                s3_server.before_request = None
                storage.write_bytes(f"{s3_bucket}/in/a", b"y" * 20_000_000)

    s3_server.before_request = change

    with pytest.raises(InputError, match=r"in/a: must stay as it was planned"):
        run(config, tmp_path)

    assert len(ranges) == 2
    assert not (tmp_path / "a").exists()


def test_files_that_are_whole_are_kept(s3_bucket: str, s3_server: S3Server, tmp_path: Path) -> None:
    """A second attempt reads only what is missing or has another size."""
    for name in ("a", "b", "c"):
        storage.write_bytes(f"{s3_bucket}/in/{name}", name.encode() * 1_000)
    config = remote_source(f"{s3_bucket}/in")
    run(config, tmp_path)
    (tmp_path / "b").unlink()
    (tmp_path / "c").write_bytes(b"short")
    read: set[str] = set()

    def note(environ: dict[str, Any]) -> None:
        read.add(environ["PATH_INFO"].rsplit("/", 1)[-1])

    s3_server.before_request = note
    run(config, tmp_path)

    assert {"b", "c"} <= read
    assert "a" not in read
    assert (tmp_path / "c").read_bytes() == b"c" * 1_000


def test_source_that_is_not_there_is_told(bucket: str) -> None:
    """An empty folder and an absent bucket each get one sentence, without credentials."""
    with pytest.raises(InputError, match="got nothing there") as caught:
        remote_source(f"{bucket}/absent")
    with pytest.raises(InputError) as other:
        remote_source(f"{bucket}-absent/x")

    assert "secret-of-tests" not in f"{caught.value} {other.value}"


def test_source_of_another_kind_is_refused() -> None:
    """Local paths and URLs with credentials are told apart before anything is asked."""
    with pytest.raises(InputError, match="must start with s3:// or gs://"):
        remote_source("/data/x")
    with pytest.raises(InputError, match="must not hold credentials") as caught:
        remote_source("s3://key:word@bucket/x")

    assert "word" not in str(caught.value)


def conversation(number: int) -> dict[str, Any]:
    turns = [{"role": "user", "content": f"q{number}"}, {"role": "assistant", "content": "a"}]
    return {"messages": turns}


def test_transform_reads_from_a_store(bucket: str, tmp_path: Path) -> None:
    """Rows of every format stream from remote objects, into a local or a remote output."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    rows = [conversation(i) for i in range(30)]
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    storage.write_bytes(f"{bucket}/in/a.jsonl", b"".join(lines[:10]))
    storage.write_bytes(f"{bucket}/in/b.jsonl.zst", zstandard.compress(b"".join(lines[10:15])))
    pq.write_table(pa.Table.from_pylist(rows[15:20]), tmp_path / "x.parquet")
    storage.upload_file(tmp_path / "x.parquet", f"{bucket}/in/c.parquet")
    table = pa.Table.from_pylist(rows[20:])
    with pa.ipc.new_stream(str(tmp_path / "x.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=3)
    storage.upload_file(tmp_path / "x.arrow", f"{bucket}/in/d.arrow")
    config = TransformConversationsConfig(
        input=f"{bucket}/in", schema=ConversationSchema(), num_processes=1
    )

    local = transform_conversations(config, str(tmp_path / "out"))
    remote = transform_conversations(config, f"{bucket}/out")

    assert local == remote
    for output in (str(tmp_path / "out"), f"{bucket}/out"):
        texts = [row["messages"][0]["content"] for row in iter_conversations(output)]
        assert texts == [f"q{i}" for i in range(30)]


_CHILD = """
import re, sys
from steps.import_remote import ImportRemoteConfig, import_remote, remote_source
config = remote_source(sys.argv[1])
import_remote(ImportRemoteConfig(source=sys.argv[1], files=config.files), sys.argv[2])
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_object(s3_bucket: str, tmp_path: Path) -> None:
    """An object of 400 MB is copied in less than 250 MB, the client's imports included."""
    with (tmp_path / "big").open("wb") as file:
        file.truncate(400_000_000)
    storage.upload_file(tmp_path / "big", f"{s3_bucket}/in/big")

    words = [sys.executable, "-c", _CHILD, f"{s3_bucket}/in", str(tmp_path / "out")]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)

    assert int(done.stdout) * 1024 < 250e6
    assert (tmp_path / "out/big").stat().st_size == 400_000_000
