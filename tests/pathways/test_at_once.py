"""Calls of one program each, dispatched at once where nobody else could be next: results, and who comes between."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ProgramError
from areca.pathways.controller import Controller
from areca.pathways.dataflow import Dataflow
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

X = jnp.arange(8, dtype=jnp.float32)
MORE = Program("more", lambda x: x + 1, [X])
TAKE = Program("take", lambda x: x + 1, [X], donates=[0])


def _refuse(_):
    raise RuntimeError("refused")


def test_calls_of_the_only_client_are_not_entered_into_the_books(monkeypatch):
    entered = []
    enter = Dataflow.enter
    monkeypatch.setattr(Dataflow, "enter", lambda flow, e: (entered.append(e), enter(flow, e)))
    with Controller(split_devices(1), window=4) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)
        for _ in range(100):
            x = client.call(MORE, x)
        np.testing.assert_array_equal(x.result(), X + 100)
        assert not entered
        x = client.call(TAKE, x)  # who takes memory has to wait for those who read it
        np.testing.assert_array_equal(x.result(), X + 101)
        assert len(entered) == 1
        controller.client("b")
        np.testing.assert_array_equal(client.call(MORE, x).result(), X + 102)
        assert len(entered) == 2


def test_a_client_that_comes_while_many_calls_wait_has_its_turn_among_them():
    """1,000 calls of one client lie before the first of another; with equal weights it is not behind all of them."""
    timeline, islands, go = Timeline(), split_devices(1), threading.Event()

    def held(x):
        go.wait(60)
        return np.asarray(x)

    slow = Program("slow", lambda x: jax.pure_callback(held, jax.ShapeDtypeStruct(X.shape, X.dtype), x), [X])
    with Controller(islands, timeline=timeline) as controller:
        first = controller.client("first")
        x = first.put(X, islands)
        first.call(MORE, x).result()
        y = first.call(slow, x)
        for _ in range(1000):
            y = first.call(MORE, y)
        second = controller.client("second")
        z = second.call(MORE, x)
        go.set()
        np.testing.assert_array_equal(z.result(), X + 1)
        np.testing.assert_array_equal(y.result(), X + 1000)
    timeline.close()
    order = [e.client for e in timeline.events if e.kind == "dispatch"]
    assert order.index("second") < 100


def test_a_call_that_fails_spoils_what_reads_it_and_no_other(caplog):
    bad = Program("bad", lambda x: jax.pure_callback(_refuse, jax.ShapeDtypeStruct(X.shape, X.dtype), x), [X])
    with Controller(split_devices(1)) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)
        spoilt = client.call(MORE, client.call(bad, x))
        fine = client.call(MORE, x)
        with pytest.raises(ProgramError, match=r"refused|CpuCallback"):
            spoilt.result()
        np.testing.assert_array_equal(fine.result(), X + 1)


def test_what_a_client_had_waiting_when_it_closed_is_dropped():
    go = threading.Event()

    def held(x):
        go.wait(60)
        return np.asarray(x)

    slow = Program("slow", lambda x: jax.pure_callback(held, jax.ShapeDtypeStruct(X.shape, X.dtype), x), [X])
    with Controller(split_devices(1), window=2) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)
        y = client.call(slow, x)
        for _ in range(50):
            y = client.call(MORE, y)
        client.close()
        go.set()
        with pytest.raises(ProgramError, match="client a was closed"):
            y.result()
        other = controller.client("b")
        np.testing.assert_array_equal(other.call(MORE, x).result(), X + 1)
