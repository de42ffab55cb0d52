"""One training step as one compiled program: loss, gradients, clipping, optimizer, and the numbers to log."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from areca.config import ModelConfig, OptimizerConfig
from areca.model import decoder
from areca.model.layout import DATA, MODEL, ONE_DEVICE, Layout
from areca.model.loss import Parts
from areca.train import noise
from areca.train.optimizer import make_optimizer

METRICS = ("loss", "z_loss", "grad_norm", "update_norm", "param_norm")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that a step changes. `step` counts steps taken."""

    step: Int[Array, ""]
    params: decoder.Decoder
    optimizer: Any


def init_state(
    model: ModelConfig, optimizer: OptimizerConfig, seed: int | Array, layout: Layout = ONE_DEVICE
) -> TrainState:
    """The state before the first step; the key of the parameters is folded from (seed, purpose 0).

    Under a mesh, one device's pieces.
    """
    params: Any = decoder.init(model, jax.random.fold_in(jax.random.key(seed), 0), layout)
    transformation = _optimizer(model, optimizer, params)
    return TrainState(jnp.zeros((), jnp.int32), params, transformation.init(params))


def _optimizer(model: ModelConfig, optimizer: OptimizerConfig, params: Any) -> Any:
    axes, widening, fan_in = decoder.parameter_axes(params), decoder.widening(params), decoder.fan_in_axes(params)
    return make_optimizer(optimizer, axes, widening=widening, width_ratio=model.width_ratio, fan_in_axes=fan_in)


def first_state(
    model: ModelConfig, optimizer: OptimizerConfig, seed: int, layout: Layout = ONE_DEVICE, mesh: Mesh | None = None
) -> TrainState:
    """`init_state`, each device making its own pieces and nothing else. The same bits on every mesh."""
    return trace_first_state(model, optimizer, layout, mesh).lower().compile()(np.uint32(seed))


def trace_first_state(
    model: ModelConfig, optimizer: OptimizerConfig, layout: Layout = ONE_DEVICE, mesh: Mesh | None = None
) -> Any:
    """The program of `first_state`, traced. It takes the seed, so that one compilation serves all seeds."""

    def local(seed: Array) -> TrainState:
        return init_state(model, optimizer, seed, layout)

    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    if mesh is None:
        return jax.jit(local).trace(seed)
    abstract = abstract_state(model, optimizer)
    on_mesh = layout.on_mesh(local, mesh, (P(),), layout.specs(abstract))
    return jax.jit(on_mesh, out_shardings=layout.shardings(abstract, mesh)).trace(seed)


