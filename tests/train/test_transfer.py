"""muP (Yang et al. 2022): what is scaled with width, and that a step then moves wide and narrow models alike."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.config import ModelConfig, OptimizerConfig
from areca.model import decoder
from areca.train import step
from areca.train.optimizer import make_optimizer

ADAM = OptimizerConfig(name="adam", beta2=0.95, weight_decay=0.0)
TOKENS = np.random.default_rng(0).integers(0, 64, (8, 17)).astype(np.int32)


@pytest.mark.parametrize(("config", "factor"), [(OptimizerConfig(weight_decay=0.0), 0.5), (ADAM, 0.25)])
def test_hidden_matrices_of_a_model_four_times_as_wide_take_smaller_steps(config, factor):
    # Table 8: Adam's rate falls as 1 / width. Adafactor's step is relative to a matrix' size, which is width^-1/2.
    params = {"hidden": jnp.ones((4, 4)), "table": jnp.ones((4, 4))}
    moves = []
    for ratio in (1.0, 4.0):
        optimizer = make_optimizer(
            config, {"hidden": 0, "table": 0}, widening={"hidden": 1, "table": 0}, width_ratio=ratio
        )
        updates, _ = optimizer.update(params, optimizer.init(params), params, learning_rate=jnp.float32(0.01))
        moves.append(updates)
    np.testing.assert_allclose(moves[1]["hidden"], factor * moves[0]["hidden"], rtol=1e-6)
    np.testing.assert_array_equal(moves[1]["table"], moves[0]["table"])


def test_at_its_base_width_mup_is_palms_parametrization_to_the_bit():
    palm = ModelConfig(vocab_size=64, d_model=32, n_layers=1, n_heads=2).resolved()
    ends = []
    for model in (palm, replace(palm, base_width=32)):
        optimizer = OptimizerConfig()
        program = step.compile_step(model, optimizer, step.abstract_state(model, optimizer), 8, 16)
        state, _ = program(step.first_state(model, optimizer, 0), TOKENS, np.float32(0.02))
        ends.append(jax.tree.leaves(state.params))
    for a, b in zip(*ends, strict=True):
        np.testing.assert_array_equal(a, b)


def _moved(width: int, base: int) -> tuple[float, float]:
    """Root mean square of the logits at first, and of their change in three steps."""
    model = ModelConfig(vocab_size=64, d_model=width, n_layers=1, n_heads=width // 16, base_width=base).resolved()
    config = OptimizerConfig(weight_decay=0.0, clip_norm=1e9)
    first = step.first_state(model, config, 0)
    before = np.asarray(decoder.logits(model, first.params, TOKENS[:, :-1]))
    program = step.compile_step(model, config, step.abstract_state(model, config), 8, 16)
    state = first
    for _ in range(3):
        state, _ = program(state, TOKENS, np.float32(0.02))
    after = np.asarray(decoder.logits(model, state.params, TOKENS[:, :-1]))
    rms = lambda x: float(np.sqrt(np.mean(x**2)))  # noqa: E731
    return rms(before), rms(after - before)


def test_a_step_changes_logits_alike_at_every_width_under_mup_and_more_at_larger_ones_under_palms():
    narrow = _moved(32, 0)
    palm, mup = _moved(512, 0), _moved(512, 32)
    # Divided by sqrt(D) at first, or by D: smaller by the root of the ratio 16.
    assert mup[0] == pytest.approx(palm[0] / 4, rel=1e-3)
    assert palm[1] > 4 * narrow[1]  # seen: 5.8
    assert 0.4 < mup[1] / narrow[1] < 2.5  # seen: 0.56
