"""Muon for the hidden matrices and Adam for embeddings, positions, norms and biases, by optax (Jordan et al. 2024).

Muon's step of a matrix is its momentum (with Nesterov's look ahead) made nearly orthogonal by five Newton-Schulz
iterations: its singular values come to lie about 1, between 0.7 and 1.2 as most do. Every layer's kernel is a matrix of
its own: layers are stacked along the first axis of a leaf, and the heads of a query are part of its output, those of
`attention_out` of its input (`areca.model.parameters.fan_in_axes`).

What such a step is multiplied by, beside the learning rate, is `optimizer.muon_scale`:

| scale      | factor                        | the step of a matrix of width m times the base      |
|------------|-------------------------------|-----------------------------------------------------|
| "rms"      | 0.2 sqrt(max(fan-in, fan-out)) | also times m^-1/2, so that its norm keeps          |
| "spectral" | sqrt(max(1, fan-out / fan-in)) | as it is                                           |

"rms" gives all elements a root mean square of 0.2, about Adam's (Liu et al. 2025, section 2.2), so one rate and one
decay serve Adam's leaves and the matrices. "spectral" gives the matrix a spectral norm of about 1, or more where it
widens (Jordan); then its rate is another one than Adam's, which has the same number here. What a rate chosen at a small
width needs at a large one is a spectral norm of the step that stays as fan-out / fan-in (Yang et al. 2023): hence the
last column. A step is decayed like Adam's, by weight_decay times the rate.
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
    """Muon's of the matrices, and Adam's of all else; each is a tree of all parameters with None for the others."""

    matrices: optax.contrib.MuonState
    others: optax.ScaleByAdamState


def muon(
    config: OptimizerConfig, stacked_axes: Any, fan_in_axes: Any, width_ratio: float
) -> optax.GradientTransformationExtraArgs:
    """The update -lr (scale o + weight_decay p), with o the orthogonal momentum, or Adam's where there is no matrix."""

    def only(tree: Any, matrices: bool) -> Any:
        return jax.tree.map(lambda x, n: x if bool(n) == matrices else None, tree, fan_in_axes)

    def dimensions(matrices: Any) -> Any:
        return jax.tree.map(_dimensions, matrices, only(stacked_axes, True), only(fan_in_axes, True))

    orthogonal = optax.contrib.scale_by_muon(beta=config.momentum, weight_dimension_numbers=dimensions)
    rest = adam(config, only(jax.tree.map(lambda _: 1.0, fan_in_axes), False))
    wider = width_ratio**-0.5 if config.muon_scale == "rms" else 1.0

    def init(params: Any) -> MuonState:
        return MuonState(orthogonal.init(only(params, True)), rest.init(only(params, False)))  # pyright: ignore[reportArgumentType]

    def update(
        grads: Any, state: MuonState, params: Any = None, *, learning_rate: Array, finite: Array | bool = True, **_: Any
    ):
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer power
            directions, after = orthogonal.update(only(grads, True), state.matrices)
        after = jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, state.matrices)

        def move(p: Array, o: Array, numbers: optax.contrib.MuonDimensionNumbers) -> Array:
            return -learning_rate * (wider * scale(config.muon_scale, p.shape, numbers) * o + config.weight_decay * p)

        matrices = only(params, True)
        moved = jax.tree.map(move, matrices, directions, dimensions(matrices))
        others, adams = rest.update(
            only(grads, False), state.others, only(params, False), learning_rate=learning_rate, finite=finite
        )
        joined = jax.tree.map(lambda a, b: b if a is None else a, moved, others, is_leaf=lambda x: x is None)
        return joined, MuonState(after, adams)  # pyright: ignore[reportArgumentType]

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _dimensions(leaf: Array, stacked: int, inputs: int) -> optax.contrib.MuonDimensionNumbers:
    return optax.contrib.MuonDimensionNumbers(
        tuple(range(stacked, stacked + inputs)), tuple(range(stacked + inputs, leaf.ndim))
    )


def scale(kind: str, shape: tuple[int, ...], numbers: optax.contrib.MuonDimensionNumbers) -> float:
    """What an orthogonal step of a leaf's matrices is multiplied by: see the head of this file."""
    axes = numbers.reduction_axis, numbers.output_axis
    fan_in, fan_out = (math.prod(shape[i] for i in (a if isinstance(a, tuple) else (a,))) for a in axes)
    if kind == "rms":
        return RMS * math.sqrt(max(fan_in, fan_out))
    return math.sqrt(max(1.0, fan_out / fan_in))
