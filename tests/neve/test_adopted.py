"""Adopted data: a complete step without a copy."""

import builtins
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from neve import InputError, adopt, make_plan
from neve.identity import fingerprint_of
from sample_steps import SampleConfig, write_files


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the memory of digests out of the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/neve/file_digests.json"


def test_adopt_uses_data_in_place(
    run_recipe: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """Dependents read the foreign path, nothing is written there, its state is under the prefix."""
    data = tmp_path / "foreign"
    data.mkdir()
    (data / "x.txt").write_text("old")
    body = f"""
data = adopt("model", {str(data)!r})
config = SampleConfig(text="new ", inputs=(data / "x.txt",))
steps = [ExecutorStep(name="s", fn=write_files, config=config)]
"""
    assert run_recipe(body)[0] == 0

    prefix = tmp_path / "prefix"
    assert next(prefix.glob("s-*/out.txt")).read_text() == "new old"
    assert [p.name for p in data.iterdir()] == ["x.txt"]
    assert next(prefix.glob("model-*/.neve/record.json")).exists()
    plan = make_plan([adopt("model", str(data))], str(prefix))
    assert [(row.action, row.output_path) for row in plan.rows] == [("hit", str(data))]


def test_adopt_identity_follows_content(tmp_path: Path) -> None:
    """Moved data keeps its fingerprint, changed data gets another; absent data is refused."""
    found = []
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text(text)
        found.append(fingerprint_of(adopt("model", str(tmp_path / name))))

    assert found[0] == found[1] != found[2]
    with pytest.raises(InputError, match="must exist"):
        adopt("model", str(tmp_path / "nothing"))


def old_data(folder: Path, text: str) -> Path:
    """Write one file, last changed an hour ago as far as its times can be set."""
    folder.mkdir()
    (folder / "x.txt").write_text(text)
    os.utime(folder / "x.txt", (1e9, 1e9))
    return folder


def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a minute pass for the memory, which doesn't trust files changed just now."""
    monkeypatch.setattr("neve.digest_memory._SETTLED_SECONDS", -1.0)


def test_second_plan_reads_no_data(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unchanged files are known by size, times and inode; the fingerprint stays the same."""
    data = old_data(tmp_path / "data", "text")
    settled(monkeypatch)
    first = fingerprint_of(adopt("d", str(data)))
    opened: list[str] = []
    really_open = builtins.open

    def recording_open(file: Any, *args: Any, **kwargs: Any) -> Any:
        opened.append(str(file))
        return really_open(file, *args, **kwargs)

    monkeypatch.setattr(builtins, "open", recording_open)
    second = fingerprint_of(adopt("d", str(data)))
    cache.unlink()
    third = fingerprint_of(adopt("d", str(data)))

    assert first == second == third
    assert opened.count(str(data / "x.txt")) == 1  # by the third, after the memory was lost


def test_changed_data_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another content of the same size and modification time is another identity."""
    data = old_data(tmp_path / "data", "text")
    settled(monkeypatch)
    before = fingerprint_of(adopt("d", str(data)))
    (data / "x.txt").write_text("TEXT")
    os.utime(data / "x.txt", (1e9, 1e9))

    assert fingerprint_of(adopt("d", str(data))) != before


def test_young_files_are_not_remembered(tmp_path: Path, cache: Path) -> None:
    """A file changed within the last second could change again within one tick of its times."""
    fingerprint_of(adopt("d", str(old_data(tmp_path / "data", "text"))))

    assert not cache.exists()


def test_check_is_part_of_identity(tmp_path: Path) -> None:
    """The check's config and version count; data without a check keeps its identity."""
    data = old_data(tmp_path / "data", "text")

    def identity(**fields: Any) -> str:
        return fingerprint_of(adopt("d", str(data), **fields))

    plain = identity()
    checked = identity(check=write_files, config=SampleConfig(text="a"))
    others = [
        identity(check=write_files, config=SampleConfig(text="b")),
        identity(check=write_files, config=SampleConfig(text="a"), version="2"),
    ]
    assert len({plain, checked, *others}) == 4
    # sha256 of {"adopted": manifest digest, "layout": 1, "name": "d", "scheme": 1}: stored states
    # of adopted data hang on it.
    assert plain == "b75768cf944bf2f669d6230af1f2753f933e29dc75fbfba66a5bafac3411cce5"


def test_refused_data_is_not_used(
    run_recipe: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    """A check that raises keeps dependents from running; it sees the data's path and its config."""
    data = old_data(tmp_path / "data", "text")
    body = f"""
import dataclasses

from neve import InputError

@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckConfig:
    wanted: str

def check(config, output_path):
    found = open(output_path + "/x.txt").read()
    if found != config.wanted:
        raise InputError(f"data: must hold {{config.wanted!r}}, got {{found!r}}. Change it.")
    return {{"length": len(found)}}

def steps_for(wanted):
    data = adopt("d", {str(data)!r}, check=check, config=CheckConfig(wanted=wanted))
    config = SampleConfig(text="new ", inputs=(data / "x.txt",))
    return [ExecutorStep(name="s", fn=write_files, config=config)]

import os
steps = steps_for(os.environ["WANTED"])
"""
    code, output = run_recipe(body, env={"WANTED": "other"})

    assert code in (1, 2), output
    assert "must hold 'other', got 'text'" in output
    assert not list((tmp_path / "prefix").glob("s-*/out.txt"))
    code, output = run_recipe(body, env={"WANTED": "text"})
    assert code == 0, output
    assert next((tmp_path / "prefix").glob("s-*/out.txt")).read_text() == "new text"


def test_data_changed_after_planning_is_refused(tmp_path: Path) -> None:
    """The worker compares the content with what identity was made of."""
    from neve import records, storage
    from neve.identity import Graph
    from neve.stepdoc import make_step_document
    from neve.worker import run_step

    data = old_data(tmp_path / "data", "text")
    graph = Graph([adopt("d", str(data))], str(tmp_path / "prefix"))
    identity = graph.targets[0]
    home = str(tmp_path / "prefix" / identity.relative_path)
    document = make_step_document(graph, identity, {})
    storage.write_json(records.neve_path(home, "step.json"), document)
    (data / "x.txt").write_text("changed")
    events: list[dict[str, Any]] = []

    code = run_step(home, commit={}, emit=events.append)

    assert code != 0
    assert "must not change between plan and use" in str(events[-1])
