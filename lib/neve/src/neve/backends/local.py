"""Workers on this machine, forked by a light preforked server."""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from typing import Any

from neve.attempt import AttemptFiles
from neve.errors import NeveError
from neve.secrets import Redactor


@dataclasses.dataclass(kw_only=True)
class Worker:
    """One running worker as its executor sees it."""

    id: int
    """Number of the request."""
    files: AttemptFiles
    """Files of its attempt."""
    output_fd: int
    """Read end of its stdout and stderr, -1 once it has ended."""
    event_fd: int
    """Read end of its events, -1 once they have ended."""
    pid: int | None = None
    """Process id, once known."""
    exit_code: int | None = None
    """Exit code, or minus the signal, once it has ended."""
    last_event: dict[str, Any] | None = None
    """The last of finished, complete, held and failed."""
    pending: bytes = b""
    """Event bytes without a line end yet."""


class LocalBackend:
    """Starts workers, reads their output and events, and tells when they end."""

    def __init__(self) -> None:
        """Start nothing yet; the server comes with the first worker."""
        self.workers: dict[int, Worker] = {}
        self._selector = selectors.DefaultSelector()
        self._redactor = Redactor()
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._answers = b""
        self._next_id = 1

    def launch(self) -> None:
        """Start the server, so that it is warm when the first step is ready."""
        if self._server is not None:
            return
        ours, theirs = socket.socketpair()
        self._server = subprocess.Popen(
            [sys.executable, "-m", "neve.forkserver", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches the workers through the executor alone
        )
        theirs.close()
        self._socket = ours
        paths = [path or os.getcwd() for path in sys.path]
        ours.sendall(json.dumps({"sys_path": paths}).encode() + b"\n")
        self._selector.register(ours, selectors.EVENT_READ)

    def watch(self, fd: int) -> None:
        """Return from `poll` also when this descriptor is readable; it is emptied."""
        self._selector.register(fd, selectors.EVENT_READ, "wake")

    def start(self, request: dict[str, Any]) -> Worker:
        """Start a worker with the keyword arguments of `run_step`."""
        self.launch()
        assert self._socket is not None
        output_read, output_write = os.pipe()
        event_read, event_write = os.pipe()
        worker = Worker(
            id=self._next_id,
            files=AttemptFiles(request["home"], self._redactor),
            output_fd=output_read,
            event_fd=event_read,
        )
        self._next_id += 1
        self.workers[worker.id] = worker
        line = json.dumps({"id": worker.id, "run": request}).encode() + b"\n"
        try:
            sent = socket.send_fds(self._socket, [line], [output_write, event_write])
            self._socket.sendall(line[sent:])
        except OSError as error:
            raise NeveError(f"fork server: must be running, got {error}. Run again.") from error
        finally:
            os.close(output_write)
            os.close(event_write)
        self._selector.register(output_read, selectors.EVENT_READ, worker)
        self._selector.register(event_read, selectors.EVENT_READ, worker)
        return worker

    def signal(self, worker: Worker, number: int) -> None:
        """Signal a worker and the processes it has started."""
        if self._socket is not None and worker.exit_code is None:
            line = json.dumps({"id": worker.id, "signal": int(number)}).encode() + b"\n"
            with contextlib.suppress(OSError):
                self._socket.sendall(line)

    def poll(self, timeout: float | None) -> tuple[list[tuple[Worker, dict[str, Any]]], bool]:
        """Wait for news.

        Returns:
            Events as (worker, event) in order; workers that have ended leave `workers` with an
            event {"event": "ended"}. The flag tells whether a watched descriptor was readable.
        """
        events: list[tuple[Worker, dict[str, Any]]] = []
        woken = False
        for key, _ in self._selector.select(timeout):
            if key.data == "wake":
                woken = True
                with contextlib.suppress(BlockingIOError):
                    os.read(key.fd, 4096)
            elif key.data is None:
                self._read_answers()
            else:
                events += [(key.data, event) for event in self._read(key.data, key.fd)]
        for worker in [w for w in self.workers.values() if w.exit_code is not None]:
            events += [(worker, event) for event in self._drain(worker)]
            del self.workers[worker.id]
            worker.files.close()
            events.append((worker, {"event": "ended"}))
        return events, woken

    def _drain(self, worker: Worker) -> list[dict[str, Any]]:
        """Read what a dead worker left; a process it left behind may still hold the pipes."""
        events = []
        for fd in (worker.output_fd, worker.event_fd):
            if fd < 0:
                continue
            os.set_blocking(fd, False)
            with contextlib.suppress(BlockingIOError):
                while fd in (worker.output_fd, worker.event_fd):
                    events += self._read(worker, fd)
            if fd in (worker.output_fd, worker.event_fd):
                self._close(worker, fd)
        return events

    def _read(self, worker: Worker, fd: int) -> list[dict[str, Any]]:
        data = os.read(fd, 1 << 16)
        if not data:
            self._close(worker, fd)
            return []
        if fd == worker.output_fd:
            worker.files.write_output(data)
            return []
        *lines, worker.pending = (worker.pending + data).split(b"\n")
        events = []
        for line in lines:
            event = json.loads(line)
            if event["event"] == "started":
                worker.pid = event["pid"]
                worker.files.open(event["attempt"])
            elif event["event"] in ("finished", "complete", "held", "failed"):
                worker.last_event = event
            events.append(worker.files.write_event(event))
        return events

    def _close(self, worker: Worker, fd: int) -> None:
        self._selector.unregister(fd)
        os.close(fd)
        if fd == worker.output_fd:
            worker.output_fd = -1
        else:
            worker.event_fd = -1

    def _read_answers(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            raise NeveError("fork server: must be running, got its end. Run again.")
        *lines, self._answers = (self._answers + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            worker = self.workers.get(answer["id"])
            if worker is None:
                continue
            worker.pid, worker.exit_code = answer["pid"], answer["exit_code"]

    def close(self) -> None:
        """End the server and the workers that are left."""
        for worker in self.workers.values():
            worker.files.close()
        if self._socket is not None:
            self._socket.close()
        if self._server is not None:
            try:
                self._server.wait(timeout=15)
            except subprocess.TimeoutExpired:
                self._server.send_signal(signal.SIGKILL)
                self._server.wait()
        self._selector.close()
