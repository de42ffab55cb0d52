"""Muon for the hidden matrices and Adam for embeddings, positions, norms and biases, by optax (Jordan et al. 2024).

Muon's step of a matrix is its momentum (with Nesterov's look ahead) made nearly orthogonal by five Newton-Schulz
iterations: its singular values come to lie about 1, most between 0.7 and 1.2. Every layer's kernel is a matrix of its
own: layers are stacked along the first axis of a leaf, and the heads of a query are part of its output, those of
`attention_out` of its input (`areca.model.parameters.fan_in_axes`).

What such a step is multiplied by, beside the learning rate, is `optimizer.muon_scale`:

| scale      | factor                         | for m times the base width                             |
|------------|--------------------------------|--------------------------------------------------------|
| "spectral" | sqrt(max(1, fan-out / fan-in)) | the same                                               |
| "rms"      | 0.2 sqrt(max(fan-in, fan-out)) | also times m^-1/2                                      |

"spectral" gives the step a spectral norm of about 1, more where the matrix widens (Jordan's). "rms" gives its elements
a root mean square of 0.2, about that of Adam's steps (Liu et al. 2025, section 2.2), so that a rate and a decay that
were chosen for AdamW serve. A rate chosen at a small width serves at a large one if the step's spectral norm stays as
(fan-out / fan-in)^1/2 (Yang et al. 2023): hence the last column. A step is decayed like Adam's, by weight_decay times
the rate.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from areca.config import OptimizerConfig
from areca.train.optimizer import adam

RMS = 0.2  # of the elements of a step, with muon_scale "rms"


class MuonState(NamedTuple):
    """Of the matrices the momentum, of all else Adam's; each is a tree of all parameters with None for the others."""

    count: Array
    momentum: Any
    others: optax.ScaleByAdamState


def muon(
    config: OptimizerConfig, stacked_axes: Any, fan_in_axes: Any, width_ratio: float
) -> optax.GradientTransformationExtraArgs:
    """The update -lr (scale o + weight_decay p), with o the orthogonal momentum, or Adam's where there is no matrix.

    Every leaf that holds matrices stacks the layers along one axis, by `stacked_axes`.
    """
    b = config.momentum

    def only(tree: Any, matrices: bool) -> Any:
        return jax.tree.map(lambda x, n: x if bool(n) == matrices else None, tree, fan_in_axes)

    rest = adam(config, only(jax.tree.map(lambda _: 1.0, fan_in_axes), False))
    wider = width_ratio**-0.5 if config.muon_scale == "rms" else 1.0
    assert all(axes == 1 for axes in jax.tree.leaves(only(stacked_axes, True)))

    def init(params: Any) -> MuonState:
        zeros = jax.tree.map(jnp.zeros_like, only(params, True))
        return MuonState(jnp.zeros((), jnp.int32), zeros, rest.init(only(params, False)))  # pyright: ignore[reportArgumentType]

    def update(
        grads: Any, state: MuonState, params: Any = None, *, learning_rate: Array, finite: Array | bool = True, **_: Any
    ):
        matrices, gradient, inputs = (only(tree, True) for tree in (params, grads, fan_in_axes))
        count = state.count + 1
        momentum = jax.tree.map(lambda m, g: jnp.where(finite, b * m + (1.0 - b) * g, m), state.momentum, gradient)
        unbias = [1.0 - jax.lax.pow(jnp.float32(b), (count + i).astype(jnp.float32)) for i in (0, 1)]
        ahead = jax.tree.map(lambda m, g: b * (m / unbias[1]) + (1.0 - b) * (g / unbias[0]), momentum, gradient)

        def move(p: Array, o: Array, n: int) -> Array:
            return -learning_rate * (wider * scale(config.muon_scale, p.shape[1:], n) * o + config.weight_decay * p)

        moved = jax.tree.map(move, matrices, _orthogonal(ahead, inputs), inputs)
        others, adams = rest.update(
            only(grads, False), state.others, only(params, False), learning_rate=learning_rate, finite=finite
        )
        joined = jax.tree.map(lambda m, a: a if m is None else m, moved, others, is_leaf=lambda x: x is None)
        return joined, MuonState(jnp.where(finite, count, state.count), momentum, adams)  # pyright: ignore[reportArgumentType]

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _orthogonal(stacked: Any, inputs: Any) -> Any:
    """Each layer's matrices made orthogonal, one layer at a time: the iterations need memory for one layer's.

    The momentum is the caller's, so optax is given none to keep: beta 0.
    """
    if not jax.tree.leaves(stacked):
        return stacked

    def dimensions(layer: Any) -> Any:
        numbers = optax.contrib.MuonDimensionNumbers
        return jax.tree.map(lambda x, n: numbers(tuple(range(n)), tuple(range(n, x.ndim))), layer, inputs)

    step = optax.contrib.scale_by_muon(beta=0.0, nesterov=False, weight_dimension_numbers=dimensions)

    def of_layer(layer: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
            return step.update(layer, step.init(layer))[0]

    return jax.lax.map(of_layer, stacked)


def scale(kind: str, shape: tuple[int, ...], inputs: int) -> float:
    """What an orthogonal step is multiplied by, for a matrix whose first `inputs` axes are its fan-in."""
    fan_in, fan_out = math.prod(shape[:inputs]), math.prod(shape[inputs:])
    if kind == "rms":
        return RMS * math.sqrt(max(fan_in, fan_out))
    return math.sqrt(max(1.0, fan_out / fan_in))
