"""A light process that has only imported neve and forks one worker per request.

Started by the local backend as `python -m neve.forkserver <socket fd>`. Each request is a JSON line
with two file descriptors (output, events); each ended worker is answered by a JSON line. When the
executor is gone, the socket ends, and so do the workers and this process.
"""

import contextlib
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from neve import lease as leases
from neve.child import run_child

GRACE_SECONDS = 10.0


def _read_requests(server: socket.socket, buffer: bytearray, fds: list[int]) -> bool:
    """Read what is there; return False at the end of the socket."""
    data, received, _, _ = socket.recv_fds(server, 1 << 16, 64)
    fds.extend(received)
    buffer.extend(data)
    return bool(data)


class ForkServer:
    """Forks, reaps and signals workers."""

    def __init__(self, server: socket.socket) -> None:
        """Serve the executor at the other end of a socket."""
        self.server = server
        self.workers: dict[int, int] = {}
        self.buffer = bytearray()
        self.fds: list[int] = []

    def serve(self) -> None:
        """Run until the executor is gone and every worker has ended."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.freeze()
        while True:
            ready, _, _ = select.select([self.server, wake_read], [], [])
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                self.reap()
            if self.server in ready:
                if not _read_requests(self.server, self.buffer, self.fds):
                    break
                self.handle_lines([wake_read, wake_write])
        self.end_workers()

    def handle_lines(self, private_fds: list[int]) -> None:
        """Act on every whole line that has arrived."""
        while (cut := self.buffer.find(b"\n")) >= 0:
            request = json.loads(self.buffer[:cut])
            del self.buffer[: cut + 1]
            if "sys_path" in request:
                sys.path[:] = request["sys_path"]
                warm_up()
            elif "signal" in request:
                self.send_signal(request["id"], request["signal"])
            else:
                self.fork(request, private_fds)

    def fork(self, request: dict[str, Any], private_fds: list[int]) -> None:
        """Fork the worker of one request."""
        output_fd, event_fd = self.fds.pop(0), self.fds.pop(0)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in [*private_fds, *self.fds]:
                os.close(fd)
            self.server.close()
            run_child(request["run"], output_fd, event_fd, parent)
        os.close(output_fd)
        os.close(event_fd)
        self.workers[pid] = request["id"]

    def send_signal(self, request_id: int, number: int) -> None:
        """Signal a worker's whole process group."""
        for pid, known in self.workers.items():
            if known == request_id:
                signal_group(pid, number)

    def reap(self) -> None:
        """Tell the executor about every worker that has ended."""
        while self.workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            request_id = self.workers.pop(pid, None)
            if request_id is not None:
                code = os.waitstatus_to_exitcode(status)
                answer = {"id": request_id, "pid": pid, "exit_code": code}
                with contextlib.suppress(OSError):
                    self.server.sendall(json.dumps(answer).encode() + b"\n")

    def end_workers(self) -> None:
        """Ask the workers to stop, give them time, then kill."""
        for pid in self.workers:
            signal_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.workers and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.02)
        for pid in self.workers:
            signal_group(pid, signal.SIGKILL)


def warm_up() -> None:
    """Do once what every worker would do again: list the folders of sys.path, load what it uses.

    Step modules stay out, so that a worker runs the code that is on disk when its step starts.
    """
    with contextlib.suppress(ImportError):
        importlib.util.find_spec("neve_has_no_such_module")
    leases.new_owner()
    gc.collect()
    gc.freeze()


def signal_group(pid: int, number: int) -> None:
    """Signal a process group, or the process alone before it leads one."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def main() -> None:
    """Serve the socket whose descriptor is the first argument."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # the executor decides, and tells
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
