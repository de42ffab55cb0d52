"""Threads that run calls in their order and never hold the process up: a call that hangs is left behind at its end."""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any


class Pool:
    """`threads` daemon threads, started as they are needed."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Calls a function, which has to see to its own errors, in one of the threads."""
        self._calls.put((function, arguments))
        if not self._idle.acquire(blocking=False):
            with self._lock:
                if len(self._threads) < self._most:
                    thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def close(self, seconds: float) -> bool:
        """Ends the threads when they have done what was submitted. Whether they have, within so many seconds."""
        until = time.monotonic() + seconds
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(t.is_alive() for t in self._threads)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, arguments = call
            function(*arguments)
            del call, function, arguments
            self._idle.release()
