"""Which segments the backward pass should have, from measured times: a model of computing while gradients travel.

On an island programs follow one another: forward, head, segments from the last layers to the first, embedding. What a
program gives is sent when it has ended, over a link that sends one thing at a time, in that order. Short segments leave
less to send after the end; each costs what starting a program costs. So they are best long at first and shorter towards
the end, each as long as the next one hides. Importable without jax.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from areca.errors import ConfigError


@dataclass(frozen=True)
class Times:
    """What was measured of one island's step: seconds of programs, bytes of their gradients, and the link's speed."""

    forward: float
    head: float
    layer: float  # of one layer's backward pass
    embedding: float
    segment: float  # what each segment costs beside its layers
    head_bytes: float
    layer_bytes: float  # of one layer's gradients
    embedding_bytes: float
    seconds_per_byte: float
    exchange: float = 0.0  # what each exchange costs beside its bytes: the link's latency, on both ends

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name} is {value}; measured times and bytes are 0 or more.")


def bounds(layers: int, segments: int) -> list[tuple[int, int]]:
    """(first layer, end) of each segment, from the first layers to the last.

    Where they can't be equal the last layers' have one more: those are computed first, and what is computed last has
    the least time to travel.
    """
    ends = [layers * (i + 1) // segments for i in range(segments)]
    return list(zip([0, *ends], ends, strict=False))


def even(layers: int, segments: int) -> tuple[int, ...]:
    """Layers of each of nearly equal segments in the order they are computed, from the last layers to the first."""
    return tuple(end - first for first, end in reversed(bounds(layers, segments)))


def step_seconds(times: Times, lengths: Sequence[int]) -> float:
    """From the start of the forward pass to when the last gradient has arrived, with segments of `lengths` layers, from
    the last layers to the first."""
    t = times
    programs = [(t.head, t.head_bytes)]
    programs += [(n * t.layer + t.segment, n * t.layer_bytes) for n in lengths]
    programs += [(t.embedding, t.embedding_bytes)]
    computed, sent = t.forward, 0.0
    for seconds, size in programs:
        computed += seconds
        if size:
            sent = max(sent, computed) + t.exchange + size * t.seconds_per_byte
    return max(computed, sent)


def best_lengths(times: Times, layers: int) -> tuple[int, ...]:
    """The lengths, from the last layers to the first, of the shortest step; of equal ones the fewest segments.

    When `done` layers are computed in `count` segments, it is known how long that took, and all that matters of their
    lengths is when the link is free again. So the earliest such times, one for each (count, done), lead to the best.
    """
    if layers < 1:
        raise ConfigError(f"the model has {layers} layers; it needs at least 1.")
    t, done = times, np.arange(layers + 1)
    first = t.forward + t.head
    length = done[None, :] - done[:, None]  # [before, after] of one more segment
    takes = np.where(length > 0, t.exchange * (t.layer_bytes > 0) + length * t.layer_bytes * t.seconds_per_byte, np.inf)
    free = np.full(layers + 1, np.inf)
    free[0] = first + t.exchange + t.head_bytes * t.seconds_per_byte if t.head_bytes else 0.0
    came: list[np.ndarray] = []  # for each count, where the segment before the last one ended
    best = np.inf, ()
    for count in range(1, layers + 1):
        computed = first + done * t.layer + count * t.segment
        free_if = np.maximum(free[:, None], computed[None, :]) + takes
        came.append(free_if.argmin(axis=0))
        free = free_if.min(axis=0)
        end, lengths = layers, []
        for before in reversed(came):
            lengths.append(int(end - before[end]))
            end = before[end]
        found = tuple(reversed(lengths))
        if (step := step_seconds(t, found)) < best[0] - 1e-12:
            best = step, found
    return best[1]
