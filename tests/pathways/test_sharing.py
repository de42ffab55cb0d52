"""Several clients: shares by weight, bounded run-ahead, gangs among programs of one island, what they share."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ConfigError
from areca.pathways.controller import Controller
from areca.pathways.costs import Costs
from areca.pathways.dispatch import Dispatch
from areca.pathways.flight import Flight
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline
from areca.pathways.stride import Share, Stride

X = jnp.arange(8, dtype=jnp.float32)
DOUBLE = Program("double", lambda x: x * 2, [X])
BUSY = Program("busy", lambda x: x + jnp.sum(jnp.eye(200, dtype=jnp.float32) @ jnp.ones((200, 200), jnp.float32)), [X])


@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_clients_share_by_weight(weights, monkeypatch):
    """Of what is dispatched while all of them have work, each has its share within 2% (one program in 50 or so).

    The programs are one, so they cost the same, whatever was measured while others had the processors.
    """
    monkeypatch.setattr(Dispatch, "seen", lambda *_: None)
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


def test_who_has_an_island_alone_takes_nothing_from_those_who_share_another():
    stride, alone, a, b = Stride(), Share(1.0), Share(1.0), Share(2.0)
    for _ in range(300):
        for share, island in ((alone, "one"), (a, "other"), (b, "other")):  # each has its next one ready at once
            stride.wake(share, [island])
        stride.charge(alone, 1.0, ["one"])
        stride.charge(min((a, b), key=lambda s: s.passed), 1.0, ["other"])
    assert (alone.served, a.served, b.served) == pytest.approx((300, 100, 200), abs=1)


def test_shares_are_of_what_was_measured_however_wrong_the_estimates():
    """Charged alike, one takes 3 s and the other 1 s each time; of equal weights one is served a third as often."""
    stride, slow, fast = Stride(), Share(1.0), Share(1.0)
    for _ in range(400):
        share = min((slow, fast), key=lambda s: s.passed)
        stride.charge(share, 2.0)
        stride.settle([(share, 2.0)], 3.0 if share is slow else 1.0)
    assert (slow.served, fast.served) == pytest.approx((300, 300), abs=3)


def test_what_ended_before_it_was_looked_at_is_timed_together():
    """Two clients' programs: marks where the client changes, and one time for all that are found to have ended."""
    flight, a, b = Flight(4), Share(1.0), Share(1.0)
    for share in (a, a, b, a):
        flight.add([7], jax.block_until_ready(jnp.zeros(1)), time.perf_counter(), share, 0.5)
    flight.mark()
    numbers, seconds, charges = flight.free()
    assert (numbers, charges, flight.used) == ([7] * 4, [(a, 1.0), (b, 0.5), (a, 0.5)], 0)
    assert seconds > 0


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

    def counted(flight, number, output, at, *charged):
        running = [a for a in in_flight.get(flight, []) if not a.is_ready()]
        in_flight[flight] = [*running, output]
        most.append(len(in_flight[flight]))
        add(flight, number, output, at, *charged)

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


def test_several_threads_may_wait_for_one_future():
    go, seen = threading.Event(), []
    with Controller(split_devices(1), deadline=30) as controller:
        client = controller.client("a")
        slow = client.trace(lambda g: g.host(lambda: (go.wait(30), np.asarray(X))[1], outputs=X, to=controller.islands))
        (late,) = client.submit(slow)
        threads = [threading.Thread(target=lambda: seen.append(np.asarray(late.result()))) for _ in range(3)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)  # all of them wait
        go.set()
        for thread in threads:
            thread.join(20)
    assert len(seen) == 3
    np.testing.assert_array_equal(seen, [X] * 3)


def test_a_graph_of_nothing_but_its_inputs_gives_them():
    with Controller(split_devices(1), deadline=30) as controller:
        client = controller.client("a")
        x, y = client.put(X, controller.islands), client.put(X + 1, controller.islands)
        swapped = client.submit(client.trace(lambda g, v, w: [w, v], x, y), x, y)
        np.testing.assert_array_equal([f.result() for f in swapped], [X + 1, X])


def test_memory_is_not_taken_from_a_host_function_of_the_graph_that_made_it():
    """An output that is placed and that a host function beside it still reads."""
    take, go = Program("take", lambda x: x + 1, [X], donates=[0]), threading.Event()
    with Controller(split_devices(1), deadline=30) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)

        def graph(g, v):
            doubled = g.call(DOUBLE, v)
            gate = g.host(lambda: (go.wait(30), np.zeros(8, np.float32))[1])
            return doubled, g.host(lambda a, b: np.asarray(a) + b, doubled, gate)

        doubled, read = client.submit(client.trace(graph, x), x)
        doubled.arrays()  # it is placed
        taken = client.call(take, doubled)
        time.sleep(0.05)
        assert not taken.placed
        go.set()
        np.testing.assert_array_equal(read.result(), 2 * X)
        np.testing.assert_array_equal(taken.result(), 2 * X + 1)
