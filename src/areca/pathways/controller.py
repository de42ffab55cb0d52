"""One controller: it owns the order of everything that runs on the islands.

Clients submit graphs; one dispatcher thread enqueues their programs in one global sequence, ahead of the data: a
program is enqueued as soon as the arrays it reads exist, computed or not, and waits for a host function prepared.
Run-ahead is bounded by `window` programs an island, since XLA hangs when more than 32 with a collective are enqueued on
CPUs. A gang is enqueued on all of its islands together, or on none. Clients share islands by weight, in measured time.
"""

import itertools
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_unflatten

from areca.errors import ConfigError, IslandError
from areca.pathways.client import Client
from areca.pathways.costs import Costs
from areca.pathways.dataflow import Dataflow, Execution, Failed, Unit
from areca.pathways.flight import Flight, settled
from areca.pathways.future import Future, failure, wait_for
from areca.pathways.graph import Graph, Host, Segment, Step
from areca.pathways.island import Island
from areca.pathways.program import shapes
from areca.pathways.stride import Stride
from areca.pathways.timeline import Timeline

WINDOW = 16  # programs in flight on an island
DEADLINE = 300.0  # seconds without an answer after which an island is called stuck


class Controller:
    """The dispatcher over some islands. Use it as a context manager, or `close` it.

    `deadline` is how many seconds without any progress are taken for a stuck island. IslandError says which.
    """

    def __init__(
        self,
        islands: Sequence[Island],
        *,
        window: int = WINDOW,
        deadline: float = DEADLINE,
        timeline: Timeline | None = None,
        host_threads: int = 4,
    ) -> None:
        if not 1 <= window <= 32:
            raise ConfigError(f"window is {window}; from 1 to 32 programs may be in flight on an island.")
        self.islands, self.window, self.deadline, self.timeline = list(islands), window, deadline, timeline
        self.inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.costs = Costs()
        self._sequence = itertools.count()
        self._flights = {island: Flight() for island in self.islands}
        self._stride, self._clients, self._flow = Stride(), list[Client](), Dataflow(self._ready)
        self._hosts = ThreadPoolExecutor(host_threads, thread_name_prefix="areca-host")
        self._watchers = {i: ThreadPoolExecutor(1, thread_name_prefix=f"areca-{i.name}") for i in self.islands}
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="areca-dispatcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, name: str, weight: float = 1.0) -> Client:
        """Opens a client."""
        if not 0 < weight < 1e9:
            raise ConfigError(f"the weight of client {name} is {weight}; it must be a positive number.")
        client = Client(self, name, weight)
        self.inbox.put(("open", client))
        return client

    def submit(self, client: Client, graph: Graph, inputs: Sequence[Future]) -> list[Future]:
        """What `Client.submit` does, on checked inputs: enqueues the graph and returns its outputs at once."""
        if self._broken is not None:
            raise self._broken
        outputs = [Future(v.made_by, v.leaves, v.tree, v.islands, v.specs, self.deadline) for v in graph.outputs]
        execution = Execution(graph, inputs, outputs, client)
        for place, reader in graph.donated.items():
            inputs[place].donated_to = reader
        if self.timeline is not None:
            self.timeline.prepared(graph, client.name, time.perf_counter())
        self.inbox.put(("submit", execution))
        return outputs

    def close(self) -> None:
        """Dispatches what was submitted, waits until all is computed, and ends the threads."""
        self.inbox.put(("end", None))
        self._thread.join(self.deadline)
        if self._thread.is_alive():
            raise IslandError(f"the controller did not end: {self._stuck()}.")
        self._hosts.shutdown(wait=True)
        for watcher in self._watchers.values():
            watcher.shutdown(wait=True)

    # The dispatcher's thread.

    def _run(self) -> None:
        try:
            self._dispatch_all()
        except BaseException as error:  # nobody may wait for ever for what will not come
            self._broken = error
            self._flow.fail_all(error)
            if not isinstance(error, IslandError):
                raise

    def _dispatch_all(self) -> None:
        ending = False
        while True:
            while not self.inbox.empty():
                ending |= self._handle(self.inbox.get())
            unit = self._pick()
            if unit is not None:
                self._advance(unit)
            elif ending and not any(self._flow.open.values()):
                self._settle()
                return
            else:
                ending |= self._wait()

    def _handle(self, message: tuple[str, Any]) -> bool:
        """Whether it is the last one."""
        kind, what = message
        if kind == "submit":
            self._flow.enter(what)
        elif kind == "host":
            self._flow.host_ended(*what)
        elif kind == "free":
            self._flights[what].watched = False
        elif kind == "open":
            self._clients.append(what)
            self._flow.open[what] = set()
        elif kind == "close":
            self._flow.close(what)
            what.ready.clear()
            self._clients.remove(what)
        return kind == "end"

    def _ready(self, unit: Unit) -> None:
        client = unit.execution.client
        if isinstance(unit.node, Host):
            self._hosts.submit(self._host, unit, unit.node)
            return
        if not client.ready:
            self._stride.wake(client.share)
        client.ready.append(unit)

    def _pick(self) -> Unit | None:
        """The next unit by weight whose next step has room on all of its islands.

        A client that has to wait for room keeps its islands for itself, or a gang would never find all of them free.
        """
        waiting = [c for c in self._clients if c.ready]
        if len(waiting) > 1:
            waiting.sort(key=lambda c: c.share.passed)
        kept: set[Island] = set()
        for client in waiting:
            unit = client.ready[0]
            islands = _next(unit).islands
            if kept.isdisjoint(islands):
                if self._room(islands):
                    return unit
                kept.update(islands)
        return None

    def _room(self, islands: Sequence[Island]) -> bool:
        for island in islands:
            flight = self._flights[island]
            if flight.used >= self.window:
                while flight.first_is_computed:
                    self.costs.seen(*flight.free())
                if flight.used >= self.window:
                    return False
        return True

    def _advance(self, unit: Unit) -> None:
        """Dispatches steps of a unit while there is room and nobody else's turn has come."""
        execution, client = unit.execution, unit.execution.client
        steps = unit.node.steps  # type: ignore[union-attr]
        alone = sum(1 for c in self._clients if c.ready) == 1
        while True:
            step = steps[unit.at]
            self._dispatch(execution, step)
            self._stride.charge(client.share, self.costs.of(step.number) * len(step.parts))
            unit.at += 1
            if unit.at == len(steps):
                client.ready.popleft()
                self._flow.dispatched(unit)
                return
            if not alone or not self.inbox.empty() or not self._room(steps[unit.at].islands):
                return

    def _dispatch(self, execution: Execution, step: Step) -> None:
        """Enqueues one step on all of its islands, or fails it on all."""
        slots, number = execution.slots, next(self._sequence)
        if execution.failed:
            bad = next((s for p in step.parts for i in p.ins if type(s := slots[i]) is Failed), None)
            if bad is not None:
                _fail(slots, step, bad)
                return
        started = time.perf_counter()
        try:
            for part in step.parts:
                ins = part.ins
                outs = part.call(*slots[ins[0]]) if len(ins) == 1 else part.call(*[a for i in ins for a in slots[i]])
                for slot, first, last in part.outs:
                    slots[slot] = outs[first:last]
                for slot in part.forget:
                    slots[slot] = None
                self._flights[part.island].add(step.number, outs[0], started)
        except Exception as error:
            where = " and ".join(i.name for i in step.islands)
            _fail(slots, step, Failed(failure(step.name, where, error)))
            execution.failed = True
            return
        if self.timeline is not None:
            self.timeline.dispatched(step, number, execution.client.name, started, time.perf_counter(), slots)

    def _host(self, unit: Unit, node: Host) -> None:
        """In a thread of the pool: computes a host function."""
        slots, started = unit.execution.slots, time.perf_counter()
        try:
            arguments = []
            for slot, tree in zip(node.ins, node.trees, strict=True):
                if type(has := slots[slot]) is Failed:
                    raise has.error
                if tree is not None:
                    wait_for(has, None, node.name, "the host")
                    has = tree_unflatten(tree, has)
                arguments.append(has)
            result = _checked(node, node.function(*arguments))
        except BaseException as error:
            result = Failed(failure(node.name, "the host", error))
        if self.timeline is not None:
            self.timeline.host(node, unit.execution.client.name, started, time.perf_counter())
        self.inbox.put(("host", (unit, result)))

    def _wait(self) -> bool:
        """Nothing can be dispatched: waits for a message, or for room on an island. Whether the last message came."""
        if not any(c.ready for c in self._clients):
            return self._handle(self.inbox.get())
        full = [i for i in self.islands if self._flights[i].used >= self.window]
        if len(self.islands) == 1:  # nothing else could be dispatched meanwhile: no other thread is needed
            flight = self._flights[full[0]]
            flight.mark()
            settled(flight.marks[0][0])
            self.costs.seen(*flight.free())
            return False
        for island in full:
            flight = self._flights[island]
            flight.mark()
            if not flight.watched:
                flight.watched = True
                self._watchers[island].submit(self._watch, island, flight.marks[0][0])
        try:
            return self._handle(self.inbox.get(timeout=self.deadline))
        except queue.Empty:
            raise IslandError(f"{self._stuck()}.") from None

    def _watch(self, island: Island, array: Any) -> None:
        settled(array)
        self.inbox.put(("free", island))

    def _settle(self) -> None:
        """Waits until all islands have computed what they were given."""
        for flight in self._flights.values():
            flight.mark()
            while flight.marks:
                settled(flight.marks[0][0])
                self.costs.seen(*flight.free())

    def _stuck(self) -> str:
        names = [i.name for i, f in self._flights.items() if f.used]
        return f"{' and '.join(names) or 'a host function'} has not answered for {self.deadline:g} s"


def _next(unit: Unit) -> Step:
    assert isinstance(unit.node, Segment)
    return unit.node.steps[unit.at]


def _fail(slots: list[Any], step: Step, bad: Failed) -> None:
    for part in step.parts:
        for slot, _, _ in part.outs:
            slots[slot] = bad


def _checked(node: Host, made: Any) -> Any:
    """The leaves that a host function gave, where it was traced to give arrays; else the object."""
    if node.leaves is None:
        return made
    leaves = tree_flatten(made)[0]
    given = [jax.ShapeDtypeStruct(jax.numpy.shape(a), jax.numpy.result_type(a)) for a in leaves]
    if [(a.shape, a.dtype) for a in given] != [(a.shape, a.dtype) for a in node.leaves]:
        raise ConfigError(f"it gives {shapes(given)} and was traced to give {shapes(node.leaves)}.")
    return leaves
