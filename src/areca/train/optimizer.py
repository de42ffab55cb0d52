"""PaLM's optimizer and Adam as optax transformations (Chowdhery et al. 2022, section 5); Muon is in `areca.train.muon`.

Adafactor without factorization is Adam whose step is scaled by the root mean square of the matrix it moves
(Shazeer and Stern 2018, section 8), with beta2 = 1 - k^-0.8 and decoupled weight decay lr^2. Momentum is taken of the
update, as Adafactor does. Layers are stacked along a leading axis, but every layer's matrix has a root mean square of
its own: `stacked_axes` says how many leading axes of a leaf only stack.

Both take `finite=`, a boolean scalar: where it is False the state comes back as it was. The choice is made within, so
that parameters are moved by the chosen moments; chosen afterwards, old and new moments would both be needed and XLA
copies every one of them (docs/log.md).

optax' `scale_by_param_block_rms` would take one root mean square over all layers, and so make the optimizer depend on
how parameters are stored; optax' decay of factored moments has another meaning of 0.8. Hence our own, over its
interface.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from areca.config import OptimizerConfig
from areca.errors import ConfigError

RMS_FLOOR = 1e-3  # Adafactor's epsilon_2: a matrix of zeros still moves
MOMENT_FLOOR = 1e-30  # Adafactor's epsilon_1
ADAM_EPSILON = 1e-8


class AdafactorState(NamedTuple):
    count: Array
    momentum: Any
    second_moment: Any


def adafactor(config: OptimizerConfig, stacked_axes: Any, rates: Any) -> optax.GradientTransformationExtraArgs:
    """The update -lr (max(rms(p), 1e-3) m + weight_decay lr p), with m the momentum of g / sqrt(v)."""

    def init(params: Any) -> AdafactorState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdafactorState(jnp.zeros((), jnp.int32), zeros, jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Any,
        state: AdafactorState,
        params: Any = None,
        *,
        learning_rate: Array,
        finite: Array | bool = True,
        **_: Any,
    ):
        count = state.count + 1
        beta2 = (
            jnp.float32(config.beta2)
            if config.beta2
            else 1.0 - jax.lax.pow(count.astype(jnp.float32), jnp.float32(-0.8))
        )
        b1 = config.momentum

        def squares(v: Array, g: Array) -> Array:
            return jnp.where(finite, beta2 * v + (1.0 - beta2) * (g * g + MOMENT_FLOOR), v)

        def average(m: Array, g: Array, v: Array) -> Array:
            return jnp.where(finite, b1 * m + (1.0 - b1) * (g * jax.lax.rsqrt(v)), m)

        v = jax.tree.map(squares, state.second_moment, grads)
        m = jax.tree.map(average, state.momentum, grads, v)
        decay = config.weight_decay * learning_rate

        def move(p: Array, m: Array, axes: int, rate: float) -> Array:
            return -learning_rate * (rate * _rms(p, axes) * m + decay * p)

        return jax.tree.map(move, params, m, stacked_axes, rates), AdafactorState(
            jnp.where(finite, count, state.count), m, v
        )

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def _rms(p: Array, stacked_axes: int) -> Array:
    """Root mean square over all but the stacking axes, kept for broadcasting, at least RMS_FLOOR."""
    axes = tuple(range(stacked_axes, p.ndim))
    return jnp.maximum(jnp.sqrt(jnp.mean(p * p, axis=axes, keepdims=True)), RMS_FLOOR)


def adam(config: OptimizerConfig, rates: Any) -> optax.GradientTransformationExtraArgs:
    """Adam with decoupled decay (AdamW); `learning_rate` arrives with each update."""
    b1, b2 = config.momentum, config.beta2

    def update(
        grads: Any, state: Any, params: Any = None, *, learning_rate: Array, finite: Array | bool = True, **_: Any
    ):
        count = state.count + 1
        m = jax.tree.map(lambda m, g: jnp.where(finite, b1 * m + (1.0 - b1) * g, m), state.mu, grads)
        v = jax.tree.map(lambda v, g: jnp.where(finite, b2 * v + (1.0 - b2) * (g * g), v), state.nu, grads)
        unbias = [1.0 - jax.lax.pow(jnp.float32(b), count.astype(jnp.float32)) for b in (b1, b2)]

        def move(p: Array, m: Array, v: Array, rate: float) -> Array:
            direction = (m / unbias[0]) / (jnp.sqrt(v / unbias[1]) + ADAM_EPSILON)
            return -learning_rate * (rate * direction + config.weight_decay * p)

        after = optax.ScaleByAdamState(count=jnp.where(finite, count, state.count), mu=m, nu=v)
        return jax.tree.map(move, params, m, v, rates), after

    return optax.GradientTransformationExtraArgs(optax.scale_by_adam().init, update)  # pyright: ignore[reportArgumentType]


def make_optimizer(
    config: OptimizerConfig,
    stacked_axes: Any,
    *,
    widening: Any = None,
    width_ratio: float = 1.0,
    fan_in_axes: Any = None,
) -> optax.GradientTransformationExtraArgs:
    """The optimizer that `config` names; its `update` takes `learning_rate=`. ConfigError for settings it can't use.

    `widening` marks with 1 the leaves whose fan-in grows with the model's width. Their rate follows muP (Yang et al.
    2022, table 8): for Adam it falls as 1 / width_ratio. For Adafactor, whose step already falls with a matrix' root
    mean square, hence as width^-1/2, what is missing is width_ratio^-1/2. Muon's are in `areca.train.muon`, which needs
    `fan_in_axes`: of each hidden matrix the number of its input axes, 0 for other leaves.
    """
    if not 0 < config.learning_rate < math.inf:
        raise ConfigError(f"optimizer.learning_rate is {config.learning_rate}; it must be positive.")
    for name in ("weight_decay", "z_loss"):
        if not 0 <= getattr(config, name) < math.inf:
            raise ConfigError(f"optimizer.{name} is {getattr(config, name)}; it must be 0 or more.")
    if not config.clip_norm > 0:
        raise ConfigError(f"optimizer.clip_norm is {config.clip_norm}; it must be positive (inf turns clipping off).")
    if not 0 <= config.momentum < 1 or not 0 <= config.beta2 < 1:
        raise ConfigError(
            f"optimizer.momentum {config.momentum} and optimizer.beta2 {config.beta2} must lie in [0, 1)."
        )
    if config.name != "adafactor" and not config.beta2:
        raise ConfigError(f"optimizer.name is {config.name!r}, which needs optimizer.beta2, for example 0.95.")
    if config.name != "muon" and config.muon_scale != OptimizerConfig().muon_scale:
        raise ConfigError(
            f"optimizer.muon_scale is {config.muon_scale!r} and optimizer.name is {config.name!r}; only 'muon' has it, "
            "so leave it out."
        )
    if config.name == "muon":
        from areca.train.muon import muon

        return muon(config, stacked_axes, fan_in_axes, width_ratio)
    rate = width_ratio ** (-1.0 if config.name == "adam" else -0.5)
    rates = jax.tree.map(lambda wide: rate if wide else 1.0, stacked_axes if widening is None else widening)
    if config.name == "adam":
        return adam(config, rates)
    return adafactor(config, stacked_axes, rates)
