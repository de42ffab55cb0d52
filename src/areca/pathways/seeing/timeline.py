"""What happened when: the timeline of a controller and its islands, recorded as events of one clock.

A controller records the graphs that are submitted while it has a timeline (`Controller.timeline`), and nothing of
others. Programs of an island of this process run one after another, so a program starts once it is enqueued, what it
reads is there and the program before it has ended; its end is seen by a thread that waits for it. Islands elsewhere
measure themselves, and their events are put in with `add`. `areca.pathways.seeing.trace` writes and reads the file.
"""

import queue
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

WATCHERS = 16  # threads an island that wait for transfers, as many as may be in flight
PATIENCE = 60.0  # seconds that `close` waits for an island


@dataclass(frozen=True)
class Event:
    """`track` is an island, "dispatcher", "host" or "client NAME"; times are seconds of one clock.

    An event of an island has the `sequence` of its dispatch, by which a timeline knows the rest. `ins` and `made` are
    numbers of values: an event that has a number in `ins` waits for the one that has it in `made`.
    """

    kind: str  # prepare, dispatch, compute, transfer, host
    name: str
    track: str
    client: str
    sequence: int  # of the dispatch, the same on all of its islands; -1 for what is not dispatched
    start: float
    end: float
    step: int = -1  # of training; -1 for what is part of none
    ins: tuple[int, ...] = ()
    made: tuple[int, ...] = ()


class Timeline:
    """Collects events; `events` is complete, in the order of their starts, once it is closed. It may go on then."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._new: list[Event] = []
        self._known: dict[tuple[int, str], Event] = {}  # by sequence and island: what is known when it is dispatched
        self._watches: dict[str, _Watch] = {}
        self._values = 0
        self._of_futures: weakref.WeakKeyDictionary[Any, dict[Any, int]] = weakref.WeakKeyDictionary()
        self._next_step = -1
        self._lock = threading.Lock()

    def step(self, number: int) -> None:
        """The graph that is submitted next is this step."""
        self._next_step = number

    def submitted(self, graph: Any, client: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> "Recording":
        """A graph was submitted, with all that dispatching its nodes needs; the rest of it is told to the answer."""
        with self._lock:
            step, self._next_step = self._next_step, -1
            first, self._values = self._values, self._values + graph.n_slots
            numbers = list(range(first, self._values))  # of the values in the graph's slots
            for value, future in zip(graph.inputs, inputs, strict=True):
                known: dict[Any, int] = self._of_futures.get(future, {})
                for island, slot in value.slots.items():
                    if island in known:
                        numbers[slot] = known[island]
            for value, future in zip(graph.outputs, outputs, strict=True):
                self._of_futures[future] = {island: numbers[slot] for island, slot in value.slots.items()}
        at = time.perf_counter()
        self._new += [Event("prepare", node.name, f"client {client}", client, -1, at, at, step) for node in graph.nodes]
        return Recording(self, client, step, numbers)

    def after(self, island: str, array: Any) -> None:
        """What is recorded next on an island runs after this array is computed."""
        self._watch(island).computes(None, array)

    def add(self, events: Iterable[Event]) -> None:
        """Events that islands measured themselves. What the dispatcher knew of them (`client`, `step`, `ins`, `made`)
        is filled in where it is missing."""
        self._new += events

    def close(self, patience: float = PATIENCE) -> None:
        """Waits until the end of what was dispatched is recorded, at most so many seconds."""
        until = time.monotonic() + patience
        watches, self._watches = list(self._watches.values()), {}
        for watch in watches:
            watch.end(until)
        new, self._new = self._new, []
        known, self._known = self._known, {}
        self.events += _settled([_completed(e, known) for e in new] + [e for w in watches for e in w.seen])
        self.events.sort(key=lambda e: e.start)

    def write(self, path: Path | str) -> None:
        """Writes what is recorded up to the last `close` in Chrome's trace format, atomically."""
        from areca.pathways.seeing.trace import write

        write(path, self.events)

    def _watch(self, island: str) -> "_Watch":
        if island not in self._watches:
            self._watches[island] = _Watch(island)
        return self._watches[island]


