"""Step functions that the tests of the executor run in worker processes."""

import atexit
import dataclasses
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from neve import progress
from neve.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """What a sample step does."""

    text: str = ""
    """Text to write."""
    inputs: tuple[Any, ...] = ()
    """Paths to read before."""
    writes: tuple[str, ...] = ("out.txt",)
    """Files to write."""
    calls: Any = None
    """File that collects a line per call (unhashed), or None."""
    seconds: float = 0.0
    """Time to sleep."""


def _note(config: SampleConfig, output_path: str) -> int:
    if config.calls is None:
        return 0
    name = Path(output_path).name.rsplit("-", 1)[0]
    with open(config.calls, "a", encoding="utf-8") as file:
        file.write(name + "\n")
    return Path(config.calls).read_text(encoding="utf-8").splitlines().count(name)


def write_files(config: SampleConfig, output_path: str) -> dict[str, Any]:
    """Write the named files with the text and the inputs."""
    _note(config, output_path)
    text = config.text + "".join(Path(path).read_text(encoding="utf-8") for path in config.inputs)
    time.sleep(config.seconds)
    for name in config.writes:
        Path(output_path, name).write_text(text, encoding="utf-8")
    return {"length": len(text)}


def fail_first(config: SampleConfig, output_path: str) -> None:
    """Fail on the first call; afterwards insist on a clean output path."""
    left = [name for name in os.listdir(output_path) if name != ".neve"]
    Path(output_path, "out.txt").write_text("x", encoding="utf-8")
    if _note(config, output_path) == 1:
        print("about to fail")
        raise RuntimeError("first attempt")
    if left:
        raise RuntimeError(f"output path is not clean: {left}")


def kill_self(config: SampleConfig, output_path: str) -> None:
    """End like a process that ran out of memory."""
    print("before the kill", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def abort_at_the_end(config: SampleConfig, output_path: str) -> dict[str, Any]:
    """Do the work; then the process aborts as it ends, as native threads can make it."""
    atexit.register(os.abort)
    return write_files(config, output_path)


def refuse(config: SampleConfig, output_path: str) -> None:
    """Refuse the user's input."""
    raise InputError("max_tokens: must be positive, got -1. Raise it.")


def tell_secret(config: SampleConfig, output_path: str) -> None:
    """Print, report and write the value of a secret variable."""
    print("token is", os.environ["HF_TOKEN"])
    sys.stderr.write(os.environ["HF_TOKEN"] + "\n")
    progress.message("message " + os.environ["HF_TOKEN"])
    raise RuntimeError("bad token " + os.environ["HF_TOKEN"])


def count_resumes(config: SampleConfig, output_path: str) -> dict[str, int]:
    """Count calls in a file of the output path; fail until the third."""
    path = Path(output_path, "count.json")
    count = json.loads(path.read_text()) + 1 if path.exists() else 1
    path.write_text(json.dumps(count))
    if count < 3:
        raise RuntimeError(f"call {count}")
    return {"count": count}
