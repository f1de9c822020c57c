"""Leases: the exclusive, expiring right to write one output path, held in its state.json."""

import dataclasses
import json
import os
import socket
import sys
import threading
import time
from typing import Any

from neve.errors import FingerprintMismatchError, LeaseLostError
from neve.records import FORMAT, check_format, state_path
from neve.state import ConditionalObject, ConflictError, open_object

RUNNING, FAILED, SUCCEEDED = "RUNNING", "FAILED", "SUCCEEDED"
DEFAULT_TTL_SECONDS = 60.0
LOST_EXIT_CODE = 70


def ttl_seconds() -> float:
    """Return the lease's time to live, from NEVE_LEASE_TTL_SECONDS where it is set."""
    return float(os.environ.get("NEVE_LEASE_TTL_SECONDS") or DEFAULT_TTL_SECONDS)


def boot_id() -> str:
    """Return what must be equal for process ids to mean the same: boot and pid namespace."""
    parts = []
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            parts.append(file.read().strip().decode())
        parts.append(os.readlink("/proc/self/ns/pid"))
    except OSError:
        parts.append("unknown")
    return ":".join(parts)


def process_started(pid: int) -> str | None:
    """Return a process's start time in clock ticks, or None if it is dead or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def owner_is_dead(owner: dict[str, Any]) -> bool:
    """Return True only if this machine can tell that the owner's process is gone."""
    if owner.get("host") != socket.gethostname() or owner.get("boot") != boot_id():
        return False
    if owner["boot"].startswith("unknown"):
        try:
            os.kill(owner["pid"], 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False
    return process_started(owner["pid"]) != owner.get("started")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateView:
    """One reading of a state.json."""

    state: dict[str, Any]
    """The parsed document."""
    version: str
    """Version for compare-and-swap."""

    @property
    def is_stale(self) -> bool:
        """True if a lease is held by a process that is known to be dead."""
        return self.state["state"] == RUNNING and owner_is_dead(self.state["owner"])


def read_view(output_path: str) -> StateView | None:
    """Return the state of an output path, uncached; None where there is none."""
    path = state_path(output_path)
    found = open_object(path).read()
    if found is None:
        return None
    try:
        value = json.loads(found[0])
    except ValueError:
        value = None
    return StateView(state=check_format(value, path), version=found[1])


def check_fingerprint(state: dict[str, Any], fingerprint: str, output_path: str) -> None:
    """Raise FingerprintMismatchError where a path holds another step's state."""
    if state["fingerprint"] != fingerprint:
        raise FingerprintMismatchError(
            f"output path {output_path}: must belong to fingerprint {fingerprint}, got "
            f"{state['fingerprint']}. Rename the step or move the other output away."
        )


class Observer:
    """Tells when a lease is stale: its owner is dead, or one version was seen for a whole TTL."""

    def __init__(self, ttl: float | None = None) -> None:
        """Start with nothing seen; ttl in seconds of this process's monotonic clock."""
        self.ttl = ttl_seconds() if ttl is None else ttl
        self._first_seen: dict[str, tuple[str, float]] = {}

    def is_stale(self, output_path: str, view: StateView) -> bool:
        """Return True once the lease may be taken over."""
        if view.state["state"] != RUNNING:
            return False
        if view.is_stale:
            return True
        seen = self._first_seen.get(output_path)
        now = time.monotonic()
        if seen is None or seen[0] != view.version:
            self._first_seen[output_path] = (view.version, now)
            return False
        return now - seen[1] >= self.ttl


class Lease:
    """A held lease; every later write of the state is a swap on the version held."""

    def __init__(
        self, target: ConditionalObject, state: dict[str, Any], version: str, ttl: float
    ) -> None:
        """Use `acquire`."""
        self.state = state
        self._target = target
        self._version = version
        self._ttl = ttl
        self._last_swap = time.monotonic()
        self._lock = threading.Lock()
        self._stop = threading.Event()

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.state["attempt"]

    def _swap(self, **changes: Any) -> None:
        with self._lock:
            state = self.state | {"heartbeat": self.state["heartbeat"] + 1} | changes
            started = time.monotonic()
            try:
                self._version = self._target.swap(encode_state(state), self._version)
            except ConflictError as error:
                raise LeaseLostError(
                    "lease: must still be ours, got another owner. Another process took over."
                ) from error
            self.state = state
            self._last_swap = started

    def finish(self, status: str, **facts: Any) -> None:
        """Swap the state to FAILED or SUCCEEDED; the heartbeat ends.

        Raises:
            LeaseLostError: Another process owns the path now; nothing was published.
        """
        self._stop.set()
        self._swap(state=status, **facts)

    def start_heartbeat(self) -> None:
        """Keep the lease alive from a daemon thread; end the process where that fails."""
        threading.Thread(target=self._beat, name="neve-heartbeat", daemon=True).start()

    def _beat(self) -> None:
        interval = self._ttl / 6
        while not self._stop.wait(interval):
            try:
                self._swap()
            except LeaseLostError:
                if not self._stop.is_set():
                    _abort("another process took the output path over")
                return
            except OSError:
                pass  # a store may fail for a while; the margin below decides
            if time.monotonic() - self._last_swap > self._ttl * 0.75:
                _abort("the lease could not be renewed in time")


def _abort(why: str) -> None:
    sys.stderr.write(f"neve: {why}; this worker stops itself.\n")
    sys.stderr.flush()
    os._exit(LOST_EXIT_CODE)


def encode_state(state: dict[str, Any]) -> bytes:
    """Return the bytes of a state document."""
    return json.dumps(state, separators=(",", ":")).encode()


def new_owner() -> dict[str, Any]:
    """Return this process as an owner, with a fresh nonce."""
    pid = os.getpid()
    return {
        "nonce": os.urandom(12).hex(),
        "host": socket.gethostname(),
        "boot": boot_id(),
        "pid": pid,
        "started": process_started(pid),
    }


def acquire(
    output_path: str,
    fingerprint: str,
    *,
    replace_version: str | None = None,
    stale_version: str | None = None,
    ttl: float | None = None,
) -> Lease | StateView:
    """Take the lease of an output path, or return the state that forbids it.

    Args:
        output_path: Where the step writes.
        fingerprint: Whole fingerprint of the step.
        replace_version: Version of a SUCCEEDED state that may be replaced (--force).
        stale_version: Version of a RUNNING state that the caller has seen for a whole TTL.
        ttl: Time to live in seconds.

    Returns:
        The lease, or the view of a state that is complete or held by somebody alive.

    Raises:
        FingerprintMismatchError: The path belongs to another step.
    """
    target = open_object(state_path(output_path))
    seconds = ttl_seconds() if ttl is None else ttl
    while True:
        view = read_view(output_path)
        state = {
            "format": FORMAT, "state": RUNNING, "fingerprint": fingerprint, "epoch": 1,
            "owner": new_owner(), "heartbeat": 0, "attempt": 1,
        }  # fmt: skip
        try:
            if view is None:
                version = target.create(encode_state(state))
                return Lease(target, state, version, seconds)
            check_fingerprint(view.state, fingerprint, output_path)
            old = view.state["state"]
            if old == SUCCEEDED and view.version != replace_version:
                return view
            if old == RUNNING and view.version != stale_version and not view.is_stale:
                return view
            state["epoch"] = view.state["epoch"] + 1
            state["attempt"] = view.state["attempt"] + 1
            version = target.swap(encode_state(state), view.version)
            return Lease(target, state, version, seconds)
        except ConflictError:
            continue  # somebody moved first: look again


def mark_dead(output_path: str, pid: int) -> int | None:
    """Swap a RUNNING state of a dead process of ours to FAILED; return its attempt."""
    view = read_view(output_path)
    if view is None or view.state["state"] != RUNNING:
        return None
    if view.state["owner"]["pid"] != pid or not owner_is_dead(view.state["owner"]):
        return None
    state: dict[str, Any] = view.state | {"state": FAILED, "heartbeat": view.state["heartbeat"] + 1}
    try:
        open_object(state_path(output_path)).swap(encode_state(state), view.version)
    except ConflictError:
        return None
    return state["attempt"]
