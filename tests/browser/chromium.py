"""Drives a real Chromium through its debugging pipe: no driver, no port, no package."""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

# Chromium reads its commands from descriptor 3 and answers on 4.
_LAUNCH = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 10) for fd in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--no-first-run", "--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip


def find_chromium() -> str | None:
    """Returns the path of Chromium; installs Debian's package where root can, else None."""
    found = shutil.which("chromium")
    if found or os.geteuid() != 0 or not shutil.which("apt-get"):
        return found
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "chromium"]):
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            return None
    return shutil.which("chromium")


class Browser:
    """One browser with one page; use it as a context manager."""

    def __init__(self, program: str, profile: Path) -> None:
        """Start Chromium with a new profile in an empty folder."""
        ours, theirs = os.pipe(), os.pipe()
        words = [sys.executable, "-c", _LAUNCH, str(ours[0]), str(theirs[1]), program]
        self._process = subprocess.Popen(
            [*words, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(ours[0], theirs[1]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self._commands = os.fdopen(ours[1], "wb", buffering=0)
        self._answers = os.fdopen(theirs[0], "rb", buffering=0)
        self._rest = b""
        self._number = 0
        self._session = ""
        self._seen: list[str] = []
        self.messages: list[str] = []
        """What the console said, errors and blocked resources included."""

    def __enter__(self) -> "Browser":
        """Open a page; return itself."""
        try:
            page = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=page, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        """End the browser."""
        self._commands.close()
        self._answers.close()
        self._process.kill()
        self._process.wait()

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the debugging protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, file: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Open a local file at a width and height in CSS pixels and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self._seen.clear()
        self.call("Page.navigate", url=file.as_uri())
        while "Page.loadEventFired" not in self._seen:
            self._next()

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page; promises are waited for."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key that types one character."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text=key)

    def screenshot(self, path: Path) -> None:
        """Write what is seen as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        """Returns the next message; events are noted."""
        while b"\0" not in self._rest:
            data = self._answers.read(1 << 16)
            assert data, "the browser ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        method = message.get("method", "")
        self._seen.append(method)
        if method == "Log.entryAdded":
            self.messages.append(message["params"]["entry"]["text"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self.messages.append(json.dumps(message["params"]))
        return message
