"""Random numbers of one device's piece of an array: the bits that the whole array would have there.

`jax.random.normal` makes element i of an array from its key and i alone (threefry, partitionable). So a piece needs
only the places of its elements. Left to XLA's partitioner, an array drawn flat and then shaped is drawn whole on every
device; drawn in its shape it is cut, but the CPU's compiler takes a second over each. Here the places are summed in the
piece's shape, which is cheap, and the rest is done flat.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.random import threefry2x32_p

from areca.model.layout import DATA, MODEL, RULES, Layout


def normal(key: Array, name: str, shape: Sequence[int], std: float, layout: Layout) -> Array:
    """std x jax.random.normal(key, shape) in float32, of the parameter `name`; under a mesh this device's piece of it.

    There the layers of a stack are drawn one after the other, so that beside the piece only a layer's bits are there.
    """
    if layout.devices == 1:  # Flat: the same bits, but quickly compiled on the CPU.
        return std * jax.random.normal(key, (math.prod(shape),), jnp.float32).reshape(shape)
    corner, piece = box(name, shape, layout)
    if len(shape) == len(RULES[name]):
        return std * normal_piece(key, shape, corner, piece)

    def layer(first: Array) -> Array:
        return std * normal_piece(key, shape, [first, *corner[1:]], [1, *piece[1:]])[0]

    return jax.lax.map(layer, jnp.arange(shape[0]))


def box(name: str, shape: Sequence[int], layout: Layout) -> tuple[list[Array | int], list[int]]:
    """(its first place on each axis, its size) of the piece of a parameter that this device of a mesh has."""
    if layout.devices == 1:
        return [0] * len(shape), list(shape)
    over = {DATA: layout.data, MODEL: layout.model}
    corner, piece = [], []
    for size, axes in zip(shape, layout.specs({name: jax.ShapeDtypeStruct(shape, jnp.float32)})[name], strict=True):
        axes = axes if isinstance(axes, tuple) else (axes,) if axes else ()
        piece.append(size // math.prod(over[axis] for axis in axes))
        corner.append(jax.lax.axis_index(axes) * piece[-1] if axes else 0)
    return corner, piece


def normal_piece(key: Array, shape: Sequence[int], corner: Sequence[Array | int], piece: Sequence[int]) -> Array:
    """The numbers of jax.random.normal(key, shape) in the box of size `piece` whose first element is at `corner`."""
    high, low = (jnp.zeros(piece, jnp.uint32) for _ in range(2))
    for axis, (first, size) in enumerate(zip(corner, piece, strict=True)):
        # Places in the whole array go beyond 2^32, so they are summed as two words with a carry.
        place = np.arange(shape[axis], dtype=np.uint64) * np.uint64(math.prod(shape[axis + 1 :]))
        words = (place >> np.uint64(32)).astype(np.uint32), (place & np.uint64(2**32 - 1)).astype(np.uint32)
        along = [size if i == axis else 1 for i in range(len(piece))]
        here = [jax.lax.dynamic_slice_in_dim(jnp.asarray(w), first, size).reshape(along) for w in words]
        low = low + here[1]
        high = high + here[0] + (low < here[1]).astype(jnp.uint32)
    first, second = jax.random.key_data(key)
    bits = jax.lax.bitwise_xor(*threefry2x32_p.bind(first, second, high.reshape(-1), low.reshape(-1)))
    return _normal_of(bits).reshape(piece)


def _normal_of(bits: Array) -> Array:
    """As jax.random.normal: 23 bits are a mantissa in [1, 2), stretched to (-1, 1), through the inverse of erf."""
    least = np.nextafter(np.float32(-1.0), np.float32(0.0))
    one = np.float32(1.0).view(np.uint32)
    unit = jax.lax.bitcast_convert_type((bits >> np.uint32(9)) | one, jnp.float32) - np.float32(1.0)
    uniform = jnp.maximum(least, unit * (np.float32(1.0) - least) + least)
    return np.float32(math.sqrt(2)) * jax.lax.erf_inv(uniform)
