"""What a program sends between devices, read off its jaxpr: every collective, how often a step runs it, and its bytes.

The jaxpr is the program as it was written, with its own types; XLA's CPU compiler, which a dry run compiles with,
widens bfloat16 and would double the bytes.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# Bytes that a device receives for one element of the larger side, over a ring of n devices: factor x (n - 1) / n.
_RING = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "psum": 2, "psum_invariant": 2, "pmax": 2, "pmin": 2}
_PLAIN = {"reduce_scatter": "reduce-scatter", "all_gather": "all-gather", "all_to_all": "all-to-all"}


@dataclass(frozen=True)
class Transfer:
    """One kind of collective over one axis of the mesh, summed over a step."""

    axis: str
    kind: str  # all-gather, reduce-scatter, all-to-all, all-reduce
    count: int  # times a step
    bytes: int  # that one device receives in a step, over a ring


def transfers(jaxpr: Any, sizes: Mapping[str, int]) -> list[Transfer]:
    """All collectives of a (closed) jaxpr by axis and kind; `sizes` has the mesh's axes.

    Scans count as often as they run. Raises ValueError for a loop whose length is not known.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for axis, kind, times, moved in _walk(getattr(jaxpr, "jaxpr", jaxpr), sizes, 1):
        entry = found.setdefault((axis, kind), [0, 0])
        entry[0] += times
        entry[1] += moved
    return [Transfer(*key, *values) for key, values in sorted(found.items())]


def _walk(jaxpr: Any, sizes: Mapping[str, int], times: int) -> Iterator[tuple[str, str, int, int]]:
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        if name in _RING:
            axes = eqn.params.get("axis_name", eqn.params.get("axes"))
            axes = [a for a in (axes if isinstance(axes, tuple | list) else (axes,)) if isinstance(a, str)]
            n = math.prod(sizes[a] for a in axes)
            if n > 1:
                size = max(_bytes(eqn.invars), _bytes(eqn.outvars))
                moved = round(_RING[name] * size * (n - 1) / n)
                yield "+".join(axes), _PLAIN.get(name, "all-reduce"), times, times * moved
        inner = list(_inner(eqn.params.values()))
        if inner and name == "while":
            raise ValueError("a while loop has no known length, so its transfers can't be counted.")
        for sub in inner:
            yield from _walk(sub, sizes, times * (eqn.params["length"] if name == "scan" else 1))


def _inner(values: Iterable[Any]) -> Iterator[Any]:
    """The jaxprs among an equation's parameters."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inner(value)
        elif hasattr(value, "eqns"):
            yield value
        elif hasattr(getattr(value, "jaxpr", None), "eqns"):
            yield value.jaxpr


def _bytes(variables: Iterable[Any]) -> int:
    return sum(math.prod(v.aval.shape) * np.dtype(v.aval.dtype).itemsize for v in variables)
