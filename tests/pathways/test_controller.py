"""The controller: dataflow between programs, host functions and islands, and what happens when something fails."""

import gc
import threading
import time
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from areca.errors import ConfigError, ProgramError
from areca.pathways.controller import Controller
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

X = jnp.arange(8, dtype=jnp.float32)
DOUBLE = Program("double", lambda x: x * 2, [X])
ADD = Program("add", lambda x, y: x + y, [X, X])
SPLIT = Program("split", lambda x: (x + 1, x - 1), [X])


@pytest.fixture(scope="module")
def islands():
    return split_devices(2, (2, 1))


@pytest.fixture
def controller(islands):
    with Controller(islands, deadline=30) as made:
        yield made


def test_a_graph_gives_what_its_programs_give_one_by_one(controller, islands):
    client = controller.client("a")

    def diamond(g, x):
        up, down = g.call(SPLIT, x)
        return g.call(ADD, g.call(DOUBLE, up), down), up

    x = client.put(X, islands[:1])
    graph = client.trace(diamond, x)
    both, up = client.submit(graph, x)
    np.testing.assert_array_equal(both.result(), 2 * (X + 1) + (X - 1))
    np.testing.assert_array_equal(up.result(), X + 1)
    again, _ = client.submit(graph, up)  # a graph is traced once and run on other values
    np.testing.assert_array_equal(again.result(), 2 * (X + 2) + X)


def test_a_gang_runs_on_every_island_and_values_move_between_them(controller, islands):
    client = controller.client("a")
    x = client.put(X, islands)
    y = client.call(DOUBLE, x)
    assert y.islands == tuple(islands)
    for island in islands:
        (array,) = y.arrays(island)
        assert array.devices() == set(island.devices)
        np.testing.assert_array_equal(array, 2 * X)
    there = client.put(X + 1, islands[1:])
    with pytest.raises(ConfigError, match=r"cut by P\('data',\), and input 0 of double is cut by"):
        client.trace(lambda g, v: g.call(DOUBLE, g.move(v, islands[:1], P("data"))), there)
    back = client.trace(lambda g, v: g.call(DOUBLE, g.move(v, islands[:1])), there)
    (moved,) = client.submit(back, there)
    assert moved.islands == (islands[0],)
    np.testing.assert_array_equal(moved.result(), 2 * (X + 1))


def test_what_lies_on_an_island_already_is_not_copied_there(controller, islands):
    client = controller.client("a")
    x = client.put(X, islands[:1])
    graph = client.trace(lambda g, v: g.call(ADD, g.move(v, islands), g.move(v, islands)), x)
    assert [len(s.parts) for s in graph.nodes] == [1, 1, 2]  # each move makes one copy, on the other island
    (both,) = client.submit(graph, x)
    for island in islands:
        np.testing.assert_array_equal(both.arrays(island)[0], 2 * X)
    take = Program("take", lambda v: v + 1, [X], donates=[0])

    def shared(g, v):
        w = g.move(v, islands)  # has the memory of v on island 0
        g.call(take, v)
        return g.call(DOUBLE, w)

    with pytest.raises(ConfigError, match="double reads what input gave after its memory went to take"):
        client.trace(shared, x)


def test_an_input_may_be_an_output_as_it_is(controller, islands):
    client = controller.client("a")
    go = threading.Event()
    x = client.put(X, islands[:1])
    (same,) = client.submit(client.trace(lambda g, v: v, x), x)
    np.testing.assert_array_equal(same.result(), X)
    slow = client.trace(lambda g: g.host(lambda: (go.wait(10), np.asarray(X))[1], outputs=X, to=islands[:1]))
    (late,) = client.submit(slow)
    passed, both, doubled = client.submit(
        client.trace(lambda g, v: [v, g.move(v, islands), g.call(DOUBLE, v)], late), late
    )
    assert not passed.placed
    go.set()
    for future, expected in ((passed, X), (both, X), (doubled, 2 * X)):
        np.testing.assert_array_equal(future.result(), expected)
    np.testing.assert_array_equal(both.result(islands[1]), X)


