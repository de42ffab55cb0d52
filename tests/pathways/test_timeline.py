"""What a timeline records of a controller: the data's order, windows, and that nothing is recorded outside of them."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.pathways.controller import Controller
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

X = jnp.arange(8, dtype=jnp.float32)


def _busy(x):
    """Some tens of milliseconds, which XLA does not compute while it is enqueued."""
    a = jnp.full((256, 256), 1 / 256, jnp.float32) + x[0] * 0
    return x + jax.lax.fori_loop(0, 100, lambda _, b: b @ a, a)[0, 0] * 0


DOUBLE = Program("double", lambda x: x * 2, [X])
ADD = Program("add", lambda x, y: x + y, [X, X])
SLOW = Program("slow", _busy, [X])
TAKE = Program("take", lambda x: x + 1, [X], donates=[0])


@pytest.fixture
def recorded():
    """Records what a function of (client, islands) does on two islands, and gives the events."""

    def record(body):
        timeline, islands = Timeline(), split_devices(2)
        with Controller(islands, timeline=timeline, deadline=30) as controller:
            body(controller.client("a"), islands)
        timeline.close()
        return timeline.events

    return record


def named(events, kind, name):
    return [e for e in events if (e.kind, e.name) == (kind, name)]


def test_a_transfer_starts_when_its_source_is_computed_and_holds_nothing_else_up(recorded):
    """Island 1 gets what island 0 takes long for, and meanwhile computes something else that was enqueued later."""

    def body(client, islands):
        x, y = client.put(X, islands[:1]), client.put(X, islands[1:])

        def graph(g, v, w):
            moved = g.move(g.call(SLOW, v), islands[1:])
            return g.call(DOUBLE, w), g.call(ADD, moved, moved)

        for future in client.submit(client.trace(graph, x, y), x, y):
            future.result()

    events = recorded(body)
    (slow,), (double,), (add,) = (named(events, "compute", n) for n in ("slow", "double", "add"))
    (moved,) = named(events, "transfer", "slow to island 1")
    assert double.end < slow.end  # seen before what was enqueued on the island before it
    assert slow.end <= moved.start <= moved.end <= add.start <= add.end
    assert moved.end - moved.start < (slow.end - slow.start) / 2
    assert moved.ins == slow.made
    assert add.ins == moved.made * 2
    sent = {e.sequence: e for e in events if e.kind == "dispatch"}
    assert all(sent[e.sequence].name == e.name and sent[e.sequence].made == e.made for e in (slow, double, moved, add))


def test_values_keep_their_numbers_from_graph_to_graph(recorded):
    """Also where a program takes their memory, and through host functions, whose start is when their data is there."""

    def body(client, islands):
        x = client.put(X, islands[:1])
        y = client.call(SLOW, x)
        graph = client.trace(lambda g, v: g.host(lambda a: np.asarray(a) + 1, v, outputs=X, to=islands, name="host"), y)
        (z,) = client.submit(graph, y)
        client.call(TAKE, z).result()

    events = recorded(body)
    (slow,), takes = named(events, "compute", "slow"), named(events, "compute", "take")
    (host,) = named(events, "host", "host")
    assert host.ins == slow.made
    assert host.start >= slow.end
    assert host.end - host.start < (slow.end - slow.start) / 2
    of = {t.track: t.ins for t in takes}  # of a gang each island reads its own
    assert [of["island 0"], of["island 1"]] == [(m,) for m in host.made]


def test_only_what_is_submitted_while_there_is_a_timeline_is_recorded():
    timeline, islands = Timeline(), split_devices(1)
    with Controller(islands, deadline=30) as controller:
        client = controller.client("a")
        y = client.call(DOUBLE, client.put(X, islands))
        for number in range(1, 9):
            wanted = number in (3, 4, 7)
            controller.timeline = timeline if wanted else None
            if wanted:
                timeline.step(number)
            y = client.call(DOUBLE, y)
            y = client.call(ADD, y, y)  # a second graph, which is no step
            if number == 5:
                y.result()
                timeline.close()
                assert {e.step for e in timeline.events} == {3, 4, -1}
        y.result()
    timeline.close()
    assert [e.step for e in named(timeline.events, "compute", "double")] == [3, 4, 7]
    assert [e.step for e in named(timeline.events, "dispatch", "double")] == [3, 4, 7]
    assert [e.step for e in named(timeline.events, "compute", "add")] == [-1] * 3


def test_what_ran_before_the_window_is_no_time_of_its_first_program():
    timeline, islands = Timeline(), split_devices(1)
    with Controller(islands, deadline=30) as controller:
        client = controller.client("a")
        x = client.put(X, islands)
        client.call(SLOW, client.call(DOUBLE, x)).result()  # both are compiled
        started = time.perf_counter()
        before = client.call(SLOW, x)
        timeline.after("island 0", before.arrays()[0])
        controller.timeline = timeline
        client.call(DOUBLE, x).result()
        seconds = time.perf_counter() - started
    timeline.close()
    (double,) = named(timeline.events, "compute", "double")
    assert double.end - double.start < seconds / 2
    assert {e.kind for e in timeline.events} == {"prepare", "dispatch", "compute"}
