"""What islands exchange: gradients of logical shards, rounded alike and summed in one order; and a fingerprint.

A step's batch is cut into equal shards. A shard's gradient is of the mean loss of its own sequences, so the batch's is
the mean over shards. Who computed a shard leaves no trace: it is rounded as if it had travelled, and the sum is a left
fold in the shards' order. Everything here is made of elementwise operations and so has the same bits whatever chunks,
devices and meshes it is done on.
"""

from collections.abc import Sequence
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
            "one that does (it is islands.count where it is not set)."
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
