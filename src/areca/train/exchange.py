"""What islands exchange: gradients of logical shards, rounded alike, summed in one order, in chunks; and a fingerprint.

A step's batch is cut into equal shards. A shard's gradient is of the mean loss of its own sequences, so the batch's is
the mean over shards. Who computed a shard leaves no trace: it is rounded as if it had travelled, and the sum is a left
fold in the shards' order. Everything here is made of elementwise operations and so has the same bits whatever chunks,
devices and meshes it is done on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import UInt

from areca.errors import ConfigError

Wire = Literal["bfloat16", "float32"]
WIRES: tuple[Wire, ...] = ("bfloat16", "float32")


def shard_size(batch: int, shards: int) -> int:
    """Sequences of each of `shards` logical shards. ConfigError where they can't be equal."""
    if shards < 1 or batch % shards:
        raise ConfigError(
            f"islands.shards is {shards}, which does not cut a batch of {batch} sequences into equal shards; choose "
            "one that does."
        )
    return batch // shards


def to_wire(tree: Any, wire: Wire) -> Any:
    """Gradients in the type that travels. For every shard, also those that stay. ConfigError for another type."""
    if wire not in WIRES:
        raise ConfigError(f"the wire's type is {wire!r}; choose one of {', '.join(map(repr, WIRES))}.")
    if wire == "float32":
        return tree
    # A compiler may drop a conversion that is at once undone. This rounding it must keep.
    return jax.tree.map(lambda a: jax.lax.reduce_precision(a, 8, 7).astype(jnp.bfloat16), tree)


def sum_shards(shards: Sequence[Any]) -> Any:
    """((g0 + g1) + g2) ... times 1 / shards, in float32: the mean of equal trees, as they arrive, in their order.

    Times the float32 nearest to 1 / shards, which is what XLA makes of a division.
    """
    share = np.float32(1.0) / np.float32(len(shards))

    def fold(*each: Array) -> Array:
        return reduce(jnp.add, (a.astype(jnp.float32) for a in each)) * share

    return jax.tree.map(fold, *shards)


# --- chunks


@dataclass(frozen=True)
class Slice:
    """Rows `start` to `stop` along the first axis of leaf `leaf` of a tree; a scalar is one row."""

    leaf: int
    start: int
    stop: int


@dataclass(frozen=True)
class Chunk:
    """What travels at once: slices of the leaves of one part of a gradient, by the part's place in their order."""

    part: int
    slices: tuple[Slice, ...]
    bytes: int


def chunks(parts: Sequence[Any], bytes_per_chunk: int) -> list[Chunk]:
    """How parts of a gradient (arrays or structs, in the order in which they are computed) are cut into chunks.

    A chunk is of one part, so that it can leave when that has ended, and is at most so large unless a single row is
    larger. First axes (layers, words) are whole on every device, so that cutting them moves nothing inside an island;
    a leaf of one axis is not cut. Every row is in exactly one chunk.
    """
    if bytes_per_chunk < 1:
        raise ConfigError(f"a chunk has {bytes_per_chunk} bytes; give at least 1.")
    found: list[Chunk] = []
    for number, part in enumerate(parts):
        slices: list[Slice] = []
        size = 0
        for i, leaf in enumerate(jax.tree.leaves(part)):
            rows = _rows(leaf)
            row = leaf.size // rows * jnp.dtype(leaf.dtype).itemsize if rows else 0
            start = 0
            while start < rows:
                room = (bytes_per_chunk - size) // row
                if room < 1 and slices:
                    found.append(Chunk(number, tuple(slices), size))
                    slices, size = [], 0
                    continue
                stop = min(rows, start + max(1, room))
                slices.append(Slice(i, start, stop))
                size, start = size + row * (stop - start), stop
        if slices:
            found.append(Chunk(number, tuple(slices), size))
    return found


def take(part: Any, chunk: Chunk) -> list[Array]:
    """A chunk's arrays out of its part."""
    leaves = jax.tree.leaves(part)
    whole = [s.start == 0 and s.stop == _rows(leaves[s.leaf]) for s in chunk.slices]
    return [leaves[s.leaf] if w else leaves[s.leaf][s.start : s.stop] for s, w in zip(chunk.slices, whole, strict=True)]


def put_together(parts: Sequence[Any], plan: Sequence[Chunk], arrays: Sequence[Sequence[Array]]) -> list[Any]:
    """The inverse: parts of the structure of `parts` (may be abstract) from the arrays of each chunk of a plan."""
    pieces: dict[tuple[int, int], list[tuple[int, Array]]] = {}
    for chunk, given in zip(plan, arrays, strict=True):
        for s, array in zip(chunk.slices, given, strict=True):
            pieces.setdefault((chunk.part, s.leaf), []).append((s.start, array))
    made = []
    for number, part in enumerate(parts):
        leaves, tree = jax.tree.flatten(part)
        whole = []
        for i, leaf in enumerate(leaves):
            ordered = [a for _, a in sorted(pieces.get((number, i), []), key=lambda p: p[0])]
            if not ordered:  # a leaf of no rows
                whole.append(jnp.zeros(leaf.shape, leaf.dtype))
            else:
                whole.append(ordered[0] if len(ordered) == 1 else jnp.concatenate(ordered))
        made.append(tree.unflatten(whole))
    return made


def _rows(leaf: Any) -> int:
    """How many rows a leaf can be cut into."""
    return min(1, leaf.size) if len(leaf.shape) < 2 or not leaf.size else leaf.shape[0]


# --- the fingerprint


def digest(params: Any) -> UInt[Array, "2"]:
    """A fingerprint of all bits of a tree, the same on every mesh: two sums over its words, modulo 2^32.

    A word is mixed with its place by steps that can be undone (xor, odd factors, shifts by half), so one changed word
    always changes both sums; two or more escape with a chance of about 2^-64. It guards against errors, not
    adversaries.
    """
    total = jnp.zeros(2, jnp.uint32)
    for number, leaf in enumerate(jax.tree.leaves(params)):
        word = _words(leaf)
        place = jnp.full(word.shape, number + 1, jnp.uint32)
        for axis in range(word.ndim):
            place = _mix(place * np.uint32(0x9E3779B1) + jax.lax.broadcasted_iota(jnp.uint32, word.shape, axis))
        sums = [
            jnp.sum(_mix((word ^ place) * np.uint32(odd) + place), dtype=jnp.uint32) for odd in (0x85EBCA6B, 0x27D4EB2F)
        ]
        total = total + jnp.stack(sums)
    return total


def _mix(x: Array) -> Array:
    """A bijection of 32 bits in which every bit of x moves most bits (the end of MurmurHash3; Appleby 2011)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _words(leaf: Array) -> Array:
    """The bits of numbers of 1, 2, 4 or 8 bytes as uint32; of 8 bytes, along a further axis of 2."""
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    size = jnp.dtype(leaf.dtype).itemsize
    if size >= 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    return jax.lax.bitcast_convert_type(leaf, {1: jnp.uint8, 2: jnp.uint16}[size]).astype(jnp.uint32)
