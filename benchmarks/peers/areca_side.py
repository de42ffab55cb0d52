"""The step as Areca trains it: the compiled program of `areca.train.step`, through its public functions."""

from collections.abc import Callable
from typing import Any

import numpy as np

from peers.problem import Problem, batch, weights


def make(p: Problem, threads: int) -> Callable[[int], float]:
    """A function that takes the step of that index and returns its loss with z-loss."""
    from areca import runtime

    runtime.prepare(threads)
    import jax
    import jax.numpy as jnp

    from areca.config import OptimizerConfig
    from areca.train.step import TrainState, compile_step, init_state

    optimizer = OptimizerConfig(
        name="adam",
        learning_rate=p.learning_rate,
        momentum=p.beta1,
        beta2=p.beta2,
        clip_norm=p.clip_norm,
        weight_decay=0.0,
        z_loss=p.z_loss,
    )
    model, params = model_and_parameters(p)
    start = init_state(model, optimizer, seed=0)
    state = TrainState(start.step, params, start.optimizer)
    program = compile_step(model, optimizer, state, p.batch, p.context)
    rate = jnp.float32(p.learning_rate)

    def step(index: int) -> float:
        nonlocal state
        state, metrics = program(state, jax.device_put(batch(p, index)), rate)
        values = np.asarray(metrics)
        return float(values[0] + values[1])

    return step


def model_and_parameters(p: Problem) -> tuple[Any, Any]:
    """The problem's configuration and weights. Call areca.runtime.prepare first."""
    import jax.numpy as jnp

    from areca.config import ModelConfig
    from areca.model.decoder import Decoder, Layers

    model = ModelConfig(
        vocab_size=p.vocab_size,
        d_model=p.d_model,
        n_layers=p.n_layers,
        n_heads=p.n_heads,
        head_dim=p.head_dim,
        d_ff=p.d_ff,
        rope_theta=p.rope_theta,
        norm_epsilon=p.epsilon,
        base_width=0,
    )
    w = {name: jnp.asarray(value) for name, value in weights(p).items()}
    params = Decoder(
        embedding=w.pop("embedding"),
        layers=Layers(norm=jnp.ones((p.n_layers, p.d_model), jnp.float32), **w),
        norm=jnp.ones((p.d_model,), jnp.float32),
    )
    return model, params
