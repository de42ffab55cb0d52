"""The number of segments that pays, beside a simulation of an island and its link in small ticks of time."""

import math
from dataclasses import replace

import numpy as np
import pytest

from areca.errors import ConfigError
from areca.train.overlap import Times, best_segments, bounds, step_seconds

BASE = Times(forward=30, head=10, layer=6, embedding=4, segment=0, head_bytes=20, layer_bytes=10, embedding_bytes=0,
              seconds_per_byte=0.4)  # fmt: skip


def _simulated(t: Times, layers: int, segments: int, tick: float) -> float:
    """Time passes in ticks: one for the processor's current program, one for the link's current message."""
    edges = bounds(layers, segments)
    work = [(t.forward, 0.0), (t.head, t.head_bytes)]
    work += [((end - first) * t.layer + t.segment, (end - first) * t.layer_bytes) for first, end in reversed(edges)]
    work += [(t.embedding, t.embedding_bytes)]
    todo, queue, now = [[round(s / tick), size] for s, size in work], [], 0
    while todo or queue:
        while todo and todo[0][0] == 0:
            _, size = todo.pop(0)
            if size:
                queue.append(round((t.exchange + size * t.seconds_per_byte) / tick))
        if not (todo or queue):
            break
        now += 1
        if queue:
            queue[0] -= 1
            if queue[0] <= 0:
                queue.pop(0)
        if todo:
            todo[0][0] -= 1
    return now * tick


@pytest.mark.parametrize("seed", range(12))
def test_the_modelled_step_is_the_simulated_one_and_the_choice_its_best(seed):
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 9))
    whole = [float(x) for x in rng.integers(1, 40, 10)]
    t = Times(*whole[:4], segment=float(rng.integers(0, 6)), head_bytes=whole[5], layer_bytes=whole[6],
              embedding_bytes=float(rng.choice([0.0, whole[7]])), seconds_per_byte=float(rng.choice([0.25, 1.0, 3.0])),
              exchange=float(rng.integers(0, 3)))  # fmt: skip
    simulated = [_simulated(t, layers, s, 0.25) for s in range(1, layers + 1)]
    assert [step_seconds(t, layers, s) for s in range(1, layers + 1)] == pytest.approx(simulated)
    assert best_segments(t, layers) == 1 + simulated.index(min(simulated))


@pytest.mark.parametrize(("layers", "segments"), [(1, 1), (8, 4), (7, 3), (118, 16), (5, 5)])
def test_segments_are_nearly_equal_and_the_first_layers_are_never_the_longer_one(layers, segments):
    found = bounds(layers, segments)
    lengths = [end - first for first, end in found]
    assert [first for first, _ in found] == [0, *np.cumsum(lengths)[:-1]]
    assert (sum(lengths), len(lengths)) == (layers, segments)
    assert max(lengths) - min(lengths) <= 1
    assert lengths[0] == min(lengths)


def test_a_step_by_hand():
    # Computing ends at 30 + 10 + 4 x 6 + 4 = 68. One segment: 40 bytes leave at 64 and take 16. Three or four: the last
    # 10 leave at 64 and take 4, which the embedding hides.
    assert step_seconds(BASE, 4, 1) == pytest.approx(80)
    assert step_seconds(BASE, 4, 2) == pytest.approx(72)
    assert step_seconds(BASE, 4, 4) == pytest.approx(68)
    assert best_segments(BASE, 4) == 3


def test_without_a_link_to_hide_or_with_costly_segments_there_is_one():
    assert best_segments(replace(BASE, seconds_per_byte=0.0), 4) == 1
    assert best_segments(replace(BASE, segment=50.0), 4) == 1


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="layer is -1; measured times and bytes are 0 or more"):
        replace(BASE, layer=-1)
    with pytest.raises(ConfigError, match="segment is inf"):
        replace(BASE, segment=math.inf)
    with pytest.raises(ConfigError, match="the model has 0 layers"):
        best_segments(BASE, 0)
