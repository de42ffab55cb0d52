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
    for eqn, times in equations(jaxpr):
        name = eqn.primitive.name
        if name not in _RING:
            continue
        axes = eqn.params.get("axis_name", eqn.params.get("axes"))
        axes = [a for a in (axes if isinstance(axes, tuple | list) else (axes,)) if isinstance(a, str)]
        n = math.prod(sizes[a] for a in axes)
        if n > 1:
            size = max(_bytes(eqn.invars), _bytes(eqn.outvars))
            entry = found.setdefault(("+".join(axes), _PLAIN.get(name, "all-reduce")), [0, 0])
            entry[0] += times
            entry[1] += times * round(_RING[name] * size * (n - 1) / n)
    return [Transfer(*key, *values) for key, values in sorted(found.items())]


def product_flops(jaxpr: Any) -> int:
    """FLOPs of all matrix products that one device computes: 2 for each multiplication, scans as often as they run."""
    total = 0
    for eqn, times in equations(jaxpr):
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            left = eqn.invars[0].aval.shape
            each = math.prod(left[i] for i in contracted)
            total += times * 2 * each * math.prod(eqn.outvars[0].aval.shape)
    return total


def kept_bytes(jaxpr: Any, layers: int) -> int | None:
    """What the scan over layers stacks in the forward pass for the backward pass; None where layers are not scanned."""
    for eqn, _ in equations(jaxpr):
        if eqn.primitive.name == "scan" and eqn.params["length"] == layers:
            return _bytes(eqn.outvars[eqn.params["num_carry"] :])
    return None


def equations(jaxpr: Any, times: int = 1) -> Iterator[tuple[Any, int]]:
    """Every equation of a (closed) jaxpr and of those within, with how often it runs."""
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield eqn, times
        inner = list(_inner(eqn.params.values()))
        if inner and eqn.primitive.name == "while":
            raise ValueError("a while loop has no known length, so what is in it can't be counted.")
        for sub in inner:
            yield from equations(sub, times * (eqn.params["length"] if eqn.primitive.name == "scan" else 1))


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
