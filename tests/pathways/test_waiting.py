"""Waiting with a deadline, and programs called one by one from several threads."""

import random
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import IslandError, ProgramError
from areca.pathways.controller import Controller
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.waiting import LOOKS, computed

X = np.arange(8, dtype=np.float32)
DOUBLE = Program("double", lambda x: x * 2, [X])
ADD = Program("add", lambda x, y: x + y, [X, X])
TAKE = Program("take", lambda x: x + 1, [X], donates=[0])


class Late:
    """An array that is there when `go` is set."""

    def __init__(self) -> None:
        self.go, self.looks = threading.Event(), 0

    def is_ready(self) -> bool:
        self.looks += 1
        return self.go.is_set()

    def block_until_ready(self) -> None:
        self.go.wait(10)
        raise ValueError("what went wrong is for its reader")


def test_a_long_wait_does_not_look_again_and_ends_by_its_deadline():
    late = Late()
    started = time.monotonic()
    assert not computed(late, started + 0.1)
    assert 0.1 <= time.monotonic() - started < 5
    assert late.looks <= len(LOOKS)
    late.go.set()
    assert computed(late, 0.0)
    other = Late()
    threading.Timer(0.05, other.go.set).start()
    assert computed(other, time.monotonic() + 10)
    assert other.looks <= len(LOOKS)


def test_an_island_that_is_stuck_is_named_within_the_deadline():
    """Once while programs run in XLA, and once with more of them than may be in flight."""
    go = threading.Event()

    def wait(x):
        go.wait(4)
        return x

    stuck = Program("stuck", lambda x: jax.pure_callback(wait, jax.ShapeDtypeStruct((8,), jnp.float32), x), [X])
    with Controller(split_devices(1), window=2, deadline=0.5) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)
        started = time.monotonic()
        futures = [client.call(stuck, x) for _ in range(4)]
        assert time.monotonic() - started < 3  # XLA runs it where it is enqueued, not in the client
        for future in (futures[0], futures[3]):
            with pytest.raises(IslandError, match=r"stuck .*island 0|island 0 .*stuck"):
                future.result()
        go.set()
        for future in futures:
            np.testing.assert_array_equal(future.result(), X)


def test_a_call_that_cannot_be_enqueued_fails_by_name_and_so_does_what_reads_it():
    with Controller(split_devices(1), deadline=30) as controller:
        client = controller.client("a")
        gone, x = client.put(X, controller.islands), client.put(X, controller.islands)
        client.call(DOUBLE, gone).result()
        gone.arrays()[0].delete()
        bad = client.call(DOUBLE, gone)
        for future in (bad, client.call(ADD, bad, x), client.call(DOUBLE, bad)):
            with pytest.raises(ProgramError, match=r"^double failed on island 0: .*deleted"):
                future.result()
        np.testing.assert_array_equal(client.call(DOUBLE, x).result(), 2 * X)


@pytest.mark.parametrize("seed", range(3))
def test_calls_from_several_threads_give_what_numpy_gives(seed):
    """Single programs, gangs, memory taken, graphs and host functions, from three clients at once."""
    islands = split_devices(3)
    with Controller(islands, window=random.Random(seed).choice([1, 2, 8, 16]), deadline=60) as controller:
        problems: list[str] = []
        threads = [
            threading.Thread(target=_calls, args=(controller, random.Random(100 * seed + i), i, problems), daemon=True)
            for i in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"
        assert problems == []


def _calls(controller, rng, number, problems):
    client = controller.client(f"client {number}")
    try:
        where = rng.sample(controller.islands, rng.randint(1, 2))
        start = client.put(X, where)
        graph = client.trace(lambda g, v: g.call(DOUBLE, g.call(TAKE, g.call(DOUBLE, v))), start)
        host = client.trace(lambda g, v: g.host(lambda a: np.asarray(a) - 1, v, outputs=X, to=where), start)
        value, expected = start, X
        for i in range(150):
            kind = rng.random()
            if kind < 0.5:
                value, expected = client.call(ADD, value, start), expected + X
            elif kind < 0.7 and value is not start:
                value, expected = client.call(TAKE, value), expected + 1
            elif kind < 0.8:
                (value,), expected = client.submit(host, value), expected - 1
            elif kind < 0.9:
                (value,), expected = client.submit(graph, value), 4 * expected + 2
            else:
                np.testing.assert_array_equal(value.result(rng.choice(where)), expected)
            expected = expected.astype(np.float32)
            if np.abs(expected).max() > 1e4 or i % 40 == 39:
                np.testing.assert_array_equal(value.result(), expected)
                value, expected = start, X
        np.testing.assert_array_equal(value.result(), expected)
    except Exception as caught:
        problems.append(repr(caught))
    finally:
        client.close()
