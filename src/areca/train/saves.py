"""What saves cost a run, and when the next one is worth its cost.

A save holds training up while the state is copied (measured), and while its files are written in the background, the
steps beside it are slower (estimated: the steps that a write lay beside, against what steps of their batch take alone).
`Saves` hears both from the lines of metrics.jsonl and from the events, so a resumed run goes on with what it knew.

Bits never depend on when saves happen, rewinds included (`rewinds`), so by default time decides: the next save comes
when the run has gone on a hundred times as long as a save costs.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

SHARE = 0.01  # of the time, aimed at by the chosen interval
LIMIT = 0.02  # what saves may take; more is said
SHORTEST, LONGEST = 30.0, 3600.0  # seconds between two saves, whatever they cost
FIRST = 600.0  # seconds to the first save at most, so that a cost is known
BYTES_PER_SECOND = 100e6  # assumed until a save was measured: about half of what was seen (docs/log.md)


class Saves:
    """Hears of every step and every save in order. Seconds throughout.

    `count` has the saves made on the way; `last` is the one at the end, which no step hides, as soon as there is one.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = (), events: Iterable[Mapping[str, Any]] = ()) -> None:
        self.count, self.blocked = 0, 0.0
        self.last: float | None = None
        self._alone: dict[int, tuple[int, float]] = {}  # batch -> steps, seconds
        self._beside: dict[int, tuple[int, float]] = {}
        self._writes: set[int] = set()
        for row in rows:
            self.step(row)
        for event in events:
            if event["event"] == "save" and event.get("why", "interval") == "interval":
                self.saved(event["blocked_seconds"])

    def step(self, row: Mapping[str, Any]) -> None:
        """Takes in a line of metrics.jsonl. The first step after a pause counts only where a save was the pause."""
        write = row.get("saving")
        if write is not None:
            self._writes.add(write)
        elif not row.get("steady", True):
            return
        of = self._alone if write is None else self._beside
        steps, seconds = of.get(row["batch"], (0, 0.0))
        of[row["batch"]] = steps + 1, seconds + row["seconds"]

    def saved(self, blocked: float) -> None:
        """Takes in a save made on the way, and how long it held training up."""
        self.count += 1
        self.blocked += blocked

    def slowed(self) -> float | None:
        """Seconds that the steps beside writes took longer, by the mean of those alone; None if nothing compares."""
        pairs = [(self._beside[b], self._alone[b]) for b in self._beside if b in self._alone]
        if not pairs:
            return None
        return sum(beside - n * alone / m for (n, beside), (m, alone) in pairs)

    def each(self) -> float | None:
        """What a save costs; what slows steps is left out if it isn't known. None before the first."""
        if not self.count:
            return None
        return self.blocked / self.count + max(0.0, self.slowed() or 0.0) / max(1, len(self._writes))

    def share(self, seconds: float) -> float:
        """The part of the time that saves on the way took, of a run whose steps took so many seconds."""
        lost = self.count * (self.each() or 0.0)
        return lost / (seconds + self.blocked) if lost else 0.0

    def interval(self, state_bytes: int) -> float:
        """Seconds from one save to the next, by what they cost; by the size of the state until that is known."""
        cost = self.each()
        if cost is None or self.slowed() is None:
            return min(max(state_bytes / BYTES_PER_SECOND / SHARE, SHORTEST), FIRST)
        return min(max(cost / SHARE, SHORTEST), LONGEST)

    def result(self, seconds: float) -> dict[str, Any]:
        """The entry `saves` of result.json."""
        beside, alone = (sum(n for n, _ in of.values()) for of in (self._beside, self._alone))
        slowed = self.slowed()
        kind = (
            f"blocked: measured; slowed: estimated from {beside} steps beside a write against {alone} without"
            if slowed is not None
            else "blocked: measured; slowed: unknown, no steps could be compared"
        )
        return {
            "count": self.count,
            "seconds_each": self.each(),
            "share": self.share(seconds),
            "blocked_seconds": self.blocked,
            "slowed_seconds": slowed,
            "last_seconds": self.last,
            "kind": kind if self.count else "none on the way",
        }


def describe(saves: Mapping[str, Any]) -> str:
    """`result.json`'s entry in a line, and a way out if saves took too much."""
    last = saves["last_seconds"]
    end = "" if last is None else f"{last:.2g} s for the last"
    if not saves["count"]:
        return f"saves: only at the end, {end}." if end else "saves: only at the end."
    each, share = saves["seconds_each"], saves["share"]
    about = "about " if saves["slowed_seconds"] is not None else "at least "
    line = f"saves: {saves['count']}, {about}{each:.2g} s each, {share:.1%} of the time{f'; {end}' if end else ''}."
    if share > LIMIT:
        line += f" That is over {LIMIT:.0%}: raise checkpoint.every_steps, or leave it 0 to have it chosen."
    return line


def state_bytes(state: Any) -> int:
    """Bytes of all arrays of a state, over all devices; shapes are enough."""
    import jax

    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
