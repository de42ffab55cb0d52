"""Stride scheduling: clients share by weight (Waldspurger and Weihl 1995).

Each client has a pass, which grows by cost / weight as it is served, and the least pass is served next. One that was
idle starts from the pass of those that were not, so that it gets its share from then on and nothing for the past.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CREDIT = 4  # turns that a client which waited for data may catch up


@dataclass(eq=False)
class Share:
    """One client's place in the order."""

    weight: float
    passed: float = 0.0
    served: float = 0.0  # cost in all
    last: float = 0.0  # what the last charge added to `passed`


class Stride:
    """Who is next, by weight.

    How far the order has come is known for each island apart: who has one alone goes on faster than those who share
    another. Charges are estimates, and what they were off by is settled when it is known.
    """

    def __init__(self) -> None:
        self.now: dict[Any, float] = {}  # by island: the pass of who was served last there, at least

    def wake(self, share: Share, islands: Iterable[Any] = (None,), idle: bool = True) -> None:
        """A client has work again, on these islands. One that was not `idle`, but waited for data, catches up a little:
        that it was late for its turn is not to cost it its share, and what it did not want meanwhile is not owed."""
        credit = 0.0 if idle else CREDIT * share.last
        share.passed = max(share.passed, min(self.now.get(i, 0.0) for i in islands) - credit)

    def charge(self, share: Share, cost: float, islands: Iterable[Any] = (None,)) -> None:
        """A client was served."""
        for island in islands:
            self.now[island] = max(self.now.get(island, 0.0), share.passed)
        share.last = cost / share.weight
        share.passed += share.last
        share.served += cost

    def settle(self, charges: Sequence[tuple[Share | None, float]], seconds: float) -> None:
        """What was charged for has taken so many seconds in all."""
        total = sum([charged for _, charged in charges])
        for share, charged in charges if total else ():
            if share is not None:
                off = charged * (seconds / total - 1)
                share.passed += off / share.weight
                share.served += off
