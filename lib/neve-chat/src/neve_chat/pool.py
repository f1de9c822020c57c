"""
Units of work over processes. What a unit gives never depends on how many processes there are.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from neve_chat.errors import NeveChatError

__all__ = ["WorkerLost", "advance", "num_cores", "own_units", "run_units"]

_M_ARENA_MAX = -8
_POLL_SECONDS = 0.5
_WAITING = 4  # units handed out for each process: looking at all of them each time is quadratic
_worker: Callable[[Any], Any] | None = None
_on_advance: Callable[[int], None] | None = None


class WorkerLost(NeveChatError):
    """
    A process was killed from outside; what was finished before is kept.
    """


def num_cores() -> int:
    """
    Cores that this process may use.
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def own_units[Unit](units: Sequence[Unit], task_index: int, task_count: int) -> list[Unit]:
    """
    The units of one of several cluster tasks: every task_count-th one.
    """
    return list(units[task_index::task_count])


def advance(amount: int) -> None:
    """
    Tell, inside a unit, that so much more of it is done; negative takes it back.
    """
    if _on_advance is not None:
        _on_advance(amount)


def run_units(
    make_worker: Callable[[Any], Callable[[Any], Any]],
    config: Any,
    units: Sequence[Any],
    *,
    num_processes: int | None = None,
    on_advance: Callable[[int], None] | None = None,
) -> Iterator[Any]:
    """
    The results of all units, in the order in which they end.

    Args:
        make_worker: module-level function, called once in each process: config -> (unit -> result).
        config: what it needs; pickled.
        units: what to work on; pickled.
        num_processes: None: one for each core, at most one for each unit. With one, everything
            happens in this process.
        on_advance: called now and then with the sum of what running units told by `advance`.

    Raises:
        WorkerLost: a process was killed, as the kernel does when memory runs out.
    """
    count = min(num_processes or num_cores(), len(units))
    if count <= 1:
        work = make_worker(config) if units else None
        for unit in units:
            assert work is not None
            with _advancing(on_advance):
                result = work(unit)
            yield result
        return
    context = multiprocessing.get_context("spawn")  # fork would copy the threads' locks
    advanced = context.Value("q", 0)
    pool = concurrent.futures.ProcessPoolExecutor(
        count, mp_context=context, initializer=_start, initargs=(make_worker, config, advanced)
    )
    try:
        todo = iter(units)
        waiting = {pool.submit(_work, unit) for unit in itertools.islice(todo, _WAITING * count)}
        while waiting:
            ended, waiting = concurrent.futures.wait(
                waiting,
                timeout=_POLL_SECONDS if on_advance is not None else None,
                return_when=concurrent.futures.FIRST_COMPLETED,
            )
            waiting |= {pool.submit(_work, unit) for unit in itertools.islice(todo, len(ended))}
            for future in ended:
                yield future.result()
            if on_advance is not None:
                on_advance(advanced.value)
    except BrokenProcessPool as error:
        raise WorkerLost(
            f"data workers: a process of {count} was killed from outside, out of memory as a "
            "rule. Run again: finished parts are kept. Pass fewer processes if it repeats."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _advancing(on_advance: Callable[[int], None] | None) -> Iterator[None]:
    """
    Inside the block `advance` goes to on_advance as a sum.
    """
    global _on_advance
    done = 0

    def add(amount: int) -> None:
        nonlocal done
        done += amount
        if on_advance is not None:
            on_advance(done)

    outer, _on_advance = _on_advance, add
    try:
        yield
    finally:
        _on_advance = outer


def _start(make_worker: Callable[[Any], Callable[[Any], Any]], config: Any, advanced: Any) -> None:
    global _worker, _on_advance

    def add(amount: int) -> None:
        with advanced.get_lock():
            advanced.value += amount

    _on_advance = add
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(AttributeError):  # glibc: or each thread keeps a heap that only grows
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    _worker = make_worker(config)
    gc.freeze()  # what is loaded stays: looking through it again and again took a sixth of the time


def _work(unit: Any) -> Any:
    assert _worker is not None
    return _worker(unit)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
