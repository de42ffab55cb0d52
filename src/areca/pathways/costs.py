"""How long programs take, measured as they run, so that weights share time and not calls.

On an island programs run one after another, so the time between two of its completions belongs to what lay between.
Each estimate in such an interval is moved by the ratio of what was seen to what was expected.
"""

from typing import Any

LEAST_RATE = 0.02  # of ln(seen / expected) that an estimate moves by, once it has been seen often; noise is not a cost
LEAST = 1e-6  # seconds
FIRST = 1e-4  # seconds, of programs while none is known


class Costs:
    """Seconds of each program, or segment sent to an island, by number, as far as they are known."""

    def __init__(self) -> None:
        self._seconds: dict[Any, float] = {}
        self._times: dict[Any, int] = {}  # that a program was seen to end

    def of(self, number: Any) -> float:
        """The estimate; the least of all known for a program not seen yet, so that it is tried."""
        return self._seconds.get(number) or min(self._seconds.values(), default=FIRST)

    def seen(self, numbers: list[Any], seconds: float) -> None:
        """Programs that ended within an interval in which the island was busy."""
        seconds = max(seconds, LEAST * len(numbers))
        one, count = numbers[0], len(numbers)
        if one in self._seconds and numbers.count(one) == count:  # as below, in less time
            self._move(one, count, seconds / (self._seconds[one] * count))
            return
        expected = sum(self._seconds.get(n, 0.0) for n in numbers)
        unknown = [n for n in numbers if n not in self._seconds]
        if unknown:
            each = max(seconds - expected, LEAST * len(unknown)) / len(unknown)
            self._seconds |= dict.fromkeys(unknown, each)
            self._times |= {n: numbers.count(n) for n in set(unknown)}
            return
        for n in set(numbers):
            self._move(n, numbers.count(n), seconds / expected)

    def _move(self, number: Any, count: int, off: float) -> None:
        """A program ended as often, and in `off` times what was expected."""
        times = self._times[number] = self._times[number] + count
        self._seconds[number] = max(self._seconds[number] * off ** max((times / 2) ** -0.5, LEAST_RATE), LEAST)
