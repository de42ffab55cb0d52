"""Schedules of a pipeline and the replay: makespan, bubble and memory against their closed forms."""

import jax
import numpy as np
import pytest

from areca.errors import ConfigError
from areca.pathways.controller import Controller
from areca.pathways.island import split_devices
from areca.pathways.program import Program
from areca.pathways.schedules import SCHEDULES, Action, before, bubble, in_flight, of_stage, order
from areca.pathways.seeing.replay import from_events, measure, replay, steps_of
from areca.pathways.seeing.timeline import Timeline

SIZES = [(1, 1), (1, 4), (2, 1), (4, 2), (4, 8), (8, 16)]
X = jax.ShapeDtypeStruct((4,), np.float32)
FORWARD = Program("forward", lambda x: (2 * x, x + 1), [X])
BACKWARD = Program("backward", lambda kept, dx: dx * kept, [X, X])


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_has_each_action_once_and_after_what_it_reads(schedule, stages, microbatches):
    found = order(schedule, stages, microbatches)
    assert len(found) == len(set(found)) == 2 * stages * microbatches
    for i, action in enumerate(found):
        assert set(before(action, stages)) <= set(found[:i])
    for s in range(stages):
        mine = [a for a in found if a.stage == s]
        assert mine == of_stage(schedule, s, stages, microbatches)
        assert [a.microbatch for a in mine if a.backward] == list(range(microbatches))  # gradients are summed so
        assert in_flight(found, s) == (microbatches if schedule == "gpipe" else min(microbatches, stages - s))


def test_1f1b_is_as_published():
    """Narayanan et al. 2021, figure 4: the second of four stages, eight microbatches."""
    said = "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"
    assert [Action(1, int(a[1]), a[0] == "B") for a in said.split()] == of_stage("1f1b", 1, 4, 8)


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ConfigError, match=r"pipeline.schedule is 'zb'; choose one of '1f1b', 'gpipe'"):
        order("zb", 2, 2)


def traced(client, islands, schedule, microbatches):
    """The graph of a pipeline of toy stages, its input, and the slots of the activations that are kept."""
    stages, start = len(islands), client.put(np.ones(4, np.float32), islands[:1])
    keeps = []

    def graph(g, x):
        kept, between, back = {}, {}, {}
        for a in order(schedule, stages, microbatches):
            s, m = a.stage, a.microbatch
            if not a.backward:
                kept[s, m], out = g.call(FORWARD, between.pop((s, m)) if s else x)
                keeps.append(next(iter(kept[s, m].slots.values())))
                between[s + 1, m] = g.move(out, [islands[min(s + 1, stages - 1)]])
            else:
                dx = between.pop((stages, m)) if s == stages - 1 else back.pop((s + 1, m))
                dx = g.call(BACKWARD, kept.pop((s, m)), dx)
                back[s, m] = g.move(dx, [islands[max(0, s - 1)]])
        return [back[0, microbatches - 1]]

    return client.trace(graph, start), start, keeps


@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equal_stages_have_the_bubble_and_the_memory_of_the_theory(schedule, stages, microbatches):
    """GPipe (Huang et al. 2019, section 2): (S - 1) / (M + S - 1); activations: M against min(S - s, M)."""
    islands = split_devices(stages)
    with Controller(islands) as controller:
        graph, _, keeps = traced(controller.client("test"), islands, schedule, microbatches)
    seconds = {"forward": 1.0, "backward": 3.0}
    found = replay(graph, lambda step, part: seconds.get(step.name, 0.0), dict.fromkeys(keeps, 1))
    assert found.makespan == 4 * (microbatches + stages - 1)
    assert found.busy == {i.name: 4.0 * microbatches for i in islands}
    assert found.bubble == pytest.approx(bubble(stages, microbatches), abs=1e-12)
    expected = [microbatches if schedule == "gpipe" else min(microbatches, stages - s) for s in range(stages)]
    assert [found.peak[i.name] for i in islands] == expected
    slow = replay(graph, lambda step, part: seconds.get(step.name, 0.5))  # transfers that take time make it longer
    assert slow.busy == found.busy
    assert slow.makespan > found.makespan or stages == 1


def test_one_slow_stage_sets_the_pace():
    """With M microbatches through stages of 1 and one of 2, forward and back alike: GPipe takes 2 (2 M + S - 1) s."""
    islands = split_devices(3)
    with Controller(islands) as controller:
        graph, _, _ = traced(controller.client("test"), islands, "gpipe", 6)
    found = replay(graph, lambda step, part: 0.0 if step.kind == "transfer" else 1.0 + (part.island is islands[1]))
    assert found.makespan == 2 * (2 * 6 + 2)
    assert found.bubble == pytest.approx(1 - (12 + 24 + 12) / (3 * 28))


def test_measured_seconds_and_those_of_a_timeline_are_of_every_program():
    islands, timeline = split_devices(2), Timeline()
    with Controller(islands, timeline=timeline) as controller:
        client = controller.client("test")
        graph, start, keeps = traced(client, islands, "1f1b", 4)
        alone = measure(graph, [start], rounds=1)
        for _ in range(2):
            client.submit(graph, start)[0].result()
    timeline.close()
    ran = from_events(graph, timeline.events, "test")
    names = {(step.name, part.island.name) for step in steps_of(graph) for part in step.parts}
    assert set(alone.by_name) == set(ran.by_name) == names
    assert all(alone.sizes[k] == 16 for k in keeps)
    for measured in (alone, ran):
        found = replay(graph, measured.seconds, alone.sizes)
        assert found.makespan >= max(found.busy.values()) > 0
    without_one = [e for e in timeline.events if e.sequence != 0]
    with pytest.raises(ConfigError, match="no multiple of the"):
        from_events(graph, without_one, "test")


def test_a_graph_with_host_functions_is_not_replayed():
    (island,) = split_devices(1)
    with Controller([island]) as controller:
        graph = controller.client("test").trace(lambda g: g.host(lambda: 1, name="read"))
    with pytest.raises(ConfigError, match="has the host function read"):
        steps_of(graph)
