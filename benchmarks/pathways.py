"""The controller against plain JAX on the same devices, in one run: ratios of medians, interleaved.

    dispatch   tiny programs with a collective over four devices: one program of 128 ops (fused), 128 programs (chained)
               and one call a program (op by op), plain JAX over Areca's time; 1 is parity. Plain JAX is a Python loop
               in the better of two forms: it lets all end after every 16 programs, or keeps 8 to 16 in flight
    shortest   the shortest program with 95% of plain JAX's rate, op by op and chained, in microseconds
    shares     clients with weights 1:1:1:1 and 1:2:4:8: their shares while all have work, and their rate together over
               that of one client alone
    elsewhere  on an island of another process, of this machine and of Ray: one message for 128 programs, or for each
    pipeline   16 stages x 64 microbatches, forward and back, as one graph: microseconds a program

Barham et al. 2022, figures 5 to 9, have these on TPUs. Run: python benchmarks/pathways.py [dispatch shortest ...]
"""

import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=16")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from areca.pathways.controller import Controller
from areca.pathways.island import Island, split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

CHAIN = 128
ROUNDS = 40


def turns(sides: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side, in rounds in which all take turns, in another order each: who comes before counts 2%."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    order = random.Random(0)
    for i in range(rounds + 2):
        for name in order.sample(list(sides), len(sides)):
            started = time.perf_counter()
            sides[name]()
            if i >= 2:
                seconds[name].append(time.perf_counter() - started)
    return seconds


class Against:
    """A side against plain JAX in its better form: the median of the rounds' ratios, and quartiles.

    Which form is better by the medians of every other round is said by the rounds between: the lower of two medians
    of the same rounds would be lower by chance, too.
    """

    def __init__(self, seconds: dict[str, list[float]], side: str, *forms: str) -> None:
        ratios, plain = [], []
        for half in (0, 1):
            best = min(forms, key=lambda f: statistics.median(seconds[f][1 - half :: 2]))
            plain += seconds[best][half::2]
            ratios += [a / b for a, b in zip(seconds[best][half::2], seconds[side][half::2], strict=True)]
        self.low, self.ratio, self.high = statistics.quantiles(ratios, n=4)
        self.ours, self.plain = statistics.median(seconds[side]), statistics.median(plain)

    def __str__(self) -> str:
        return f"{self.ratio:5.3f} ({self.low:.3f} to {self.high:.3f})"


def tiny(island: Island, times: int = 1, work: int = 0) -> Program:
    """A program of `times` ops, each with a collective over the island; `work` products of small matrices beside."""

    def body(x: jax.Array) -> jax.Array:
        for _ in range(times):
            x = jax.lax.psum(x, "data") * 0.25 + 1e-6
        if work:
            a = jnp.full((64, 64), 1 / 64, jnp.float32) + x[0] * 0
            x = x + jax.lax.fori_loop(0, work, lambda _, b: b @ a, a)[0, :1] * 1e-9
        return x

    def function(x: jax.Array) -> jax.Array:
        cut = jax.shard_map(body, mesh=island.mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)
        return cut(x)

    x = jax.ShapeDtypeStruct((len(island.devices),), jnp.float32)
    return Program(f"tiny {times} {work}", function, [x], specs=[P("data")], out_specs=P("data"))


def plain(call: Callable[..., list[jax.Array]], leaves: list[jax.Array], times: int) -> None:
    """A Python loop over plain JAX, as far ahead as the controller goes, which lets all end now and then."""
    for i in range(times):
        leaves = call(*leaves)
        if i % 16 == 15:
            leaves[0].block_until_ready()
    leaves[0].block_until_ready()


def rolling(call: Callable[..., list[jax.Array]], leaves: list[jax.Array], times: int) -> None:
    """The same, with 8 to 16 in flight."""
    before = leaves[0]
    for i in range(times):
        leaves = call(*leaves)
        if i % 8 == 7:
            before.block_until_ready()
            before = leaves[0]
    leaves[0].block_until_ready()


def dispatch() -> None:
    island = split_devices(1, (4, 1))[0]
    with Controller([island]) as controller:
        client = controller.client("bench")
        x = client.put(np.zeros(4, np.float32), [island], P("data"))
        one, fused = tiny(island), tiny(island, CHAIN)
        call, whole = one.compiled(island), fused.compiled(island)
        jitted = jax.jit(one.function)
        graph = client.trace(lambda g, v: [v := g.call(one, v) for _ in range(CHAIN)][-1], x)

        def op_by_op() -> None:
            y = x
            for _ in range(CHAIN * 8):
                y = client.call(one, y)
            y.result()

        def chained() -> None:
            y = x
            for _ in range(8):
                (y,) = client.submit(graph, y)
            y.result()

        def one_program() -> None:
            y = x
            for _ in range(16):
                y = client.call(fused, y)
            y.result()

        def each(a: jax.Array) -> list[jax.Array]:
            return [jitted(a)]

        found = turns({
            "fused": one_program, "chained": chained, "op by op": op_by_op,
            "fused, plain": lambda: plain(whole, x.arrays(), 16),
            "chained, plain": lambda: plain(call, x.arrays(), CHAIN * 8),
            "chained, rolling": lambda: rolling(call, x.arrays(), CHAIN * 8),
            "op by op, plain": lambda: plain(each, x.arrays(), CHAIN * 8),
            "op by op, rolling": lambda: rolling(each, x.arrays(), CHAIN * 8),
            "plain again": lambda: plain(call, x.arrays(), CHAIN * 8),
        }, ROUNDS)  # fmt: skip
    for name, ops in (("fused", 16 * CHAIN), ("chained", 8 * CHAIN), ("op by op", 8 * CHAIN)):
        a = Against(found, name, *(f for f in found if f.startswith(f"{name}, ")))
        print(f"{name:<9} {a} of plain JAX ({a.ours / ops * 1e6:.1f} us an op, plain {a.plain / ops * 1e6:.1f})")
    print(f"noise     {Against(found, 'plain again', 'chained, plain')}: plain JAX against itself")


def shortest() -> None:
    island = split_devices(1, (4, 1))[0]
    with Controller([island]) as controller:
        client = controller.client("bench")
        x = client.put(np.zeros(4, np.float32), [island], P("data"))
        for way in ("chained", "op by op"):
            for work in (0, 2, 5, 10, 20, 40, 80, 160):
                program = tiny(island, 1, work)
                call, jitted = program.compiled(island), jax.jit(program.function)
                graph = client.trace(lambda g, v, p=program: [v := g.call(p, v) for _ in range(64)][-1], x)

                def ours(way=way, program=program, graph=graph) -> None:
                    y = x
                    if way == "chained":
                        (y,) = client.submit(graph, y)
                    else:
                        for _ in range(64):
                            y = client.call(program, y)
                    y.result()

                def theirs(loop, way=way, call=call, jitted=jitted) -> None:
                    loop(call if way == "chained" else (lambda v: [jitted(v)]), x.arrays(), 64)

                sides = {"ours": ours, "plain": lambda f=theirs: f(plain), "rolling": lambda f=theirs: f(rolling)}
                a = Against(turns(sides, ROUNDS), "ours", "plain", "rolling")
                print(f"{way:<9} a program of {a.plain / 64 * 1e6:7.0f} us: {a} of plain JAX")
                if a.ratio >= 0.95:
                    break


def shares() -> None:
    island = split_devices(1, (4, 1))[0]
    program = tiny(island, 1, 10)
    alone = 0.0
    zeros, each = np.zeros(4, np.float32), 1200
    for weights in ((1,), (1, 1, 1, 1), (1, 2, 4, 8)):
        timeline = Timeline()
        for recording in (timeline, None):  # shares by the timeline, rates without it
            with Controller([island], timeline=recording) as controller:
                go = threading.Event()

                def gate(go: threading.Event = go) -> np.ndarray:
                    go.wait(60)
                    return zeros

                first = controller.client("first")
                start = first.trace(lambda g, f=gate: g.host(f, outputs=zeros, to=[island], specs=P("data")))
                (x,) = first.submit(start)
                clients = [controller.client(f"weight {i}", w) for i, w in enumerate(weights)]
                for client in clients:
                    for _ in range(each):
                        client.call(program, x)
                started = time.perf_counter()
                go.set()
            rate = each * len(weights) / (time.perf_counter() - started)
        timeline.close()
        order = [e.client for e in timeline.events if e.kind == "dispatch" and e.name == program.name]
        busy = order[: each * sum(weights) // max(weights) * 9 // 10]
        found = [busy.count(f"weight {i}") / len(busy) * sum(weights) for i in range(len(weights))]
        alone = alone or rate
        print(f"weights {':'.join(map(str, weights))}: shares {':'.join(f'{f:.3f}' for f in found)}, "
              f"{rate:,.0f} programs/s together, {rate / alone:.2f} of one client alone")  # fmt: skip


def pipeline(stages: int = 16, microbatches: int = 64) -> None:
    islands = split_devices(stages)
    step = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    forward = Program("forward", lambda x: jnp.tanh(x), [step])
    backward = Program("backward", lambda x, d: d * (1 - x * x), [step, step])
    accumulate = Program("accumulate", lambda g, d: g + d, [step, step])

    def graph(g, *inputs):
        xs, sums = list(inputs[:microbatches]), list(inputs[microbatches:])
        for m in range(microbatches):
            kept, x = [], xs[m]
            for s in range(stages):
                x = g.call(forward, x if s == 0 else g.move(x, [islands[s]]))
                kept.append(x)
            d = x
            for s in reversed(range(stages)):
                d = g.call(backward, kept[s], d if s == stages - 1 else g.move(d, [islands[s]]))
                sums[s] = g.call(accumulate, sums[s], d)
        return sums

    with Controller(islands) as controller:
        client = controller.client("bench")
        inputs = [client.put(np.ones((8, 16), np.float32), islands[:1]) for _ in range(microbatches)]
        inputs += [client.put(np.zeros((8, 16), np.float32), [i]) for i in islands]
        traced = client.trace(graph, *inputs)
        programs = sum(len(s.steps) for s in traced.segments)
        compute = sum(1 for g in traced.segments for s in g.steps if s.kind == "program")

        def run() -> None:
            for future in client.submit(traced, *inputs):
                future.result()

        seconds = statistics.median(turns({"run": run}, 7)["run"])
    transfers, each = programs - compute, seconds / compute * 1e6
    print(
        f"{stages} stages x {microbatches}, {compute:,} programs and {transfers:,} transfers: {1e3 * seconds:.0f} ms, "
        f"{each:.1f} us a program, {seconds / programs * 1e6:.1f} us a program or transfer"
    )


def elsewhere() -> None:
    """Tiny programs on an island of another process: one message for 128 of them against one for each."""
    from areca.pathways.elsewhere import processes, rays

    setting = processes.Setting((1, 1), threads=1)
    starts = {"ray": rays.start, "processes": processes.start}
    for kind, start in starts.items():
        (island,) = start(1, setting)
        with Controller([island]) as controller:
            client = controller.client("bench")
            x = client.put(np.zeros(4, np.float32), [island])
            one = Program("tiny", lambda x: x * 0.25 + 1e-6, [np.zeros(4, np.float32)])
            graph = client.trace(lambda g, v, p=one: [v := g.call(p, v) for _ in range(CHAIN)][-1], x)

            def batched(client=client, graph=graph, x=x, island=island) -> None:
                (y,) = client.submit(graph, x)
                y.wait(island)

            def one_by_one(client=client, one=one, x=x, island=island) -> None:
                for _ in range(CHAIN):
                    x = client.call(one, x)
                x.wait(island)

            found = turns({"batched": batched, "one by one": one_by_one}, ROUNDS)
            seconds = {name: statistics.median(s) for name, s in found.items()}
        island.close()
        each = {name: s / CHAIN * 1e6 for name, s in seconds.items()}
        print(
            f"{kind:<9} one message for {CHAIN} programs {each['batched']:.0f} us each, one for each "
            f"{each['one by one']:.0f}: {each['one by one'] / each['batched']:.1f} times the rate"
        )


PARTS = {"dispatch": dispatch, "shortest": shortest, "shares": shares, "pipeline": pipeline, "elsewhere": elsewhere}

if __name__ == "__main__":
    print(f"jax {jax.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