def test_dispatch_runs_ahead_of_a_host_function(islands):
    """Ten programs behind a host function of 100 ms are prepared in 5 ms, before its result is there."""
    timeline = Timeline()
    with Controller(islands[:1], timeline=timeline) as controller:
        client = controller.client("a")

        def slow(x):
            time.sleep(0.1)
            return np.asarray(x) + 1

        def behind(g, x):
            made = g.host(slow, x, outputs=X, to=islands[:1])
            for _ in range(10):
                made = g.call(DOUBLE, made)
            return made

        x = client.put(X, islands[:1])
        graph = client.trace(behind, x)
        client.submit(graph, x)[0].result()
        took = []
        for _ in range(5):  # the quickest of five: other processes share the cores here
            started = time.perf_counter()
            (y,) = client.submit(graph, x)
            took.append(time.perf_counter() - started)
            assert not y.placed
            np.testing.assert_array_equal(y.result(), 1024 * (X + 1))
    timeline.close()
    assert min(took) < 0.005
    host = [e for e in timeline.events if e.kind == "host"][-1]
    prepared = [e for e in timeline.events if e.kind == "prepare" and e.name == "double"][-10:]
    enqueued = [e for e in timeline.events if e.kind == "dispatch" and e.name == "double"][-10:]
    assert host.end - host.start >= 0.1
    assert all(e.end < host.end for e in prepared)
    assert all(e.start > host.end for e in enqueued)


def test_what_does_not_need_a_slow_host_function_does_not_wait_for_it(controller, islands):
    client = controller.client("a")
    go = threading.Event()

    def both(g, x):
        return g.call(DOUBLE, g.host(lambda v: (go.wait(10), np.asarray(v))[1], x, outputs=X, to=islands[:1])), g.call(
            DOUBLE, x
        )

    x = client.put(X, islands[:1])
    late, early = client.submit(client.trace(both, x), x)
    np.testing.assert_array_equal(early.result(), 2 * X)
    np.testing.assert_array_equal(client.call(DOUBLE, early).result(), 4 * X)
    assert not late.placed
    after = client.call(ADD, late, early)  # of another graph, and waits too
    assert not after.placed
    go.set()
    np.testing.assert_array_equal(after.result(), 4 * X)


def test_an_error_goes_to_those_that_depend_on_it_and_nowhere_else(controller, islands):
    client = controller.client("a")

    def broken(_):
        raise ValueError("no such row")

    def graph(g, x):
        bad = g.host(broken, x, outputs=X, to=islands[:1])
        return g.call(ADD, g.call(DOUBLE, bad), x), g.call(DOUBLE, x), g.host(lambda v: "seen", bad)

    x = client.put(X, islands[:1])
    bad, good, told = client.submit(client.trace(graph, x), x)
    np.testing.assert_array_equal(good.result(), 2 * X)
    later = client.call(DOUBLE, bad)
    for future in (bad, later, told):
        with pytest.raises(ProgramError, match=r"^broken failed on the host: ValueError: no such row$") as caught:
            future.result()
        assert isinstance(caught.value.__cause__, ValueError)
    np.testing.assert_array_equal(client.call(ADD, good, x).result(), 3 * X)


def test_a_program_that_fails_while_it_runs_says_so_in_its_result():
    with Controller(split_devices(1), deadline=30) as controller:
        _a_program_fails(controller)


def _a_program_fails(controller):
    client, islands = controller.client("a"), controller.islands

    def refuse(_):
        raise RuntimeError("a full disk")

    failing = Program("failing", lambda x: jax.pure_callback(refuse, jax.ShapeDtypeStruct((8,), jnp.float32), x), [X])
    x = client.put(X, islands[:1])
    bad = client.call(failing, x)
    with pytest.raises(ProgramError, match=r"failing failed on island 0: .*"):
        bad.result()
    with pytest.raises(ProgramError):
        client.call(DOUBLE, bad).result()
    np.testing.assert_array_equal(client.call(DOUBLE, x).result(), 2 * X)


def test_values_are_forgotten_when_nobody_needs_them(controller, islands):
    client = controller.client("a")
    x = client.put(X, islands[:1])

    def long(g, v):
        for _ in range(5):
            v = g.call(DOUBLE, v)
        return v

    graph = client.trace(long, x)
    client.submit(graph, x)[0].result()
    gc.collect()
    before = {id(a) for a in jax.live_arrays()}
    (y,) = client.submit(graph, x)
    y.result()
    time.sleep(0.05)
    gc.disable()  # counting references is enough: no cycles hold on to arrays
    try:
        new = [a for a in jax.live_arrays() if id(a) not in before]
        assert len(new) <= 2  # y, and the last mark of what is in flight
        gone = weakref.ref(y.arrays()[0])
        del y, new
        z = client.call(DOUBLE, x)
        for _ in range(8):
            z = client.call(DOUBLE, z)
        z.result()
        time.sleep(0.05)
        assert gone() is None
    finally:
        gc.enable()


