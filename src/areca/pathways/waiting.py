"""Waiting for an array, for so long at most.

`block_until_ready` has no deadline, and looking again and again is late by up to a pause. So a short wait looks, and a
longer one lets a thread of its own block in XLA, which costs two wake-ups. A thread whose array never comes is lost.
"""

import contextlib
import queue
import threading
import time
from typing import Any

LOOKS = tuple(20e-6 * 2**i for i in range(6))  # seconds between the first looks, 1.3 ms in all

_idle: list["_Blocker"] = []


def computed(array: Any, until: float) -> bool:
    """Whether the array is computed, or failed, before the monotonic time `until`; returns as soon as it is."""
    for pause in LOOKS:
        if array.is_ready():
            return True
        if time.monotonic() > until:
            return False
        time.sleep(pause)
    try:
        blocker = _idle.pop()
    except IndexError:
        blocker = _Blocker()
    return blocker.block(array, until)


class _Blocker:
    """A thread that blocks on one array at a time."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Any, threading.Lock]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="areca-waiting", daemon=True).start()

    def block(self, array: Any, until: float) -> bool:
        done = threading.Lock()
        done.acquire()
        self._asked.put((array, done))
        return done.acquire(timeout=max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        while True:
            array, done = self._asked.get()
            with contextlib.suppress(Exception):  # what went wrong is said to whoever reads the array
                array.block_until_ready()
            del array
            _idle.append(self)
            done.release()
