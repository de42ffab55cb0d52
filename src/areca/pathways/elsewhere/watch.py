"""Watches islands of other processes, so that a stuck one is found and named and nothing waits for ever.

Every few seconds each island is asked what it does. An island that waits for another longer than the deadline accuses
it; the chain of who waits for whom ends at the one at fault.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

GRACE = 2.0  # seconds between a link's break and calling its far end lost, if nothing else says so before


class Watch:
    """A thread over the islands that `islands()` gives. What the dispatcher has to know goes to `inbox`."""

    def __init__(self, inbox: "queue.SimpleQueue[Any]", deadline: float, islands: Callable[[], list[Any]]) -> None:
        self.inbox, self.deadline, self.islands = inbox, deadline, islands
        self._broken: dict[str, float] = {}  # islands' ids, and when a link to them broke
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def attend(self, island: Any) -> None:
        """Watches an island too, if it is of another process."""
        if island.remote:
            island.event = self._event
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="areca-watch", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(min(1.0, self.deadline / 4)):
            for island in self.islands():
                island.watch()
                island.flush()
            now = time.monotonic()
            for island in self.islands():
                if now - self._broken.get(island.id, now) > GRACE:
                    island.lose(f"{island.name} was lost: the links of other islands to it broke.")

    def _event(self, event: tuple[Any, ...]) -> None:
        kind, island, *rest = event
        if kind == "ran":
            self.inbox.put(("ran", rest))
        elif kind == "lost":
            for other in self.islands():
                if other is not island:
                    other.send(("lost", island.id, str(island.error)))
            self.inbox.put(("lost", island))
        elif kind == "broken":
            self._broken.setdefault(rest[0], time.monotonic())
        elif kind == "late":
            self._blame(island, rest[0])

    def _blame(self, island: Any, peer: str) -> None:
        """Follows who waits for whom to the one that waits for nobody."""
        by_id, seen = {i.id: i for i in self.islands()}, {island.id}
        while peer in by_id and peer not in seen:
            seen.add(peer)
            found = by_id[peer]
            further = next((p for _, p, s in found.doing if p and s > self.deadline), None)
            if further is None:
                said = f"{found.name} has sent nothing to {island.name} for {self.deadline:g} s; it is stuck."
                found.lose(said)
                return
            peer = further
        island.lose(f"{island.name} waits in a circle for others for {self.deadline:g} s; it is stuck.")
