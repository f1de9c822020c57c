"""Signals that announce an end are noted, in real processes and in this one."""

import asyncio
import os
import signal
import threading

import pytest
from neve_train.preemption import SIGNALS, StopRequest, noting_signals


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_is_noted_and_the_process_goes_on(number: signal.Signals) -> None:
    """The first signal names the reason, a second one changes nothing, and the old handler returns."""
    before = signal.getsignal(number)
    request = StopRequest()

    with noting_signals(request):
        assert request.reason is None
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        for other in SIGNALS:
            os.kill(os.getpid(), other)

    assert request.reason == f"received {number.name}"
    assert signal.getsignal(number) is before


def test_other_threads_leave_signals_alone() -> None:
    """Outside the main thread training runs without the handlers instead of failing."""
    handlers: list[object] = []

    def look() -> None:
        with noting_signals(StopRequest()):
            handlers.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert handlers == [signal.getsignal(number) for number in SIGNALS]


class Described:
    """Counts how often someone asks for its description, as arrays fetch their numbers for it."""

    count = 0

    def __repr__(self) -> str:
        type(self).count += 1
        return "described"


def test_what_asyncio_returns_is_never_described() -> None:
    async def restored() -> Described:
        return Described()

    with noting_signals(StopRequest()):
        asyncio.run(restored())
    assert Described.count == 0


def test_interrupts_stay_what_they_are() -> None:
    """Also where these tests run behind a shell, which lets such programs ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with noting_signals(StopRequest()), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
