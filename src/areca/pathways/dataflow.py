"""Which parts of submitted graphs can be dispatched: the dispatcher's bookkeeping of who waits for whom.

An execution is one submission of a graph; its units are the graph's segments and host functions. A unit waits for host
functions upstream, for inputs that another graph still has to make, and, where it takes an input's memory, for those
that read it before. Only the dispatcher's thread calls what is here.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from areca.errors import ProgramError
from areca.pathways.future import Future, Nothing
from areca.pathways.graph import Graph, Host, Segment, Value

_numbers = itertools.count()


class Failed:
    """In a slot: why there is no value."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Execution:
    """One submission of a graph. A slot holds a value's leaves on one island, or an object of the host."""

    __slots__ = (
        "client", "failed", "graph", "inputs", "left", "number", "outputs", "recording", "slots", "units",
    )  # fmt: skip

    def __init__(self, graph: Graph, inputs: Sequence[Future], outputs: list[Future], client: Any) -> None:
        self.graph, self.inputs, self.outputs, self.client = graph, list(inputs), outputs, client
        self.number = next(_numbers)
        self.slots: list[Any] = [None] * graph.n_slots
        self.failed = False  # whether any slot is Failed
        self.recording: Any = None  # timeline.Recording, if there is one
        self.units: list[Unit] = []
        self.left = len(graph.segments) + len(graph.hosts)  # units not dispatched yet

    def end(self) -> None:
        """Lets go of all values: they live on in the futures that hold them."""
        self.slots, self.inputs, self.outputs, self.units = [], [], [], []


class Unit:
    """A segment or a host function of an execution; `waits` counts what it still needs."""

    __slots__ = ("at", "execution", "node", "then", "waits")

    def __init__(self, execution: Execution, node: Segment | Host) -> None:
        self.execution, self.node = execution, node
        self.waits = 0
        self.at = 0  # of a segment, the next step
        self.then: list[Unit] = []  # units that wait for this one


