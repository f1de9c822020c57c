"""Runs one step from its step.json: `python -m neve.worker <output path>`.

The worker owns the lease, checks the outputs and publishes the record and the state. It writes its
log, events and metrics through its supervisor (the executor, or the parent process when started by
hand), which outlives a crash.
"""

import inspect
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from neve import lease as leases
from neve import progress, records, storage
from neve.adopted import adopted_manifest
from neve.code import code_digests, commit_facts
from neve.codec import readable
from neve.errors import InputError, LeaseLostError, StepFailedError
from neve.manifest import check_outputs, make_manifest
from neve.naming import find
from neve.secrets import Redactor
from neve.stepdoc import decode_config

Emit = Callable[[dict[str, Any]], None]
PREEMPTED_EXIT_CODE = 75
INTERRUPTED_EXIT_CODE = 143
_LIBRARIES = (
    "marin-levanter", "marin-haliax", "jax", "equinox", "optax", "tensorstore", "numpy",
    "transformers", "tokenizers", "fastokens", "datasets", "pyarrow", "zstandard",
)  # fmt: skip

_ending = threading.Event()


class StepInterrupted(BaseException):
    """The step was told to stop; not an Exception, so that step code does not swallow it."""


def run_step(
    home: str,
    *,
    replace_version: str | None = None,
    stale_version: str | None = None,
    commit: dict[str, Any] | None = None,
    emit: Emit = lambda event: None,
) -> int:
    """Run the step of `<home>/.neve/step.json` to SUCCEEDED or FAILED.

    Args:
        home: Output path under the prefix.
        replace_version: Version of a complete state to replace.
        stale_version: Version of an abandoned lease to take over.
        commit: {"commit", "dirty"} of the code, or None to look it up.
        emit: Receives the events started, progress, message, metric, complete, held and failed.

    Returns:
        The exit code: 0 done or already complete, 1 failed, 2 wrong input, 75 preempted or held.
    """
    document = records.read_step(home)
    os.environ.update(device_environment(document["resources"]["accelerator"]))
    lease = leases.acquire(
        home, document["fingerprint"],
        replace_version=replace_version, stale_version=stale_version,
    )  # fmt: skip
    if isinstance(lease, leases.StateView):
        complete = lease.state["state"] == leases.SUCCEEDED
        emit({"event": "complete" if complete else "held"})
        return 0 if complete else PREEMPTED_EXIT_CODE
    emit({"event": "started", "attempt": lease.attempt, "pid": os.getpid()})
    lease.start_heartbeat()
    progress.set_sink(emit)
    started = time.time()
    try:
        record = _attempt(document, home, lease.attempt, commit)
        _ending.set()
        record |= {"started_at": started, "seconds": time.time() - started}
        storage.write_json(records.neve_path(home, "record.json"), record, indent=None)
        code = {key: record["code"][key] for key in ("source_digest", "module_digest")}
        lease.finish(leases.SUCCEEDED, code=code)
        emit({"event": "finished", "seconds": record["seconds"]})
        return 0
    except LeaseLostError as error:
        sys.stderr.write(f"neve: {error}\n")
        emit({"event": "failed", "why": str(error), "kind": "lease lost", "exit_code": 1})
        return leases.LOST_EXIT_CODE
    except BaseException as error:  # noqa: BLE001  the boundary: recorded, told, and turned into a code
        return _record_failure(error, home, lease, emit, document["resumable"])
    finally:
        progress.set_sink(None)


def device_environment(accelerator: str | None) -> dict[str, str]:
    """Return the variables to set before the step function is imported.

    "8xcpu" gives 8 virtual CPU devices; other accelerators need none.
    """
    count, _, kind = (accelerator or "").partition("x")
    if kind != "cpu":
        return {}
    others = [
        flag
        for flag in os.environ.get("XLA_FLAGS", "").split()
        if not flag.startswith("--xla_force_host_platform_device_count")
    ]
    flags = [*others, f"--xla_force_host_platform_device_count={int(count)}"]
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join(flags)}


def _attempt(
    document: dict[str, Any], home: str, attempt: int, commit: dict[str, Any] | None
) -> dict[str, Any]:
    """Run the function, check and digest what it wrote, and return the record."""
    adopted = document.get("adopted_path")
    target = adopted or home
    if not adopted:
        _prepare_output(home, document["resumable"])
    code = code_digests(
        document["fn"], document["code"]
    )  # before the import: this is the code that runs
    fn = find(document["fn"])
    config = decode_config(document, home)
    results = _call(fn, config, target)
    _check_results(results, document["name"])
    after = code_digests(document["fn"], code)
    if after["module_digest"] != code["module_digest"]:
        progress.message(
            f"warning: {code['file']} changed while step {document['name']} ran; "
            "the record keeps the digest from before."
        )
    manifest = adopted_manifest(target) if adopted else make_manifest(target)
    if adopted and manifest["digest"] != document["encoded"]["adopted"]:
        raise InputError(
            f"adopted data {adopted}: must not change between plan and use, got other content. "
            "Run the command again."
        )
    check_outputs(tuple(document["outputs"]), manifest["files"], document["name"])
    storage.write_json(records.neve_path(home, "manifest.json"), manifest, indent=None)
    code |= commit if commit is not None else commit_facts(os.getcwd())
    return {
        "format": records.FORMAT,
        "name": document["name"],
        "fingerprint": document["fingerprint"],
        "version": document["version"],
        "fn": document["fn"],
        "config": readable(document["config"]),
        "encoded": document["encoded"],
        "deps": document["deps"],
        "unhashed": {key: readable(tree) for key, tree in document["unhashed"].items()},
        "resources": document["resources"],
        "adopted_path": adopted,
        "results": results,
        "code": code,
        "libraries": _libraries(),
        "attempt": attempt,
        "host": socket.gethostname(),
        "num_files": len(manifest["files"]),
        "num_bytes": sum(row[1] for row in manifest["files"]),
        "manifest_digest": manifest["digest"],
    }


