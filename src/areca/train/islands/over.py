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

from areca.config import RunConfig
from areca.model.layout import Layout
from areca.pathways.controller import Controller
from areca.pathways.elsewhere.processes import Setting
from areca.pathways.fleet import Fleet, Returning
from areca.pathways.future import Future
from areca.pathways.island import Island
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline
from areca.pathways.shared import Lease
from areca.train.islands.exchange import digest, shard_size
from areca.train.islands.programs import Programs, Whole
from areca.train.islands.segments import Cut
from areca.train.islands.setting import setting_of
from areca.train.islands.values import IslandState, Metrics, compare, halves
from areca.train.step import TrainState


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
        params, rest = halves(shapes)
        lies = halves(layout.specs(shapes)) if layout.devices > 1 else (None, None)
        self.shapes, self.lies = (params, rest), lies
        self.firsts: dict[tuple[int, Island], Future] = {}
        self.made: dict[int, Programs | Whole] = {}  # by the sequences of a shard
        self.of_parts: dict[Any, Program] = {}  # what rounds and sums parts of a gradient, for all sizes of a batch
        self.digest = Program("digest", digest, [params], specs=[lies[0]])
        self.beside: list[Program] = []  # programs that read the state between steps

    @property
    def owners(self) -> list[Island]:
        """The island of each shard."""
        return [self.islands[s * len(self.islands) // self.shards] for s in range(self.shards)]

    def place(self, state: TrainState) -> IslandState:
        """A state of one island or of the host, on all of them."""
        put = zip(halves(state), self.lies, ("parameters", "optimizer"), strict=True)
        return IslandState(*(self.client.put(tree, self.islands, specs, name, given=True) for tree, specs, name in put))

    def program(self, batch: int, context: int) -> Callable[[IslandState, Any, Any], tuple[IslandState, Metrics]]:
        """The step for one batch size: programs are compiled for every island and the graph is traced, here."""
        c = self.config.islands
        size = shard_size(batch, self.shards)
        if size not in self.made:
            if c.shards:
                cut = Cut(self.config.model, c.segments, self.layout, self.config.optimizer.z_loss, c.lengths)
                self.made[size] = Programs(self, cut, size, context)
            else:
                self.made[size] = Whole(self, size, context)
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
