"""A dataflow graph of programs, transfers and host functions, traced once and submitted many times.

A client writes a function of Values; each call in it adds a node and gives Values again, of known shapes and places.
What does not fit together is refused there, by name. Tracing also prepares: for every node the executables, the slots
its operands are in, what to forget after it, and which host functions it has to wait for. A node may be placed on
several islands: it is a gang then, which runs on all of them or on none.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.tree_util import tree_flatten, tree_unflatten

from areca.errors import ConfigError
from areca.pathways.island import Island
from areca.pathways.program import Program, flat_specs, shapes

_numbers = itertools.count()


@dataclass(eq=False)
class Value:
    """What a node gives: a tree of arrays on each of its islands, or, with no islands, an object of the host."""

    graph: "Graph"
    made_by: str
    leaves: list[Any] | None  # jax.ShapeDtypeStruct; None for an object of the host
    tree: Any
    slots: dict[Island, int]  # where it lies; of the host under None
    specs: list[Any]  # how each leaf is cut over an island's mesh, PartitionSpecs
    hosts: frozenset[int] = frozenset()  # host functions upstream
    alike: list[Any] | None = None  # of an input: other leaves that were seen to be the same, with tree and specs

    @functools.cached_property
    def islands(self) -> tuple[Island, ...]:
        return tuple(i for i in self.slots if i is not None)


@dataclass
class Part:
    """One island's share of a node, ready to run: `outs` are (slot, first leaf, last leaf) of what `call` gives."""

    island: Island
    call: Callable[..., list[Any]]
    ins: tuple[int, ...]
    outs: tuple[tuple[int, int, int], ...]
    forget: tuple[int, ...] = ()


@dataclass
class Step:
    """A node on devices: a program or a transfer, on all islands of `parts` or on none."""

    name: str
    kind: str  # "program" or "transfer"
    parts: list[Part]
    number: int  # of the program, for its measured cost
    islands: tuple[Island, ...]
    hosts: frozenset[int] = frozenset()
    takes: tuple[int, ...] = ()  # slots whose memory the outputs may have
    source: Island | None = None  # of a transfer
    leaves: list[Any] = field(default_factory=list)  # of a transfer: what arrives,
    specs: list[Any] = field(default_factory=list)  # how it is cut,
    change: list[Any] | None = None  # and this if it was cut otherwise before

    @property
    def touches(self) -> tuple[Island, ...]:
        """The islands it is of, a transfer's source among them."""
        return self.islands if self.source is None else (self.source, *self.islands)


@dataclass
class Host:
    """A function of the host; its arguments are read from `ins` and its result put in `outs` (island, slot)."""

    name: str
    function: Callable[..., Any]
    ins: tuple[int, ...]
    trees: tuple[Any, ...]
    leaves: list[Any] | None
    outs: tuple[tuple[Island | None, int], ...]
    waits: frozenset[int]  # host functions upstream
    specs: list[Any]
    inputs: tuple[int, ...] = ()  # of the graph's, those it reads
    outputs: tuple[int, ...] = ()  # of the graph's, those it reads and does not make
    after: tuple[int, ...] = ()  # segments that must have been dispatched before


@dataclass
class Segment:
    """Steps that wait for the same host functions: what the controller sends an island in one message."""

    hosts: frozenset[int]
    steps: list[Step] = field(default_factory=list)
    number: int = 0
    cost: Any = None  # what its measured cost is kept under: its programs
    islands: tuple[Island, ...] = ()  # those its steps touch
    bound: dict[Island, list[int]] = field(default_factory=dict)  # of other processes: slots read and made before
    kept: list[tuple[Island, int]] = field(default_factory=list)  # and slots made here and read later
    inputs: tuple[int, ...] = ()  # of the graph's, those it reads
    outputs: tuple[int, ...] = ()  # of the graph's, those it reads and does not make
    after: tuple[int, ...] = ()  # segments that must have been dispatched before


