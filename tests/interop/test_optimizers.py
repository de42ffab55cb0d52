"""The optimizers against PyTorch's, step by step on the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="make test-interop installs PyTorch")

from areca.config import OptimizerConfig  # noqa: E402
from areca.train.optimizer import make_optimizer  # noqa: E402


def _ours(config: OptimizerConfig, params, axes, gradients, rates):
    """The parameters after a step for each of `gradients`, by our optimizer."""
    params = jax.tree.map(jnp.asarray, params)
    optimizer = make_optimizer(config, axes)
    state = optimizer.init(params)
    for gradient, rate in zip(gradients, rates, strict=True):
        gradient = jax.tree.map(jnp.asarray, gradient)
        updates, state = optimizer.update(gradient, state, params, learning_rate=jnp.float32(rate))
        params = jax.tree.map(jnp.add, params, updates)
    return jax.tree.map(np.asarray, params)


def _theirs(make, params, gradients, rates):
    """The same by a PyTorch optimizer, over a list of arrays."""
    tensors = [torch.nn.Parameter(torch.tensor(p)) for p in params]
    optimizer = make(tensors)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        for tensor, g in zip(tensors, gradient, strict=True):
            tensor.grad = torch.tensor(g)
        optimizer.step()
    return [t.detach().numpy() for t in tensors]


def _walk(shape: tuple[int, ...], steps: int, seed: int) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((steps + 1, *shape)).astype(np.float32)
    return draws[0], [g * np.float32(10.0 ** rng.uniform(-4, 1)) for g in draws[1:]]


def test_adam_with_decay_is_pytorchs_adamw():
    rates = [3e-3, 2e-3, 5e-3, 1e-3, 4e-3, 1e-2]
    p, gradients = _walk((5, 7), len(rates), seed=0)
    config = OptimizerConfig(name="adam", learning_rate=1e-2, momentum=0.9, beta2=0.95, weight_decay=0.1)
    ours = _ours(config, p, 0, gradients, rates)
    [theirs] = _theirs(
        lambda t: torch.optim.AdamW(t, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
        [p],
        [[g] for g in gradients],
        rates,
    )
    np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7)
    assert np.abs(ours - p).max() > 1e-2


def test_adafactor_without_factors_is_pytorchs_on_each_layers_vector():
    # PyTorch's Adafactor doesn't factorize vectors, and knows no momentum; `d` is its clipping of the update, which
    # PaLM leaves to the global norm. Three layers stacked here are three parameters there: each has a scale of its own.
    rates = [1e-2] * 8  # below PyTorch's own bound of step^-1/2
    p, gradients = _walk((3, 40), len(rates), seed=1)
    p = p * np.array([[1.0], [30.0], [1e-5]], np.float32)  # the last below the floor of the scale, 1e-3
    config = OptimizerConfig(name="adafactor", learning_rate=1e-2, momentum=0.0, weight_decay=0.0)
    ours = _ours(config, p, 1, gradients, rates)
    theirs = _theirs(
        lambda t: torch.optim.Adafactor(t, lr=1e-2, beta2_decay=-0.8, eps=(None, 1e-3), d=1e30, weight_decay=0.0),
        list(p),
        [list(g) for g in gradients],
        rates,
    )
    # Relative to each layer's own scale.
    for mine, other, start in zip(ours, theirs, p, strict=True):
        moved = np.abs(other - start).max()
        assert moved > 1e-5
        np.testing.assert_allclose(mine - start, other - start, atol=1e-4 * moved, rtol=0)
