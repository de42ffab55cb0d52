"""An island's side in a process of its own: it does what the controller's messages say, in their order.

    ("program", request, number, bytes)      compiles a program, apart from what runs meanwhile
    ("graph", number, segments)              what this island does of a graph: a list of operations a segment
    ("run", execution, graph, segment, bound, freed, first)   one segment; answered ("ran", ...) when it is computed
    ("put", key, arrays, specs) ("fetch", request, key) ("has", request, key) ("free", keys)
    ("drop", graph) ("forget", programs)
    ("peer", id, addresses) ("lost", id, sentence) ("ping", n) ("close",)

Programs are enqueued in that order, at most `window` ahead of the data; a program that reads what another island sends
is enqueued when that has arrived. What failed is passed along slots, to other islands too. An island of several
processes has an agent in each (a rank), all of which do the same; a rank sends to the same rank of another island.
"""

import collections
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import jax
import numpy as np

from areca.errors import IslandError
from areca.pathways.elsewhere.links import Arrival, Links, Sending
from areca.pathways.flight import settled
from areca.pathways.future import failure
from areca.pathways.pool import Pool
from areca.pathways.program import Program, place


@dataclass(frozen=True)
class Setup:
    """What an agent is told first."""

    name: str
    id: str  # name and incarnation, as peers know it
    shape: tuple[int, int]
    rank: int = 0
    processes: int = 1
    coordinator: str = ""  # of jax.distributed, which never spans islands
    host: str = "127.0.0.1"  # where it listens for other islands
    token: bytes = b""
    chunk_bytes: int = 4 << 20
    flows: int = 1
    window: int = 16
    threads: int = 0


@dataclass(frozen=True)
class Run:
    """An operation: a program on slots. `outs` are (slot, first leaf, last leaf); `at` is its step in the segment."""

    name: str
    at: int
    program: int
    ins: tuple[int, ...]
    outs: tuple[tuple[int, int, int], ...]
    forget: tuple[int, ...] = ()
    takes: tuple[int, ...] = ()  # slots whose memory the outputs may have


@dataclass(frozen=True)
class Send:
    """An operation: a slot to other islands, in the form `specs` or, if None, as it is."""

    name: str
    at: int
    slot: int
    to: tuple[str, ...]
    transfer: int
    specs: list[Any] | None = None
    forget: tuple[int, ...] = ()


@dataclass(frozen=True)
class Take:
    """An operation: what another island sends becomes a slot's value."""

    name: str
    at: int
    slot: int
    source: str
    transfer: int
    leaves: list[Any]
    specs: list[Any]
    forget: tuple[int, ...] = ()


@dataclass(frozen=True)
class Work:
    """What an island does in a segment; `kept` are slots that outlive it."""

    ops: list[Run | Send | Take]
    kept: tuple[int, ...]


class Bad:
    """In a slot: why there is no value, in one sentence."""

    def __init__(self, error: str, lost: bool = False) -> None:
        self.error, self.lost = error, lost  # lost: because an island is


