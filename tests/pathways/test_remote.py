"""Islands in processes of their own: the same graphs, values and errors; lost and stuck ones are named."""

import contextlib
import os
import signal
import sys
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from areca.errors import ConfigError, IslandError, ProgramError
from areca.pathways.controller import Controller
from areca.pathways.elsewhere.agent import Bad
from areca.pathways.elsewhere.processes import Setting, start
from areca.pathways.elsewhere.remote import RemoteIsland
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.seeing.timeline import Timeline

X = np.arange(32, dtype=np.float32).reshape(4, 8)
CUT = P("data", "model")


@contextlib.contextmanager
def islands_and_client(count=2, deadline=60.0, **setting):
    islands = start(count, Setting(threads=1, deadline=deadline, **setting))
    try:
        with Controller(islands, deadline=deadline) as controller:
            yield islands, controller.client("test")
    finally:
        for island in islands:
            island.close()


@pytest.fixture(scope="module")
def pair():
    """Two islands of 2 x 1 devices, for tests that leave them whole."""
    with islands_and_client(shape=(2, 1)) as both:
        yield both


def program(name, function, *inputs, **others):
    specs = others.pop("specs", [CUT] * len(inputs))
    return Program(name, function, inputs, specs=specs, out_specs=others.pop("out_specs", CUT), **others)


def test_a_graph_over_processes_gives_what_it_gives_here(pair):
    """Programs, transfers both ways, a host function in between, bfloat16, and a scalar."""
    islands, client = pair
    half = program("half", lambda x: (x / 3).astype(jnp.bfloat16), X)
    mix = program("mix", lambda x, y: x * 2 + y.astype(jnp.float32) - jnp.sum(x), X, X.astype(jnp.bfloat16))
    mean = program("mean", jnp.mean, X, out_specs=P())

    def graph(g, v):
        a = g.move(g.call(half, v), [v.islands[1]])
        b = g.call(mix, g.move(v, [v.islands[1]]), a)
        h = g.host(lambda x: np.asarray(x) + 1, b, outputs=X, to=v.islands, specs=CUT)
        return [g.call(mean, h), h, g.move(b, [v.islands[0]]), g.call(mix, h, g.call(half, v))]

    found = []
    for over in (islands, split_devices(2, (2, 1))):
        with contextlib.nullcontext(client) if over is islands else Controller(over) as one:
            user = one if one is client else one.client("here")
            start_ = user.put(X, over, CUT)
            outputs = user.submit(user.trace(graph, start_), start_)
            found.append([np.asarray(o.result(i)) for o in outputs for i in o.islands])
    for there, here in zip(*found, strict=True):
        np.testing.assert_array_equal(there, here)
        assert there.dtype == here.dtype


def test_an_error_is_that_of_what_depends_on_it_and_nothing_else(pair):
    islands, client = pair
    double = program("double", lambda x: 2 * x, X)

    def broken():
        raise ValueError("no luck")

    def graph(g, v):
        h = g.host(broken, outputs=X, to=[islands[0]], specs=CUT)
        there = g.move(g.call(double, h), [islands[1]])
        return [g.call(double, there), g.call(double, v)]

    given = client.put(X, islands, CUT)
    bad, good = client.submit(client.trace(graph, given), given)
    np.testing.assert_array_equal(good.result(islands[1]), 2 * X)
    with pytest.raises(ProgramError, match="broken failed on the host: ValueError: no luck"):
        bad.result()


def test_memory_is_taken_after_what_is_sent_of_it_was_read_and_freed_when_nobody_holds_it(pair):
    islands, client = pair
    big = np.ones((1024, 256), np.float32)
    into = Program("into", lambda x: x + 1, [big], donates=[0])
    first = client.put(big, [islands[0]])
    graph = client.trace(lambda g, v: [g.move(v, [islands[1]]), g.call(into, v)], first)
    for _ in range(3):
        copy, first = client.submit(graph, client.put(big, [islands[0]]))
        np.testing.assert_array_equal(copy.result(), big)
        np.testing.assert_array_equal(first.result(), big + 1)
    del copy, first
    until = time.monotonic() + 10
    while any(i.freed for i in islands) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(i.freed for i in islands)


def test_what_cannot_be_said_of_islands_in_processes(pair):
    islands, client = pair
    given = client.put(X, islands, CUT)
    local = split_devices(1, (2, 1))
    with pytest.raises(ConfigError, match="its islands must all be of this process, or all of others"):
        client.trace(lambda g, v: g.move(v, local), given)
    with pytest.raises(ConfigError, match=r"islands.processes is 3, and an island of 2 x 1 devices"):
        Setting((2, 1), processes=3)
    with pytest.raises(ConfigError, match="flows is 0"):
        Setting(flows=0)
    with pytest.raises(IslandError, match=r"island 7 did not start: it ended with code 3: out of luck"):
        start(1, Setting(launch=[["sh", "-c", "echo out of luck >&2; exit 3"]] * 8), first=7)


