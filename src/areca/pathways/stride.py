"""Stride scheduling: clients share by weight (Waldspurger and Weihl 1995).

Each client has a pass, which grows by cost / weight as it is served, and the least pass is served next. One that was
idle starts from the pass of those that were not, so that it gets its share from then on and nothing for the past.
"""

from dataclasses import dataclass


@dataclass(eq=False)
class Share:
    """One client's place in the order."""

    weight: float
    passed: float = 0.0
    served: float = 0.0  # cost in all


class Stride:
    """Who is next, by weight."""

    def __init__(self) -> None:
        self.now = 0.0

    def wake(self, share: Share) -> None:
        """A client that was idle has work again."""
        share.passed = max(share.passed, self.now)

    def charge(self, share: Share, cost: float) -> None:
        """A client was served."""
        self.now = max(self.now, share.passed)
        share.passed += cost / share.weight
        share.served += cost
