"""One training step as one compiled program: loss, gradients, clipping, optimizer, and the numbers to log."""

from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float, Int

from areca.config import ModelConfig, OptimizerConfig
from areca.model import decoder
from areca.model.loss import Parts
from areca.train.optimizer import make_optimizer

METRICS = ("loss", "z_loss", "grad_norm", "update_norm", "param_norm")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that a step changes. `step` counts steps taken."""

    step: Int[Array, ""]
    params: decoder.Decoder
    optimizer: Any


def init_state(model: ModelConfig, optimizer: OptimizerConfig, seed: int) -> TrainState:
    """The state before the first step; the key of the parameters is folded from (seed, purpose 0)."""
    params: Any = decoder.init(model, jax.random.fold_in(jax.random.key(seed), 0))
    transformation = make_optimizer(optimizer, decoder.parameter_axes(params))
    return TrainState(jnp.zeros((), jnp.int32), params, transformation.init(params))


def train_step(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    state: TrainState,
    tokens_BS: Int[Array, "B S"],
    learning_rate: Float[Array, ""],
) -> tuple[TrainState, Float[Array, "5"]]:
    """The next state and METRICS as one array. Gradients are clipped to a global norm (grad_norm is before).

    If the loss or the gradient norm is not finite, the state comes back as it was, its step count included: the metrics
    then show that number, an update norm of 0 and the norm of the unchanged parameters. The choice is part of the
    update's own pass over memory.
    """

    def objective(params: decoder.Decoder) -> tuple[Array, Parts]:
        return decoder.loss(model, params, tokens_BS, optimizer.z_loss)

    grads, parts = jax.grad(objective, has_aux=True)(state.params)
    grad_norm = optax.tree.norm(grads)
    scale = jnp.minimum(1.0, optimizer.clip_norm / jnp.maximum(grad_norm, 1e-12))
    grads = jax.tree.map(lambda g: g * scale, grads)
    transformation = make_optimizer(optimizer, decoder.parameter_axes(state.params))
    finite = jnp.isfinite(parts.loss) & jnp.isfinite(grad_norm)
    updates, moments = transformation.update(
        grads, state.optimizer, cast(Any, state.params), learning_rate=learning_rate, finite=finite
    )
    params = jax.tree.map(lambda p, u: jnp.where(finite, p + u, p), state.params, updates)
    update_norm = jnp.where(finite, optax.tree.norm(updates), 0.0)
    metrics = jnp.stack([*parts, grad_norm, update_norm, optax.tree.norm(params)])
    return TrainState(state.step + finite.astype(jnp.int32), params, moments), metrics


def compile_step(model: ModelConfig, optimizer: OptimizerConfig, state: TrainState, batch: int, context: int) -> Any:
    """The step for one batch size, compiled ahead; the state is donated."""

    def step(state: TrainState, tokens_BS: Array, learning_rate: Array) -> tuple[TrainState, Array]:
        return train_step(model, optimizer, state, tokens_BS, learning_rate)

    tokens = jax.ShapeDtypeStruct((batch, context + 1), jnp.int32)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    return jax.jit(step, donate_argnums=0).lower(state, tokens, rate).compile()
