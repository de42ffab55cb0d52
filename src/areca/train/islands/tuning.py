"""Measures what a step over islands is made of, to say which segments its backward pass should have.

The programs of a shard are timed on the first island, the link between the first two by sending what a head and what a
layer gives; `areca.train.islands.overlap` says of these times how long a step takes in any segments. Segments are part
of a run's numbers, so they are proposed to be written down, never chosen behind a run's back.
"""

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from areca.config import RunConfig
from areca.errors import ConfigError
from areca.train.islands.exchange import shard_size, to_wire
from areca.train.islands.over import OverIslands
from areca.train.islands.overlap import Times, best_lengths, even, step_seconds
from areca.train.islands.programs import program_of
from areca.train.islands.segments import Cut, pieces
from areca.train.islands.setting import check

REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """Times and what follows from them; seconds."""

    times: Times
    layers: int

    @property
    def best(self) -> tuple[int, ...]:
        """The lengths of the segments of the shortest step, from the last layers to the first."""
        return best_lengths(self.times, self.layers)

    def seconds(self, segments: int) -> float:
        """A step with so many nearly equal segments."""
        return step_seconds(self.times, even(self.layers, segments))

    def to_json(self) -> dict[str, Any]:
        """For machines: the times, the seconds of a step by equal segments, the best lengths and theirs."""
        steps = {str(s): self.seconds(s) for s in range(1, self.layers + 1)}
        best = {"lengths": list(self.best), "best_step_seconds": step_seconds(self.times, self.best)}
        return {"times": asdict(self.times), "step_seconds": steps, "segments": len(self.best), **best}

    def describe(self) -> str:
        """A few lines for a person."""
        t, n = self.times, self.layers
        link = 8e-6 / t.seconds_per_byte if t.seconds_per_byte else float("inf")
        counts = sorted(s for s in {1, 2, 4, 8, n} if s <= n)
        rows = ", ".join(f"{s}: {1e3 * self.seconds(s):.1f}" for s in counts)
        return (
            f"measured: forward {1e3 * t.forward:.1f} ms, head {1e3 * t.head:.1f}, a layer back {1e3 * t.layer:.1f}, "
            f"embedding {1e3 * t.embedding:.1f}, a further segment {1e3 * t.segment:.2f}; the link {link:,.0f} Mbit/s "
            f"and {1e3 * t.exchange:.2f} ms an exchange\nms to the last gradient's arrival, by equal segments: {rows}; "
            f"best: {1e3 * step_seconds(t, self.best):.1f} of {', '.join(map(str, self.best))} layers"
        )


def propose(config: RunConfig) -> Measured:
    """`measure` on the islands that a configuration asks for, with the largest batch of its ramp. ConfigError as for a
    run."""
    from dataclasses import replace

    from areca import runtime
    from areca.train.identity import layout_of, with_islands
    from areca.train.step import abstract_state

    config = with_islands(config)
    if not config.islands.shards:
        raise ConfigError("one island has nothing to exchange; ask for --islands 2 or more.")
    threads = runtime.prepare(config.threads, devices=config.devices_here)
    config = replace(config, model=config.model.resolved(), threads=threads)
    check(config)
    layout = layout_of(config)
    mesh = layout.mesh() if layout.devices > 1 else None
    over = OverIslands(config, abstract_state(config.model, config.optimizer, layout, mesh), layout)
    try:
        batch = max(b for _, b in config.batch.ramp)
        return measure(over, shard_size(batch, config.islands.shards), config.data.context)
    finally:
        over.close()


def measure(over: OverIslands, sequences: int, context: int) -> Measured:
    """Times of a shard of `sequences` on the islands of a run; nothing of the run changes."""
    client, island, model = over.client, over.islands[0], over.config.model
    z_loss, wire = over.config.optimizer.z_loss, over.config.islands.wire
    single = over.layout.devices == 1
    params = over.shapes[0]
    zeros = lambda tree: jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), tree)  # noqa: E731
    put = lambda tree, specs: client.put(zeros(tree), [island], None if single else specs)  # noqa: E731
    ends = {}
    for segments in {1, model.n_layers}:
        found = pieces(Cut(model, segments, over.layout, z_loss), params, sequences, context)
        ends[segments] = found
    found = ends[model.n_layers]
    given = client.put(zeros(params), [island], None if single else over.lies[0])

    def timed(piece: Any, times: int = 1) -> tuple[float, Any]:
        """Seconds of a piece's program, of so many in a row if they are segments; and its outputs."""
        program = program_of(piece, single)
        arguments = [given, *(put(a, s) for a, s in zip(piece.inputs[1:], piece.specs[1:], strict=True))]

        def trace(g: Any, *inputs: Any) -> list[Any]:
            outputs = g.call(program, *inputs)
            for _ in range(times - 1):
                params, x, _, *others = inputs
                outputs = g.call(program, params, x, outputs[1], *others)
            return [outputs[-1] if isinstance(outputs, tuple) else outputs]

        graph = client.trace(trace, *arguments)
        seconds = []
        for i in range(REPEATS + 1):
            started = time.perf_counter()
            client.submit(graph, *arguments)[0].wait(island)
            if i:
                seconds.append(time.perf_counter() - started)
        return statistics.median(seconds), program.outputs

    n = model.n_layers
    forward, _ = timed(found.forward)
    head, head_out = timed(found.head)
    one, layer_out = timed(found.segments[0][0])
    whole, _ = timed(ends[1].segments[0][0])
    cut, _ = timed(found.segments[0][0], n)
    embedding, embedding_out = timed(found.embedding)
    layer, further = ((whole - one) / (n - 1), (cut - whole) / (n - 1)) if n > 1 else (one, 0.0)
    peers = max(1, len(over.islands) - 1)
    head_bytes, layer_bytes, bottom_bytes = (
        float(peers * _bytes(to_wire_shapes(t, wire))) for t in (head_out[0], layer_out[0], embedding_out)
    )
    per_byte, latency = _link(over) if len(over.islands) > 1 else (0.0, 0.0)
    times = Times(
        forward, head, max(layer, 0.0), embedding, max(further, 0.0), head_bytes, layer_bytes, bottom_bytes,
        per_byte, latency,
    )  # fmt: skip
    return Measured(times, n)


def to_wire_shapes(tree: Any, wire: Any) -> Any:
    """What of a tree travels, as shapes."""
    return jax.eval_shape(lambda t: to_wire(t, wire), tree)


def _bytes(tree: Any) -> int:
    return sum(a.size * jnp.dtype(a.dtype).itemsize for a in jax.tree.leaves(tree))


def _link(over: OverIslands) -> tuple[float, float]:
    """Seconds a byte and of an exchange, from the first island to the second, by two sizes."""
    client, (source, to, *_) = over.client, over.islands
    found = []
    for size in (1 << 10, 4 << 20):
        value = client.put(np.zeros(size // 4, np.float32), [source])
        graph = client.trace(lambda g, v: g.move(v, [to]), value)
        seconds = []
        for i in range(REPEATS + 1):
            started = time.perf_counter()
            (moved,) = client.submit(graph, value)
            moved.wait(to)
            if i:
                seconds.append(time.perf_counter() - started)
        found.append((size, statistics.median(seconds)))
    (small, least), (large, most) = found
    per_byte = max(most - least, 0.0) / (large - small)
    return per_byte, max(least - small * per_byte, 0.0)
