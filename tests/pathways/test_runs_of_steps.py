"""Steps of a graph dispatched as a run, with what is kept of them written down once: window, errors, costs, values."""

import jax.numpy as jnp
import numpy as np
import pytest

from areca.errors import ProgramError
from areca.pathways.controller import Controller
from areca.pathways.flight import Flight
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

X = jnp.arange(8, dtype=jnp.float32)
MORE = Program("more", lambda x: x + 1, [X])
HALF = Program("half", lambda x: x / 2, [X])
TAKE = Program("take", lambda x: x * 1, [X], donates=[0])


def _chain(client, x, programs):
    def graph(g, v):
        for program in programs:
            v = g.call(program, v)
        return v

    return client.trace(graph, x)


@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_values_and_the_window_are_those_of_steps_one_by_one(window, monkeypatch):
    most, runs = 0, []
    add = Flight.add

    def watched(flight, numbers, *rest):
        nonlocal most
        add(flight, numbers, *rest)
        most = max(most, flight.used)
        runs.append(len(numbers))

    monkeypatch.setattr(Flight, "add", watched)
    programs = [MORE, HALF, MORE] * 33
    results = []
    for timeline in (None, Timeline()):  # a recorded graph is dispatched step by step
        with Controller(split_devices(1), window=window, timeline=timeline) as controller:
            client = controller.client("a")
            x = client.put(X, controller.islands)
            (y,) = client.submit(_chain(client, x, programs), x)
            results.append(np.asarray(y.result()))
            if timeline is None:
                assert (max(runs) > 1) == (window > 2)
        if timeline is None:
            assert sum(runs) == len(programs)
            assert client.share.served > 0
            runs.clear()
    assert set(runs) == {1}
    assert most <= window
    np.testing.assert_array_equal(*results)


def test_a_step_that_cannot_be_enqueued_fails_what_needs_it_and_nothing_else(monkeypatch):
    with Controller(split_devices(1)) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)

        def graph(g, v):
            before = v
            for _ in range(20):
                before = g.call(MORE, before)
            broken = g.call(HALF, before)
            for _ in range(20):
                broken = g.call(MORE, broken)
            apart = before
            for _ in range(20):
                apart = g.call(MORE, apart)
            return before, broken, apart

        traced = client.trace(graph, x)
        (part,) = traced.segments[0].steps[20].parts

        def refused(*_):
            raise RuntimeError("no memory for it")

        call, part.call = part.call, refused
        before, broken, apart = client.submit(traced, x)
        np.testing.assert_array_equal(before.result(), X + 20)
        np.testing.assert_array_equal(apart.result(), X + 40)
        with pytest.raises(ProgramError, match="half failed on island 0: RuntimeError: no memory for it"):
            broken.result()
        part.call = call
        np.testing.assert_array_equal(client.submit(traced, x)[1].result(), (X + 20) / 2 + 20)


def test_memory_that_a_step_of_the_run_takes_is_let_go_of():
    with Controller(split_devices(1)) as controller:
        client = controller.client("a")
        x = client.put(X, controller.islands)
        (y,) = client.submit(_chain(client, x, [MORE] + [TAKE] * 40), x)
        np.testing.assert_array_equal(y.result(), X + 1)
        np.testing.assert_array_equal(x.result(), X)
