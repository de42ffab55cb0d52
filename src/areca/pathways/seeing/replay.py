"""A graph replayed on as many processors as islands: its makespan, what each was busy, the bubble, and the memory.

In one process islands share the cores, so where one has nothing to do another's programs fill the gap and a trace shows
no bubble. The replay has the graph's own order and dependencies and each program's measured seconds: an island runs its
programs one after another in the order of the graph, each as soon as what it reads is there. Transfers take the time
that they are given and no processor. A program's seconds come from a Timeline, or from running the graph one program at
a time (`measure`), which nothing else disturbs.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from areca.errors import ConfigError
from areca.pathways.future import Future
from areca.pathways.graph import Graph, Part, Step
from areca.pathways.seeing.timeline import Event

Seconds = Callable[[Step, Part], float]  # of one island's share of a node


@dataclass(frozen=True)
class Replay:
    """Times in seconds, memory in bytes, by the names of islands."""

    makespan: float
    busy: dict[str, float]
    peak: dict[str, int]  # of the values that the graph makes; 0 where no sizes were given
    events: list[Event]  # for a Timeline, from 0

    @property
    def bubble(self) -> float:
        """The share of all processors' time in which nothing is computed."""
        return 1.0 - sum(self.busy.values()) / (len(self.busy) * self.makespan) if self.makespan else 0.0


def replay(graph: Graph, seconds: Seconds, sizes: Mapping[int, int] | None = None) -> Replay:
    """Replays a graph without host functions. `sizes` are the bytes of each slot (`Measured.sizes`)."""
    ready, free, busy = defaultdict[int, float](float), defaultdict[str, float](float), defaultdict[str, float](float)
    born: dict[int, tuple[str, float]] = {}
    died: dict[int, float] = {}
    events = []
    for number, step in enumerate(steps_of(graph)):
        for part in step.parts:
            name, took = part.island.name, seconds(step, part)
            start = max((ready[i] for i in part.ins), default=0.0)
            if step.kind == "program":
                start = max(start, free[name])
                free[name] = start + took
                busy[name] += took
            end = start + took
            kind = "compute" if step.kind == "program" else "transfer"
            events.append(Event(kind, step.name, name, graph.name, number, start, end))
            for slot in part.ins:
                died[slot] = max(died.get(slot, 0.0), start if slot in step.takes else end)
            for slot, _, _ in part.outs:
                ready[slot] = died[slot] = end
                born[slot] = name, start
    makespan = max((e.end for e in events), default=0.0)
    kept = {slot for value in graph.outputs for slot in value.slots.values()}
    died |= dict.fromkeys(kept, makespan)
    return Replay(makespan, dict(busy), _peaks(born, died, sizes or {}), sorted(events, key=lambda e: e.start))


def _peaks(
    born: Mapping[int, tuple[str, float]], died: Mapping[int, float], sizes: Mapping[int, int]
) -> dict[str, int]:
    changes = defaultdict[str, list[tuple[float, int]]](list)
    for slot, (island, start) in born.items():
        changes[island] += [(start, sizes.get(slot, 0)), (died[slot], -sizes.get(slot, 0))]
    peaks = {}
    for island, moments in changes.items():
        now = peaks[island] = 0
        for _, change in sorted(moments):  # what ends at an instant makes room for what begins then
            now += change
            peaks[island] = max(peaks[island], now)
    return peaks


def steps_of(graph: Graph) -> list[Step]:
    """Programs and transfers in the order in which they are dispatched. ConfigError for a graph with host functions."""
    if graph.hosts:
        raise ConfigError(
            f"graph {graph.name} has the host function {graph.hosts[0].name}; only programs and transfers are replayed."
        )
    return [step for segment in graph.segments for step in segment.steps]


# --- seconds


@dataclass(frozen=True)
class Measured:
    """Seconds of each program and transfer on each island by (step, island), and bytes of each slot."""

    by_name: dict[tuple[str, str], float]
    sizes: dict[int, int]

    def seconds(self, step: Step, part: Part) -> float:
        """What `replay` asks for."""
        return self.by_name[step.name, part.island.name]


def measure(graph: Graph, inputs: Sequence[Future], rounds: int = 3) -> Measured:
    """Runs a graph one program at a time, on copies of its inputs; the first round warms up and is not counted.

    All nodes of one name on one island count as one program: its seconds are the median of their times.
    """
    steps = steps_of(graph)
    took = defaultdict[tuple[str, str], list[float]](list)
    sizes: dict[int, int] = {}
    for round_ in range(rounds + 1):
        slots: dict[int, list[Any]] = {}
        for value, future in zip(graph.inputs, inputs, strict=True):
            for island, slot in value.slots.items():
                slots[slot] = [jax.numpy.copy(a) for a in future.arrays(island)]
        jax.block_until_ready(slots)
        for step in steps:
            for part in step.parts:
                arguments = [a for i in part.ins for a in slots[i]]
                started = time.perf_counter()
                outs = jax.block_until_ready(part.call(*arguments))
                if round_:
                    took[step.name, part.island.name].append(time.perf_counter() - started)
                del arguments
                for slot, first, last in part.outs:
                    slots[slot] = outs[first:last]
                    sizes[slot] = sum(a.nbytes for a in slots[slot])
                for slot in part.forget:
                    slots[slot] = []
    return Measured({key: statistics.median(times) for key, times in took.items()}, sizes)


def from_events(graph: Graph, events: Sequence[Event], client: str) -> Measured:
    """Seconds of each program as the timeline of submissions of this graph alone, by one client, has them.

    A program began when it was dispatched, when the one before it on its island had ended, or when what it reads was
    there, whichever was last. Other islands' programs ran at the same time on the same cores, and are in these times.
    ConfigError where the events are not of this graph.
    """
    steps = steps_of(graph)
    dispatched = sorted((e for e in events if e.kind == "dispatch" and e.client == client), key=lambda e: e.sequence)
    ends = {(e.sequence, e.track): e.end for e in events if e.kind in ("compute", "transfer")}
    if not dispatched or len(dispatched) % len(steps):
        raise ConfigError(
            f"the timeline has {len(dispatched)} programs of client {client}, no multiple of the {len(steps)} of graph "
            f"{graph.name}."
        )
    took = defaultdict[tuple[str, str], list[float]](list)
    last = defaultdict[str, float](float)
    for at in range(0, len(dispatched), len(steps)):
        ready = defaultdict[int, float](float)
        for step, event in zip(steps, dispatched[at : at + len(steps)], strict=True):
            if step.name != event.name:
                raise ConfigError(f"the timeline has {event.name} where graph {graph.name} has {step.name}.")
            for part in step.parts:
                name = part.island.name
                end = ends[event.sequence, name]
                began = max([event.start, *(ready[i] for i in part.ins)])
                if step.kind == "program":
                    began, last[name] = max(began, last[name]), end
                took[step.name, name].append(max(0.0, end - began))
                for slot, _, _ in part.outs:
                    ready[slot] = end
    return Measured({key: statistics.fmean(times) for key, times in took.items()}, {})
