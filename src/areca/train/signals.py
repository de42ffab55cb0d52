"""Stopping a run cleanly: the first SIGINT or SIGTERM is a request, the second acts as usual."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Stop:
    signal: int = 0


@contextlib.contextmanager
def stop_requests(given: Stop | None = None) -> Iterator[Stop]:
    """Turns the first SIGINT or SIGTERM into a request to save and stop; the second acts as usual.

    A run in a thread is `given` the stop of whoever owns the process.
    """
    if given is not None:
        yield given
        return
    stop, old = Stop(), {}

    def request(number: int, _: Any) -> None:
        stop.signal = number
        signal.signal(number, old[number])

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            old[number] = signal.getsignal(number)
            signal.signal(number, request)
    except ValueError:  # not the main thread: whoever owns the process handles signals
        old = {}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
