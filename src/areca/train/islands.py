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
from areca.errors import ConfigError, IslandError, TrainingError
from areca.model.layout import Layout
from areca.pathways.controller import Controller
from areca.pathways.fleet import Fleet, Returning
from areca.pathways.future import Future
from areca.pathways.graph import Graph, Value
from areca.pathways.island import Island, split_devices
from areca.pathways.processes import Setting
from areca.pathways.program import Program
from areca.pathways.shared import Lease
from areca.pathways.timeline import Timeline
from areca.train.exchange import digest, shard_size, sum_shards, to_wire
from areca.train.identity import layout_of
from areca.train.segments import Cut, Piece, assemble, pieces
from areca.train.step import TrainState, finish, train_step


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
        raise ConfigError(
            "the gradient noise scale is not measured over islands; for it train on one, with islands.count 1 and "
            "islands.shards 0."
        )
    if config.batch.accumulate > 1:
        raise ConfigError(
            f"batch.accumulate is {config.batch.accumulate}, and over islands each computes its shards one after "
            "another; set it to 1 and choose more islands.shards."
        )
    layout = layout_of(config)
    if i.on == "devices" and i.processes != 1:
        raise ConfigError(
            f"islands.processes is {i.processes}, and islands on devices are of this process; set islands.on to "
            "processes or ray."
        )
    setting_of(config)
    if i.on == "ray":
        from areca.pathways import rays

        rays.check(i.count, setting_of(config))
    if i.on == "devices":
        split_devices(i.count, (layout.data, layout.model))  # says so if there are fewer devices
    least = min(batch for _, batch in config.batch.ramp)
    if i.count > least:
        raise ConfigError(
            f"islands.count is {i.count} and a batch has {least} sequences; each island needs at least one of them."
        )
    cut = Cut(config.model, i.segments, layout, config.optimizer.z_loss, i.lengths)
    for _, batch in config.batch.ramp:
        cut.layout.check_batch("a shard of batch.ramp", shard_size(batch, i.shards))


def setting_of(config: RunConfig) -> Setting:
    """How the processes of a run's islands are started."""
    i = config.islands
    if not 1 <= i.deadline < 1e6:
        raise ConfigError(f"islands.deadline is {i.deadline}; give seconds, from 1 to 1,000,000.")
    if not 1e-3 <= i.chunk_mb <= 1024:
        raise ConfigError(f"islands.chunk_mb is {i.chunk_mb}; choose from 0.001 to 1024.")
    layout = layout_of(config)
    return Setting(
        (layout.data, layout.model), i.processes, config.threads, max(1, int(i.chunk_mb * 2**20)), i.flows,
        deadline=i.deadline,
    )  # fmt: skip


class IslandState:
    """The state of a run on all islands; as a TrainState it is one island's."""

    def __init__(self, params: Future, rest: Future) -> None:
        self.futures = params, rest

    def local(self) -> TrainState:
        """The arrays of the first island that has not been lost."""
        params, rest = (_of_living(f) for f in self.futures)
        return TrainState(rest["step"], params, rest["optimizer"])

    @property
    def params(self) -> Any:
        """The first island's parameters."""
        return _of_living(self.futures[0])


def _of_living(future: Future) -> Any:
    """A value on an island that has not been lost. Islands are the same to the bit."""
    lost: IslandError | None = None
    for island in future.islands:
        try:
            if not island.remote:
                return jax.tree.unflatten(future.tree, future.arrays(island))
            return future.on(island)
        except IslandError as error:
            lost = error
    raise lost or IslandError(f"what {future.made_by} gave is on no island.")


class Metrics:
    """The numbers of a step, as an array that will be; with them, now and then, every island's digest.

    `before` is the state that the step started from: an island that has not ended the step still has it.
    """

    def __init__(self, values: Future, digests: Future | None, before: IslandState | None = None) -> None:
        self.values, self.digests, self.before = values, digests, before

    def is_ready(self) -> bool:
        """Whether reading them would not wait."""
        if not self.values.placed or self.values.error is not None:
            return self.values.placed
        found = [self.values.peek(i) for i in self.values.islands]
        return all(f[0].is_ready() if isinstance(f, list) else f.is_ready() for f in found)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Waits for all islands that are not lost; IslandError if one of these could not end the step."""
        living = [i for i in self.values.islands if not i.remote or i.error is None]
        for island in living:
            try:
                self.values.wait(island)
            except IslandError:
                if not island.remote or island.error is None:  # another was lost, and this one waited for it
                    raise
        values = np.asarray(_of_living(self.values), dtype)
        if self.digests is not None:
            compare(self.digests)
        return values


def compare(digests: Future) -> None:
    """TrainingError where islands have different parameters, with each one's digest. Lost ones are left out."""
    found = {}
    for island in digests.islands:
        try:
            found[island.name] = tuple(map(int, np.asarray(digests.on(island))))
        except IslandError:
            continue
    if len(set(found.values())) > 1:
        said = ", ".join(f"{name} {first:08x}{second:08x}" for name, (first, second) in found.items())
        raise TrainingError(
            f"the islands have different parameters ({said}): one of them computed or received something else, so "
            "nothing after can be trusted; resume from the last checkpoint."
        )


