"""A run as one of several that share islands: who tells it to stop, and where it has its islands from."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from areca.pathways.shared import Lease, SharedFleet
from areca.train.signals import Stop

SAVING = threading.Lock()  # orbax keys what it waits for by the process: two savers in it may wait for ever


@dataclass
class Tenant:
    """What `areca.train.loop.train` needs to know of the process that it is a thread of.

    `count` islands of the fleet carry the run, which has them by `weight`. `left` says what it has still to do, in
    FLOPs. `runs` share the fleet at a time; a run's seconds are the clock's, its energy a part of theirs.
    """

    shared: SharedFleet
    stop: Stop
    name: str
    count: int = 1
    weight: float = 1.0
    runs: int = 1
    left: Callable[[], float] = lambda: 0.0
    leased: Lease | None = None
    kept: bool = False  # for the run, which has not come to it yet

    def choose(self) -> Lease:
        """Chooses islands and keeps them for the run. Whoever comes next chooses after it."""
        self.leased, self.kept = self.shared.lease(self.name, self.count, self.weight, self.left()), True
        return self.leased

    def lease(self) -> Lease:
        """Islands for the run, until it closes them."""
        lease = self.leased if self.leased is not None and self.kept else self.choose()
        self.kept = False
        return lease

    def describe(self) -> dict[str, Any]:
        """What run.json and result.json say under `shared`."""
        islands = len(self.shared.names)
        return {
            "runs": self.runs,
            "islands": islands,
            "weight": self.weight,
            "says": f"one of {self.runs} runs at a time over {islands} islands of one controller: the bits of the run "
            "alone; seconds and speed are while others were served too, energy is an even share",
        }
