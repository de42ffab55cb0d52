"""Steps on their way to islands: enqueued on those of this process, sent as segments to those of others.

Called by the dispatcher's thread alone. It writes down what was given to whom: the flight of each island, the measured
costs of programs, and what each client was charged.
"""

import itertools
import time
from collections.abc import Sequence
from typing import Any

from areca.errors import IslandError
from areca.pathways.costs import Costs
from areca.pathways.dataflow import Execution, Failed, Unit
from areca.pathways.elsewhere.agent import Bad
from areca.pathways.elsewhere.remote import Handle
from areca.pathways.flight import Flight
from areca.pathways.future import failure
from areca.pathways.graph import Segment, Step
from areca.pathways.island import Island
from areca.pathways.stride import Stride


class Dispatch:
    """What was given to islands, and the giving."""

    def __init__(self, islands: Sequence[Island], each: int) -> None:
        self.costs, self.stride = Costs(), Stride()
        self.flights = {island: Flight(each) for island in islands}
        self._sequence = itertools.count()

    def step(self, execution: Execution, step: Step) -> None:
        """Enqueues a step, with operands in the slots, on all of its islands, or fails it on all.

        The stack is kept shallow here: JAX walks it for each array it makes.
        """
        slots, recording, share = execution.slots, execution.recording, execution.client.share
        cost = self.costs.of(step.number)
        self.stride.charge(share, cost * len(step.parts), step.islands)
        if execution.failed and _spoilt(slots, step):
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
                self.flights[part.island].add([step.number], outs[0], started, share, cost)
        except Exception as error:
            where = " and ".join(i.name for i in step.islands)
            _fail(slots, step, Failed(failure(step.name, where, error)))
            execution.failed = True
            return
        if recording is not None:
            recording.dispatched(step, next(self._sequence), started, time.perf_counter(), slots)

    def run(self, execution: Execution, steps: Sequence[Step], first: int, upto: int, island: Island) -> int:
        """Enqueues steps of one part each on an island, and returns where it stopped: after one that failed.

        What is kept of them is written down once for all: it is as much for one program as for eight, and among the
        threads that compute it takes several times what it takes alone.
        """
        slots, share, flight = execution.slots, execution.client.share, self.flights[island]
        upto = min(upto, first + flight.each)
        started, at, outs = time.perf_counter(), first, None
        try:
            while at < upto:
                part = steps[at].parts[0]
                ins = part.ins
                outs = part.call(*slots[ins[0]]) if len(ins) == 1 else part.call(*[a for i in ins for a in slots[i]])
                for slot, begin, end in part.outs:
                    slots[slot] = outs[begin:end]
                for slot in part.forget:
                    slots[slot] = None
                at += 1
        except Exception as error:
            _fail(slots, steps[at], Failed(failure(steps[at].name, island.name, error)))
            execution.failed = True
        numbers = [step.number for step in steps[first:at]]
        cost = sum(map(self.costs.of, numbers))
        if outs is not None:
            flight.add(numbers, outs[0], started, share, cost)
        self.stride.charge(share, cost, (island,))
        return at + execution.failed

    def send(self, unit: Unit) -> None:
        """Sends a segment to all of its islands, one message each, or fails it on all."""
        execution, client, segment = unit.execution, unit.execution.client, unit.node
        assert isinstance(segment, Segment)
        slots, started, recording = execution.slots, time.perf_counter(), execution.recording
        cost = self.costs.of(segment.cost)
        lost = next((i.error for i in segment.islands if i.error is not None), None)  # type: ignore[attr-defined]
        if lost is not None:
            execution.failed = True
            for _, slot in segment.kept:
                slots[slot] = Failed(lost)
        else:
            sent, first = {}, -1
            if recording is not None:
                numbers = [next(self._sequence) for _ in segment.steps]
                first = numbers[0]
            for island in segment.islands:
                bound = {slot: _key(slots[slot]) for slot in segment.bound[island]}
                which = execution.number, execution.graph.number, segment.number, segment.cost
                sent[island] = island.run(*which, bound, first, recording and recording.timeline)  # type: ignore[attr-defined]
                sent[island].charge = client.share, cost
            for island, slot in segment.kept:
                slots[slot] = Handle(island, (execution.number, slot), sent[island])  # type: ignore[arg-type]
            self.stride.charge(client.share, cost * len(segment.islands), segment.islands)
            if recording is not None:
                ended = time.perf_counter()
                for step, number in zip(segment.steps, numbers, strict=True):
                    recording.dispatched(step, number, started, ended, slots)

    def seen(self, numbers: list[Any], seconds: float, charges: list[tuple[Any, float]]) -> None:
        """What an island did within a time in which it was busy."""
        self.costs.seen(numbers, seconds)
        self.stride.settle(charges, seconds)


def _key(value: Any) -> Any:
    """What an island of another process is told of a slot: a handle's key, or why there is no value."""
    if type(value) is Failed:
        return Bad(str(value.error), isinstance(value.error, IslandError))
    return value.key


def _spoilt(slots: list[Any], step: Step) -> bool:
    """Whether an operand of a step has failed; its outputs fail with it."""
    bad = next((s for p in step.parts for i in p.ins if type(s := slots[i]) is Failed), None)
    if bad is not None:
        _fail(slots, step, bad)
    return bad is not None


def _fail(slots: list[Any], step: Step, bad: Failed) -> None:
    for part in step.parts:
        for slot, _, _ in part.outs:
            slots[slot] = bad
