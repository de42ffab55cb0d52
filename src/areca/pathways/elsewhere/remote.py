"""Islands of other processes, as the controller sees them: messages to their agents, handles of values that lie there.

A value's handle is (execution, slot); when nobody holds it any more its memory is freed with the next message. A watch
asks every agent now and then what it does: one that does not answer, or whose own work does not end, is called lost
within the deadline, and so is one whose process or connection ends. What depended on it fails; the others go on.
"""

import collections
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future as Answer
from typing import Any, Protocol

import cloudpickle
import numpy as np
from jax.sharding import AbstractMesh

from areca.errors import ConfigError, IslandError, ProgramError
from areca.pathways.elsewhere.agent import Bad, Run, Send, Take, Work
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Event, Timeline

AHEAD = 4  # segments sent to an island and not known to be computed
_numbers = itertools.count()


class Channel(Protocol):
    """How messages reach an agent and come back. Messages arrive in order, or the channel ends."""

    addresses: tuple[str, int]  # where the agent listens for other islands
    describe: str  # "process 123", for messages

    def send(self, message: tuple[Any, ...]) -> None: ...
    def how(self) -> str: ...  # it ended
    def listen(self, heard: Callable[[tuple[Any, ...]], None], ended: Callable[[str], None]) -> None: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Sent:
    """A segment sent to an island. `done` is set when it is computed there, or never will be."""

    __slots__ = ("acks", "at", "charge", "cost", "done", "error", "failed", "key", "timeline")

    def __init__(self, key: Any, cost: Any, acks: int, timeline: Timeline | None = None) -> None:
        self.timeline = timeline
        self.key, self.cost, self.acks, self.at = key, cost, acks, time.monotonic()
        self.done = threading.Event()
        self.error: IslandError | None = None
        self.charge: tuple[Any, float] = None, 0.0  # the dispatcher's: to whom, and how much
        self.failed: dict[int, Bad] = {}  # slot -> why it has no value


class Handle:
    """A value on an island of another process."""

    __slots__ = ("__weakref__", "island", "key", "sent")

    def __init__(self, island: "RemoteIsland", key: Any, sent: Sent | None = None) -> None:
        self.island, self.key, self.sent = island, key, sent

    def __del__(self) -> None:
        self.island.freed.append(self.key)

    def is_ready(self) -> bool:
        """Whether it is computed, or failed."""
        return self.sent is None or self.sent.done.is_set()


