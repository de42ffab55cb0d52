"""One storm: random graphs from random clients on a few islands, whose every outcome is known beforehand.

A storm is a function of its seed, but for what the threads' timing decides. Clients arrive at random times with random
weights; they submit graphs of programs (some with collectives, some that take their inputs' memory), moves and host
functions, read each other's futures, and some close, or die without closing, in the middle. Host functions and programs
fail at random (programs on islands of one device only: where one of several fails, a collective after it hangs in XLA
until the deadline). Numbers are int32, which wraps alike in numpy and XLA, so that every value is compared exactly.
Used by `stress.py` for an hour and by the tests for seconds.
"""

import functools
import logging
import queue
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from areca.errors import ConfigError, ProgramError
from areca.pathways.client import Client
from areca.pathways.controller import Controller
from areca.pathways.future import Future
from areca.pathways.graph import Graph, Value
from areca.pathways.island import Island, split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

logging.getLogger("jax._src.callback").setLevel(logging.CRITICAL)  # it tells each failure with a traceback
X = np.arange(8, dtype=np.int32)
WHOLE, CUT = P(), P("data")
REFUSED = "CpuCallback error"  # what is left of it in the first line of XLA's message


_reading = threading.Lock()


def _read(a: Any) -> np.ndarray:
    """A value as numpy. In JAX 0.10.2 two threads that do so first with one cut array may get an IndexError."""
    with _reading:
        return np.asarray(a)


def _refuse(_: Any) -> Any:
    raise RuntimeError("refused")


def _programs(spec: Any) -> dict[str, Program]:
    """The programs for values that lie so; over a cut one, "turn" and "total" have collectives."""

    def made(name: str, function: Any, takes: int = 1, donates: Sequence[int] = ()) -> Program:
        specs = [spec] * takes
        return Program(name, function, [X] * takes, specs=specs, out_specs=spec, donates=donates)

    return {
        "double": made("double", lambda x: x * 2),
        "turn": made("turn", lambda x: x[::-1] + 1),
        "total": made("total", lambda x: x + jnp.sum(x)),
        "add": made("add", lambda x, y: x + y, 2),
        "take": made("take", lambda x: x + 3, 1, [0]),
        "refuse": made("refuse", lambda x: jax.pure_callback(_refuse, jax.ShapeDtypeStruct(X.shape, X.dtype), x)),
    }


PROGRAMS = {spec: _programs(spec) for spec in (WHOLE, CUT)}
ON_NUMPY = {"double": lambda x: x * 2, "turn": lambda x: x[::-1] + 1, "total": lambda x: x + x.sum(dtype=np.int32)}


@functools.cache  # programs are compiled once for each of these
def _islands(count: int, devices: int) -> tuple[Island, ...]:
    return tuple(split_devices(count, (devices, 1)))


@dataclass(eq=False)
class Known:
    """A value and what it must be: `array`, or one of the errors `must` if there are any; `may` can come too."""

    value: Any  # a Value while a graph is traced, then a Future
    array: np.ndarray
    spec: Any = WHOLE
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    own: bool = False  # its arrays have this one name, so their memory may be taken
    gone: bool = False  # it was
    on_host: bool = False  # an object there, which only host functions take
    source: "Known | None" = None  # of a graph's input, the future that is given


class Storm:
    """`run` gives what was wrong, an empty list if nothing was, and `counts` what happened."""

    def __init__(self, seed: int, deadline: float = 600.0) -> None:
        self.seed, self.deadline, self.rng = seed, deadline, random.Random(seed)
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> list[str]:
        """Returns when all clients and the controller have come to their end."""
        rng = self.rng
        islands = _islands(rng.randint(1, 4), rng.choice([1, 2]))
        window, hosts = rng.choice([1, 2, 3, 4, 8, 16, 32]), rng.randint(1, 4)
        timeline = Timeline() if rng.random() < 0.2 else None
        boards = [queue.SimpleQueue[list[Known]]() for _ in range(rng.randint(1, 5))]
        with Controller(
            islands, window=window, deadline=self.deadline, host_threads=hosts, timeline=timeline
        ) as controller:
            threads = [
                threading.Thread(target=_Guest(self, controller, k, boards).run, name=f"client {k}", daemon=True)
                for k in range(len(boards))
            ]
            for thread in threads:
                thread.start()
                if rng.random() < 0.5:
                    time.sleep(rng.random() * 0.02)
            for thread in threads:
                thread.join()
        if timeline is not None:
            timeline.close()
        self.counts["storms"] += 1
        return self.problems