class Dataflow:
    """Calls `ready` with each unit that waits for nothing any more."""

    def __init__(self, ready: Callable[[Unit], None]) -> None:
        self.ready = ready
        self.open: dict[Any, set[Unit]] = {}  # units not dispatched yet, by client

    def enter(self, execution: Execution) -> None:
        """Finds what each unit of an execution waits for."""
        graph = execution.graph
        units = execution.units = [Unit(execution, node) for node in (*graph.segments, *graph.hosts)]
        if execution.client not in self.open:
            self._abandon(execution, closed(execution.client))
            return
        self.open[execution.client].update(units)
        segments, hosts = units[: len(graph.segments)], units[len(graph.segments) :]
        self.load(execution)
        for unit in units:
            node = unit.node
            needs = [hosts[h] for h in (node.hosts if isinstance(node, Segment) else node.waits)]
            needs += [segments[k] for k in node.after]
            unit.waits += len(needs)
            for need in needs:
                need.then.append(unit)
            for place in node.inputs:
                self._await_input(unit, place)
            for place in node.outputs:  # another graph may take its memory as soon as it is placed
                execution.outputs[place].readers.append(unit)
        execution.left += len(graph.passed)  # all of them before the first is passed on: with the last one it ends
        for place in graph.passed:
            self._pass_on(execution, place)
        for unit in units:
            if not unit.waits:
                self.ready(unit)

    def load(self, execution: Execution) -> None:
        """Puts the inputs that are placed into their slots."""
        for value, future in zip(execution.graph.inputs, execution.inputs, strict=True):
            if future.placed:
                _load(execution, value, future)

    def dispatched(self, unit: Unit) -> None:
        """Gives the outputs that the unit made to their futures, and lets go on what waited for it."""
        execution = unit.execution
        if unit not in self.open.get(execution.client, ()):  # its client was closed meanwhile
            return
        self.open[execution.client].discard(unit)
        then = self._left(unit)
        self.place(execution)
        for other in then:
            self._one_less(other)

    def host_ended(self, unit: Unit, result: Any) -> None:
        """Puts what a host function gave where it belongs: leaves, an object, or Failed."""
        execution, node = unit.execution, unit.node
        assert isinstance(node, Host)
        for island, slot in node.outs if execution.slots else ():
            if isinstance(result, Failed):
                execution.slots[slot], execution.failed = result, True
            elif island is None:
                execution.slots[slot] = Nothing if result is None else result
            else:
                execution.slots[slot] = island.put(list(result or ()), node.specs)
        self.dispatched(unit)

    def close(self, client: Any) -> None:
        """Drops a client: what it has not dispatched fails."""
        for execution in {u.execution for u in self.open.get(client, ())}:
            self._abandon(execution, closed(client))
        self.open.pop(client, None)

    def fail_all(self, error: BaseException) -> None:
        """Nothing will be dispatched any more."""
        for execution in {u.execution for units in self.open.values() for u in units}:
            for future in execution.outputs:
                future.fail(error)

    def _await_input(self, unit: Unit, place: int) -> None:
        execution = unit.execution
        future, value = execution.inputs[place], execution.graph.inputs[place]
        if not future.placed:
            unit.waits += 1

            def placed() -> None:
                _load(execution, value, future)
                self._one_less(unit)

            future.then.append(placed)
        if place in execution.graph.donated:
            for reader in future.readers:
                if reader.execution is not execution:
                    unit.waits += 1
                    reader.then.append(unit)
        future.readers.append(unit)

    def _pass_on(self, execution: Execution, place: int) -> None:
        """An input that is an output as it is has to be waited for like a unit."""
        future, value = execution.inputs[place], execution.graph.inputs[place]

        def placed() -> None:
            _load(execution, value, future)
            self.place(execution)

        if future.placed:
            placed()
        else:
            future.then.append(placed)

    def place(self, execution: Execution) -> None:
        """One thing less that an execution waits for: gives its futures what there is of their values."""
        outputs, slots = execution.outputs, execution.slots
        for value, future in zip(execution.graph.outputs, outputs, strict=bool(outputs)):
            for island, slot in value.slots.items() if not future.placed else ():
                if (has := slots[slot]) is None:
                    break
                if type(has) is Failed:
                    future.fail(has.error)
                    break
                future.place(island, has)
        execution.left -= 1
        if not execution.left:
            execution.end()
        for future in outputs:
            self._follow(future)

    def _follow(self, future: Future) -> None:
        if future.placed:
            then, future.then = future.then, []
            for call in then:
                call()

    def _one_less(self, unit: Unit) -> None:
        unit.waits -= 1
        if not unit.waits and unit in self.open.get(unit.execution.client, ()):
            self.ready(unit)

    def _left(self, unit: Unit) -> list[Unit]:
        """A unit will read nothing any more: gives the units that waited for it."""
        node, execution = unit.node, unit.execution
        for place in node.inputs:
            _has_read(unit, execution.inputs[place])
        for place in node.outputs:
            _has_read(unit, execution.outputs[place])
        then, unit.then = unit.then, []
        return then

    def _abandon(self, execution: Execution, error: BaseException) -> None:
        outputs, own = execution.outputs, self.open.get(execution.client, set())
        for unit in execution.units:
            own.discard(unit)
            for other in self._left(unit):
                if other.execution is not execution:
                    self._one_less(other)
        execution.end()
        for future in outputs:
            if not future.placed:
                future.fail(error)
                self._follow(future)


def _has_read(unit: Unit, future: Future) -> None:
    if unit in future.readers:
        future.readers.remove(unit)


def _load(execution: Execution, value: Value, future: Future) -> None:
    """Puts an input that is placed into its slots."""
    for island, slot in value.slots.items() if execution.slots else ():
        if future.error is not None:
            execution.slots[slot], execution.failed = Failed(future.error), True
        else:
            execution.slots[slot] = future.peek(island)


def closed(client: Any) -> ProgramError:
    """The error of what a closed client had not dispatched."""
    return ProgramError(f"client {client.name} was closed before this was dispatched.")
