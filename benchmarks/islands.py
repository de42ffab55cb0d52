"""Two islands that train one model over a link of a chosen speed: what the exchange costs, overlapped or not.

Each island is a process pinned to one core, in a network namespace of its own; between them is a link (benchmarks/
links.py) on which sending the gradients takes 5, 20 and 50% of a step, or without a limit: the control, what copying
and summing cost on the processor. A step's time is compared with that of the same two islands running at once without
any exchange, in the same round. "whole" has the gradient in one program, which leaves when that has ended, as PaLM's
did; "segments" has it in several, each of which leaves while the next is computed.

    python benchmarks/islands.py                  five minutes; root and iproute2 for the namespaces
    python benchmarks/islands.py --rounds 3 --lengths 4,4,4,4 11,4,1

Prints for each link and way the efficiency (time without exchange / time with it) and that over the control's: the
same way without a limit, in the same round. Medians of rounds with the quartiles, beside PaLM's 0.97 without overlap.
"segments" are of the lengths that the measured times ask for, or those that are given.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np

import links
from areca import runtime
from areca.config import DataConfig, IslandsConfig, ModelConfig, ParallelConfig, RunConfig
from areca.model.layout import Layout
from areca.pathways.elsewhere.processes import Setting
from areca.pathways.program import Program
from areca.train.islands.exchange import sum_shards
from areca.train.islands.over import OverIslands
from areca.train.islands.programs import Programs
from areca.train.islands.segments import Cut, pieces
from areca.train.islands.tuning import Measured, measure
from areca.train.step import abstract_state, first_state

FRACTIONS = (None, 0.05, 0.2, 0.5)  # of a step, that sending the gradients takes; None: no limit
PAYLOAD = 0.956  # of a link's speed: what Ethernet and TCP leave (benchmarks/links.py)


class Step:
    """One way to take a step, with its own state on both islands; `run` gives the seconds of one."""

    def __init__(self, over: OverIslands, made: Programs, trace: Callable[..., list[Any]], tokens: np.ndarray) -> None:
        self.over, self.made = over, made
        state = first_state(over.config.model, over.config.optimizer, 0, over.layout)
        placed = over.place(state)
        self.state = list(placed.futures)
        shards = tokens.reshape(2, -1, tokens.shape[-1])
        self.given = [over.client.put(np.float32(1e-3), over.islands, None, "rate")]
        self.given += [over.client.put(s, [i], None, "tokens") for s, i in zip(shards, over.islands, strict=True)]
        self.given += [over._first(first, island) for _, first in made.segments for island in over.islands]
        self.graph = over.client.trace(trace, *self.state, *self.given)

    def run(self, steps: int) -> float:
        """Seconds a step, of `steps` in a row."""
        started = time.perf_counter()
        for _ in range(steps):
            *self.state, values = self.over.client.submit(self.graph, *self.state, *self.given)
        for island in self.over.islands:
            values.wait(island)
        return (time.perf_counter() - started) / steps


def whole(over: OverIslands, made: Programs, size: int, context: int) -> Program:
    """The gradient of a shard as one program: (head, parts, layers, embedding)."""
    params = over.shapes[0]
    found = pieces(Cut(over.config.model, 1, over.layout), params, size, context)

    def gradient(params: Any, tokens: Any) -> Any:
        x, last = found.forward.function(params, tokens)
        head, parts, dx = found.head.function(params, last, tokens)
        layers, dx = found.segments[0][0].function(params, x, dx, np.int32(0))
        return head, parts, layers, found.embedding.function(params, tokens, dx)

    return Program("gradient", gradient, [params, jax.ShapeDtypeStruct((size, context + 1), np.int32)])


def ways(over: OverIslands, made: Programs, gradient: Program | None, exchange: bool) -> Callable[..., list[Any]]:
    """The traced step: in segments, or of one program `gradient`; with the exchange or with each island for itself."""
    one = {}

    def alone(g: Any, value: Any) -> Any:
        key = value.tree, tuple(a.shape for a in value.leaves)
        if key not in one:
            tree = jax.tree.unflatten(value.tree, value.leaves)
            one[key] = Program("own", lambda *trees: sum_shards(trees), [tree])
        return g.call(one[key], value)

    def trace(g: Any, params: Any, rest: Any, rate: Any, *others: Any) -> list[Any]:
        islands, tokens, firsts = over.islands, others[:2], list(others[2:])
        by_place = {(k, i): firsts[2 * k + n] for k in range(len(made.segments)) for n, i in enumerate(islands)}
        shards = []
        for s, island in enumerate(islands):
            mine = g.move(params, [island])
            if gradient is not None:
                shards.append(list(g.call(gradient, mine, tokens[s])))
                continue
            x, last = g.call(made.forward, mine, tokens[s])
            head, parts, dx = g.call(made.head, mine, last, tokens[s])
            layers = []
            if exchange:
                head, parts = made._send(g, head), g.move(parts, islands)
            for k, (segment, _) in enumerate(made.segments):
                grads, dx = g.call(segment, mine, x, dx, by_place[k, island])
                layers.append(made._send(g, grads) if exchange else grads)
            embedding = g.call(made.embedding, mine, tokens[s], dx)
            shards.append([head, parts, *layers, made._send(g, embedding) if exchange else embedding])
        if exchange:
            if gradient is not None:
                shards = [[made._send(g, v) for v in shard] for shard in shards]
            head, parts, *segments, embedding = (made._sum(g, list(each)) for each in zip(*shards, strict=True))
            return list(g.call(made.update, params, rest, rate, head, parts, embedding, *segments))
        state = [[g.move(v, [island]) for v in (params, rest, rate)] for island in islands]
        updated = []
        for at, shard in zip(state, shards, strict=True):
            head, parts, *segments, embedding = (alone(g, v) for v in shard)
            updated.append(g.call(made.update, *at, head, parts, embedding, *segments))
        return [_both(g, *each) for each in zip(*updated, strict=True)]

    return trace


def _both(g: Any, a: Any, b: Any) -> Any:
    """One value of two that lie on one island each: what each has for itself."""
    from areca.pathways.graph import Value

    return Value(g, a.made_by, a.leaves, a.tree, a.slots | b.slots, a.specs, a.hosts)


def quartiles(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("d-model", 128), ("layers", 8), ("vocab", 2048), ("batch", 16), ("context", 256),
                          ("rounds", 9), ("steps", 2)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lengths", nargs="*", default=[], help="of segments, from the last layers: 11,4,1")
    asked = parser.parse_args()
    runtime.prepare(1)
    model = ModelConfig(asked.vocab, asked.d_model, asked.layers, n_heads=max(1, asked.d_model // 32)).resolved()
    islands = IslandsConfig(2, 2, asked.layers, on="processes", deadline=120)
    config = RunConfig(model, DataConfig("none", asked.context), 1, islands=islands, threads=1,
                       parallel=ParallelConfig(1, 1, "block"))  # fmt: skip
    layout, size = Layout(remat="block"), asked.batch // 2
    tokens = np.random.default_rng(0).integers(0, asked.vocab, (asked.batch, asked.context + 1)).astype(np.int32)
    with links.link(fallback=False) as link:
        setting = Setting((1, 1), threads=1, deadline=120, hosts=link.addresses,
                          launch=[link.command(side, [], core=side) for side in (0, 1)])  # fmt: skip
        over = OverIslands(config, abstract_state(model, config.optimizer), layout, setting=setting)
        try:
            return compare(over, link, tokens, size, asked)
        finally:
            over.close()


def compare(over: OverIslands, link: links.Link, tokens: np.ndarray, size: int, asked: argparse.Namespace) -> int:
    model, context = over.config.model, asked.context

    def made(lengths: tuple[int, ...]) -> Programs:
        return Programs(over, Cut(model, len(lengths), over.layout, lengths=lengths), size, context)

    monolith = made((model.n_layers,))
    gradient = whole(over, monolith, size, context)
    measured = measure(over, size, context)
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {link.kind}")
    print(measured.describe())
    steps = {("whole", e): Step(over, monolith, ways(over, monolith, gradient, e), tokens) for e in (False, True)}
    bare = statistics.median(steps["whole", False].run(asked.steps) for _ in range(4))
    size_bytes = sum(a.size * 4 for a in jax.tree.leaves(gradient.outputs))
    speeds = {f: None if f is None else size_bytes * 8 / (f * bare * PAYLOAD) for f in FRACTIONS}
    print(f"a step without exchange {bare:.3f} s; each island sends {size_bytes / 1e6:.1f} MB")
    given = [tuple(map(int, each.split(","))) for each in asked.lengths]
    chosen = {f: given or [at_speed(measured, s).best] for f, s in speeds.items() if s}
    ways_at: dict[Any, list[Any]] = {f: ["whole", *chosen[f]] for f in chosen}
    ways_at = {None: ["whole", *dict.fromkeys(w for each in chosen.values() for w in each)]} | ways_at
    for lengths in ways_at[None][1:]:
        p = made(lengths)
        steps |= {(lengths, e): Step(over, p, ways(over, p, None, e), tokens) for e in (False, True)}
    for step in steps.values():
        step.run(1)
    found: dict[Any, list[float]] = {}
    for _ in range(asked.rounds):
        for fraction, speed in speeds.items():
            link.set_speed(speed)
            for way in ways_at[fraction]:
                before, with_it, after = (steps[way, e].run(asked.steps) for e in (False, True, False))
                found.setdefault((fraction, way), []).append((before + after) / 2 / with_it)
                if way != "whole" and fraction is None:
                    cost = [steps["whole", False].run(asked.steps), (before + after) / 2]
                    found.setdefault(("cut", way), []).append(cost[0] / cost[1])
        link.set_speed(None)
    for fraction, speed in speeds.items():
        name = "no limit" if fraction is None else f"{100 * fraction:.0f}% of a step ({speed / 1e6:,.0f} Mbit/s)"
        for way in ways_at[fraction]:
            mine, label = found[fraction, way], way if way == "whole" else f"segments of {', '.join(map(str, way))}"
            line = f"{name:<28} {label:<28} efficiency {quartiles(mine)}"
            if fraction is not None:
                line += f", of the control {statistics.median(mine) / statistics.median(found[None, way]):.3f}"
            elif way != "whole":
                line += f"; without exchange {quartiles(found['cut', way])} of the whole's speed"
            print(line)
    return 0


def at_speed(measured: Measured, bits_per_second: float | None) -> Measured:
    """The same times over another link."""
    if bits_per_second is None:
        return measured
    return replace(measured, times=replace(measured.times, seconds_per_byte=8 / (bits_per_second * PAYLOAD)))


if __name__ == "__main__":
    sys.exit(main())
