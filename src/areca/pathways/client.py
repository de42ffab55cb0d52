"""A client's side: tracing graphs, submitting them, putting values on islands."""

import collections
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.tree_util import tree_flatten

from areca.errors import ConfigError
from areca.pathways.dataflow import Unit
from areca.pathways.elsewhere.remote import register
from areca.pathways.future import Future
from areca.pathways.graph import Graph
from areca.pathways.island import Island
from areca.pathways.program import Program, flat_specs, shapes
from areca.pathways.stride import Share

if TYPE_CHECKING:
    from areca.pathways.controller import Controller


class Client:
    """One who submits graphs: a run, a sweep. Clients share the islands by `weight`."""

    def __init__(self, controller: "Controller", name: str, weight: float) -> None:
        self.controller, self.name = controller, name
        self.share = Share(weight)
        self.ready: collections.deque[Unit] = collections.deque()  # the dispatcher's: units that wait for nothing
        self.closed = False
        self.graphs: list[Graph] = []  # that islands of other processes know
        self._single: dict[Any, Graph] = {}

    def trace(self, function: Callable[..., Any], *examples: Future, name: str = "") -> Graph:
        """The graph of a function of (graph, values...), for values like `examples`; `Graph` has what it may call."""
        graph = Graph(name or getattr(function, "__name__", "graph"))
        values = [graph.input(f.leaves, f.tree, f.islands, f.specs, f.made_by) for f in examples]
        outputs = function(graph, *values)
        graph.finish(outputs if isinstance(outputs, tuple | list) else [outputs])
        if graph.remote:
            register(graph)
            self.graphs.append(graph)
        return graph

    def submit(self, graph: Graph, *inputs: Future) -> list[Future]:
        """Enqueues a graph on these inputs, and returns its outputs at once."""
        if self.closed:
            raise ConfigError(f"client {self.name} is closed; open another.")
        check_inputs(graph, inputs)
        return self.controller.submit(self, graph, inputs)

    def call(self, program: Program, *inputs: Future) -> Any:
        """One program as a graph of its own."""
        key = (program, *[i.islands for i in inputs])
        graph = self._single.get(key)
        if graph is None:
            graph = self._single[key] = self.trace(
                lambda g, *values: g.call(program, *values), *inputs, name=program.name
            )
        outputs = self.submit(graph, *inputs)
        return tuple(outputs) if type(program.outputs) is tuple else outputs[0]

    def put(
        self, tree: Any, islands: Sequence[Island], specs: Any = None, name: str = "input", given: bool = False
    ) -> Future:
        """Arrays of the host as a future on these islands, cut by `specs` (whole on each device if None).

        Arrays of jax's are copied, as a program may take the future's memory; not those that are `given`, which the
        caller uses no more.
        """
        if self.closed:
            raise ConfigError(f"client {self.name} is closed; open another.")
        if not islands:
            raise ConfigError(f"{name} is put on no island; name at least one.")
        leaves, structure = tree_flatten(tree)
        abstract = [jax.ShapeDtypeStruct(jax.numpy.shape(a), jax.numpy.result_type(a)) for a in leaves]
        flat = flat_specs(specs, tree)
        future = Future(name, abstract, structure, tuple(islands), flat, self.controller.deadline)
        for island in islands:
            future.place(island, island.put(leaves, flat, given))
        return future

    def example(self, tree: Any, islands: Sequence[Island], specs: Any = None, name: str = "input") -> Future:
        """What `put` would give of these shapes (jax.ShapeDtypeStruct), to trace a graph with; it has no value."""
        leaves, structure = tree_flatten(tree)
        return Future(name, leaves, structure, tuple(islands), flat_specs(specs, tree))

    def close(self) -> None:
        """Drops what is not dispatched yet; its futures fail. What was dispatched goes on."""
        if not self.closed:
            self.closed = True
            self.controller.inbox.put(("close", self))


def check_inputs(graph: Graph, inputs: Sequence[Future]) -> None:
    """ConfigError for inputs that are not as the graph was traced."""
    if len(inputs) != len(graph.inputs):
        raise ConfigError(f"graph {graph.name} takes {len(graph.inputs)} inputs and is given {len(inputs)}.")
    for i, (value, future) in enumerate(zip(graph.inputs, inputs, strict=True)):
        if not isinstance(future, Future):
            raise ConfigError(
                f"input {i} of graph {graph.name} is a {type(future).__name__} and not a future; put it on islands "
                "with `client.put`."
            )
        if future.donated_to:
            raise ConfigError(
                f"{graph.name} reads what {future.made_by} gave after its memory went to {future.donated_to}."
            )
        if future.leaves is value.leaves or future.leaves is value.alike:
            same = True
        else:
            same = future.tree == value.tree and future.specs == value.specs and _same(future.leaves, value.leaves)
            value.alike = future.leaves if same else None
        if not same or future.islands != value.islands:
            traced, has = (_described(v.leaves, v.islands) for v in (value, future))
            what = f"has {has}" if has != traced else "has another tree or is cut otherwise"
            raise ConfigError(
                f"input {i} of graph {graph.name} was traced as {traced}, and what {future.made_by} gave {what}; trace "
                "the graph with values like those it is given."
            )
    for place, reader in graph.donated.items():
        if (other := next((i for i, f in enumerate(inputs) if f is inputs[place] and i != place), None)) is not None:
            raise ConfigError(
                f"graph {graph.name} is given one value as inputs {min(place, other)} and {max(place, other)}, and its "
                f"memory goes to {reader}; give two values."
            )


def _described(leaves: list[Any] | None, islands: Sequence[Island]) -> str:
    what = "an object of the host" if leaves is None else shapes(leaves)
    return what + (f" on {' and '.join(i.name for i in islands)}" if islands else "")


def _same(a: list[Any] | None, b: list[Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    return len(a) == len(b) and all(x.shape == y.shape and x.dtype == y.dtype for x, y in zip(a, b, strict=True))
