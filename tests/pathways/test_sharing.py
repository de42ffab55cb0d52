"""Several clients: shares by weight, bounded run-ahead, gangs among programs of one island, random graphs."""

import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ConfigError, ProgramError
from areca.pathways.controller import Controller
from areca.pathways.costs import Costs
from areca.pathways.flight import Flight
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.stride import Share, Stride
from areca.pathways.timeline import Timeline

X = jnp.arange(8, dtype=jnp.float32)
DOUBLE = Program("double", lambda x: x * 2, [X])
ADD = Program("add", lambda x, y: x + y, [X, X])
BUSY = Program("busy", lambda x: x + jnp.sum(jnp.eye(200, dtype=jnp.float32) @ jnp.ones((200, 200), jnp.float32)), [X])


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_clients_share_by_weight(weights):
    """Of what is dispatched while all of them have work, each has its share within 2% (one program in 50 or so)."""
    timeline, go = Timeline(), threading.Event()
    islands = split_devices(1)
    with Controller(islands, timeline=timeline) as controller:
        first = controller.client("first")
        gate = first.trace(lambda g: g.host(lambda: (go.wait(60), np.asarray(X))[1], outputs=X, to=islands))
        (x,) = first.submit(gate)  # nobody begins before all have submitted
        clients = [controller.client(f"weight {i}", weight) for i, weight in enumerate(weights)]
        for client in clients:
            for _ in range(800):
                client.call(DOUBLE, x)
        go.set()
    timeline.close()
    order = [e.client for e in timeline.events if e.kind == "dispatch" and e.name == "double"]
    assert len(order) == 800 * len(weights)
    taken = order[: 800 * sum(weights) // max(weights) * 3 // 4]  # nobody has run out of work yet
    for i, weight in enumerate(weights):
        assert taken.count(f"weight {i}") / len(taken) == pytest.approx(weight / sum(weights), rel=0.02)


def test_a_stride_gives_shares_and_no_credit_for_idleness():
    stride, a, b = Stride(), Share(1.0), Share(3.0)
    for _ in range(400):
        stride.charge(min((a, b), key=lambda s: s.passed), 1.0)
    assert (a.served, b.served) == pytest.approx((100, 300), abs=1)
    late = Share(1.0)  # comes later, and is served one time in five from then on, not at once for the past
    stride.wake(late)
    for _ in range(100):
        stride.charge(min((a, b, late), key=lambda s: s.passed), 1.0)
    assert late.served == pytest.approx(20, abs=1)


def test_costs_are_the_seconds_of_what_runs():
    """Two programs of 1 and 4 ms seen in mixtures only: estimates within a tenth."""
    costs, generator = Costs(), np.random.default_rng(0)
    for _ in range(300):
        numbers = list(generator.integers(0, 2, 4))
        costs.seen(numbers, sum(4e-3 if n else 1e-3 for n in numbers))
    assert costs.of(0) == pytest.approx(1e-3, rel=0.1)
    assert costs.of(1) == pytest.approx(4e-3, rel=0.1)


@pytest.mark.parametrize("window", [4, 16])
def test_run_ahead_is_bounded(window, monkeypatch):
    """Of 200 programs on each of two islands never more than `window` are enqueued and not computed."""
    islands, add = split_devices(2), Flight.add
    in_flight: dict[Flight, list[jax.Array]] = {}
    most = []

    def counted(flight, number, output, at):
        running = [a for a in in_flight.get(flight, []) if not a.is_ready()]
        in_flight[flight] = [*running, output]
        most.append(len(in_flight[flight]))
        add(flight, number, output, at)

    monkeypatch.setattr(Flight, "add", counted)
    with Controller(islands, window=window) as controller:
        client = controller.client("a")
        x = client.put(X, islands)

        def chain(g, v):
            for _ in range(100):
                v = g.call(BUSY, v)
            return v

        graph = client.trace(chain, x)
        client.submit(graph, x)
        client.submit(graph, x)[0].result()
    assert len(most) == 400
    assert window // 2 < max(most) <= window
    with pytest.raises(ConfigError, match="window is 33"):
        Controller(islands, window=33)


def test_a_gang_gets_its_islands_among_programs_of_single_ones():
    """One client's gangs over two islands and two others that keep one island busy each: all come to their end."""
    islands = split_devices(2)
    with Controller(islands, window=4) as controller:
        gang, singles = controller.client("gang"), [controller.client(f"single {i}") for i in range(2)]
        both = gang.put(X, islands)
        ones = [c.put(X, [island]) for c, island in zip(singles, islands, strict=True)]
        waiting = []
        for _ in range(60):
            for client, x in zip(singles, ones, strict=True):
                waiting += [client.call(DOUBLE, x) for _ in range(3)]
            waiting.append(gang.call(DOUBLE, both))
        for future in waiting:
            np.testing.assert_array_equal(future.result(), 2 * X)


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_from_random_clients_give_what_numpy_gives(seed):
    """Programs, gangs, moves and host functions, some of which fail, from three clients at once: no value is wrong, an
    error reaches all that depend on it and nothing else, and nothing hangs."""
    islands = split_devices(3)
    with Controller(islands, window=8, deadline=60) as controller:
        problems: list[str] = []
        threads = [
            threading.Thread(target=_storm, args=(controller, random.Random(1000 * seed + i), i, problems), daemon=True)
            for i in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"
        assert problems == []


def _storm(controller, rng, number, problems):
    client = controller.client(f"client {number}", weight=rng.choice([0.5, 1, 3]))
    try:
        start = [client.put(np.asarray(X) + k, [i], name="start") for k, i in enumerate(controller.islands)]
        futures = [(f, np.asarray(X) + k, "") for k, f in enumerate(start)]
        for _ in range(rng.randint(6, 12)):
            futures += _submit(client, controller.islands, rng, rng.sample(futures, 3))
            if rng.random() < 0.3:
                time.sleep(rng.random() * 0.01)
        for future, expected, error in futures:
            if error:
                try:
                    future.result()
                    problems.append(f"{future.made_by} should have failed with {error}")
                except ProgramError as caught:
                    if error not in str(caught):
                        problems.append(f"{caught} is not {error}")
            else:
                np.testing.assert_array_equal(future.result(), expected)
    except Exception as caught:
        problems.append(repr(caught))
    finally:
        client.close()


def _submit(client, islands, rng, given):
    """A random graph of three inputs, and what its outputs must be: (future, array, the error it fails with)."""
    expected = []

    def graph(g, *inputs):
        values = [(v, array, error) for v, (_, array, error) in zip(inputs, given, strict=True)]
        for _ in range(rng.randint(2, 8)):
            v, array, error = rng.choice(values)
            kind = rng.random()
            if kind < 0.4:
                values.append((g.call(DOUBLE, v), array * 2, error))
            elif kind < 0.6:
                w, other, second = rng.choice(values)
                w = g.move(w, v.islands)
                values.append((g.call(ADD, v, w), array + other, error or second))
            elif kind < 0.75:
                values.append((g.move(v, rng.sample(islands, rng.randint(1, 3))), array, error))
            else:
                name = f"broken {rng.random()}" if rng.random() < 0.2 else ""

                pause = rng.random() * 0.003

                def on_host(a, name=name, pause=pause):
                    time.sleep(pause)
                    if name:
                        raise ValueError(name)
                    return np.asarray(a) - 1

                made = g.host(on_host, v, outputs=X, to=rng.sample(islands, rng.randint(1, 2)))
                values.append((made, array - 1, error or name))
        chosen = rng.sample(values[3:], min(3, len(values) - 3))
        expected.extend(chosen)
        return [v for v, _, _ in chosen]

    traced = client.trace(graph, *(f for f, _, _ in given))
    outputs = client.submit(traced, *(f for f, _, _ in given))
    return [(f, array, error) for f, (_, array, error) in zip(outputs, expected, strict=True)]
