"""The segments that pay, beside a simulation of an island and its link in small ticks of time."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from areca.errors import ConfigError
from areca.train.islands.overlap import Times, best_lengths, bounds, even, step_seconds

BASE = Times(forward=30, head=10, layer=6, embedding=4, segment=0, head_bytes=20, layer_bytes=10, embedding_bytes=0,
              seconds_per_byte=0.4)  # fmt: skip


def _simulated(t: Times, lengths: tuple[int, ...], tick: float) -> float:
    """Time passes in ticks: one for the processor's current program, one for the link's current message."""
    work = [(t.forward, 0.0), (t.head, t.head_bytes)]
    work += [(n * t.layer + t.segment, n * t.layer_bytes) for n in lengths]
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


def best_even(t: Times, layers: int) -> tuple[int, ...]:
    """The nearly equal segments of the shortest step; of equal ones the fewest."""
    return min((even(layers, n) for n in range(1, layers + 1)), key=lambda ls: (step_seconds(t, ls), len(ls)))


def _compositions(n: int) -> Iterator[tuple[int, ...]]:
    """All ways to cut n layers."""
    if not n:
        yield ()
    for first in range(1, n + 1):
        yield from ((first, *rest) for rest in _compositions(n - first))


@pytest.mark.parametrize("seed", range(12))
def test_the_modelled_step_is_the_simulated_one_and_the_choice_its_best(seed):
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 9))
    whole = [float(x) for x in rng.integers(1, 40, 10)]
    t = Times(*whole[:4], segment=float(rng.integers(0, 6)), head_bytes=whole[5], layer_bytes=whole[6],
              embedding_bytes=float(rng.choice([0.0, whole[7]])), seconds_per_byte=float(rng.choice([0.25, 1.0, 3.0])),
              exchange=float(rng.integers(0, 3)))  # fmt: skip
    ways = list(_compositions(layers))
    simulated = [_simulated(t, way, 0.25) for way in ways]
    assert [step_seconds(t, way) for way in ways] == pytest.approx(simulated)
    best = min(simulated)
    found = best_lengths(t, layers)
    assert step_seconds(t, found) == pytest.approx(best)
    assert len(found) == min(len(w) for w, s in zip(ways, simulated, strict=True) if s < best + 1e-6)
    equal = [_simulated(t, even(layers, n), 0.25) for n in range(1, layers + 1)]
    assert len(best_even(t, layers)) == 1 + equal.index(min(equal))


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
    assert step_seconds(BASE, (4,)) == pytest.approx(80)
    assert step_seconds(BASE, (2, 2)) == pytest.approx(72)
    assert step_seconds(BASE, (3, 1)) == pytest.approx(74)  # 30 bytes leave at 58 and take 12, then 10
    assert step_seconds(BASE, (1, 1, 1, 1)) == pytest.approx(68)
    assert best_even(BASE, 4) == (2, 1, 1)
    assert best_lengths(BASE, 4) == (2, 1, 1)


def test_where_a_layer_travels_in_a_third_of_its_time_each_segment_is_best_about_three_times_the_next():
    t = replace(BASE, layer=6, layer_bytes=10, seconds_per_byte=0.2, segment=0.01, head_bytes=0, embedding=0)
    assert best_lengths(t, 13) == (9, 3, 1)
    # What is left is one layer's gradients.
    assert step_seconds(t, (9, 3, 1)) == pytest.approx(30 + 10 + 13 * 6 + 3 * 0.01 + 2)


def test_without_a_link_to_hide_or_with_costly_segments_there_is_one():
    for best in (best_even, best_lengths):
        assert best(replace(BASE, seconds_per_byte=0.0), 4) == (4,)
        assert best(replace(BASE, segment=50.0), 4) == (4,)


def test_the_best_of_118_layers_is_found_at_once():
    t = replace(BASE, seconds_per_byte=0.5, segment=0.1)
    lengths = best_lengths(t, 118)
    assert sum(lengths) == 118
    assert list(lengths) == sorted(lengths, reverse=True)
    assert step_seconds(t, lengths) <= step_seconds(t, best_even(t, 118))


def test_a_time_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="layer is -1; measured times and bytes are 0 or more"):
        replace(BASE, layer=-1)
    with pytest.raises(ConfigError, match="segment is inf"):
        replace(BASE, segment=math.inf)
    with pytest.raises(ConfigError, match="the model has 0 layers"):
        best_lengths(BASE, 0)
