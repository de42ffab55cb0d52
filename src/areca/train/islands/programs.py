"""The programs of a step over islands, and the graph over them (at the head of `areca.train.islands.over`)."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from areca.pathways.graph import Graph, Value
from areca.pathways.program import Program
from areca.train.islands.exchange import sum_shards, to_wire
from areca.train.islands.segments import Cut, Piece, assemble, pieces
from areca.train.islands.values import halves
from areca.train.step import TrainState, finish, train_step

if TYPE_CHECKING:
    from areca.train.islands.over import OverIslands


def program_of(piece: Piece, single: bool) -> Program:
    """The program of a piece; on a `single` device nothing is cut."""
    specs, out = (None, None) if single else (piece.specs, piece.out_specs)
    return Program(piece.name, piece.function, piece.inputs, specs=specs, out_specs=out)


class Programs:
    """The programs of a step for shards of one size, and the graph over them."""

    def __init__(self, over: "OverIslands", cut: Cut, size: int, context: int) -> None:
        params, rest = over.shapes
        single = over.layout.devices == 1
        found = pieces(cut, params, size, context)
        compiled: dict[int, Program] = {}

        def program(piece: Piece) -> Program:
            if id(piece) not in compiled:
                compiled[id(piece)] = program_of(piece, single)
            return compiled[id(piece)]

        self.over = over
        self.forward, self.head, self.embedding = map(program, (found.forward, found.head, found.embedding))
        self.segments = [(program(piece), first) for piece, first in found.segments]
        self.compiled = compiled
        self.tokens = None if single else found.forward.specs[1]
        config = over.config

        def update(params: Any, rest: Any, rate: Any, head: Any, parts: Any, embedding: Any, *segments: Any) -> Any:
            grads = assemble(config.model, head, list(reversed(segments)), embedding)
            state = TrainState(rest["step"], params, rest["optimizer"])
            after, metrics = finish(config.model, config.optimizer, state, grads, parts, rate)
            return (*halves(after), metrics)

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

    def programs(self) -> list[Program]:
        """All of them."""
        return [*self.compiled.values(), self.update]

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
            read = [tokens[s]] if over.config.model.document_mask else []
            x, last = g.call(self.forward, mine, tokens[s])
            head, parts, dx = g.call(self.head, mine, last, tokens[s])
            sent = [self._send(g, head), g.move(parts, islands)]
            for k, (segment, _) in enumerate(self.segments):
                layers, dx = g.call(segment, mine, x, dx, firsts[k, island], *read)
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


class Whole:
    """The step as one program, for a run on one island whose batch is not cut: what a run without islands does."""

    def __init__(self, over: "OverIslands", batch: int, context: int) -> None:
        config, (params, rest) = over.config, over.shapes

        def step(params: Any, rest: Any, rate: Any, tokens_BS: Any) -> Any:
            state = TrainState(rest["step"], params, rest["optimizer"])
            after, metrics = train_step(
                config.model,
                config.optimizer,
                state,
                tokens_BS,
                rate,
                noise_parts=config.noise_parts,
                accumulate=config.batch.accumulate,
            )
            return (*halves(after), metrics)

        tokens = jax.ShapeDtypeStruct((batch, context + 1), jnp.int32)
        self.step = Program("step", step, [params, rest, np.float32(0), tokens], donates=(0, 1))
        self.segments: list[tuple[Program, int]] = []
        self.tokens = None

    def programs(self) -> list[Program]:
        """The one."""
        return [self.step]

    def trace(self, g: Graph, params: Value, rest: Value, rate: Value, tokens: Value) -> list[Value]:
        """One step."""
        return list(g.call(self.step, params, rest, rate, tokens))


def _in_float32(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(a.shape, jnp.float32)
