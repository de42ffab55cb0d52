"""How many segments the backward pass should have, from measured times: a model of computing while gradients travel.

On an island programs follow one another: forward, head, segments from the last layers to the first, embedding. What a
program gives is sent when it has ended, over a link that sends one thing at a time, in that order. More segments hide
more of the exchange and leave less for after the end; each costs what starting a program costs. Importable without jax.
"""

from dataclasses import dataclass

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


def step_seconds(times: Times, layers: int, segments: int) -> float:
    """From the start of the forward pass to when the last gradient has arrived, with `segments` segments."""
    t = times
    lengths = [end - first for first, end in reversed(bounds(layers, segments))]
    programs = [(t.head, t.head_bytes)]
    programs += [(n * t.layer + t.segment, n * t.layer_bytes) for n in lengths]
    programs += [(t.embedding, t.embedding_bytes)]
    computed, sent = t.forward, 0.0
    for seconds, size in programs:
        computed += seconds
        if size:
            sent = max(sent, computed) + t.exchange + size * t.seconds_per_byte
    return max(computed, sent)


def best_segments(times: Times, layers: int) -> int:
    """The number of segments, 1 to `layers`, of the shortest step; of equal ones the fewest."""
    if layers < 1:
        raise ConfigError(f"the model has {layers} layers; it needs at least 1.")
    return min(range(1, layers + 1), key=lambda s: (step_seconds(times, layers, s), s))