class Recording:
    """One submitted graph as the timeline sees it; `numbers` are those of the values in its slots."""

    def __init__(self, timeline: Timeline, client: str, step: int, numbers: list[int]) -> None:
        self.timeline, self.client, self.of_step, self.numbers = timeline, client, step, numbers

    def dispatched(self, step: Any, sequence: int, start: float, end: float, slots: list[Any]) -> None:
        """A step of the graph was enqueued on its islands."""
        kind, timeline = "compute" if step.kind == "program" else "transfer", self.timeline
        ins: list[int] = []
        made: list[int] = []
        for part in step.parts:
            event = self._event(
                kind, step.name, part.island.name, sequence, end, end, part.ins, [o[0] for o in part.outs]
            )
            ins += event.ins
            made += event.made
            timeline._known[sequence, part.island.name] = event
            arrays = slots[part.outs[-1][0]]
            last = arrays[-1] if isinstance(arrays, list) and arrays else None
            if hasattr(last, "block_until_ready"):  # else the island is elsewhere and measures itself
                watch = timeline._watch(part.island.name)
                (watch.computes if kind == "compute" else watch.transfers)(event, last)
        event = self._event("dispatch", step.name, "dispatcher", sequence, start, end, (), ())
        timeline._new.append(replace(event, ins=tuple(ins), made=tuple(made)))

    def host(self, node: Any, start: float, end: float) -> None:
        """A host function was computed."""
        outs = [slot for _, slot in node.outs]
        self.timeline._new.append(self._event("host", node.name, "host", -1, start, end, node.ins, outs))

    def _event(
        self, kind: str, name: str, track: str, sequence: int, start: float, end: float, ins: Any, made: Any
    ) -> Event:
        n = self.numbers
        return Event(
            kind, name, track, self.client, sequence, start, end, self.of_step,
            tuple([n[i] for i in ins]), tuple([n[i] for i in made]),
        )  # fmt: skip


class _Watch:
    """Threads that wait for what an island of this process was given: one for its programs, which end in their order,
    and several for transfers to it, which do not. `seen` are events whose start is when they were enqueued."""

    def __init__(self, island: str) -> None:
        self.island, self.seen = island, list[Event]()
        self._computes: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._transfers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._given = self._done = 0
        self._start(self._computes)

    def computes(self, event: Event | None, array: Any) -> None:
        self._computes.put((event, array))

    def transfers(self, event: Event, array: Any) -> None:
        self._given += 1
        self._transfers.put((event, array))
        if self._given - self._done >= len(self._threads) <= WATCHERS:
            self._start(self._transfers)

    def end(self, until: float) -> None:
        for thread in self._threads:
            (self._computes if thread is self._threads[0] else self._transfers).put(None)
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _start(self, given: "queue.SimpleQueue[Any]") -> None:
        name = f"areca-timeline-{self.island}"
        thread = threading.Thread(target=self._wait, args=(given,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait(self, given: "queue.SimpleQueue[Any]") -> None:
        while (item := given.get()) is not None:
            event, array = item
            try:
                if not array.is_deleted():
                    array.block_until_ready()
            except Exception:  # said to whoever reads the value
                pass
            now = time.perf_counter()
            del item, array
            if event is None:  # what ran before the first event
                event = Event("before", "", self.island, "", -1, now, now)
            self.seen.append(replace(event, end=now))
            if given is self._transfers:
                self._done += 1


def _completed(event: Event, known: dict[tuple[int, str], Event]) -> Event:
    """An event of an island with what the dispatcher knew of it."""
    told = known.get((event.sequence, event.track))
    if told is None:
        return event
    return replace(
        event,
        client=event.client or told.client,
        step=told.step if event.step < 0 else event.step,
        ins=event.ins or told.ins,
        made=event.made or told.made,
    )


def _settled(events: list[Event]) -> list[Event]:
    """The events with the starts that follow: of programs of this process (which have that of their enqueueing), of
    transfers and of host functions (which have begun by waiting for what they read).

    A thread may see an end late: a value that was read was there before its reader ended.
    """
    events = sorted(events, key=lambda e: (e.end, e.sequence))
    ends = [e.end for e in events]
    made = {value: i for i, e in enumerate(events) if e.kind != "dispatch" for value in e.made}
    for i in sorted(range(len(events)), key=lambda i: -events[i].sequence):
        for value in events[i].ins if events[i].kind != "dispatch" else ():
            if value in made:
                ends[made[value]] = min(ends[made[value]], max(ends[i], events[made[value]].start))
    settled, last = [], dict[str, float]()
    for i in sorted(range(len(events)), key=lambda i: (events[i].sequence, ends[i])):
        e, end = events[i], ends[i]
        start = e.start
        if e.kind in ("compute", "transfer", "host"):
            start = max([start, *(ends[made[v]] for v in e.ins if v in made)])
        if e.kind in ("compute", "before"):
            start = max(start, last.get(e.track, start))
            last[e.track] = max(end, last.get(e.track, end))
        if e.kind != "before":
            settled.append(replace(e, start=min(start, end), end=end))
    return settled