class Graph:
    """What tracing gives: segments of steps, host functions, and where inputs and outputs lie."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(_numbers)
        self.remote: bool | None = None  # whether its islands are of other processes; None: it has none yet
        self.n_slots = 0
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.nodes: list[Step | Host] = []
        self.hosts: list[Host] = []
        self.segments: list[Segment] = []
        self.only_step: Step | None = None  # where it has nothing else, neither reads from the host nor takes memory
        self.passed: list[int] = []  # inputs that are, or are part of, an output as they are
        self.donated: dict[int, str] = {}  # input -> the program that takes its memory
        self._taken: dict[int, str] = {}  # slot -> the program that takes its memory
        self._readers: dict[int, frozenset[int]] = {}  # slot -> the host functions that its readers so far wait for

    # What a traced function calls.

    def call(self, program: Program, *values: Value) -> Any:
        """Runs a program on every island its values lie on: a Value, or a tuple of them for a tuple of outputs."""
        self._own(program.name, values)
        if len(values) != len(program.inputs):
            raise ConfigError(f"program {program.name} takes {len(program.inputs)} values and is given {len(values)}.")
        places = {v.islands for v in values}
        if len(places) != 1 or not values[0].islands:
            where = " and ".join(sorted({_where(v) for v in values}))
            raise ConfigError(f"program {program.name} has values on {where}; move them to the same islands first.")
        for i, (value, wanted) in enumerate(zip(values, program.inputs, strict=True)):
            self._fits(program, i, value, wanted)
        hosts = frozenset[int]().union(*(v.hosts for v in values))
        for i in program.donates:
            if (twice := next((j for j, v in enumerate(values) if j != i and v is values[i]), None)) is not None:
                raise ConfigError(
                    f"{program.name} is given what {values[i].made_by} gave twice, and takes the memory of input {i}; "
                    f"give it another value as input {twice}."
                )
            for slot in values[i].slots.values():
                hosts |= self._readers.get(slot, frozenset())
                self._taken[slot] = program.name
                for place, given in enumerate(self.inputs):
                    if slot in given.slots.values():
                        self.donated[place] = program.name
        several = type(program.outputs) is tuple  # a named tuple is one value
        trees = list(program.outputs) if several else [program.outputs]
        specs = (
            list(program.out_specs)
            if several and isinstance(program.out_specs, tuple)
            else ([program.out_specs] * len(trees))
        )
        made = [
            self._value(program.name, tree, values[0].islands, hosts, flat_specs(spec, tree))
            for tree, spec in zip(trees, specs, strict=True)
        ]
        ends = list(itertools.accumulate(len(v.leaves or ()) for v in made))
        parts = [
            Part(
                island,
                island.prepare(program),
                tuple(v.slots[island] for v in values),
                tuple((v.slots[island], end - len(v.leaves or ()), end) for v, end in zip(made, ends, strict=True)),
            )
            for island in values[0].islands
        ]
        self._read(values, hosts)
        takes = tuple(slot for i in program.donates for slot in values[i].slots.values())
        self.nodes.append(Step(program.name, "program", parts, program.number, values[0].islands, hosts, takes))
        return tuple(made) if several else made[0]

    def move(self, value: Value, to: Sequence[Island], specs: Any = None) -> Value:
        """The value on the islands `to`, cut by `specs`. Where it lies so already nothing is copied; the others have it
        from the first island that does."""
        self._own("a transfer", [value])
        if not value.islands:
            raise ConfigError(f"a transfer of what {value.made_by} gives starts from an island, and it is on the host.")
        tree = tree_unflatten(value.tree, value.leaves or [])
        source, placed = value.islands[0], value.specs if specs is None else flat_specs(specs, tree)
        there = {i: slot for i, slot in value.slots.items() if i in to and placed == value.specs}
        away = [i for i in to if i not in there]
        made = self._value(value.made_by, tree, away, value.hosts, placed) if away else value
        if self.remote and placed != value.specs and any(len(i.channels) > 1 for i in (source, *away)):  # type: ignore[attr-defined]
            raise ConfigError(
                f"what {value.made_by} gives lies over several processes and can't be cut anew on its way; move it as "
                "it is."
            )
        parts = [Part(i, _placing(i, placed), (value.slots[source],), ((made.slots[i], 0, len(placed)),)) for i in away]
        self._read([value], value.hosts)
        if parts:
            name = f"{value.made_by} to {', '.join(i.name for i in away)}"
            self.nodes.append(
                Step(
                    name, "transfer", parts, -1, tuple(away), value.hosts, source=source, leaves=value.leaves or [],
                    specs=placed, change=placed if placed != value.specs else None,
                )
            )  # fmt: skip
        if not there:
            return made
        slots = {i: there[i] if i in there else made.slots[i] for i in to}
        return Value(self, value.made_by, value.leaves, value.tree, slots, placed, value.hosts)

    def host(
        self,
        function: Callable[..., Any],
        *values: Value,
        outputs: Any = None,
        to: Sequence[Island] = (),
        specs: Any = None,
        name: str = "",
    ) -> Value:
        """Runs a Python function on the host, of the values as trees of arrays (of their first islands).

        `outputs` are the shapes it gives, which are put on the islands `to`; without them it gives any object.
        """
        name = name or getattr(function, "__name__", "host function")
        self._own(name, values)
        if (outputs is None) != (not to):
            raise ConfigError(f"host function {name}: shapes of its outputs and islands to put them on go together.")
        number = len(self.hosts)
        hosts = frozenset[int]().union(*(v.hosts for v in values))
        made = self._value(name, outputs, to, hosts | {number}, [] if outputs is None else flat_specs(specs, outputs))
        ins = tuple(next(iter(v.slots.values())) for v in values)
        outs = tuple((island, slot) for island, slot in made.slots.items())
        self._read(values, hosts | {number})
        node = Host(name, function, ins, tuple(v.tree for v in values), made.leaves, outs, hosts, made.specs)
        self.hosts.append(node)
        self.nodes.append(node)
        return made

    def input(
        self, leaves: list[Any] | None, tree: Any, islands: Sequence[Island], specs: list[Any], name: str
    ) -> Value:
        """One of the graph's inputs."""
        value = Value(self, name, leaves, tree, self._slots(islands), specs)
        self.inputs.append(value)
        return value

    def finish(self, outputs: Sequence[Value]) -> None:
        """Cuts the nodes into segments, and finds what each may forget."""
        self.outputs = list(outputs)
        for value in self.outputs:
            if not isinstance(value, Value):
                raise ConfigError(f"graph {self.name} gives {value!r}; a traced function gives Values.")
            self._own(f"graph {self.name}", [value])
        found: dict[frozenset[int], Segment] = {}
        for node in self.nodes:
            if isinstance(node, Step):
                found.setdefault(node.hosts, Segment(node.hosts)).steps.append(node)
        # A node waits for all that its operands wait for, so in this order no segment reads from a later one.
        self.segments = sorted(found.values(), key=lambda s: len(s.hosts))
        given = {slot: i for i, v in enumerate(self.inputs) for slot in v.slots.values()}
        last: dict[int, Part] = {}
        for g in self.segments:
            g.islands = tuple(dict.fromkeys(i for s in g.steps for i in (s.touches if self.remote else s.islands)))
            g.inputs = tuple(sorted({given[i] for s in g.steps for p in s.parts for i in p.ins if i in given}))
        written = {o[0]: k for k, g in enumerate(self.segments) for s in g.steps for p in s.parts for o in p.outs}
        readers: dict[int, set[int]] = {}
        for k, g in enumerate(self.segments):
            for slot in (i for s in g.steps for p in s.parts for i in p.ins):
                readers.setdefault(slot, set()).add(k)
        for k, g in enumerate(self.segments):
            read = {written[i] for s in g.steps for p in s.parts for i in p.ins if i in written}
            read_before = {r for s in g.steps for slot in s.takes for r in readers[slot]}
            g.after = tuple(sorted((read | read_before) - {k}))
        for h in self.hosts:
            h.after = tuple(sorted({written[i] for i in h.ins if i in written}))
            h.inputs = tuple(sorted({given[i] for i in h.ins if i in given}))
        kept = {slot for v in self.outputs for slot in v.slots.values()}
        for node in (*self.segments, *self.hosts):
            parts = [p for s in node.steps for p in s.parts] if isinstance(node, Segment) else []
            reads = {i for p in parts for i in p.ins} if isinstance(node, Segment) else set(node.ins)
            reads -= {o[0] for p in parts for o in p.outs}
            node.outputs = tuple(k for k, v in enumerate(self.outputs) if not reads.isdisjoint(v.slots.values()))
        self.passed = sorted({given[slot] for slot in kept if slot in given})
        read_by_hosts = {i for h in self.hosts for i in h.ins}
        for part in (p for g in self.segments for s in g.steps for p in s.parts):
            last |= dict.fromkeys(part.ins, part)
        if len(self.nodes) == 1 and not (self.hosts or self.passed or self._taken or self.remote):
            self.only_step = self.segments[0].steps[0]
        for slot, part in last.items():
            # What several segments read is kept to the end: they may be dispatched in any order.
            if slot not in kept and slot not in read_by_hosts and len(readers[slot]) == 1:
                part.forget = (*part.forget, slot)

    # Its own.

    def _own(self, reader: str, values: Sequence[Value]) -> None:
        for v in values:
            if not isinstance(v, Value) or v.graph is not self:
                raise ConfigError(f"{reader} is given {v!r}, which is no Value of graph {self.name}.")
            if taken := next((self._taken[s] for s in v.slots.values() if s in self._taken), ""):
                raise ConfigError(f"{reader} reads what {v.made_by} gave after its memory went to {taken}.")

    def _fits(self, program: Program, place: int, value: Value, wanted: Any) -> None:
        leaves, tree = tree_flatten(wanted)
        reader = program.name
        if value.leaves is None:
            raise ConfigError(f"input {place} of {reader} is what {value.made_by} gives, an object of the host.")
        same = tree == value.tree and all(
            a.shape == b.shape and a.dtype == b.dtype for a, b in zip(leaves, value.leaves, strict=True)
        )
        if not same:
            has = shapes(value.leaves)
            raise ConfigError(
                f"{value.made_by} gives {has}, and input {place} of {reader} is {shapes(leaves)}"
                f"{' in another tree' if has == shapes(leaves) else ''}; make them the same."
            )

        lies = flat_specs(program.specs[place] if program.specs else None, wanted)
        if uneven := next(((a, b) for a, b in zip(value.specs, lies, strict=True) if a != b), None):
            raise ConfigError(
                f"{value.made_by} gives arrays cut by {uneven[0]}, and input {place} of {reader} is cut by "
                f"{uneven[1]}; move it there in that form first."
            )

    def _value(
        self, made_by: str, tree: Any, islands: Sequence[Island], hosts: frozenset[int], specs: list[Any]
    ) -> Value:
        leaves, structure = (None, None) if tree is None else tree_flatten(tree)
        return Value(self, made_by, leaves, structure, self._slots(islands), specs, hosts)

    def _slots(self, islands: Sequence[Island]) -> dict[Any, int]:
        for island in islands:
            if self.remote is None:
                self.remote, self._first = island.remote, island
            if island.remote != self.remote or (self.remote and island.mesh.shape != self._first.mesh.shape):
                raise ConfigError(
                    f"graph {self.name} is on {self._first!r} and {island!r}; its islands must all be of this process, "
                    "or all of others and of one shape."
                )
        start, self.n_slots = self.n_slots, self.n_slots + max(1, len(islands))
        return {island: start + i for i, island in enumerate(islands or (None,))}

    def _read(self, values: Sequence[Value], hosts: frozenset[int]) -> None:
        for slot in (s for v in values for s in v.slots.values()):
            self._readers[slot] = self._readers.get(slot, frozenset()) | hosts


def _placing(island: Island, specs: list[Any]) -> Callable[..., list[Any]]:
    return lambda *leaves: island.copy(leaves, specs)


def _where(value: Value) -> str:
    return ", ".join(i.name for i in value.islands if i is not None) or "the host"