def train_step(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    state: TrainState,
    tokens_BS: Int[Array, "B S"],
    learning_rate: Float[Array, ""],
    layout: Layout = ONE_DEVICE,
    mesh: Mesh | None = None,
    noise_parts: int = 0,
    accumulate: int = 1,
) -> tuple[TrainState, Float[Array, "M"]]:
    """The next state and METRICS as one array. Gradients are clipped to a global norm (grad_norm is before).

    With `noise_parts` the gradient is the mean over so many parts of the batch, and `noise.ESTIMATES` follow METRICS.
    With `accumulate` it is too, one part's activations at a time: the same to rounding with less memory.

    If the loss or the gradient norm is not finite, the state comes back as it was, its step count included: the metrics
    then show that number, an update norm of 0 and the norm of the unchanged parameters. The choice is part of the
    update's own pass over memory.

    The optimizer is written for whole matrices, and under a mesh jax cuts it; the model's transfers are the layout's.
    """
    if not noise_parts and accumulate == 1:
        grads, parts = gradients(model, optimizer.z_loss, state.params, tokens_BS, layout, mesh)
        return finish(model, optimizer, state, grads, parts, learning_rate)

    def of_part(params: decoder.Decoder, part_BS: Array) -> tuple[decoder.Decoder, Parts]:
        return gradients(model, optimizer.z_loss, params, part_BS, layout, mesh)

    grads, parts, small_sq = noise.gradients_of_parts(of_part, state.params, tokens_BS, noise_parts or accumulate)
    if not noise_parts:
        return finish(model, optimizer, state, grads, parts, learning_rate)
    seen = tokens_BS.shape[0] * (tokens_BS.shape[1] - 1)

    def more(grad_norm: Array) -> tuple[Array, ...]:
        return noise.estimate(small_sq, grad_norm**2, seen // noise_parts, seen)

    return finish(model, optimizer, state, grads, parts, learning_rate, more)


def finish(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    state: TrainState,
    grads: decoder.Decoder,
    parts: Parts,
    learning_rate: Float[Array, ""],
    more: Callable[[Array], Sequence[Array]] = lambda grad_norm: (),
) -> tuple[TrainState, Float[Array, "M"]]:
    """The next state and METRICS from a gradient of the whole batch: clipping, the optimizer, and what to log.

    `more` gives further metrics from the gradient's norm. Arrays are whole; a mesh's cuts are the caller's shardings.
    """
    grad_norm = optax.tree.norm(grads)
    further = more(grad_norm)
    finite = jnp.isfinite(parts.loss) & jnp.isfinite(grad_norm)
    scale = clip_scale(optimizer, grad_norm)
    params, moments, updates = update(
        model, optimizer, state.params, state.optimizer, grads, scale, finite, learning_rate
    )
    update_norm = jnp.where(finite, optax.tree.norm(updates), 0.0)
    metrics = jnp.stack([*parts, grad_norm, update_norm, optax.tree.norm(params), *further])
    return TrainState(state.step + finite.astype(jnp.int32), params, moments), metrics


def clip_scale(optimizer: OptimizerConfig, grad_norm: Float[Array, ""]) -> Float[Array, ""]:
    """What a gradient is multiplied by so that its norm is at most clip_norm."""
    return jnp.minimum(1.0, optimizer.clip_norm / jnp.maximum(grad_norm, 1e-12))


def update(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    params: decoder.Decoder,
    moments: Any,
    grads: decoder.Decoder,
    scale: Float[Array, ""],
    finite: Array,
    learning_rate: Float[Array, ""],
) -> tuple[decoder.Decoder, Any, decoder.Decoder]:
    """Parameters and moments after an update by the gradient times `scale`, and the update; as before if not finite.

    Nothing here reaches over leaves, so a Decoder may hold some of a model's parameters and have None for the others.
    """
    grads = jax.tree.map(lambda g: g * scale, grads)
    transformation = _optimizer(model, optimizer, params)
    updates, moments = transformation.update(
        grads, moments, cast(Any, params), learning_rate=learning_rate, finite=finite
    )
    return jax.tree.map(lambda p, u: jnp.where(finite, p + u, p), params, updates), moments, updates


def gradients(
    model: ModelConfig,
    z_loss: float,
    params: decoder.Decoder,
    tokens_BS: Int[Array, "B S"],
    layout: Layout = ONE_DEVICE,
    mesh: Mesh | None = None,
) -> tuple[decoder.Decoder, Parts]:
    """The gradient of the objective and its parts; under a mesh cut like the parameters."""

    def local(params: decoder.Decoder, tokens_BS: Array) -> tuple[decoder.Decoder, Parts]:
        def objective(params: decoder.Decoder) -> tuple[Array, Parts]:
            return decoder.loss(model, params, tokens_BS, z_loss, layout)

        grads, parts = jax.grad(objective, has_aux=True)(params)
        if layout.devices > 1:
            parts = Parts(*(jax.lax.psum(p, (DATA, MODEL)) for p in parts))
        return grads, parts

    if layout.devices == 1:
        return local(params, tokens_BS)
    assert mesh is not None
    specs = layout.specs(params)
    return layout.on_mesh(local, mesh, (specs, P(DATA)), (specs, P()))(params, tokens_BS)


def abstract_state(
    model: ModelConfig, optimizer: OptimizerConfig, layout: Layout = ONE_DEVICE, mesh: Mesh | None = None
) -> TrainState:
    """Shapes and types of a state, and under a mesh where each leaf lies. Nothing is allocated."""
    abstract = jax.eval_shape(lambda: init_state(model, optimizer, 0))
    if mesh is None:
        return abstract
    lies = layout.shardings(abstract, mesh)
    return jax.tree.map(lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), abstract, lies)


def trace_step(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    state: TrainState,
    batch: int,
    context: int,
    layout: Layout = ONE_DEVICE,
    mesh: Mesh | None = None,
    noise_parts: int = 0,
    accumulate: int = 1,
) -> Any:
    """The step for one batch size, traced (a jax.stages.Traced: its jaxpr, and `lower()`); the state is donated."""

    def step(state: TrainState, tokens_BS: Array, learning_rate: Array) -> tuple[TrainState, Array]:
        return train_step(model, optimizer, state, tokens_BS, learning_rate, layout, mesh, noise_parts, accumulate)

    tokens = jax.ShapeDtypeStruct((batch, context + 1), jnp.int32)
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    if mesh is None:
        return jax.jit(step, donate_argnums=0).trace(state, tokens, rate)
    whole = NamedSharding(mesh, P())
    lies = layout.shardings(state, mesh)
    jitted = jax.jit(
        step,
        donate_argnums=0,
        in_shardings=(lies, NamedSharding(mesh, P(DATA)), whole),
        out_shardings=(lies, whole),
    )
    return jitted.trace(state, tokens, rate)


def compile_step(
    model: ModelConfig,
    optimizer: OptimizerConfig,
    state: TrainState,
    batch: int,
    context: int,
    layout: Layout = ONE_DEVICE,
    mesh: Mesh | None = None,
    noise_parts: int = 0,
    accumulate: int = 1,
) -> Any:
    """The step for one batch size, compiled ahead; the state is donated."""
    traced = trace_step(model, optimizer, state, batch, context, layout, mesh, noise_parts, accumulate)
    return traced.lower().compile()