class RemoteIsland:
    """An island with a process, or several, of its own. `event` is told what the controller should know."""

    remote = True

    def __init__(
        self, name: str, id: str, shape: tuple[int, int], channels: Sequence[Channel], deadline: float
    ) -> None:
        self.name, self.id, self.shape, self.channels, self.deadline = name, id, shape, list(channels), deadline
        self.mesh = AbstractMesh(shape, ("data", "model"))
        self.error: IslandError | None = None  # once it is lost
        self.freed: collections.deque[Any] = collections.deque()
        self.outstanding: dict[Any, Sent] = {}
        self.event: Callable[[tuple[Any, ...]], None] = lambda _: None
        self.offset = 0.0  # this process's clock minus the agent's
        self._programs: dict[int, Answer[Any]] = {}
        self._timed: list[Sent] = []  # computed, in a time that ends with another's
        self._requests: dict[int, tuple[Answer[Any], list[Any]]] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._pongs = [time.monotonic()] * len(self.channels)
        self._done_by = [0] * len(self.channels)  # programs that are known to have ended, by rank
        self._progress = 0.0  # when one more was
        self.doing = [("idle", "", 0.0)] * len(self.channels)
        for rank, channel in enumerate(self.channels):
            channel.listen(lambda m, r=rank: self._heard(r, m), lambda why, r=rank: self.lose(self._ended(r, why)))

    # What a graph and a client need: the same as of an island of this process.

    def prepare(self, program: Program) -> int:
        """Has the island compile a program, meanwhile; `ready` waits for it."""
        with self._lock:
            known = program.number in self._programs
        if not known:
            data = cloudpickle.dumps(program)
            self._programs[program.number] = self._request(lambda r: ("program", r, program.number, data))
        return program.number

    def ready(self, number: int, work: list[Work], programs: dict[int, str]) -> None:
        """Waits until a graph's programs are compiled, and tells the island what it does of the graph."""
        for program, name in programs.items():
            self.compiled(program, name)
        self.send(("graph", number, work))

    def compiled(self, number: int, name: str) -> None:
        """Waits until a program is compiled. ConfigError with why it can't be."""
        try:
            self._answer(self._programs[number], f"compiling {name}", 10 * self.deadline)
        except ProgramError as error:
            raise ConfigError(f"program {name} does not compile on {self.name}: {error}") from None

    def forget(self, numbers: Sequence[int]) -> None:
        """Lets go of compiled programs, after what was sent."""
        with self._lock:
            known = [n for n in numbers if self._programs.pop(n, None) is not None]
        if known:
            self.send(("forget", known))

    def put(self, leaves: Sequence[Any], specs: Sequence[Any], given: bool = False) -> Handle:
        """Arrays of the host, placed there: copies, also of those that are `given`."""
        key = ("put", next(_numbers))
        self.send(("put", key, [np.asarray(a) for a in leaves], list(specs)))
        return Handle(self, key)

    def wait(self, handle: Handle, until: float | None, made_by: str) -> None:
        """Until a value is computed; ProgramError if it can't be, IslandError when the island is lost or late."""
        if (sent := handle.sent) is not None:
            if not sent.done.wait(None if until is None else max(0.0, until - time.monotonic())):
                raise IslandError(f"{self.name} has not computed {made_by} within its deadline; it is stuck.")
            if sent.error is not None:
                raise sent.error
            if (why := sent.failed.get(handle.key[1])) is not None:
                raise IslandError(why.error) if why.lost else ProgramError(why.error)
        if self.error is not None:
            raise self.error

    def read(self, handle: Handle) -> list[Any]:
        """The leaves, as arrays of the host."""
        return self._answer(self._request(lambda r: ("fetch", r, handle.key)), "reading a value", self.deadline)

    def has(self, handle: Handle) -> bool:
        """Whether the value is there, computed and not taken by another; False when the island is lost."""
        try:
            return bool(self._answer(self._request(lambda r: ("has", r, handle.key)), "a value", self.deadline))
        except (IslandError, ProgramError):
            return False

    # The controller's.

    def room(self) -> bool:
        """Whether another segment may be sent."""
        return len(self.outstanding) < AHEAD

    def run(
        self,
        execution: int,
        graph: int,
        segment: int,
        cost: Any,
        bound: dict[int, Any],
        first: int = -1,
        timeline: Timeline | None = None,
    ) -> Sent:
        """Sends a segment. `cost` is the key of what it is measured to cost; with a `timeline` and the number of its
        first step, the island records when each step ran."""
        sent = Sent((execution, segment), cost, len(self.channels), timeline)
        with self._lock:
            self.outstanding[sent.key] = sent
        freed = self._take_freed()
        self.send(("run", execution, graph, segment, bound, freed, first))
        if self.error is not None:  # lost meanwhile, or before
            self._end(sent, self.error)
        return sent

    def flush(self) -> None:
        """Tells the island what nobody holds any more."""
        if self.freed and self.error is None:
            self.send(("free", self._take_freed()))

    def send(self, message: tuple[Any, ...]) -> None:
        """To all of the island's processes."""
        if self.error is not None:
            return
        for rank, channel in enumerate(self.channels):
            try:
                with self._sending:
                    channel.send(message)
            except (OSError, EOFError):
                self.lose(self._ended(rank, channel.how()))
                return

    def watch(self) -> None:
        """Called now and then: asks what the island does, and calls it lost when it does not say or does not get on."""
        now = time.monotonic()
        if self.error is not None:
            return
        for rank, heard in enumerate(self._pongs):
            if now - heard > self.deadline:
                self.lose(f"{self.name} has not answered for {self.deadline:g} s ({self._who(rank)}).")
                return
        with self._lock:
            late = [s for s in self.outstanding.values() if now - s.at > self.deadline]
        if late and now - self._progress > self.deadline:
            waits = [(peer, seconds) for _, peer, seconds in self.doing if peer]
            if peer := next((peer for peer, seconds in waits if seconds > self.deadline), ""):
                self.event(("late", self, peer))
            elif not waits:
                self.lose(f"{self.name} has not ended what it computes for {self.deadline:g} s; it is stuck.")
        self.send(("ping", now))

    def lose(self, why: str) -> None:
        """The island is gone: its process is ended, and whatever waits for it fails."""
        with self._lock:
            if self.error is not None:
                return
            self.error = IslandError(why)
            sent, requests = list(self.outstanding.values()), list(self._requests.values())
            self._requests.clear()
        for channel in self.channels:
            channel.kill()
        for s in sent:
            self._end(s, self.error)
        for answer, _ in requests:
            answer.set_exception(self.error)
        self.event(("lost", self))

    def settle(self) -> None:
        """Waits until all that was sent is computed, or the island is lost."""
        with self._lock:
            outstanding = list(self.outstanding.values())
        for sent in outstanding:
            sent.done.wait()

    def close(self) -> None:
        """Ends its processes."""
        self.send(("close",))
        self.error = self.error or IslandError(f"{self.name} was closed.")
        for channel in self.channels:
            channel.close()

    # What comes back.

    def _heard(self, rank: int, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        self._pongs[rank] = time.monotonic()
        if kind == "pong":
            asked, clock, what, peer, seconds, done = rest
            self.doing[rank] = (what, peer, seconds)
            if done != self._done_by[rank]:
                self._done_by[rank], self._progress = done, time.monotonic()
            self.offset = (asked + time.monotonic()) / 2 - clock
        elif kind == "ran":
            self._ran(*rest)
        elif kind == "events":
            self._recorded(*rest)
        elif kind == "done":
            self._done(*rest)
        elif kind == "broken":
            self.event(("broken", self, rest[0]))
        elif kind == "fault":
            self.lose(f"{self.name} failed: {rest[0]}")

    def _ran(self, execution: int, segment: int, seconds: float | None, failed: dict[int, Bad]) -> None:
        with self._lock:  # each rank has a thread that hears it, and the controller sends meanwhile
            sent = self.outstanding.get((execution, segment))
            if sent is None:
                return
            sent.failed |= failed
            sent.acks -= 1
            if sent.acks:
                return
            for other in self.outstanding.values():
                other.at = time.monotonic()  # it gets on
            self._timed.append(sent)
            timed: list[Sent] = []
            if seconds is not None:
                timed, self._timed = self._timed, []
        self._end(sent)
        if timed:
            self.event(("ran", self, timed, seconds))

    def _recorded(self, execution: int, segment: int, events: list[tuple[str, str, int, float, float]]) -> None:
        """What the island measured of a segment, before it says that this has ended."""
        sent, at = self.outstanding.get((execution, segment)), self.offset
        if sent is not None and sent.timeline is not None:
            sent.timeline.add(Event(kind, name, self.name, "", number, start + at, end + at)
                              for kind, name, number, start, end in events)  # fmt: skip

    def _end(self, sent: Sent, error: IslandError | None = None) -> None:
        with self._lock:
            self.outstanding.pop(sent.key, None)
        sent.error = error
        sent.done.set()

    def _done(self, request: int, value: Any, error: str) -> None:
        with self._lock:
            answer, got = self._requests.get(request, (None, []))
            if answer is None:
                return
            got.append(value)
            if not error and len(got) < len(self.channels):
                return
            del self._requests[request]
        if error:
            answer.set_exception(ProgramError(error))
        else:
            answer.set_result(got)

    def _request(self, message: Callable[[int], tuple[Any, ...]]) -> "Answer[Any]":
        number, answer = next(_numbers), Answer[Any]()
        with self._lock:
            if self.error is None:
                self._requests[number] = answer, []
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            self.send(message(number))
        return answer

    def _answer(self, answer: "Answer[Any]", what: str, seconds: float) -> Any:
        try:
            got = answer.result(seconds)
        except TimeoutError:
            raise IslandError(f"{self.name} has not answered within {seconds:g} s ({what}); it is stuck.") from None
        if isinstance(got[0], list):
            return [_joined(parts) for parts in zip(*got, strict=True)]
        return all(got)

    def _take_freed(self) -> list[Any]:
        return [self.freed.popleft() for _ in range(len(self.freed))]

    def _ended(self, rank: int, why: str) -> str:
        return f"{self.name} was lost: {self._who(rank)} ended{f' ({why})' if why else ''}."

    def _who(self, rank: int) -> str:
        return self.channels[rank].describe

    def __repr__(self) -> str:
        return f"RemoteIsland({self.name})"


def _joined(parts: Sequence[list[tuple[Any, np.ndarray]]]) -> np.ndarray:
    """An array from the pieces of its ranks."""
    pieces = [piece for of_rank in parts for piece in of_rank]
    index, first = pieces[0]
    if all(s == slice(None) for s in index):
        return first
    ends = [[(s.stop if s.stop is not None else n) for s, n in zip(i, a.shape, strict=True)] for i, a in pieces]
    whole = np.empty(tuple(map(max, zip(*ends, strict=True))), first.dtype)
    for index, piece in pieces:
        whole[index] = piece
    return whole


def register(graph: Any) -> None:
    """Tells each island what it does of a traced graph, when its programs are compiled there."""
    names = {s.number: s.name for g in graph.segments for s in g.steps if s.kind == "program"}
    for island, work in work_of(graph).items():
        own = {op.program: names[op.program] for w in work for op in w.ops if type(op) is Run}
        island.ready(graph.number, work, own)


def unregister(graph: Any) -> None:
    """Its islands need not know a graph any more."""
    for island in dict.fromkeys(i for segment in graph.segments for i in segment.islands):
        island.send(("drop", graph.number))


def work_of(graph: Any) -> dict[Any, list[Work]]:
    """What each island does of a traced graph: its operations of every segment, in their order."""
    islands = dict.fromkeys(i for g in graph.segments for s in g.steps for i in s.touches)
    found: dict[Any, list[Work]] = {i: [] for i in islands}
    outlive = {slot for v in graph.outputs for slot in v.slots.values()} | {i for h in graph.hosts for i in h.ins}
    reads = [{i for s in g.steps for p in s.parts for i in p.ins} for g in graph.segments]
    transfer = itertools.count()
    for k, segment in enumerate(graph.segments):
        segment.number = k
        segment.cost = tuple(s.number for s in segment.steps)
        needed = outlive.union(*(r for j, r in enumerate(reads) if j != k))
        ops: dict[Any, list[Any]] = {i: [] for i in islands}
        for at, step in enumerate(segment.steps):
            if step.kind == "program":
                for p in step.parts:
                    takes = tuple(s for s in p.ins if s in step.takes)
                    ops[p.island].append(Run(step.name, at, p.call, p.ins, p.outs, p.forget, takes))  # type: ignore[arg-type]
                continue
            number, slot = next(transfer), step.parts[0].ins[0]
            forget = tuple({f for p in step.parts for f in p.forget})
            ops[step.source].append(
                Send(step.name, at, slot, tuple(p.island.id for p in step.parts), number, step.change, forget)
            )
            for p in step.parts:
                take = Take(step.name, at, p.outs[0][0], step.source.id, number, step.leaves, step.specs)
                ops[p.island].append(take)
        for island, own in ops.items():
            made = {s for op in own for s in _made(op)}
            kept = sorted(made & needed)
            found[island].append(Work(own, tuple(kept)))
            if own:
                segment.bound[island] = sorted({s for op in own for s in _read(op)} - made)
                segment.kept += [(island, slot) for slot in kept]
    return found


def _read(op: Any) -> Sequence[int]:
    return op.ins if type(op) is Run else [op.slot] if type(op) is Send else []


def _made(op: Any) -> Sequence[int]:
    return [out[0] for out in op.outs] if type(op) is Run else [op.slot] if type(op) is Take else []
