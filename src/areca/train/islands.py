"""One model trained over several islands: each holds all parameters and computes its shards of every batch.

    for each shard, on its island:  forward, head, segments of layers from the last to the first, embedding
    as each of these ends:          its gradients go to all islands, rounded to the wire's type
    on every island:                their sum in the shards' order, clipped, one identical update

It is one graph of the controller (`areca.pathways`). The trajectory depends on how many shards there are, not on who
computes them: on one island or on two it has the same bits. A digest of the parameters is compared between islands
every so many steps; where they differ the run stops, for nothing after could be trusted.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from areca.config import RunConfig
from areca.errors import ConfigError, TrainingError
from areca.model.layout import Layout
from areca.pathways.controller import Controller
from areca.pathways.future import Future
from areca.pathways.graph import Graph, Value
from areca.pathways.island import Island, split_devices
from areca.pathways.program import Program
from areca.pathways.timeline import Timeline
from areca.train.exchange import digest, shard_size, sum_shards, to_wire
from areca.train.identity import layout_of
from areca.train.loop import _Run
from areca.train.segments import Cut, Piece, assemble, pieces
from areca.train.step import TrainState, finish


def check(config: RunConfig) -> None:
    """ConfigError for islands that can't train this run."""
    i = config.islands
    if i.digest_every < 1:
        raise ConfigError(f"islands.digest_every is {i.digest_every}; it must be at least 1.")
    if i.shards < i.count:
        raise ConfigError(
            f"islands.shards is {i.shards} and there are {i.count} islands; each needs at least one shard of the batch."
        )
    if config.noise_parts:
        raise ConfigError("the gradient noise scale is not measured over islands; set islands.shards to 0 for it.")
    layout = layout_of(config)
    split_devices(i.count, (layout.data, layout.model))  # says so if there are fewer devices
    cut = Cut(config.model, i.segments, layout, config.optimizer.z_loss)
    for _, batch in config.batch.ramp:
        cut.layout.check_batch("a shard of batch.ramp", shard_size(batch, i.shards))


class IslandState:
    """The state of a run on all islands; as a TrainState it is the first island's."""

    def __init__(self, params: Future, rest: Future) -> None:
        self.futures = params, rest

    def local(self) -> TrainState:
        """The first island's arrays."""
        params, rest = (jax.tree.unflatten(f.tree, f.arrays()) for f in self.futures)
        return TrainState(rest["step"], params, rest["optimizer"])

    @property
    def params(self) -> Any:
        """The first island's parameters."""
        return self.local().params


class Metrics:
    """The numbers of a step, as an array that will be; with them, now and then, every island's digest."""

    def __init__(self, values: Future, digests: Future | None) -> None:
        self.values, self.digests = values, digests

    def is_ready(self) -> bool:
        """Whether reading them would not wait."""
        return self.values.placed and (self.values.error is not None or self.values.arrays()[0].is_ready())

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        values = np.asarray(self.values.result(), dtype)
        if self.digests is not None:
            compare(self.digests)
        return values


def compare(digests: Future) -> None:
    """TrainingError where islands have different parameters, with each one's digest."""
    found = {i.name: tuple(map(int, np.asarray(digests.result(i)))) for i in digests.islands}
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {first:08x}{second:08x}" for name, (first, second) in found.items())
        raise TrainingError(
            f"the islands have different parameters ({said}): one of them computed or received something else, so "
            "nothing after can be trusted; resume from the last checkpoint."
        )


