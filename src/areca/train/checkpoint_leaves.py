"""A state as a flat dictionary of arrays, by the dotted path of each leaf, and back.

What is on disk then does not depend on the classes that the code uses today, and a state that does not fit is found by
the name, shape and dtype of a leaf before anything is loaded.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def flatten(state: Any) -> dict[str, Any]:
    """`{"params.layers.norm": array, ...}`; what the caller could still change is copied, empty arrays are left out."""
    leaves = {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}
    leaves = {name: leaf if isinstance(leaf, jax.Array) else np.array(leaf) for name, leaf in leaves.items()}
    return {name: leaf for name, leaf in leaves.items() if leaf.size}


def abstract(example: Any) -> dict[str, Any]:
    """Shape, dtype and sharding that each leaf of `example` is to be loaded with, by the names of `flatten`."""
    leaves = {_name(path): _abstract(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(example)[0]}
    return {name: leaf for name, leaf in leaves.items() if leaf.size}


def unflatten(loaded: Mapping[str, Any], example: Any) -> Any:
    """The state with the structure of `example` and the values of `loaded`."""
    paths, structure = jax.tree_util.tree_flatten_with_path(example)
    return jax.tree_util.tree_unflatten(structure, [_value(loaded.get(_name(path)), leaf) for path, leaf in paths])


def mismatch(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """How two flat states differ, as a clause about the stored one ("it has no x"), or None if they fit."""
    for name in sorted(wanted.keys() - stored.keys()):
        return f"it has no {name}"
    for name in sorted(stored.keys() - wanted.keys()):
        return f"it has {name}, which this one lacks"
    for name, ours in wanted.items():
        theirs = stored[name]
        if tuple(ours.shape) != tuple(theirs.shape) or np.dtype(ours.dtype) != np.dtype(theirs.dtype):
            here, there = (f"{np.dtype(x.dtype)}{list(x.shape)}" for x in (ours, theirs))
            return f"its {name} is {there} and this one's is {here}"
    return None


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "state"


def _abstract(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array):
        sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
    return np.empty_like(np.asarray(leaf))


def _value(loaded: Any, example: Any) -> Any:
    """A loaded leaf as the kind of thing that the example has there."""
    if loaded is None:  # without elements, so not stored
        return jax.numpy.zeros(example.shape, example.dtype)
    return type(example)(loaded.item()) if isinstance(example, bool | int | float) else loaded
