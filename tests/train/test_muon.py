"""Muon beside a Newton-Schulz iteration in numpy, matrix by matrix, and the parts of it that are Adam's."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.config import ModelConfig, OptimizerConfig
from areca.errors import ConfigError
from areca.model import decoder
from areca.model.counts import count_params, newton_schulz_flops
from areca.train.optimizer import make_optimizer
from areca.train.step import init_state, update

CONFIG = OptimizerConfig(name="muon", learning_rate=1.0, momentum=0.9, beta2=0.95, weight_decay=0.0, muon_scale="rms")
SHAPES = {
    "palm": ModelConfig(31, 12, 3, 2, head_dim=8, d_ff=20),
    "all the rest": ModelConfig(
        31, 16, 2, 4, head_dim=6, d_ff=24, n_kv_heads=2, block="serial", mlp="gelu", positions="learned",
        n_positions=9, tied=False, biases=True,
    ),
}  # fmt: skip
MATRICES = ("query", "key", "value", "gate", "up", "attention_out", "mlp_out")
RATES = (1.0, 0.5, 0.25)


def _newton_schulz(g: np.ndarray) -> np.ndarray:
    """Jordan's iteration in float64: five times X <- 3.4445 X - 4.775 (X X^T) X + 2.0315 (X X^T)^2 X."""
    x = g.astype(np.float64) / np.linalg.norm(g)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x - 4.775 * a @ x + 2.0315 * a @ a @ x
    return x


def _matrices(params, name: str) -> np.ndarray:
    """A leaf as [L, fan-in, fan-out]."""
    leaf = np.asarray(getattr(params.layers, name))
    if name == "attention_out":
        return leaf.reshape(len(leaf), -1, leaf.shape[-1])
    return leaf.reshape(*leaf.shape[:2], -1)


def _params(model: ModelConfig, seed: int = 1):
    shapes = jax.eval_shape(lambda: decoder.init(model.resolved(), jax.random.key(0)))
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape).astype(np.float32)), shapes)


def _steps(model: ModelConfig, config: OptimizerConfig, params, grads, finite=True):
    """The update of each step, and the last state."""
    shapes = jax.eval_shape(lambda: init_state(model.resolved(), config, 0).optimizer)
    state = jax.tree.map(lambda a: jnp.asarray(np.zeros(a.shape, a.dtype)), shapes)  # as every optimizer begins

    @jax.jit
    def step(params, state, grad, rate):
        return update(model.resolved(), config, params, state, grad, jnp.float32(1), jnp.asarray(finite), rate)

    found = []
    for grad, rate in zip(grads, RATES, strict=False):
        params, state, moved = step(params, state, grad, jnp.float32(rate))
        found.append(moved)
    return found, state


@pytest.mark.parametrize("name", SHAPES)
def test_every_layers_matrix_moves_by_its_own_orthogonal_momentum(name):
    model = SHAPES[name]
    params, grads = _params(model), [_params(model, seed) for seed in (2, 3, 4)]
    moved, _ = _steps(model, CONFIG, params, grads)
    for leaf in (m for m in MATRICES if getattr(params.layers, m) is not None):
        for layer in range(model.n_layers):
            average = 0.0
            for t, (grad, rate, ours) in enumerate(zip(grads, RATES, moved, strict=True), 1):
                g = _matrices(grad, leaf)[layer].astype(np.float64)
                average = 0.9 * average + 0.1 * g
                ahead = 0.9 * average / (1 - 0.9 ** (t + 1)) + 0.1 * g / (1 - 0.9**t)  # Nesterov, both without bias
                direction = _newton_schulz(ahead)
                size = 0.2 * np.sqrt(max(g.shape))
                np.testing.assert_allclose(_matrices(ours, leaf)[layer], -rate * size * direction, atol=2e-4 * size)
                # Jordan's coefficients bring singular values to 0.7 .. 1.2, if they were not too small at first.
                values = np.linalg.svd(_matrices(ours, leaf)[layer] / (rate * size), compute_uv=False)
                assert np.all((values > 0.3) & (values < 1.3))
                assert 0.6 < np.sqrt(np.mean(values**2)) < 1.2