class OverIslands:
    """The islands of a run, and its step over them. `abstract` is the state's shapes (a TrainState)."""

    def __init__(
        self,
        config: RunConfig,
        abstract: TrainState,
        layout: Layout,
        timeline: Timeline | None = None,
        setting: Setting | None = None,
        lease: Lease | None = None,
    ) -> None:
        self.config, self.layout, self.timeline = config, layout, timeline
        c = config.islands
        self.lease = lease  # islands that other runs use too
        self.fleet: Fleet | Lease
        self.islands: list[Any]
        if lease is None:
            self.fleet = Fleet(c.on, c.count, setting or setting_of(config))
            self.islands = list(self.fleet.islands)
            self.controller = Controller(self.islands, timeline=timeline, deadline=c.deadline)
            self.client = self.controller.client("train")
        else:
            self.fleet, self.islands, self.controller = lease, list(lease.islands), lease.controller
            self.client = lease.client
        self.shards = max(1, c.shards)
        self.steps = 0
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), abstract)
        params, rest = _halves(shapes)
        lies = _halves(layout.specs(shapes)) if layout.devices > 1 else (None, None)
        self.shapes, self.lies = (params, rest), lies
        self.firsts: dict[tuple[int, Island], Future] = {}
        self.made: dict[int, _Programs | _Whole] = {}  # by the sequences of a shard
        self.of_parts: dict[Any, Program] = {}  # what rounds and sums parts of a gradient, for all sizes of a batch
        self.digest = Program("digest", digest, [params], specs=[lies[0]])
        self.beside: list[Program] = []  # programs that read the state between steps

    @property
    def owners(self) -> list[Island]:
        """The island of each shard."""
        return [self.islands[s * len(self.islands) // self.shards] for s in range(self.shards)]

    def place(self, state: TrainState) -> IslandState:
        """A state of one island or of the host, on all of them."""
        put = zip(_halves(state), self.lies, ("parameters", "optimizer"), strict=True)
        return IslandState(*(self.client.put(tree, self.islands, specs, name, given=True) for tree, specs, name in put))

    def program(self, batch: int, context: int) -> Callable[[IslandState, Any, Any], tuple[IslandState, Metrics]]:
        """The step for one batch size: programs are compiled for every island and the graph is traced, here."""
        c = self.config.islands
        size = shard_size(batch, self.shards)
        if size not in self.made:
            if c.shards:
                cut = Cut(self.config.model, c.segments, self.layout, self.config.optimizer.z_loss, c.lengths)
                self.made[size] = _Programs(self, cut, size, context)
            else:
                self.made[size] = _Whole(self, size, context)
        made, islands, owners = self.made[size], list(self.islands), self.owners
        tokens = jax.ShapeDtypeStruct((size, context + 1), jnp.int32)
        examples = [
            self.client.example(self.shapes[0], self.islands, self.lies[0]),
            self.client.example(self.shapes[1], self.islands, self.lies[1]),
            self.client.example(jax.ShapeDtypeStruct((), jnp.float32), self.islands, None),
            *(self.client.example(tokens, [island], made.tokens) for island in owners),
            *(self._first(first, island) for _, first in made.segments for island in islands),
        ]
        graph = self.client.trace(made.trace, *examples, name=f"step of {batch}")
        firsts = examples[3 + self.shards :]

        def step(state: IslandState, tokens_BS: Any, rate: Any) -> tuple[IslandState, Metrics]:
            if (lost := next((i.error for i in islands if i.remote and i.error is not None), None)) is not None:
                raise lost
            shards = np.asarray(tokens_BS).reshape(self.shards, size, context + 1)
            given = [self.client.put(np.float32(rate), islands, None, "learning rate")]
            given += [
                self.client.put(shard, [island], made.tokens, f"tokens of shard {s}")
                for s, (shard, island) in enumerate(zip(shards, owners, strict=True))
            ]
            params, rest, values = self.client.submit(graph, *state.futures, *given, *firsts)
            self.steps += 1
            look = self.steps % c.digest_every == 0 and len(islands) > 1
            digests = self.client.call(self.digest, params) if look else None
            return IslandState(params, rest), Metrics(values, digests, state)

        return step

    # Losing and gaining islands. Those of other processes only.

    def living(self) -> list[Any]:
        """The islands that are not lost, when they have ended whatever they were given."""
        living = [i for i in self.islands if i.remote and i.error is None]
        for island in living:
            island.settle()
        return [i for i in living if i.error is None]

    def keep(self, state: IslandState, islands: list[Any], holder: Any) -> IslandState:
        """A state on these islands and no others, which all then take the steps; who does not hold it has a copy."""
        self.islands = islands
        return self._spread(state, islands, holder)

    def holds(self, state: IslandState, island: Any) -> bool:
        """Whether an island has a state, whole and computed."""
        return all(
            f.placed and f.error is None and island in f.islands and island.has(f.peek(island)) for f in state.futures
        )

    def programs(self) -> list[Program]:
        """All that were made."""
        return [
            self.digest,
            *self.beside,
            *self.of_parts.values(),
            *(p for m in self.made.values() for p in m.programs()),
        ]

    def again(self, lost: Any) -> Returning:
        """Starts a lost island anew; its programs are compiled before it joins."""

        def prepare(island: Any) -> None:
            programs = self.programs()
            for program in programs:
                island.prepare(program)
            for program in programs:
                island.compiled(program.number, program.name)

        return self.fleet.again(lost, prepare)

    def join(self, state: IslandState, new: Any) -> tuple[IslandState, str]:
        """The state also on a new island, copied from a peer, and its digest, which proves it the same."""
        islands = sorted([*self.islands, new], key=lambda i: self.fleet.names.index(i.name))
        self.fleet.admit(self.controller, islands, new)
        self.fleet.islands = islands
        state = self._spread(state, islands, self.islands[0])
        digests = self.client.call(self.digest, state.futures[0])
        compare(digests)
        self.islands = islands
        first, second = np.asarray(digests.on(new))
        return state, f"{first:08x}{second:08x}"

    def _spread(self, state: IslandState, islands: list[Any], holder: Any) -> IslandState:
        """A state on these islands: where it is already, and else copied from one that holds it."""
        spread = []
        for future in state.futures:
            have = [i for i in islands if i is holder or (i in future.islands and self.holds(state, i))]
            here = future.only(have)
            lack = [i for i in islands if i not in have]
            if lack:
                (copy,) = self.client.submit(self.client.trace(lambda g, v, to=lack: g.move(v, to), here), here)
                here = here.joined(copy, islands)
            spread.append(here)
        return IslandState(*spread)

    def close(self) -> None:
        """Waits for what is enqueued and ends the controller; leased islands are given back."""
        try:
            if self.lease is None:
                self.controller.close()
        finally:
            self.fleet.close()
        if self.lease is not None:
            self.controller.forget(self.programs())
        if self.timeline is not None:
            self.timeline.close()

    def _first(self, first: int, island: Island) -> Future:
        """The number of a segment's first layer, on an island, once."""
        key = first, island
        if key not in self.firsts:
            self.firsts[key] = self.client.put(np.int32(first), [island], None, f"layer {first}")
        return self.firsts[key]


def program_of(piece: Piece, single: bool) -> Program:
    """The program of a piece; on a `single` device nothing is cut."""
    specs, out = (None, None) if single else (piece.specs, piece.out_specs)
    return Program(piece.name, piece.function, piece.inputs, specs=specs, out_specs=out)


class _Programs:
    """The programs of a step for shards of one size, and the graph over them."""

    def __init__(self, over: OverIslands, cut: Cut, size: int, context: int) -> None:
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


class _Whole:
    """The step as one program, for a run on one island whose batch is not cut: what a run without islands does."""

    def __init__(self, over: OverIslands, batch: int, context: int) -> None:
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
            return (*_halves(after), metrics)

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


def _halves(state: Any) -> tuple[Any, Any]:
    """Parameters, and what else a step changes."""
    return state.params, {"step": state.step, "optimizer": state.optimizer}
