"""One training step: what it reports is what it did."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.config import ModelConfig, OptimizerConfig
from areca.model import decoder
from areca.train.step import METRICS, TrainState, compile_step, init_state, train_step

MODEL = ModelConfig(vocab_size=31, d_model=8, n_layers=2, n_heads=2, d_ff=12)
PALM = OptimizerConfig()
TOKENS = np.random.default_rng(0).integers(0, 31, (3, 9)).astype(np.int32)


@pytest.fixture(scope="module")
def start() -> TrainState:
    return jax.jit(lambda: init_state(MODEL, OptimizerConfig(), 0))()


def _step(state: TrainState, optimizer: OptimizerConfig = PALM, rate: float = 1e-2):
    state, metrics = jax.jit(lambda s, t, r: train_step(MODEL, optimizer, s, t, r))(state, TOKENS, jnp.float32(rate))
    return state, dict(zip(METRICS, map(float, metrics), strict=True))


def _norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


def test_metrics_are_those_of_the_step(start):
    after, metrics = _step(start)
    tokens = jnp.asarray(TOKENS)
    objective = jax.value_and_grad(lambda p: decoder.loss(MODEL, p, tokens, 1e-4), has_aux=True)
    (_, parts), grads = jax.jit(objective)(start.params)
    assert int(after.step) == 1
    assert metrics["loss"] == pytest.approx(float(parts.loss), rel=1e-6)
    assert metrics["z_loss"] == pytest.approx(float(parts.z_loss), rel=1e-6)
    assert metrics["grad_norm"] == pytest.approx(_norm(grads), rel=1e-5)
    assert metrics["param_norm"] == pytest.approx(_norm(after.params), rel=1e-5)
    moved = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b, np.float64), after.params, start.params)
    assert metrics["update_norm"] == pytest.approx(_norm(moved), rel=1e-3)


def test_clipping_scales_the_gradient_to_the_norm_and_reports_the_norm_before(start):
    # The second moment after the first step is the clipped gradient squared (beta2 is 0 then).
    free, clipped = (_step(start, OptimizerConfig(clip_norm=c)) for c in (float("inf"), 0.05))
    assert free[1]["grad_norm"] == clipped[1]["grad_norm"] > 0.05
    seen = [
        np.sqrt(sum(float(jnp.sum(v)) for v in jax.tree.leaves(s.optimizer.second_moment))) for s, _ in (free, clipped)
    ]
    assert seen[0] == pytest.approx(free[1]["grad_norm"], rel=1e-5)
    assert seen[1] == pytest.approx(0.05, rel=1e-5)


def test_a_gradient_within_the_norm_is_left_alone(start):
    a, b = (_step(start, OptimizerConfig(clip_norm=c))[0].params for c in (float("inf"), 1e6))
    assert all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_rate_of_zero_moves_nothing(start):
    after, metrics = _step(start, rate=0.0)
    assert metrics["update_norm"] == 0
    assert all(
        np.array_equal(a, b) for a, b in zip(jax.tree.leaves(after.params), jax.tree.leaves(start.params), strict=True)
    )


def test_every_optimizer_learns_a_batch_by_heart():
    others = [OptimizerConfig(name=name, beta2=0.95, weight_decay=0.0) for name in ("adam", "muon")]
    for optimizer in (OptimizerConfig(weight_decay=0.0), *others):
        state = jax.jit(lambda o=optimizer: init_state(MODEL, o, 0))()
        program = compile_step(MODEL, optimizer, jax.eval_shape(lambda s=state: s), 3, 8)
        rate = np.float32(0.1 if optimizer.name == "adafactor" else 1e-2)
        for _ in range(150):
            state, metrics = program(state, TOKENS, rate)
        assert int(state.step) == 150
        assert float(metrics[0]) < 0.5  # from more than ln 31 = 3.4


def test_the_seed_decides_the_parameters():
    def digest(seed: int) -> bytes:
        params = jax.jit(lambda k: decoder.init(MODEL, k))(jax.random.fold_in(jax.random.key(seed), 0))
        return b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))

    start = jax.jit(lambda: init_state(MODEL, OptimizerConfig(), 3))()
    assert digest(3) == b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(start.params))
    assert digest(3) != digest(4)


def test_stacking_of_the_real_parameters_is_declared(start):
    # Every leaf under `layers` stacks the layers along its first axis; no other leaf does.
    axes = decoder.parameter_axes(start.params)
    assert set(jax.tree.leaves(axes.layers)) == {1}
    assert jax.tree.leaves(replace(axes, layers=None)) == [0, 0]
    assert all(leaf.shape[0] == MODEL.n_layers for leaf in jax.tree.leaves(start.params.layers))


@pytest.mark.parametrize(
    "optimizer", [PALM, OptimizerConfig(name="adam", beta2=0.95), OptimizerConfig(name="muon", beta2=0.95)]
)
def test_a_step_that_is_not_finite_changes_nothing(start, optimizer):
    # A huge embedding overflows the logits; everything else, -0.0 included, must come back with the same bits.
    ready = jax.jit(lambda: init_state(MODEL, optimizer, 0))()
    ready, _ = _step(ready, optimizer)  # moments that are not zero
    params = jax.tree.map(lambda p: p.at[(0,) * p.ndim].set(-0.0), ready.params)
    params = replace(params, embedding=params.embedding.at[1].set(3e38))
    before = TrainState(ready.step, params, ready.optimizer)
    after, metrics = _step(before, optimizer)
    assert not np.isfinite(metrics["loss"])
    assert metrics["update_norm"] == 0.0
    assert int(after.step) == int(before.step) == 1
    bits = [[np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(s)] for s in (before, after)]
    assert bits[0] == bits[1]
    finite, _ = _step(ready, optimizer)
    assert int(finite.step) == 2


@pytest.mark.parametrize(
    "optimizer", [PALM, pytest.param(OptimizerConfig(name="adam", beta2=0.95), marks=pytest.mark.exhaustive)]
)
def test_keeping_the_state_costs_no_pass_over_memory(start, optimizer, monkeypatch):
    # Beside a step that takes everything for finite, so that XLA drops the choice: the same bytes are read and written.
    state = jax.eval_shape(lambda: init_state(MODEL, optimizer, 0))
    guarded = compile_step(MODEL, optimizer, state, 3, 8)
    monkeypatch.setattr(jnp, "isfinite", lambda x: jnp.ones_like(x, bool))
    bare = compile_step(MODEL, optimizer, state, 3, 8)
    parameters = sum(4 * leaf.size for leaf in jax.tree.leaves(state.params))
    extra = guarded.cost_analysis()["bytes accessed"] - bare.cost_analysis()["bytes accessed"]
    assert extra < 0.2 * parameters