def test_what_is_no_matrix_moves_as_adam_moves_it():
    model = SHAPES["all the rest"]
    params, grads = _params(model), [_params(model, seed) for seed in (2, 3, 4)]
    config = replace(CONFIG, weight_decay=0.1)
    ours, _ = _steps(model, config, params, grads)
    adam, _ = _steps(model, replace(config, name="adam", muon_scale="spectral"), params, grads)
    for a, b in zip(ours, adam, strict=True):
        rest_a, rest_b = (jax.tree_util.tree_leaves_with_path(t) for t in (a, b))
        same = {jax.tree_util.keystr(path): np.array_equal(x, y)
                for (path, x), (_, y) in zip(rest_a, rest_b, strict=True)}  # fmt: skip
        assert {name for name, equal in same.items() if not equal} == {f".layers.{m}" for m in MATRICES if m != "gate"}


def test_weight_decay_is_the_rate_times_it_of_every_parameter():
    model = SHAPES["palm"]
    params, grads = _params(model), [_params(model, 2)]
    [plain], _ = _steps(model, CONFIG, params, grads)
    [decayed], _ = _steps(model, replace(CONFIG, weight_decay=0.25), params, grads)
    jax.tree.map(lambda a, b, p: np.testing.assert_allclose(b, a - 0.25 * p, atol=2e-6), plain, decayed, params)


@pytest.mark.parametrize(("kind", "query", "mlp_out", "key"), [
    ("rms", 0.2 * 16**0.5, 0.2 * 20**0.5, 0.2 * 12**0.5), ("spectral", (16 / 12) ** 0.5, 1.0, 1.0),
])  # fmt: skip
def test_the_step_has_the_size_that_the_scale_names(kind, query, mlp_out, key):
    model = SHAPES["palm"]  # query 12 x 16, mlp_out 20 x 12, key 12 x 8
    [moved], _ = _steps(model, replace(CONFIG, muon_scale=kind), _params(model), [_params(model, 2)])
    for name, size in (("query", query), ("mlp_out", mlp_out), ("key", key)):
        values = np.linalg.svd(_matrices(moved, name), compute_uv=False) / size
        assert 0.6 < np.sqrt(np.mean(values**2)) < 1.2


def test_beyond_the_base_width_the_steps_norm_is_that_of_the_base():
    model = replace(SHAPES["palm"], base_width=3)  # four times the base
    params, grads = _params(model), [_params(model, 2)]
    for kind, factor in (("rms", 0.5), ("spectral", 1.0)):
        config = replace(CONFIG, muon_scale=kind)
        [wide], _ = _steps(model, config, params, grads)
        [base], _ = _steps(replace(model, base_width=0), config, params, grads)
        np.testing.assert_allclose(wide.layers.up, factor * base.layers.up, rtol=1e-6)
        np.testing.assert_array_equal(wide.embedding, base.embedding)


def test_a_step_that_is_not_finite_leaves_the_state_as_it_was():
    model = SHAPES["palm"]
    params, grads = _params(model), [_params(model, 2)]
    _, before = _steps(model, CONFIG, params, [])
    _, after = _steps(model, CONFIG, params, [jax.tree.map(lambda g: g * jnp.nan, grads[0])], finite=False)
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_it_keeps_one_moment_of_a_matrix_and_two_of_all_else():
    model = SHAPES["palm"].resolved()
    n = count_params(model)
    state = jax.eval_shape(lambda: init_state(model, CONFIG, 0)).optimizer
    moments = sum(a.size for a in jax.tree.leaves(state) if a.ndim)
    assert moments == 2 * n.total - n.attention - n.mlp


def test_its_flops_are_those_of_its_products():
    # One matrix 4 x 6 (m, n): X X^T 2 4 4 6, its square 2 4 4 4, times X 2 4 4 6; five times.
    one = 5 * (2 * 4 * 4 * 6 + 2 * 4 * 4 * 4 + 2 * 4 * 4 * 6)
    square = 5 * 6 * 4**3
    model = ModelConfig(9, 4, 1, 1, d_ff=6, mlp="gelu")  # query, key, value, out 4 x 4; up, mlp_out 4 x 6
    assert newton_schulz_flops(model) == 4 * square + 2 * one


def test_it_needs_a_beta2_for_adams_part():
    with pytest.raises(ConfigError, match=r"optimizer.name is 'muon', which needs optimizer.beta2"):
        make_optimizer(OptimizerConfig(name="muon"), None)