def test_an_island_of_two_processes_is_one_mesh():
    """jax.distributed inside the island only; rank sends to rank."""
    summed = program("sum", lambda x: x + jnp.sum(x), X)
    with islands_and_client(shape=(2, 2), processes=2, chunk_bytes=48, flows=2) as (islands, client):
        given = client.put(X, [islands[0]], CUT)

        def graph(g, v):
            return g.call(summed, g.move(g.call(summed, v), [islands[1]]))

        (out,) = client.submit(client.trace(graph, given), given)
        once = X + X.sum()
        np.testing.assert_allclose(out.result(), once + once.sum(), rtol=1e-6)
        assert len({c.process.pid for i in islands for c in i.channels}) == 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stuck_island_is_named_and_the_others_go_on(number):
    double = program("double", lambda x: 2 * x, X)
    with islands_and_client(deadline=3.0, shape=(1, 1)) as (islands, client):
        given = client.put(X, islands, CUT)

        def graph(g, v):
            return g.call(double, g.move(g.call(double, g.move(v, [islands[0]])), [islands[1]]))

        traced = client.trace(graph, given)
        client.submit(traced, given)[0].result()
        pid = islands[0].channels[0].process.pid
        os.kill(pid, number)
        started = time.monotonic()
        for future in [client.submit(traced, given)[0] for _ in range(6)]:
            with pytest.raises(IslandError, match=f"island 0 .*process {pid}"):
                future.result()
        assert time.monotonic() - started < 3 * 3.0
        alone = client.put(X, [islands[1]], CUT)
        np.testing.assert_array_equal(client.call(double, alone).result(), 2 * X)


def test_an_island_that_computes_for_ever_is_named():
    forever = Program("forever", lambda x: jnp.sum(x) * 0 + jax_spin(x), [X])
    with islands_and_client(1, deadline=2.0) as (islands, client):
        given = client.put(X, islands)
        with pytest.raises(IslandError, match="island 0 has not ended what it computes for 2 s; it is stuck"):
            client.call(forever, given).result()


def jax_spin(x):
    """A loop that does not end."""
    import jax

    return jax.lax.while_loop(lambda s: s > -1.0, lambda s: jnp.sin(s) + 1.0, jnp.sum(x) * 0)


def test_several_clients_share_processes_by_weight():
    """Programs of equal cost, three times the weight: three times as many while both have work."""
    x, timeline = np.eye(256, dtype=np.float32), Timeline()
    work = Program("work", lambda x: jnp.linalg.matrix_power(x, 255), [x])
    islands = start(1, Setting(threads=1, deadline=60))
    with Controller(islands, deadline=60, timeline=timeline) as controller:
        clients = [controller.client("one", 1), controller.client("three", 3)]
        given = clients[0].put(x, islands)
        for _ in range(40):  # until what it costs is known
            clients[0].call(work, given).result()
        gate = threading.Event()
        held = clients[0].trace(lambda g: g.host(lambda: gate.wait(30) and x, outputs=x, to=islands))
        (given,) = clients[0].submit(held)  # nothing is sent before all is submitted
        futures = [c.call(work, given) for _ in range(80) for c in clients]
        gate.set()
        for future in futures:
            future.result()
    islands[0].close()
    timeline.close()
    busy = [e.client for e in timeline.events if e.kind == "dispatch"][41:137]
    assert 2 < busy.count("three") / busy.count("one") < 4.5  # quiet: 3; of equal weights it would be 1


def test_a_trace_of_islands_in_processes_says_when_each_program_ran_and_what_arrived_when(tmp_path):
    slow = Program("slow", lambda x: jnp.linalg.matrix_power(x * 1e-3, 200) + x, [np.ones((256, 256), np.float32)])
    timeline, islands = Timeline(), start(2, Setting(threads=1, deadline=60))
    with Controller(islands, deadline=60, timeline=timeline) as controller:
        client = controller.client("a")
        given = client.put(np.ones((256, 256), np.float32), islands[:1])
        graph = client.trace(lambda g, v: g.call(slow, g.move(g.call(slow, v), [islands[1]])), given)
        for _ in range(2):
            (out,) = client.submit(graph, given)
            out.result()
    for island in islands:
        island.close()
    timeline.close()
    first, second = ([e for e in timeline.events if (e.kind, e.track) == ("compute", i.name)] for i in islands)
    moved = [e for e in timeline.events if e.kind == "transfer"]
    assert [len(first), len(second), len(moved)] == [2, 2, 2]
    for a, m, b in zip(first, moved, second, strict=True):
        assert a.start < a.end <= m.start + 1e-3
        assert m.start <= m.end <= b.start <= b.end
        assert (a.client, m.ins, b.ins) == ("a", a.made, m.made)
    dispatched = {e.sequence: e for e in timeline.events if e.kind == "dispatch"}
    assert all(dispatched[e.sequence].start <= e.start for e in first)


class _Deaf:
    """A channel to a process that says what the test says."""

    def listen(self, heard, ended):
        self.heard = heard

    def send(self, message):
        pass

    def how(self):
        return "it ended"

    kill = close = how


def test_two_ranks_that_end_segments_at_once_while_others_are_sent_lose_none():
    # An island of two processes is heard by a thread each, while the controller's sends more.
    channels, seen, count = [_Deaf(), _Deaf()], [], 3000
    island = RemoteIsland("island 0", "0", (2, 1), channels, 60)
    island.event = seen.append
    sent, ended = [], [0, 0]

    def rank(number):
        for k in range(count):
            while len(sent) <= k:
                time.sleep(0)
            channels[number].heard(("ran", k, 0, 1e-3, {number: Bad("none")}))
            ended[number] += 1

    threads = [threading.Thread(target=rank, args=(n,)) for n in (0, 1)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for t in threads:
            t.start()
        sent.extend(island.run(k, 0, 0, None, {}) for k in range(count))
        for t in threads:
            t.join(60)
    finally:
        sys.setswitchinterval(interval)
    assert ended == [count, count]
    assert all(s.done.is_set() and sorted(s.failed) == [0, 1] for s in sent)
    assert sum(len(timed) for _, _, timed, _ in seen) == count
    assert not island.outstanding