@dataclass
class Doing:
    """What the agent waits for or works on, for the controller's watch."""

    what: str = "idle"  # idle, enqueueing, waiting for room, waiting (for the peer)
    peer: str = ""
    arrival: Arrival | None = None  # what it waits for
    since: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Without any progress."""
        return time.perf_counter() - max(self.since, self.arrival.seen if self.arrival else 0.0)


class Agent:
    """Follows messages given to `handle`; `reply` sends one back."""

    def __init__(self, setup: Setup, reply: Callable[[tuple[Any, ...]], None]) -> None:
        self.setup, self.reply = setup, reply
        devices = np.asarray(jax.devices(), dtype=object)
        need = setup.shape[0] * setup.shape[1]
        if devices.size < need:
            raise IslandError(f"{setup.name} has {devices.size} devices and a mesh of {setup.shape} needs {need}.")
        self.mesh = jax.sharding.Mesh(devices[:need].reshape(setup.shape), ("data", "model"))
        self.links = Links(
            f"{setup.id}/{setup.rank}", setup.host, setup.token, setup.chunk_bytes, setup.flows,
            lambda peer, error: reply(("broken", peer.rpartition("/")[0], error)),
        )  # fmt: skip
        self.programs: dict[int, Any] = {}
        self.graphs: dict[int, list[Work]] = {}
        self.store: dict[Any, Any] = {}
        self.doing = Doing()
        self.flight: collections.deque[Any] = collections.deque()  # an output of each program in flight
        self.enqueued = 0
        self.sending: list[tuple[Any, str, Sending]] = []
        self.recording = -1  # the number of the first step of a segment that is recorded
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.compiler, self.readers = Pool(1, "areca-compile"), Pool(2, "areca-fetch")
        for target, name in ((self._work, "areca-agent"), (self._follow, "areca-ends")):
            threading.Thread(target=target, name=name, daemon=True).start()

    def handle(self, message: tuple[Any, ...]) -> None:
        """Takes one message, at once; the order of messages is that of the work."""
        kind, *rest = message
        if kind == "ping":
            d, done = self.doing, self.enqueued - sum(not _ended(a) for a in list(self.flight))
            self.reply(("pong", rest[0], time.perf_counter(), d.what, d.peer, d.seconds, done))
        elif kind == "peer":
            self.links.know(f"{rest[0]}/{self.setup.rank}", rest[1][self.setup.rank])
        elif kind == "lost":
            self.links.lose(f"{rest[0]}/{self.setup.rank}", rest[1])
        elif kind == "program":
            self.compiler.submit(self._compile, *rest)
        elif kind in ("fetch", "has") and rest[1] in self.store:  # not behind what has still to be enqueued
            self.readers.submit(self._read, kind, *rest, self.store.get(rest[1]))
        else:
            self.inbox.put(message)

    # The thread that works.

    def _work(self) -> None:
        while True:
            self._do("idle")
            kind, *rest = self.inbox.get()
            try:
                self._one(kind, rest)
            except Exception as error:  # a fault of ours: nobody may wait for ever for what will not come
                self.reply(("fault", f"{type(error).__name__}: {error}"))

    def _one(self, kind: str, rest: list[Any]) -> None:
        if kind == "run":
            self._run(*rest)
        elif kind == "graph":
            self.graphs[rest[0]] = rest[1]
        elif kind == "put":
            key, leaves, specs = rest
            self.store[key] = [self._placed(a, s) for a, s in zip(leaves, specs, strict=True)]
        elif kind == "free":
            for key in rest[0]:
                self.store.pop(key, None)
        elif kind in ("fetch", "has"):
            request, key = rest
            self.readers.submit(self._read, kind, request, key, self.store.get(key))
        elif kind == "drop":
            self.graphs.pop(rest[0], None)
        elif kind == "forget":
            for number in rest[0]:
                self.programs.pop(number, None)

    def _run(
        self, execution: int, graph: int, segment: int, bound: dict[int, Any], freed: Sequence[Any], first: int
    ) -> None:
        for key in freed:
            self.store.pop(key, None)
        started = time.perf_counter()
        slots: dict[int, Any] = {
            slot: key if type(key) is Bad else self.store.get(key, Bad("it was never made."))
            for slot, key in bound.items()
        }
        work, last = self.graphs[graph][segment], None
        self.recording = first
        for op in work.ops:
            if type(op) is Run:
                output = self._program(op, slots, execution)
                last = last if output is None else output
                if first >= 0 and output is not None:
                    self.ended.put(("op", op.name, first + op.at, time.perf_counter(), output))
            elif type(op) is Send:
                self._send(op, slots, execution)
            elif type(op) is Take:
                slots[op.slot] = op
            for slot in op.forget:
                slots.pop(slot, None)
        for slot in work.kept:
            self._value(slots, slot, execution)
            self.store[execution, slot] = slots[slot]
        failed = {slot: slots[slot] for slot in work.kept if type(slots[slot]) is Bad}
        self.ended.put(("end", execution, segment, last, started, failed))
        self.sending = [s for s in self.sending if not s[2].gone.is_set()]

    def _value(self, slots: dict[int, Any], slot: int, execution: int) -> Any:
        """What is in a slot, once it is here: leaves or Bad."""
        value = slots[slot]
        if type(value) is Take:
            value = slots[slot] = self._taken(value, execution)
        return value

    def _program(self, op: Run, slots: dict[int, Any], execution: int) -> Any:
        """Enqueues a program and gives one of its outputs; None where it can't be."""
        ins = [self._value(slots, slot, execution) for slot in op.ins]
        bad = next((value for value in ins if type(value) is Bad), None)
        if bad is None:
            while len(self.flight) >= self.setup.window:
                self._do("waiting for room")
                settled(self.flight.popleft())
            for slot in op.takes:
                self._sent(slots[slot])
            self._do("enqueueing")
            try:
                outs = self.programs[op.program](*[a for value in ins for a in value])
                for slot, first, last in op.outs:
                    slots[slot] = outs[first:last]
                self.flight.append(outs[0])
                self.enqueued += 1
                return outs[0]
            except Exception as error:
                bad = Bad(str(failure(op.name, self.setup.name, error)))
        for slot, _, _ in op.outs:
            slots[slot] = bad
        return None

    def _send(self, op: Send, slots: dict[int, Any], execution: int) -> None:
        value = self._value(slots, op.slot, execution)
        tag = execution, op.transfer
        pieces, error, lost = [], "", False
        if type(value) is Bad:
            error, lost = value.error, value.lost
        else:
            if not value:
                return
            if op.specs is not None:
                value = jax.device_put(value, [place(self.mesh, s) for s in op.specs])
            pieces = [piece for leaf in value for piece in _pieces(leaf)]
        for peer in op.to:
            sending = self.links.send(f"{peer}/{self.setup.rank}", tag, pieces, error, lost)
            self.sending.append((value, peer, sending))

    def _sent(self, value: Any) -> None:
        """Returns when what is sent of a value was read: its memory can be taken then."""
        for sent, peer, sending in self.sending:
            if sent is value and not sending.gone.is_set():
                self._do("waiting", peer)
                sending.gone.wait()

    def _taken(self, op: Take, execution: int) -> Any:
        if not op.leaves:
            return []
        peer, tag = f"{op.source}/{self.setup.rank}", (execution, op.transfer)
        arrival = self.links.arrival(peer, tag)
        if not arrival.done.is_set():
            self._do("waiting", op.source, arrival)
            arrival.done.wait()
        self.links.forget(peer, tag)
        if self.recording >= 0:
            self.ended.put(("came", op.name, self.recording + op.at, arrival.began, arrival.seen))
        if arrival.error:
            return Bad(arrival.error, arrival.lost)
        return self._assembled(arrival.pieces, op)

    def _assembled(self, pieces: list[np.ndarray], op: Take) -> list[Any]:
        """Arrays over this process's devices from their pieces, in the order of `_pieces`."""
        made, at = [], 0
        for leaf, spec in zip(op.leaves, op.specs, strict=True):
            sharding = place(self.mesh, spec)
            local = []
            for devices, index in _places(sharding, leaf.shape):
                shape = tuple(len(range(*s.indices(n))) for s, n in zip(index, leaf.shape, strict=True))
                piece = pieces[at].view(leaf.dtype).reshape(shape)
                local += [jax.device_put(piece, device, may_alias=True) for device in devices]
                at += 1
            made.append(jax.make_array_from_single_device_arrays(leaf.shape, sharding, local))
        return made

    def _placed(self, array: np.ndarray, spec: Any) -> Any:
        sharding = place(self.mesh, spec)
        if self.setup.processes == 1:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    def _do(self, what: str, peer: str = "", arrival: Arrival | None = None) -> None:
        self.doing = Doing(what, peer, arrival)

    # Other threads.

    def _compile(self, request: int, number: int, data: bytes) -> None:
        try:
            program: Program = cloudpickle.loads(data)
            self.programs[number] = program.compiled(self)
            self.reply(("done", request, None, ""))
        except Exception as error:
            self.reply(("done", request, None, f"{type(error).__name__}: {error}"))

    def _follow(self) -> None:
        """Says of each segment when it is computed, and how long the island was busy with it.

        Where the next has ended too by then, when the first did was not seen: the time is said once, for both.
        """
        free = before = 0.0
        begun: float | None = None
        events: list[tuple[str, str, int, float, float]] = []
        item = self.ended.get()
        while True:
            kind, *what = item
            if kind == "op":  # of a segment that is recorded
                name, number, enqueued, output = what
                settled(output)
                now = time.perf_counter()
                events.append(("compute", name, number, max(before, enqueued), now))
                before, item = now, self.ended.get()
                continue
            if kind == "came":
                events.append(("transfer", *what))
                item = self.ended.get()
                continue
            execution, segment, last, started, failed = what
            since = started if begun is None else begun
            if last is not None:
                settled(last)
            now, item = time.perf_counter(), None
            if events:
                self.reply(("events", execution, segment, events))
                events = []
            with contextlib.suppress(queue.Empty):
                item = self.ended.get_nowait()
            if item is not None and item[0] == "end" and (item[3] is None or _ended(item[3])):
                self.reply(("ran", execution, segment, None, failed))
                begun = since
                continue
            self.reply(("ran", execution, segment, now - max(free, since), failed))
            free, before, begun = now, now, None
            if item is None:
                item = self.ended.get()

    def _read(self, kind: str, request: int, key: Any, value: Any) -> None:
        try:
            if value is None or type(value) is Bad:
                error = "it is not there." if value is None else value.error
                self.reply(("done", request, False, "" if kind == "has" else error))
            elif kind == "has":
                self.reply(("done", request, _whole(value), ""))
            else:
                read = [[(index, np.asarray(piece)) for (_, index), piece in zip(
                    _places(leaf.sharding, leaf.shape), _pieces(leaf), strict=True)] for leaf in value]  # fmt: skip
                self.reply(("done", request, read, ""))
        except Exception as error:
            said = str(failure("what was read", self.setup.name, error))
            self.reply(("done", request, False, "" if kind == "has" else said))


