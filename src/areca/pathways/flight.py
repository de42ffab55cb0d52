"""What an island was given and has not computed yet, as far as is known: the bound of run-ahead.

Completion is looked at for every few programs only, by the output of the last of them: on one island programs end in
the order in which they were enqueued. A look that waits costs a thread's sleep, about half of what enqueueing costs.
"""

import collections
import time
from typing import Any

import jax

LONG = 2e-3  # seconds of a program, from which on looking at each client's apart costs little


class Flight:
    """The programs in flight on one island. `used` counts them; every so many (`each`) an output is looked at."""

    def __init__(self, each: int) -> None:
        self.each, self.used = each, 0
        self.marks: collections.deque[tuple[Any, list[int], list[tuple[Any, float]]]] = collections.deque()
        self.watched = False  # a thread waits for the first mark
        self.freed_at = time.perf_counter()
        self._since: list[int] = []  # programs since the last mark, by number
        self._last: Any = None  # an output of the last of them
        self._charges: list[tuple[Any, float]] = []  # for these, to whom and how much

    def add(self, numbers: list[int], output: Any, at: float, share: Any = None, charged: float = 0.0) -> None:
        """Programs were enqueued, and this is one of the last one's outputs. `share` was charged for them."""
        if charged >= LONG and self._charges and self._charges[-1][0] is not share:
            self.mark()  # so that what is measured is of one client
        if not self.used:
            self.freed_at = at
        self.used += len(numbers)
        self._since += numbers
        self._last = output
        if self._charges and self._charges[-1][0] is share:
            charged += self._charges.pop()[1]
        self._charges.append((share, charged))
        if len(self._since) >= self.each:
            self.mark()

    def mark(self) -> None:
        """Sets a mark at the last program, so that all of them have one."""
        if self._since:
            self.marks.append((self._last, self._since, self._charges))
            self._since, self._last, self._charges = [], None, []

    @property
    def first_is_computed(self) -> bool:
        """Whether the programs up to the first mark are known to have ended."""
        if not self.marks:
            return False
        array = self.marks[0][0]
        return array.is_deleted() or array.is_ready()

    @property
    def idle(self) -> bool:
        """Whether all programs are known to have ended."""
        last = self._last if self._since else self.marks[-1][0] if self.marks else None
        return last is None or last.is_deleted() or last.is_ready()

    def free(self) -> tuple[list[int], float, list[tuple[Any, float]]]:
        """Takes off the programs up to the first mark, and further ones that have ended meanwhile.

        Returns their numbers, the seconds since the last were taken off, and what was charged to whom.
        """
        _, numbers, charges = self.marks.popleft()
        while self.first_is_computed:  # it is late: when each of them ended was not seen
            _, more, others = self.marks.popleft()
            numbers, charges = numbers + more, charges + others
        self.used -= len(numbers)
        now = time.perf_counter()
        seconds, self.freed_at = now - self.freed_at, now
        return numbers, seconds, charges


def settled(array: Any) -> None:
    """Waits for an array. What went wrong in it is said to those who read it; its memory may be another's by now."""
    try:
        if not array.is_deleted():
            array.block_until_ready()
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError):
        pass
