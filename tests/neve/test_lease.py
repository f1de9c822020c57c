"""Leases: one holder at a time, fencing, and take-over of the dead."""

import json
import multiprocessing
import os
from pathlib import Path

import pytest
from neve import InputError
from neve.errors import FormatError, LeaseLostError
from neve.lease import FAILED, RUNNING, SUCCEEDED, Lease, Observer, StateView, acquire, read_view
from neve.records import state_path
from neve.state import ConflictError, LocalObject, open_object

PRINT = "f" * 64


def _take(path: str, barrier: object, results: object) -> None:
    barrier.wait()
    got = acquire(path, PRINT)
    results.put(isinstance(got, Lease))
    barrier.wait()  # stay alive until all have tried


@pytest.mark.parametrize("before", ["absent", "failed"])
def test_acquire_has_one_winner(tmp_path: Path, before: str) -> None:
    """Of many processes that race for a lease exactly one gets it."""
    if before == "failed":
        lease = acquire(str(tmp_path), PRINT)
        assert isinstance(lease, Lease)
        lease.finish(FAILED)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(6), context.Queue()
    args = (str(tmp_path), barrier, results)
    processes = [context.Process(target=_take, args=args) for _ in range(6)]
    for process in processes:
        process.start()
    won = [results.get(timeout=20) for _ in processes]
    for process in processes:
        process.join()

    assert won.count(True) == 1


def test_lease_overtaken_holder_cannot_publish(tmp_path: Path) -> None:
    """After a take-over the old holder's SUCCEEDED is refused."""
    old = acquire(str(tmp_path), PRINT)
    view = read_view(str(tmp_path))
    assert isinstance(old, Lease)
    assert view is not None
    new = acquire(str(tmp_path), PRINT, stale_version=view.version)
    assert isinstance(new, Lease)

    with pytest.raises(LeaseLostError, match="another owner"):
        old.finish(SUCCEEDED)
    new.finish(SUCCEEDED)

    final = read_view(str(tmp_path))
    assert final is not None
    assert (final.state["state"], final.state["epoch"]) == (SUCCEEDED, 2)
    assert isinstance(acquire(str(tmp_path), PRINT), StateView)


def test_lease_of_a_dead_process_is_stale_at_once(tmp_path: Path) -> None:
    """On the same machine a dead owner needs no waiting; a live one is held."""
    pid = os.fork()
    if pid == 0:
        acquire(str(tmp_path), PRINT)
        os._exit(0)
    os.waitpid(pid, 0)

    view = read_view(str(tmp_path))
    assert view is not None
    assert view.is_stale
    taken = acquire(str(tmp_path), PRINT)
    assert isinstance(taken, Lease)
    assert taken.attempt == 2
    assert isinstance(acquire(str(tmp_path), PRINT), StateView)


def test_observer_waits_a_whole_ttl_for_other_hosts(tmp_path: Path) -> None:
    """A lease of another host is stale only after one version was seen for the TTL."""
    owner = {"nonce": "n", "host": "elsewhere", "boot": "b", "pid": 1, "started": "1"}
    state = {"format": 1, "state": RUNNING, "fingerprint": PRINT, "epoch": 1, "owner": owner,
             "heartbeat": 0, "attempt": 1}  # fmt: skip
    target = open_object(state_path(str(tmp_path)))
    version = target.create(json.dumps(state).encode())
    view = StateView(state=state, version=version)

    patient, hasty = Observer(ttl=3600.0), Observer(ttl=0.0)

    assert not patient.is_stale("p", view)
    assert not patient.is_stale("p", view)
    assert not hasty.is_stale("p", view)  # the first look only starts the clock
    assert hasty.is_stale("p", view)


def test_local_object_refuses_stale_versions(tmp_path: Path) -> None:
    """Create needs absence, swap needs the version that is there; content is never partial."""
    target = LocalObject(str(tmp_path / "state.json"))
    first = target.create(b"1")
    with pytest.raises(ConflictError):
        target.create(b"2")
    second = target.swap(b"2", first)
    with pytest.raises(ConflictError):
        target.swap(b"3", first)

    assert target.read() == (b"2", second)
    assert sorted(os.listdir(tmp_path)) == ["state.json", "state.json.lock"]


def test_read_view_refuses_newer_formats_and_other_steps(tmp_path: Path) -> None:
    """A newer format and another whole fingerprint are refused with a sentence."""
    Path(tmp_path, ".neve").mkdir()
    Path(state_path(str(tmp_path))).write_text('{"format": 2}')
    with pytest.raises(FormatError, match="reads format 1, got 2"):
        read_view(str(tmp_path))
    Path(state_path(str(tmp_path))).unlink()

    acquire(str(tmp_path), PRINT)
    with pytest.raises(InputError, match="must belong to fingerprint"):
        acquire(str(tmp_path), "0" * 64)