def _ended(array: Any) -> bool:
    """Whether a program is known to have ended, by one of its outputs."""
    try:
        return array.is_deleted() or array.is_ready()
    except RuntimeError:  # its memory was taken meanwhile
        return True


def _places(sharding: Any, shape: tuple[int, ...]) -> list[tuple[list[Any], tuple[slice, ...]]]:
    """The different parts of an array that this process's devices hold: (devices, index), in the devices' order."""
    found: dict[Any, tuple[list[Any], tuple[slice, ...]]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        key = tuple(s.indices(n) for s, n in zip(index, shape, strict=True))
        found.setdefault(key, ([], index))[0].append(device)
    return list(found.values())


def _pieces(leaf: Any) -> list[Any]:
    """Arrays of single devices, one for each of `_places`."""
    if len(leaf.sharding.device_set) == 1:
        return [leaf]
    on = {shard.device: shard.data for shard in leaf.addressable_shards}
    return [on[devices[0]] for devices, _ in _places(leaf.sharding, leaf.shape)]


def _whole(value: list[Any]) -> bool:
    """Whether a value can be read, once it is computed."""
    try:
        if any(leaf.is_deleted() for leaf in value):
            return False
        jax.block_until_ready(value)
        return True
    except (jax.errors.JaxRuntimeError, RuntimeError, ValueError):
        return False
