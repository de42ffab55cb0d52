"""One fleet of islands under one controller, for many clients: each leases some of the islands while it works.

Clients that have leased the same island share it by their weights. A lost island is started again once, whoever used
it; until then a new lease has others. What a client does about an island that it lost is its own affair.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax

from areca.errors import ArecaError, IslandError
from areca.pathways.controller import Controller
from areca.pathways.elsewhere.processes import Setting
from areca.pathways.fleet import Fleet, Kind, Returning

# Programs in flight on an island. A run enqueues 8 steps ahead, and a step may be one program: what is in flight is
# served in the order it came, so only what waits in the controller is shared by weight. A CPU computes independent
# programs at the same time, whatever order they came in, and is given one after another.
WINDOW, WINDOW_OF_CPU = 8, 1
TICK = 0.2  # seconds between two looks at what has come up


class SharedFleet:
    """`count` islands of a kind and their controller. Use it as a context manager, or `close` it.

    `restart`: a lost island of another process is started again.
    """

    def __init__(self, kind: Kind, count: int, setting: Setting, *, restart: bool = True) -> None:
        window = WINDOW_OF_CPU if jax.default_backend() == "cpu" else WINDOW
        self.fleet: Any = Fleet(kind, count, replace(setting, window=window))
        self.controller = Controller(list(self.fleet.islands), window=window, deadline=setting.deadline)
        self.names, self.restart = self.fleet.names, restart
        self.leases: list[Lease] = []
        self.gone: dict[str, str] = {}  # islands that are not coming back, and why
        self._returning: dict[str, Returning] = {}
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tend, name="areca-tend", daemon=True)
        if any(i.remote for i in self.fleet.islands):
            self._thread.start()

    def __enter__(self) -> "SharedFleet":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is not None and not issubclass(kind, ArecaError):  # such as a second Ctrl-C: nothing is waited for
            self._end()
            self.fleet.close()
        else:
            self.close()

    def close(self) -> None:
        """Waits for what is enqueued, and ends the controller and the islands' processes."""
        self._end()
        try:
            self.controller.close()
        finally:
            self.fleet.close()

    def living(self) -> list[Any]:
        """The islands that are not lost."""
        return [i for i in self.fleet.islands if not i.remote or i.error is None]

    def lease(self, name: str, count: int = 1, weight: float = 1.0, work: float = 0.0) -> "Lease":
        """Opens a client of a name and weight over `count` islands: those with the fewest leases, then the least work.

        `work` is what the client has left to do, in any unit that all use. Waits for lost islands that come back, where
        too few are left; has fewer where they don't. IslandError when none is left.
        """
        with self._changed:
            while len(living := self.living()) < min(count, len(self.names) - len(self.gone)):
                self._changed.wait(TICK)
            if not living:
                raise IslandError(f"no island is left: {next(iter(self.gone.values()), 'all are lost.')}")
            order = {n: (self._users(n), self._work(n), k) for k, n in enumerate(self.names)}
            chosen = {i.name for i in sorted(living, key=lambda i: order[i.name])[:count]}
            lease = Lease(self, name, [i for i in living if i.name in chosen], weight, work)
            self.leases.append(lease)
            return lease

    def _users(self, name: str) -> int:
        return sum(any(i.name == name for i in lease.islands) for lease in self.leases)

    def _work(self, name: str) -> float:
        return sum(
            lease.work / len(lease.islands) for lease in self.leases if any(i.name == name for i in lease.islands)
        )

    def end_lease(self, lease: "Lease") -> None:
        """A client has ended."""
        with self._changed:
            self.leases.remove(lease)
            self._changed.notify_all()

    def back(self, name: str, lost: Any, seconds: float) -> Any:
        """The island of a name that came up after `lost`, if it does within a time; IslandError if it never will."""
        with self._changed:
            here = self._changed.wait_for(lambda: name in self.gone or self._is_back(name, lost), seconds)
            if name in self.gone:
                raise IslandError(self.gone[name])
            return self.named(name) if here else None

    def named(self, name: str) -> Any:
        """The island that now has this name."""
        return self.fleet.islands[self.names.index(name)]

    def _is_back(self, name: str, lost: Any) -> bool:
        return (found := self.named(name)) is not lost and found.error is None

    def _tend(self) -> None:
        """The thread that has lost islands started again, and takes them in."""
        while not self._ended.wait(TICK):
            for island in [i for i in self.fleet.islands if i.remote and i.error is not None]:
                if island.name in self.gone:
                    continue
                if not self.restart:
                    self._give_up(island.name, str(island.error))
                elif (returning := self._returning.get(island.name)) is None:
                    self._returning[island.name] = self.fleet.again(island, lambda _: None)
                elif returning.failed:
                    self._give_up(island.name, returning.failed)
                elif returning.island is not None:
                    self._take_in(returning.island)

    def _take_in(self, new: Any) -> None:
        with self._changed:
            others = [i for i in self.living() if i.name != new.name]
            self.fleet.admit(self.controller, others, new)
            self.fleet.islands = [new if i.name == new.name else i for i in self.fleet.islands]
            del self._returning[new.name]
            self._changed.notify_all()

    def _give_up(self, name: str, why: str) -> None:
        with self._changed:
            self.gone[name] = why
            self._changed.notify_all()

    def _end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for returning in self._returning.values():
            returning.drop()


class Lease:
    """A client's part of a shared fleet. To who trains over it, a `Fleet`."""

    def __init__(self, shared: SharedFleet, name: str, islands: list[Any], weight: float, work: float) -> None:
        self.shared, self.islands, self.work = shared, islands, work
        self.names, self.controller = shared.names, shared.controller
        self.client = shared.controller.client(name, weight)
        self._closed = False

    def again(self, lost: Any, prepare: Callable[[Any], None]) -> Any:
        """Waits, in a thread, until a lost island is back, and compiles what it needs."""
        return _Back(self.shared, lost, prepare)

    def admit(self, controller: Controller, islands: Sequence[Any], new: Any) -> None:
        """The controller and the other islands know it already."""

    def close(self) -> None:
        """What of the client's is not dispatched is dropped; its islands stay."""
        if not self._closed:
            self._closed = True
            self.client.close()
            self.shared.end_lease(self)


class _Back:
    """As `areca.pathways.fleet.Returning`, of an island that is started again for all."""

    def __init__(self, shared: SharedFleet, lost: Any, prepare: Callable[[Any], None]) -> None:
        self.name, self.island, self.failed = lost.name, None, ""
        self._shared, self._lost, self._prepare = shared, lost, prepare
        self._dropped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"areca-back-{lost.name}", daemon=True)
        self._thread.start()

    def drop(self) -> None:
        """It is not wanted any more; others have it."""
        self._dropped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._dropped.is_set():
            try:
                island = self._shared.back(self.name, self._lost, TICK)
                if island is not None:
                    self._prepare(island)
                    self.island = island
                    return
            except ArecaError as error:
                if self.name in self._shared.gone:
                    self.failed = str(error)
                    return
                self._lost = self._shared.named(self.name)  # lost again while it compiled