def _prepare_output(home: str, resumable: bool) -> None:
    """Empty the output path except .neve/, or only drop unfinished writes of a resumable step."""
    if resumable:
        if storage.is_local(home):
            for folder, _, files in os.walk(storage.local_path(home)):
                for name in files:
                    if name.endswith(storage.TEMP_SUFFIX) and not folder.endswith("/.neve"):
                        os.unlink(os.path.join(folder, name))
        return
    for name in storage.list_names(home):
        if name != ".neve":
            storage.remove_tree(storage.join(home, name))


def _call(fn: Callable[..., Any], config: Any, target: str) -> Any:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in inspect.signature(fn).parameters.values() if p.kind in kinds]
    return fn(config) if len(positional) == 1 else fn(config, target)


def _check_results(results: Any, name: str) -> None:
    if results is not None and not isinstance(results, dict):
        raise StepFailedError(
            f"step {name!r}: must return a dict or None, got {type(results).__name__}. "
            "Return a dict of JSON values."
        )
    try:
        json.dumps(results)
    except (TypeError, ValueError) as error:
        raise StepFailedError(
            f"step {name!r}: must return JSON values, got {error}. Convert them to plain numbers."
        ) from error


def _libraries() -> dict[str, str]:
    """Return versions of the data and training libraries that this process has loaded."""
    modules = {"marin-levanter": "levanter", "marin-haliax": "haliax"}
    loaded = [name for name in _LIBRARIES if modules.get(name, name) in sys.modules]
    if not loaded:
        return {}
    from importlib import metadata  # 10 ms of imports, needed only beside such libraries

    found = {}
    for name in loaded:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def _record_failure(
    error: BaseException, home: str, lease: leases.Lease, emit: Emit, resumable: bool
) -> int:
    """Write error.json, swap the state to FAILED and tell the supervisor; return the exit code."""
    _ending.set()
    redactor = Redactor()
    why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    kind, code = "failed", 1
    if isinstance(error, (StepInterrupted, KeyboardInterrupt)):
        kind, code, why = "interrupted", INTERRUPTED_EXIT_CODE, "interrupted"
        if resumable and isinstance(error, StepInterrupted) and str(error) != "SIGINT":
            kind, code, why = "preempted", PREEMPTED_EXIT_CODE, f"received {error}; goes on later."
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        code = code or 1
        kind = "preempted" if code == PREEMPTED_EXIT_CODE else "failed"
        why = f"exited with {error.code!r}"
    elif getattr(type(error), "exit_code", None) == 2:
        kind, code, why = "input", 2, str(error)
    elif getattr(type(error), "exit_code", None) == PREEMPTED_EXIT_CODE:
        kind, code, why = "preempted", PREEMPTED_EXIT_CODE, str(error)
    elif isinstance(error, StepFailedError):
        why = str(error)
    is_plain = kind in ("input", "interrupted", "preempted")
    trace = "" if is_plain else traceback.format_exc()
    sys.stdout.flush()
    sys.stderr.write(trace or f"{why}\n")
    sys.stderr.flush()
    failure = {
        "format": records.FORMAT, "kind": kind, "why": redactor.text(why), "exit_code": code,
        "signal": None, "traceback": redactor.text(trace),
    }  # fmt: skip
    storage.write_json(records.attempt_path(home, lease.attempt, "error.json"), failure)
    try:
        lease.finish(leases.FAILED, ended=kind)
    except LeaseLostError:
        code = leases.LOST_EXIT_CODE
    emit({"event": "failed", "why": failure["why"], "kind": kind, "exit_code": code})
    return code


def interrupt_on_signals() -> None:
    """Raise StepInterrupted in the main thread on the first SIGTERM, SIGUSR1 or SIGINT.

    Once the step's function has ended, they are passed over: what came of it is written down.
    """

    def stop(number: int, _frame: Any) -> None:
        if _ending.is_set():
            return
        signal.signal(number, signal.SIG_IGN)
        raise StepInterrupted(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
        signal.signal(number, stop)


if __name__ == "__main__":
    from neve.supervisor import main

    try:
        sys.exit(main(sys.argv[1:]))
    except InputError as problem:
        sys.stderr.write(f"{problem}\n")
        sys.exit(2)
