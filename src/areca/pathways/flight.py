"""What an island was given and has not computed yet, as far as is known: the bound of run-ahead.

Completion is looked at for every few programs only, by the output of the last of them: on one island programs end in
the order in which they were enqueued.
"""

import collections
import time
from typing import Any

import jax

MARK = 4  # programs between two outputs that are looked at


class Flight:
    """The programs in flight on one island. `used` counts them."""

    def __init__(self) -> None:
        self.used = 0
        self.marks: collections.deque[tuple[Any, list[int]]] = collections.deque()
        self.watched = False  # a thread waits for the first mark
        self.freed_at = time.perf_counter()
        self._since: list[int] = []  # programs since the last mark, by number
        self._last: Any = None  # an output of the last of them

    def add(self, number: int, output: Any, at: float) -> None:
        """A program was enqueued, and this is one of its outputs."""
        if not self.used:
            self.freed_at = at
        self.used += 1
        self._since.append(number)
        self._last = output
        if len(self._since) >= MARK:
            self.mark()

    def mark(self) -> None:
        """Sets a mark at the last program, so that all of them have one."""
        if self._since:
            self.marks.append((self._last, self._since))
            self._since, self._last = [], None

    @property
    def first_is_computed(self) -> bool:
        """Whether the programs up to the first mark are known to have ended."""
        if not self.marks:
            return False
        array = self.marks[0][0]
        return array.is_deleted() or array.is_ready()

    def free(self) -> tuple[list[int], float]:
        """Takes off the programs up to the first mark: (their numbers, seconds since the last were taken off)."""
        _, numbers = self.marks.popleft()
        self.used -= len(numbers)
        now = time.perf_counter()
        seconds, self.freed_at = now - self.freed_at, now
        return numbers, seconds


def settled(array: Any) -> None:
    """Waits for an array. What went wrong in it is said to those who read it; its memory may be another's by now."""
    try:
        if not array.is_deleted():
            array.block_until_ready()
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError):
        pass
