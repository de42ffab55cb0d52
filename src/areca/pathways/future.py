"""Futures: values that will be. What a client holds of a submitted graph.

A future is *placed* once the programs behind it are enqueued: its arrays exist then, though they may still be computed,
and more can be built on them. It is *done* when they are computed. An error of what it depends on is its own.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.tree_util import tree_unflatten

from areca.errors import IslandError, ProgramError
from areca.pathways.island import Island
from areca.pathways.waiting import computed

_one_waiter = threading.Lock()


class Nothing:
    """Stands where a value is expected for the None that a host function gave."""


class Future:
    """A value on one or several islands, or an object of the host."""

    __slots__ = (
        "__weakref__", "_arrays", "_done", "_error", "_object", "_waiter", "deadline", "donated_to", "islands",
        "leaves", "made_by", "readers", "specs", "then", "tree",
    )  # fmt: skip

    def __init__(
        self,
        made_by: str,
        leaves: list[Any] | None,
        tree: Any,
        islands: tuple[Island, ...],
        specs: list[Any],
        deadline: float | None = None,
    ) -> None:
        self.made_by, self.leaves, self.tree, self.islands, self.specs = made_by, leaves, tree, islands, specs
        self.deadline = deadline  # seconds that `result` waits at most
        self.donated_to = ""
        self.then: list[Callable[[], None]] = []  # the dispatcher's: called once it is placed
        self.readers: list[Any] = []  # the dispatcher's: units that read it and are not dispatched yet
        self._arrays: dict[Island | None, list[Any]] = {}
        self._object: Any = None
        self._error: BaseException | None = None
        self._done = False
        self._waiter: threading.Event | None = None

    # The dispatcher's.

    def place(self, island: Island | None, leaves: Any) -> None:
        """Gives what lies on one island; with the last of them it is placed."""
        if self._done:
            return
        if island is None:
            self._object = None if leaves is Nothing else leaves
        else:
            self._arrays[island] = leaves
            if len(self._arrays) < len(self.islands):
                return
        self._finish()

    def fail(self, error: BaseException) -> None:
        """Ends without a value."""
        if not self._done:
            self._error, self._arrays = error, {}
            self._finish()

    def _finish(self) -> None:
        self._done = True  # before the waiter is looked for: one of the two threads then sees the other
        if (waiter := self._waiter) is not None:
            waiter.set()

    def peek(self, island: Island | None) -> Any:
        """What lies on an island, of a future that is placed."""
        return self._object if island is None else self._arrays[island]

    # Anyone's.

    @property
    def placed(self) -> bool:
        """Whether the programs behind it are enqueued, or it failed."""
        return self._done

    @property
    def error(self) -> BaseException | None:
        """Why it has no value, once that is known."""
        return self._error

    def arrays(self, island: Island | None = None) -> list[Any]:
        """The leaves on an island (the first if not named) as soon as they exist, which is before they are computed."""
        self._wait(self._until())
        if self.donated_to:
            raise ProgramError(f"what {self.made_by} gave is gone: its memory went to {self.donated_to}.")
        return self._arrays[self.islands[0] if island is None else island]

    def wait(self, island: Island) -> None:
        """Until it is computed on one of its islands. Errors as of `result`."""
        until, arrays = self._until(), self.arrays(island)
        if island.remote:  # a watch finds within the deadline which island is stuck
            island.wait(arrays, until and until + (self.deadline or 0.0), self.made_by)  # type: ignore[attr-defined]
        else:
            wait_for(arrays, until, self.made_by, island.name)

    def on(self, island: Island) -> Any:
        """The computed value on one of its islands, whatever the others do."""
        self.wait(island)
        arrays = self.arrays(island)
        return tree_unflatten(self.tree, island.read(arrays) if island.remote else arrays)  # type: ignore[attr-defined]

    def only(self, islands: Sequence[Island]) -> "Future":
        """The same value on some of its islands; also if a program that failed was to take its memory."""
        made = Future(self.made_by, self.leaves, self.tree, tuple(islands), self.specs, self.deadline)
        for island in islands:
            made.place(island, self.peek(island))
        return made

    def joined(self, other: "Future", islands: Sequence[Island]) -> "Future":
        """One future of this one's islands and another's, in the order of `islands`."""
        made = Future(self.made_by, self.leaves, self.tree, tuple(islands), self.specs, self.deadline)
        for island in islands:
            made.place(island, (self if island in self.islands else other).arrays(island))
        return made

    def result(self, island: Island | None = None) -> Any:
        """The computed value, a tree of arrays (of the first island if none is named) or the host's object.

        It is there once it is computed on all of its islands. ProgramError for what failed upstream, IslandError when
        an island does not answer within the deadline.
        """
        until = self._until()
        self._wait(until)
        if not self.islands:
            return self._object
        for other in self.islands:
            self.wait(other)
        return self.on(island or self.islands[0])

    def _until(self) -> float | None:
        return None if self.deadline is None else time.monotonic() + self.deadline

    def _wait(self, until: float | None) -> None:
        if not self._done:
            with _one_waiter:  # several threads may wait for it: one event for all of them
                waiter = self._waiter = self._waiter or threading.Event()
            if not self._done and not waiter.wait(None if until is None else max(0.0, until - time.monotonic())):
                where = " and ".join(i.name for i in self.islands) or "the host"
                raise IslandError(
                    f"{self.made_by} was not enqueued on {where} within {self.deadline:g} s; it, or what it waits for, "
                    "is stuck."
                )
        if self._error is not None:
            raise self._error


def wait_for(leaves: list[Any], until: float | None, made_by: str, where: str) -> None:
    """Returns when the arrays are computed; ProgramError if they can't be, IslandError past `until`."""
    for leaf in leaves:
        if until is not None and not computed(leaf, until):
            raise IslandError(f"{where} has not computed {made_by} within its deadline; it is stuck.")
        try:
            leaf.block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            raise failure(made_by, where, error) from error


def failure(made_by: str, where: str, error: BaseException) -> ProgramError:
    """The sentence for what went wrong in a program or host function."""
    if isinstance(error, ProgramError):
        return error
    first = (str(error).strip().splitlines() or [""])[0]
    made = ProgramError(f"{made_by} failed on {where}: {type(error).__name__}{': ' + first if first else ''}")
    made.__cause__ = error
    return made
