"""Held-out loss where the parameters are: on islands of other processes, each of which takes a share of the batches.

Every island has the same parameters to the bit and computes a batch alike, and sums are added in the batches' order, so
the loss does not depend on how many there are.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from areca.config import RunConfig
from areca.data.store import TokenStore
from areca.errors import IslandError
from areca.model.layout import DATA, MODEL, Layout
from areca.pathways.future import Future
from areca.pathways.graph import Graph
from areca.pathways.program import Program
from areca.train.evaluate import Evaluator, sums_of
from areca.train.islands.over import OverIslands

AHEAD = 2  # batches given to an island before the sums of its first are read


class OnIslands(Evaluator):
    """As `Evaluator`; called with the parameters' future. An island that is lost meanwhile is done without."""

    def __init__(
        self, config: RunConfig, store: TokenStore, over: OverIslands, mixture: Mapping[str, float] | None = None
    ) -> None:
        self._over = over
        self._graphs: dict[Any, Graph] = {}
        super().__init__(config, store, over.shapes[0], mixture, over.layout)

    def __call__(self, params: Future) -> dict[str, Any]:
        while True:
            islands = self._living(params)
            try:
                return super().__call__(params)
            except IslandError:
                left = self._living(params)
                if not left or len(left) == len(islands):  # the last one, or none was lost
                    raise

    def _living(self, params: Future) -> list[Any]:
        return [i for i in self._over.islands if i in params.islands and i.error is None]

    def _compile(self, params: Any, tokens: Any, weight: Any, layout: Layout, mesh: Any) -> None:
        single = layout.devices == 1
        mesh = None if single else AbstractMesh((layout.data, layout.model), (DATA, MODEL))
        self._shapes = tokens, weight
        self._lies = [self._over.lies[0], None if single else P(DATA), None if single else P()]
        self._program = Program(
            "evaluate",
            sums_of(self.config, params, layout, mesh),
            [params, tokens, weight],
            specs=None if single else self._lies,
            out_specs=None if single else P(),
        )
        self._over.beside.append(self._program)
        for island in self._over.islands:
            self._graph(island)

    def _graph(self, island: Any) -> Graph:
        """The program on one island, which is compiled there when this is called first."""
        if island not in self._graphs:
            shapes = zip((self._over.shapes[0], *self._shapes), self._lies, strict=True)
            examples = [self._over.client.example(shape, [island], lies) for shape, lies in shapes]
            self._graphs[island] = self._over.client.trace(
                lambda g, *values: g.call(self._program, *values), *examples, name="evaluate"
            )
        return self._graphs[island]

    def _each(self, params: Future, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[Any]:
        islands, client = self._living(params), self._over.client
        if not islands:
            raise IslandError("no island is left to evaluate on.")
        params.arrays(islands[0])  # they are enqueued, and nobody took their memory
        mine = {island: params.only([island]) for island in islands}
        given: collections.deque[tuple[Future, Any]] = collections.deque()
        for n, batch in enumerate(batches):
            island = islands[n % len(islands)]
            inputs = [
                client.put(np.asarray(value, shape.dtype), [island], lies, "held-out tokens")
                for value, shape, lies in zip(batch, self._shapes, self._lies[1:], strict=True)
            ]
            (sums,) = client.submit(self._graph(island), mine[island], *inputs)
            given.append((sums, island))
            if len(given) >= AHEAD * len(islands):
                sums, island = given.popleft()
                yield sums.on(island)
        for sums, island in given:
            yield sums.on(island)
