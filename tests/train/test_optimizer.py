"""PaLM's optimizer beside Adafactor in numpy, float64; Adam beside optax; and what stacking must not change."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from areca.config import OptimizerConfig
from areca.errors import ConfigError
from areca.train.optimizer import make_optimizer

SHAPES = {"table": (7, 4), "layers": (3, 4, 5), "scales": (3, 4), "scale": (4,)}
AXES = {"table": 0, "layers": 1, "scales": 1, "scale": 0}
RATES = (1e-2, 1e-2, 7e-3, 5e-3)


def _draw(seed: int, scale: float = 1.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {k: (scale * rng.normal(size=s)).astype(np.float32) for k, s in SHAPES.items()}


def _run(config: OptimizerConfig, axes: Any, params: Any, grads: list[Any], rates=RATES) -> list[Any]:
    """The parameters after each step."""
    transformation = make_optimizer(config, axes)

    @jax.jit
    def step(params, state, grad, rate):
        updates, state = transformation.update(grad, state, params, learning_rate=rate)
        return optax.apply_updates(params, updates), state

    params = jax.tree.map(jnp.asarray, params)
    state, found = transformation.init(params), []
    for grad, rate in zip(grads, rates, strict=False):
        params, state = step(params, state, grad, jnp.float32(rate))
        found.append(params)
    return found


def _adafactor(p: np.ndarray, grads: list[np.ndarray], decay: float, b1: float) -> list[np.ndarray]:
    """One matrix by the papers: Shazeer and Stern 2018, algorithm 4 without factors; PaLM section 5."""
    p = p.astype(np.float64)
    m, v, found = np.zeros_like(p), np.zeros_like(p), []
    for k, (g, rate) in enumerate(zip(grads, RATES, strict=True), start=1):
        beta2 = 1 - k**-0.8
        v = beta2 * v + (1 - beta2) * g.astype(np.float64) ** 2
        m = b1 * m + (1 - b1) * g / np.sqrt(v)
        p = p - rate * max(np.sqrt(np.mean(p**2)), 1e-3) * m - decay * rate**2 * p
        found.append(p)
    return found


@pytest.mark.parametrize(("decay", "b1"), [(1.0, 0.9), (0.0, 0.0)])
def test_adafactor_is_that_of_the_papers(decay, b1):
    params, grads = _draw(0), [_draw(k) for k in (1, 2, 3, 4)]
    ours = _run(OptimizerConfig(weight_decay=decay, momentum=b1), AXES, params, grads)
    for name, axes in AXES.items():
        slices = range(len(params[name])) if axes else [slice(None)]
        for i in slices:  # every slice of a stacked leaf is a matrix of its own
            expected = _adafactor(params[name][i], [g[name][i] for g in grads], decay, b1)
            for step, p in enumerate(expected):
                np.testing.assert_allclose(ours[step][name][i], p, rtol=2e-5, atol=1e-7)


def test_stacking_changes_nothing():
    stacked = _draw(0)["layers"] * np.array([1.0, 10.0, 0.1], np.float32)[:, None, None]  # each layer of its own size
    grads = [_draw(k)["layers"] for k in (1, 2, 3, 4)]
    config = OptimizerConfig()
    together = _run(config, {"w": 1}, {"w": stacked}, [{"w": g} for g in grads])
    apart = _run(config, [0, 0, 0], list(stacked), [list(g) for g in grads])
    for a, b in zip(together, apart, strict=True):
        np.testing.assert_allclose(a["w"], np.stack(b), rtol=1e-6)
    # And it matters: as one matrix, the layers would move alike.
    merged = _run(config, {"w": 0}, {"w": stacked}, [{"w": g} for g in grads])
    assert np.abs(merged[-1]["w"] - together[-1]["w"]).max() > 0.01


def test_the_first_step_moves_every_element_by_a_share_of_its_matrix():
    # beta2 is 0 at k = 1, so g / sqrt(v) is the sign of g.
    params, grads = _draw(0), [_draw(1)]
    after = _run(OptimizerConfig(momentum=0.9), AXES, params, grads, rates=(1e-2,))[0]
    table = params["table"]
    rms = np.sqrt(np.mean(table**2))
    np.testing.assert_allclose(
        after["table"], table - 1e-2 * 0.1 * rms * np.sign(grads[0]["table"]) - 1e-4 * table, rtol=1e-5
    )


def test_a_matrix_of_zeros_still_moves():
    # At the floor of the root mean square, 1e-3.
    after = _run(OptimizerConfig(), {"w": 0}, {"w": np.zeros((2, 3), np.float32)}, [{"w": np.ones((2, 3), np.float32)}])
    np.testing.assert_allclose(after[0]["w"], np.full((2, 3), -1e-2 * 0.1 * 1e-3), rtol=1e-5)


def test_a_gradient_of_zero_is_no_division_by_zero():
    zero = {"w": np.zeros((2, 3), np.float32)}
    params = {"w": np.ones((2, 3), np.float32)}
    after = _run(OptimizerConfig(), {"w": 0}, params, [zero, zero])
    np.testing.assert_allclose(after[1]["w"], (1 - 1e-4) ** 2, rtol=1e-6)  # decay alone, lr^2 a step


def test_a_fixed_beta2_takes_the_place_of_the_schedule():
    g = [{"w": np.full((1, 1), x, np.float32)} for x in (1.0, 3.0)]
    after = _run(
        OptimizerConfig(beta2=0.5, momentum=0.0, weight_decay=0.0), {"w": 0}, {"w": np.ones((1, 1), np.float32)}, g
    )
    first = 1 - 1e-2 * 1 / np.sqrt(0.5)
    second = first - 1e-2 * first * 3 / np.sqrt(0.25 + 4.5)
    assert float(after[1]["w"][0, 0]) == pytest.approx(second, rel=1e-6)


def test_adam_is_optax_adamw():
    params, grads = _draw(0), [_draw(k) for k in (1, 2, 3, 4)]
    config = OptimizerConfig(name="adam", momentum=0.9, beta2=0.95, weight_decay=0.1)
    ours = _run(config, AXES, params, grads)
    adamw = optax.inject_hyperparams(optax.adamw, static_args=("b1", "b2", "eps"))(
        0.0, b1=0.9, b2=0.95, weight_decay=0.1
    )
    theirs = jax.tree.map(jnp.asarray, params)
    state = adamw.init(theirs)
    for step, (grad, rate) in enumerate(zip(grads, RATES, strict=True)):
        state.hyperparams["learning_rate"] = jnp.float32(rate)
        with jax.numpy_dtype_promotion("standard"):  # adamw raises a float to an integer power
            updates, state = adamw.update(grad, state, theirs)
        theirs = optax.apply_updates(theirs, updates)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=1e-7), ours[step], theirs)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"clip_norm": 0.0}, "clip_norm is 0.0"),
        ({"momentum": 1.0}, "momentum 1.0"),
        ({"beta2": 1.0}, "beta2 1.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"z_loss": -1e-4}, "z_loss is -0.0001"),
        ({"muon_scale": "rms"}, "muon_scale is 'rms' and optimizer.name is 'adafactor'; only 'muon' has it"),
        ({"name": "adam", "beta2": 0.9, "muon_scale": "rms"}, "optimizer.name is 'adam'; only 'muon' has it"),
        ({"name": "adam"}, "needs optimizer.beta2"),
    ],
)
def test_settings_that_cannot_be_used_are_said(settings, says):
    with pytest.raises(ConfigError, match=says):
        make_optimizer(OptimizerConfig(**settings), AXES)
