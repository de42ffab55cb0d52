"""One controller: it owns the order of everything that runs on the islands.

Clients submit graphs; one dispatcher thread enqueues their programs in one global sequence, ahead of the data: a
program is enqueued as soon as the arrays it reads exist, computed or not, and waits for a host function prepared.
Run-ahead is bounded by `window` programs an island, since XLA hangs when more than 32 with a collective are enqueued on
CPUs. A gang is enqueued on all of its islands together, or on none. Clients share islands by weight, in measured time.
"""

import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_unflatten

from areca.errors import ConfigError, IslandError
from areca.pathways.client import Client
from areca.pathways.dataflow import Dataflow, Execution, Failed, Unit
from areca.pathways.dispatch import Dispatch
from areca.pathways.elsewhere.remote import Handle, unregister
from areca.pathways.elsewhere.watch import Watch
from areca.pathways.flight import Flight, settled
from areca.pathways.future import Future, failure, wait_for
from areca.pathways.graph import Graph, Host, Segment, Step
from areca.pathways.island import Island
from areca.pathways.pool import Pool
from areca.pathways.program import Program, shapes
from areca.pathways.seeing.timeline import Timeline

WINDOW = 16  # programs in flight on an island
DEADLINE = 300.0  # seconds without an answer after which an island is called stuck
FEW = 8  # messages that wait while the dispatcher sleeps, from which on who submits lets it have the interpreter
PAUSE = 20e-6  # seconds for which


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
        self._dispatch = Dispatch(self.islands, max(1, window // 2))
        self._flights, self._stride = self._dispatch.flights, self._dispatch.stride
        self._clients, self._flow = list[Client](), Dataflow(self._ready)
        self._hosts = Pool(host_threads, "areca-host")
        self._watchers = {i: Pool(1, f"areca-{i.name}") for i in self.islands}
        self._open = set[Client]()  # clients that were opened and not heard to close
        self._idle = False  # whether the dispatcher waits for a message
        self._closed = False
        self._broken: BaseException | None = None
        self._remote = Watch(self.inbox, deadline, lambda: [i for i in self.islands if i.remote])
        for island in self.islands:
            self._remote.attend(island)
        self._thread = threading.Thread(target=self._run, name="areca-dispatcher", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, name: str, weight: float = 1.0) -> Client:
        """Opens a client."""
        if self._closed:
            raise ConfigError(f"client {name} is opened on a controller that is closed; make another.")
        if not isinstance(weight, int | float) or not 0 < weight < 1e9:
            raise ConfigError(f"the weight of client {name} is {weight}; it must be a positive number.")
        client = Client(self, name, weight)
        self._open.add(client)
        self.inbox.put(("open", client))
        return client

    def submit(self, client: Client, graph: Graph, inputs: Sequence[Future]) -> list[Future]:
        """What `Client.submit` does, on checked inputs: enqueues the graph and returns its outputs at once."""
        if self._broken is not None:
            raise self._broken
        if self._closed:
            raise ConfigError(f"graph {graph.name} is submitted to a controller that is closed; make another.")
        outputs = [Future(v.made_by, v.leaves, v.tree, v.islands, v.specs, self.deadline) for v in graph.outputs]
        execution = Execution(graph, inputs, outputs, client)
        for place, reader in graph.donated.items():
            inputs[place].donated_to = reader
        if self.timeline is not None:
            execution.recording = self.timeline.submitted(graph, client.name, inputs, outputs)
        self.inbox.put(("submit", execution))
        if self._idle and self.inbox.qsize() >= FEW:  # else it would have it once this thread's turn of 5 ms is over
            time.sleep(PAUSE)
        return outputs

    def forget(self, programs: Sequence[Program]) -> None:
        """Nobody will call these any more: islands of other processes let go of them."""
        self.inbox.put(("forget", [p.number for p in programs]))

    def join(self, island: Any) -> None:
        """Takes in another island of another process."""
        self._remote.attend(island)
        self.inbox.put(("join", island))

    def close(self) -> None:
        """Dispatches what was submitted, waits until all is computed, and ends the threads."""
        self._closed = True
        self.inbox.put(("end", None))
        self._thread.join(self.deadline)
        stuck = self._thread.is_alive()
        for pool in (self._hosts, *self._watchers.values()):
            pool.close(0.0 if stuck or self._broken is not None else self.deadline)
        self._remote.close()
        if stuck:
            raise IslandError(f"the controller did not end: {self._stuck()}.")

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
            if not self._at_once(what):
                self._flow.enter(what)
        elif kind == "host":
            self._flow.host_ended(*what)
        elif kind == "free":
            self._flights[what].watched = False
        elif kind == "ran":
            sent, seconds = what
            self._dispatch.seen([s.cost for s in sent], seconds, [s.charge for s in sent])
        elif kind == "lost":
            if what in self.islands:
                self.islands.remove(what)
        elif kind == "join":
            self.islands.append(what)
            self._flights[what] = Flight(1)
        elif kind == "open":
            self._clients.append(what)
            self._flow.open[what] = set()
        elif kind == "close":
            self._flow.close(what)
            what.ready.clear()
            self._clients.remove(what)
            self._open.discard(what)
            for graph in what.graphs:
                unregister(graph)
        elif kind == "forget":
            for island in (i for i in self.islands if i.remote):
                island.forget(what)  # type: ignore[attr-defined]
        return kind == "end"

    def _at_once(self, execution: Execution) -> bool:
        """Dispatches a graph of one step whose inputs are placed, where nobody else could be next: whether it could.

        The bookkeeping of who waits for whom, and of whose turn it is, takes longer than such a step's enqueueing.
        """
        step, client = execution.graph.only_step, execution.client
        if step is None or len(self.islands) > 1 or not all(f.placed and f.error is None for f in execution.inputs):
            return False
        while True:
            if len(self._open) > 1 or client.closed or client.ready:
                return False
            if self._room(step.islands):
                break
            self._free_first(self.islands[0])
        self._flow.load(execution)
        self._dispatch.step(execution, step)
        self._flow.place(execution)
        return True

    def _ready(self, unit: Unit) -> None:
        client = unit.execution.client
        if isinstance(unit.node, Host):
            self._hosts.submit(self._host, unit, unit.node)
            return
        if not client.ready:
            idle = len(self._flow.open[client]) <= len(unit.execution.units)  # it had nothing else to do
            self._stride.wake(client.share, unit.node.islands or _next(unit).islands, idle)
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
            islands = unit.node.islands if unit.execution.graph.remote else _next(unit).islands  # type: ignore[union-attr]
            if kept.isdisjoint(islands):
                if self._room(islands):
                    return unit
                kept.update(islands)
        return None

    def _room(self, islands: Sequence[Island]) -> bool:
        for island in islands:
            if island.remote:
                if not island.room():  # type: ignore[attr-defined]
                    return False
                continue
            flight = self._flights[island]
            if flight.used >= self.window:
                if not flight.first_is_computed:
                    return False
                self._dispatch.seen(*flight.free())
        return True

    def _advance(self, unit: Unit) -> None:
        """Dispatches steps of a unit, the first of which has room: one, or as many as have it if nobody else waits."""
        execution, client, node = unit.execution, unit.execution.client, unit.node
        assert isinstance(node, Segment)
        if execution.graph.remote:
            self._dispatch.send(unit)
            client.ready.popleft()
            self._flow.dispatched(unit)
            return
        steps = node.steps
        only = self._flights[self.islands[0]] if len(self.islands) == 1 else None
        while True:
            ahead = 1
            if len(self._clients) == 1 or sum(1 for c in self._clients if c.ready) == 1:
                used = only.used if only else max(self._flights[i].used for i in node.islands)
                ahead = max(1, self.window - used)
            upto = min(unit.at + ahead, len(steps))
            if only and ahead > 1 and execution.recording is None and not execution.failed:
                upto = self._dispatch.run(execution, steps, unit.at, upto, self.islands[0])
            else:
                for step in steps[unit.at : upto]:
                    self._dispatch.step(execution, step)
            unit.at = upto
            if upto == len(steps):
                client.ready.popleft()
                self._flow.dispatched(unit)
                return
            if ahead == 1 or not self.inbox.empty():
                return
            if only is None:
                if not self._room(steps[upto].islands):
                    return
            elif only.used >= self.window:
                self._free_first(self.islands[0])  # as `_wait` would, at the end of a longer way

    def _host(self, unit: Unit, node: Host) -> None:
        """In a thread of the pool: computes a host function."""
        slots, started = unit.execution.slots, time.perf_counter()
        try:
            arguments = []
            for slot, tree in zip(node.ins, node.trees, strict=True):
                if type(has := slots[slot]) is Failed:
                    raise has.error
                if type(has) is Handle:
                    has.island.wait(has, None, node.name)
                    has = tree_unflatten(tree, has.island.read(has))
                elif tree is not None:
                    wait_for(has, None, node.name, "the host")
                    has = tree_unflatten(tree, has)
                arguments.append(has)
            result = _checked(node, node.function(*arguments))
        except BaseException as error:
            result = Failed(failure(node.name, "the host", error))
        if unit.execution.recording is not None:
            unit.execution.recording.host(node, started, time.perf_counter())
        self.inbox.put(("host", (unit, result)))

    def _wait(self) -> bool:
        """Nothing can be dispatched: waits for a message, or for room on an island. Whether the last message came."""
        if not any(c.ready for c in self._clients):
            self._idle = True
            message = self.inbox.get()
            self._idle = False
            return self._handle(message)
        full = [i for i in self.islands if self._flights[i].used >= self.window]
        if not full:  # islands of other processes have no room; a watch ends those that never will
            return self._handle(self.inbox.get())
        if len(self.islands) == 1:  # nothing else could be dispatched meanwhile: no other thread is needed
            self._free_first(full[0])
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

    def _free_first(self, island: Island) -> None:
        """Waits until what an island was given first is computed."""
        flight = self._flights[island]
        flight.mark()
        settled(flight.marks[0][0])
        self._dispatch.seen(*flight.free())

    def _watch(self, island: Island, array: Any) -> None:
        settled(array)
        self.inbox.put(("free", island))

    def _settle(self) -> None:
        """Waits until all islands have computed what they were given."""
        for flight in self._flights.values():
            flight.mark()
            while flight.marks:
                settled(flight.marks[0][0])
                self._dispatch.seen(*flight.free())
        for island in self.islands:
            if island.remote:
                island.settle()  # type: ignore[attr-defined]

    def _stuck(self) -> str:
        names = [i.name for i, f in self._flights.items() if not f.idle]
        have = "have" if len(names) > 1 else "has"
        return f"{' and '.join(names) or 'a host function'} {have} not answered for {self.deadline:g} s"


def _next(unit: Unit) -> Step:
    assert isinstance(unit.node, Segment)
    return unit.node.steps[unit.at]


def _checked(node: Host, made: Any) -> Any:
    """The leaves that a host function gave, where it was traced to give arrays; else the object."""
    if node.leaves is None:
        return made
    leaves = tree_flatten(made)[0]
    given = [jax.ShapeDtypeStruct(jax.numpy.shape(a), jax.numpy.result_type(a)) for a in leaves]
    if [(a.shape, a.dtype) for a in given] != [(a.shape, a.dtype) for a in node.leaves]:
        raise ConfigError(f"it gives {shapes(given)} and was traced to give {shapes(node.leaves)}.")
    return leaves