def test_memory_that_was_given_away_is_not_read_again(controller, islands):
    client = controller.client("a")
    take = Program("take", lambda x: x + 1, [X], donates=[0])
    go = threading.Event()
    x = client.put(np.asarray(X), islands[:1])
    slow = client.trace(
        lambda g, v: g.call(ADD, v, g.host(lambda: (go.wait(10), np.asarray(X))[1], outputs=X, to=islands[:1])), x
    )
    (reader,) = client.submit(slow, x)  # reads x, but not before the host function ends
    taken = client.call(take, x)
    with pytest.raises(ConfigError, match="reads what input gave after its memory went to take"):
        client.call(DOUBLE, x)
    assert not taken.placed
    go.set()
    np.testing.assert_array_equal(reader.result(), 2 * X)
    np.testing.assert_array_equal(taken.result(), X + 1)

    def twice(g, v):
        g.call(take, v)
        return g.call(DOUBLE, v)

    with pytest.raises(ConfigError, match="double reads what take gave after its memory went to take"):
        client.trace(twice, taken)


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (lambda g, x, y: g.call(ADD, x), "program add takes 2 values and is given 1"),
        (lambda g, x, y: g.call(ADD, x, g.call(SPLIT, x)[0]), ""),
        (lambda g, x, y: g.call(DOUBLE, y), r"small gives float32\[3\], and input 0 of double is float32\[8\]"),
        (
            lambda g, x, y: g.call(DOUBLE, g.host(lambda: 3)),
            "input 0 of double is what <lambda> gives|values on the host",
        ),
        (lambda g, x, y: g.host(lambda v: v, x, outputs=X), "shapes of its outputs and islands"),
        (lambda g, x, y: 3, "gives 3; a traced function gives Values"),
        (lambda g, x, y: g.call(DOUBLE, X), "which is no Value of graph"),
    ],
)
def test_programs_that_do_not_fit_are_refused_while_tracing(controller, islands, graph, says):
    client = controller.client("a")
    x, y = client.put(X, islands[:1]), client.put(jnp.zeros(3), islands[:1], name="small")
    if not says:
        client.trace(graph, x, y)
        return
    with pytest.raises(ConfigError, match=says):
        client.trace(graph, x, y)


def test_values_of_different_islands_do_not_meet(controller, islands):
    client = controller.client("a")
    x, y = client.put(X, islands[:1]), client.put(X, islands[1:])
    with pytest.raises(ConfigError, match="add has values on island 0 and island 1; move them to the same islands"):
        client.call(ADD, x, y)


def test_a_program_that_does_not_take_its_inputs_is_refused():
    with pytest.raises(ConfigError, match=r"program wrong does not take inputs of float32\[8\], float32\[3\]"):
        Program("wrong", lambda x, y: x + y, [X, jnp.zeros(3)])


def test_a_host_function_that_gives_something_else_fails(controller, islands):
    client = controller.client("a")
    x = client.put(X, islands[:1])
    graph = client.trace(lambda g, v: g.host(lambda a: np.zeros(3), v, outputs=X, to=islands[:1]), x)
    with pytest.raises(ProgramError, match=r"it gives float\d+\[3\] and was traced to give float32\[8\]"):
        client.submit(graph, x)[0].result()


def test_a_client_that_closes_leaves_the_others_alone(controller, islands):
    mine, other = controller.client("mine"), controller.client("other")
    go = threading.Event()
    x = mine.put(X, islands[:1])
    graph = mine.trace(
        lambda g, v: g.call(DOUBLE, g.host(lambda a: (go.wait(10), np.asarray(a))[1], v, outputs=X, to=islands[:1])), x
    )
    (late,) = mine.submit(graph, x)
    behind = other.call(DOUBLE, late)
    mine.close()
    with pytest.raises(ProgramError, match="client mine was closed before this was dispatched"):
        late.result()
    with pytest.raises(ProgramError, match="client mine was closed"):
        behind.result()
    np.testing.assert_array_equal(other.call(DOUBLE, x).result(), 2 * X)
    with pytest.raises(ConfigError, match="client mine is closed"):
        mine.call(DOUBLE, x)
    go.set()


def test_islands_are_made_of_the_devices_there_are():
    with pytest.raises(ConfigError, match="9 islands of 2 x 1 devices need 18 and there are 8"):
        split_devices(9, (2, 1))
    with pytest.raises(ConfigError, match="--islands is 0"):
        split_devices(0)