class OverIslands:
    """The islands of a run, and its step over them. `abstract` is the state's shapes (a TrainState)."""

    def __init__(
        self, config: RunConfig, abstract: TrainState, layout: Layout, timeline: Timeline | None = None
    ) -> None:
        self.config, self.layout, self.timeline = config, layout, timeline
        c = config.islands
        self.islands = split_devices(c.count, (layout.data, layout.model))
        self.controller = Controller(self.islands, timeline=timeline)
        self.client = self.controller.client("train")
        self.steps = 0
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), abstract)
        params, rest = _halves(shapes)
        lies = _halves(layout.specs(shapes)) if layout.devices > 1 else (None, None)
        self.shapes, self.lies = (params, rest), lies
        self.owners = [self.islands[s * c.count // c.shards] for s in range(c.shards)]
        self.firsts: dict[tuple[int, Island], Future] = {}
        self.of_parts: dict[Any, Program] = {}  # what rounds and sums parts of a gradient, for all sizes of a batch
        self.digest = Program("digest", digest, [params], specs=[lies[0]])

    def place(self, state: TrainState) -> IslandState:
        """A state of one island or of the host, on all of them."""
        put = zip(_halves(state), self.lies, ("parameters", "optimizer"), strict=True)
        return IslandState(*(self.client.put(tree, self.islands, specs, name) for tree, specs, name in put))

    def program(self, batch: int, context: int) -> Callable[[IslandState, Any, Any], tuple[IslandState, Metrics]]:
        """The step for one batch size: programs are compiled for every island and the graph is traced, here."""
        c = self.config.islands
        size = shard_size(batch, c.shards)
        cut = Cut(self.config.model, c.segments, self.layout, self.config.optimizer.z_loss)
        made = _Programs(self, cut, size, context)
        tokens = jax.ShapeDtypeStruct((size, context + 1), jnp.int32)
        examples = [
            self.client.example(self.shapes[0], self.islands, self.lies[0]),
            self.client.example(self.shapes[1], self.islands, self.lies[1]),
            self.client.example(jax.ShapeDtypeStruct((), jnp.float32), self.islands, None),
            *(self.client.example(tokens, [island], made.tokens) for island in self.owners),
            *(self._first(first, island) for _, first in made.segments for island in self.islands),
        ]
        graph = self.client.trace(made.trace, *examples, name=f"step of {batch}")
        firsts = examples[3 + c.shards :]

        def step(state: IslandState, tokens_BS: Any, rate: Any) -> tuple[IslandState, Metrics]:
            shards = np.asarray(tokens_BS).reshape(c.shards, size, context + 1)
            given = [self.client.put(np.float32(rate), self.islands, None, "learning rate")]
            given += [
                self.client.put(shard, [island], made.tokens, f"tokens of shard {s}")
                for s, (shard, island) in enumerate(zip(shards, self.owners, strict=True))
            ]
            params, rest, values = self.client.submit(graph, *state.futures, *given, *firsts)
            self.steps += 1
            look = self.steps % c.digest_every == 0 and c.count > 1
            return IslandState(params, rest), Metrics(values, self.client.call(self.digest, params) if look else None)

        return step

    def close(self) -> None:
        """Waits for what is enqueued and ends the controller."""
        self.controller.close()
        if self.timeline is not None:
            self.timeline.close()

    def _first(self, first: int, island: Island) -> Future:
        """The number of a segment's first layer, on an island, once."""
        key = first, island
        if key not in self.firsts:
            self.firsts[key] = self.client.put(np.int32(first), [island], None, f"layer {first}")
        return self.firsts[key]


class _Programs:
    """The programs of a step for shards of one size, and the graph over them."""

    def __init__(self, over: OverIslands, cut: Cut, size: int, context: int) -> None:
        params, rest = over.shapes
        single = over.layout.devices == 1
        found = pieces(cut, params, size, context)
        compiled: dict[int, Program] = {}

        def program(piece: Piece) -> Program:
            if id(piece) not in compiled:
                specs, out = (None, None) if single else (piece.specs, piece.out_specs)
                compiled[id(piece)] = Program(piece.name, piece.function, piece.inputs, specs=specs, out_specs=out)
            return compiled[id(piece)]

        self.over = over
        self.forward, self.head, self.embedding = map(program, (found.forward, found.head, found.embedding))
        self.segments = [(program(piece), first) for piece, first in found.segments]
        self.tokens = None if single else found.forward.specs[1]
        config = over.config

        def update(params: Any, rest: Any, rate: Any, head: Any, parts: Any, embedding: Any, *segments: Any) -> Any:
            grads = assemble(config.model, head, list(reversed(segments)), embedding)
            state = TrainState(rest["step"], params, rest["optimizer"])
            after, metrics = finish(config.model, config.optimizer, state, grads, parts, rate)
            return (*_halves(after), metrics)

        head, parts, _ = self.head.outputs
        layers = [p.outputs[0] for p, _ in self.segments]
        lies = [found.head.out_specs[0], None, found.embedding.out_specs, *(p.out_specs[0] for p, _ in found.segments)]
        float32 = [jax.tree.map(_in_float32, tree) for tree in (head, parts, self.embedding.outputs, *layers)]
        self.update = Program(
            "update",
            update,
            [params, rest, np.float32(0), *float32],
            specs=None if single else [*over.lies, None, *lies],
            out_specs=None if single else (*over.lies, P()),
            donates=(0, 1),
        )

    def trace(self, g: Graph, params: Value, rest: Value, rate: Value, *others: Value) -> list[Value]:
        """One step: see the head of this file."""
        over = self.over
        n, islands = len(over.owners), over.islands
        tokens, given = others[:n], list(others[n:])
        places = [(k, island) for k in range(len(self.segments)) for island in islands]
        firsts = dict(zip(places, given, strict=True))
        gone: list[list[Value]] = []  # by shard: head, parts, segments, embedding, on all islands
        for s, island in enumerate(over.owners):
            mine = g.move(params, [island])
            x, last = g.call(self.forward, mine, tokens[s])
            head, parts, dx = g.call(self.head, mine, last, tokens[s])
            sent = [self._send(g, head), g.move(parts, islands)]
            for k, (segment, _) in enumerate(self.segments):
                layers, dx = g.call(segment, mine, x, dx, firsts[k, island])
                sent.append(self._send(g, layers))
            sent.append(self._send(g, g.call(self.embedding, mine, tokens[s], dx)))
            gone.append(sent)
        head, parts, *segments, embedding = (self._sum(g, list(each)) for each in zip(*gone, strict=True))
        return list(g.call(self.update, params, rest, rate, head, parts, embedding, *segments))

    def _send(self, g: Graph, value: Value) -> Value:
        """A part of a shard's gradient, rounded, on all islands."""
        wire = self.over.config.islands.wire
        if wire != "float32":
            value = g.call(self._program("to wire", lambda tree: to_wire(tree, wire), [value]), value)
        return g.move(value, self.over.islands)

    def _sum(self, g: Graph, shards: list[Value]) -> Value:
        return g.call(self._program("sum of shards", lambda *trees: sum_shards(trees), shards), *shards)

    def _program(self, name: str, function: Any, values: list[Value]) -> Program:
        """A program of trees like these values, cut as they are; one for all of the same shapes."""
        first, known = values[0], self.over.of_parts
        key = name, len(values), first.tree, tuple((a.shape, str(a.dtype)) for a in first.leaves or ())
        if key not in known:
            specs = jax.tree.unflatten(first.tree, first.specs)
            tree = jax.tree.unflatten(first.tree, first.leaves or [])
            known[key] = Program(name, function, [tree] * len(values), specs=[specs] * len(values), out_specs=specs)
        return known[key]


def _in_float32(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, jnp.float32)


def _halves(state: Any) -> tuple[Any, Any]:
    """Parameters, and what else a step changes."""
    return state.params, {"step": state.step, "optimizer": state.optimizer}


class IslandsRun(_Run):
    """A run whose steps are taken over islands. The record, saves and judgement are those of any run."""

    over: OverIslands | None = None

    def _program(self, batch: int, layout: Layout, mesh: Any) -> Any:
        if self.over is None:
            self.over = OverIslands(self.config, self.abstract, layout)
        return self.over.program(batch, self.config.data.context)

    def _place(self, state: Any) -> Any:
        assert self.over is not None
        return self.over.place(state)

    def _local(self) -> Any:
        return self.state.local()

    def __exit__(self, *error: object) -> None:
        if self.over is not None:
            self.over.close()
        super().__exit__(*error)