class _Guest:
    """One client of a storm, in a thread of its own. It reads what the one before it gave, never the other way."""

    ROUNDS = 40  # at most

    def __init__(self, storm: Storm, controller: Controller, number: int, boards: list[Any]) -> None:
        self.storm, self.controller, self.number = storm, controller, number
        self.rng = rng = random.Random(f"{storm.seed}/{number}")
        self.board, self.next = boards[number], boards[number + 1] if number + 1 < len(boards) else None
        self.rounds = rng.randint(2, rng.choice([8, 8, 8, 8, self.ROUNDS]))
        end = rng.random()
        self.closes = rng.randrange(self.rounds) if end < 0.25 else self.ROUNDS  # in the middle, after this round
        self.dies = 0.25 <= end < 0.4  # leaves without closing
        self.name = f"client {number}"
        self.may = frozenset([f"{self.name} was closed before"] if self.closes < self.ROUNDS else [])
        self.known: list[Known] = []

    def run(self) -> None:
        """All of its life; what goes wrong is written down with the seed."""
        rng, given = self.rng, 0
        try:
            time.sleep(rng.random() * 0.02)
            client = self.controller.client(self.name, rng.choice([0.25, 1, 1, 3, 8]))
            for i in range(self.rounds):
                if self.number:
                    self.known += self.board.get(timeout=self.storm.deadline)
                made = self._round(client)
                if self.next is not None:
                    self.next.put(self._shared(made))
                    given += 1
                if i == self.closes:
                    self._close(client)
                    break
            for known in self.known:
                self._check(known)
            if not self.dies:
                client.close()
        except Exception as error:
            self._problem(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
        finally:
            for _ in range(given, self.ROUNDS):
                if self.next is not None:
                    self.next.put([])

    def _round(self, client: Client) -> list[Known]:
        """Puts a value, calls a program, or submits a graph."""
        rng, kind = self.rng, self.rng.random()
        if rng.random() < 0.2:
            time.sleep(rng.random() * 0.01)
        there = [k for k in self.known if not k.gone]
        if kind < 0.15 or all(k.on_host for k in there):
            array, spec = X + np.int32(rng.randint(-9, 9)), rng.choice([WHOLE, CUT])
            future = client.put(array, self._some_islands(), spec, name="start")
            made = [Known(future, array, spec, own=True)]
        elif kind < 0.3:
            k, name = rng.choice([k for k in there if not k.on_host]), rng.choice(["double", "turn", "total"])
            future = client.call(PROGRAMS[k.spec][name], k.value)
            made = [Known(future, ON_NUMPY[name](k.array), k.spec, k.must, k.may | self.may, own=True)]
        else:
            made = self._submit(client, rng.sample(there, min(len(there), rng.randint(1, 4))))
        self.known += made
        return made

    def _submit(self, client: Client, given: list[Known]) -> list[Known]:
        sketch = _Sketch(self, given)
        graph = client.trace(sketch.draw, *(k.value for k in given))
        outputs = client.submit(graph, *(k.value for k in given))
        self.storm.counts["graphs"] += 1
        made = []
        for k, future in zip(sketch.outputs, outputs, strict=True):
            made.append(Known(future, k.array, k.spec, k.must, k.may | self.may, k.own, on_host=k.on_host))
        for k in given:
            if k.gone:
                self.storm.counts["taken"] += 1
                try:
                    client.call(PROGRAMS[k.spec]["double"], k.value)
                    self._problem(f"{k.value.made_by} was read after its memory was taken")
                except ConfigError as error:
                    if "after its memory went to take" not in str(error):
                        raise
        return made

    def _shared(self, made: list[Known]) -> list[Known]:
        """What the next client may read; from then on its memory is not this one's to take."""
        shared = [k for k in made if not k.gone and self.rng.random() < 0.4]
        for k in shared:
            k.own = False
        return [Known(k.value, k.array, k.spec, k.must, k.may, on_host=k.on_host) for k in shared]

    def _close(self, client: Client) -> None:
        client.close()
        self.storm.counts["closed"] += 1
        try:
            client.submit(Graph("late"))
            self._problem("a closed client submitted")
        except ConfigError as error:
            if f"{self.name} is closed" not in str(error):
                raise

    def _check(self, k: Known) -> None:
        """The value on each of its islands, or an error that it may have."""
        future: Future = k.value
        self.storm.counts["values"] += 1
        if k.gone:
            return
        try:
            for island in future.islands:
                np.testing.assert_array_equal(_read(future.result(island)), k.array)
            if not future.islands:
                np.testing.assert_array_equal(future.result(), k.array)
        except ProgramError as error:
            self.storm.counts["errors"] += 1
            if not any(text in str(error) for text in k.must | k.may):
                self._problem(f"{future.made_by} failed: {error}; it may fail with {sorted(k.must | k.may)}")
        else:
            if k.must:
                self._problem(f"{future.made_by} has a value and must fail with one of {sorted(k.must)}")

    def _some_islands(self) -> list[Island]:
        islands = self.controller.islands
        return self.rng.sample(islands, self.rng.randint(1, len(islands)))

    def _problem(self, text: str) -> None:
        self.storm.problems.append(f"seed {self.storm.seed}, {self.name}: {text}")


class _Sketch:
    """A random graph of some inputs, and what its outputs must be."""

    def __init__(self, guest: _Guest, given: list[Known]) -> None:
        self.guest, self.rng, self.given = guest, guest.rng, given
        self.outputs: list[Known] = []

    def draw(self, g: Graph, *inputs: Value) -> list[Value]:
        """What `Client.trace` calls."""
        rng = self.rng
        self.values = [
            Known(v, k.array, k.spec, k.must, k.may, k.own, on_host=k.on_host, source=k)
            for v, k in zip(inputs, self.given, strict=True)
        ]
        for _ in range(rng.randint(1, 10)):
            v, kind = rng.choice(self.values), rng.random()
            if v.on_host:
                self._host(g, v)
                continue
            if kind < 0.35:
                self._call(g, v)
            elif kind < 0.5:
                w = rng.choice([k for k in self.values if not k.on_host])
                other = self._move(g, w, v.value.islands, v.spec)
                both = g.call(PROGRAMS[v.spec]["add"], v.value, other)
                self.values.append(Known(both, v.array + w.array, v.spec, v.must | w.must, v.may | w.may, own=True))
            elif kind < 0.7:
                spec = rng.choice([WHOLE, CUT])
                there = self._move(g, v, self.guest._some_islands(), spec)
                self.values.append(Known(there, v.array, spec, v.must, v.may))
            elif kind < 0.9:
                self._host(g, v)
            else:
                self._take(g)
        pool = [k for k in self.values if k.source is None] or self.values
        self.outputs = rng.sample(pool, min(len(pool), rng.randint(1, 4)))
        for k in self.outputs:
            if k.source is not None:
                _has_two_names(k)
        return [k.value for k in self.outputs]

    def _call(self, g: Graph, v: Known) -> None:
        name = self.rng.choice(["double", "turn", "total"])
        if self.rng.random() < 0.04 and len(self.guest.controller.islands[0].devices) == 1:
            made = g.call(PROGRAMS[v.spec]["refuse"], v.value)
            self.values.append(Known(made, v.array, v.spec, v.must | {REFUSED}, v.may))
            return
        made = g.call(PROGRAMS[v.spec][name], v.value)
        self.values.append(Known(made, ON_NUMPY[name](v.array), v.spec, v.must, v.may, own=True))

    def _move(self, g: Graph, v: Known, to: Sequence[Island], spec: Any) -> Value:
        _has_two_names(v)
        return g.move(v.value, list(to), spec)

    def _host(self, g: Graph, v: Known) -> None:
        """A host function, some of which fail; now and then two, with an object of the host between them."""
        rng, pause = self.rng, self.rng.random() ** 4 * 0.02
        broken = f"broken {rng.random()}" if rng.random() < 0.15 else ""

        def on_host(a: Any) -> np.ndarray:
            time.sleep(pause)
            if broken:
                raise ValueError(broken)
            return _read(a) - 1

        must = v.must | ({broken} if broken else set())
        if rng.random() < 0.3:
            made = g.host(lambda a: _read(a) + 5, v.value)
            v = Known(made, v.array + 5, WHOLE, v.must, v.may, on_host=True)
            self.values.append(v)
        spec = rng.choice([WHOLE, CUT])
        made = g.host(on_host, v.value, outputs=X, to=self.guest._some_islands(), specs=spec)
        self.values.append(Known(made, v.array - 1, spec, must, v.may, own=True))

    def _take(self, g: Graph) -> None:
        """A program takes the memory of a value, which may be one of the graph's inputs."""
        able = [i for i, k in enumerate(self.values) if k.own]
        if not able or len(self.values) < 2:
            return
        i = self.rng.choice(able)
        v = self.values[i]
        made = g.call(PROGRAMS[v.spec]["take"], v.value)
        self.values[i] = Known(made, v.array + 3, v.spec, v.must, v.may, own=True)  # nobody draws the other any more
        if v.source is not None:
            v.source.gone = True


def _has_two_names(k: Known) -> None:
    """A value that is moved, or an input that is an output too: whoever takes its memory takes another's."""
    k.own = False
    if k.source is not None:
        k.source.own = False
