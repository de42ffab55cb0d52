"""The decoder against a second one in numpy, and the symmetries it must have."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from areca.errors import ConfigError
from areca.model import decoder
from areca.model.config import ModelConfig
from areca.model.counts import count_params

# H K is not D, so that no axis can be taken for another: D 10, H K 12, F 14.
CONFIG = ModelConfig(vocab_size=37, d_model=10, n_layers=3, n_heads=3, head_dim=4, d_ff=14, rope_theta=50.0).resolved()
# Each of PaLM's choices switched, then all of them: GPT-2's decoder with PaLM's scale of logits.
SWITCHES = {
    "serial": {"block": "serial"},
    "multi-head": {"n_kv_heads": 3},
    "gelu": {"mlp": "gelu"},
    "learned": {"positions": "learned", "n_positions": 13},
    "untied": {"tied": False},
    "biases": {"biases": True},
}
SWITCHES["all"] = {name: value for switch in SWITCHES.values() for name, value in switch.items()}
WIDE = ModelConfig(vocab_size=512, d_model=96, n_layers=2, n_heads=4, head_dim=16, d_ff=200)


@pytest.fixture(scope="module")
def params() -> decoder.Decoder:
    drawn = jax.jit(lambda: decoder.init(CONFIG, jax.random.key(0)))()
    # Norm scales away from 1, so that one forgotten shows.
    scaled = [
        a * np.linspace(0.5, 1.5, CONFIG.d_model, dtype=np.float32)
        for a in map(np.asarray, (drawn.norm, drawn.layers.norm))
    ]
    return replace(drawn, norm=jnp.asarray(scaled[0]), layers=replace(drawn.layers, norm=jnp.asarray(scaled[1])))


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 12)).astype(np.int32)


def _float64(params):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), params)


def test_logits_are_those_of_the_reference(params, tokens):
    ours = jax.jit(lambda p, t: decoder.logits(CONFIG, p, t))(params, tokens)
    p = _float64(params)
    expected = np.stack([reference.logits(p, row, CONFIG.rope_theta, CONFIG.norm_epsilon) for row in tokens])
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(ours, expected, atol=2e-5)


def test_loss_and_its_gradient_are_those_of_the_reference(params, tokens):
    (total, parts), gradient = jax.jit(
        jax.value_and_grad(lambda p: decoder.loss(CONFIG, p, jnp.asarray(tokens), 0.01), has_aux=True)
    )(params)
    settings = (0.01, CONFIG.rope_theta, CONFIG.norm_epsilon)
    p = _float64(params)
    assert total == pytest.approx(reference.objective(p, tokens, *settings), rel=1e-6)
    assert parts.loss == pytest.approx(reference.objective(p, tokens, 0.0, *settings[1:]), rel=1e-6)
    # Along one random direction for each parameter, by central differences in float64.
    rng = np.random.default_rng(1)
    for name, leaf in jax.tree_util.tree_leaves_with_path(p):
        direction = rng.normal(size=leaf.shape)

        def moved(by: float, name=name, direction=direction):
            return jax.tree_util.tree_map_with_path(lambda path, a: a + by * direction if path == name else a, p)

        slope = (
            reference.objective(moved(1e-5), tokens, *settings) - reference.objective(moved(-1e-5), tokens, *settings)
        ) / 2e-5
        ours = next(g for n, g in jax.tree_util.tree_leaves_with_path(gradient) if n == name)
        assert np.sum(np.asarray(ours) * direction) == pytest.approx(slope, rel=2e-4, abs=1e-6), name


def _awakened(config: ModelConfig):
    """Parameters of which none is a constant, so that one forgotten shows."""
    drawn = jax.jit(lambda: decoder.init(config, jax.random.key(0)))()
    rng = np.random.default_rng(7)
    return jax.tree.map(lambda a: a + 0.2 * rng.normal(size=a.shape).astype(np.float32), drawn)


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_choice_is_that_of_the_reference(switch, tokens):
    config = replace(CONFIG, **SWITCHES[switch]).resolved()
    params = _awakened(config)
    settings = (config.rope_theta, config.norm_epsilon)
    expected = np.stack([reference.logits(_float64(params), row, *settings) for row in tokens])
    np.testing.assert_allclose(jax.jit(lambda p, t: decoder.logits(config, p, t))(params, tokens), expected, atol=3e-5)
    gradient = jax.jit(jax.grad(lambda p: decoder.loss(config, p, jnp.asarray(tokens), 0.01)[0]))(params)
    rng = np.random.default_rng(1)
    directions = jax.tree.map(lambda a: rng.normal(size=a.shape), params)

    def along(by: float) -> float:
        moved = jax.tree.map(lambda a, d: np.asarray(a, np.float64) + by * d, params, directions)
        return reference.objective(moved, tokens, 0.01, *settings)

    ours = sum(np.sum(np.asarray(g) * d) for g, d in zip(*map(jax.tree.leaves, (gradient, directions)), strict=True))
    assert ours == pytest.approx((along(1e-5) - along(-1e-5)) / 2e-5, rel=2e-4)


@pytest.mark.parametrize("switch", SWITCHES)
def test_parameters_of_each_choice_are_those_counted(switch):
    config = replace(CONFIG, **SWITCHES[switch]).resolved()
    shapes = jax.eval_shape(lambda: decoder.init(config, jax.random.key(0)))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count_params(config).total


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_kv_heads": 2}, "n_kv_heads is 2; it must divide n_heads 3"),
        ({"block": "both"}, "block is 'both'; choose one of 'parallel', 'serial'"),
        ({"positions": "learned"}, "n_positions is 0 with learned positions"),
        ({"n_positions": 8}, "n_positions is 8 with rope positions"),
    ],
)
def test_a_choice_that_can_not_be_is_named(changes, words):
    with pytest.raises(ConfigError, match=words):
        replace(CONFIG, **changes).resolved()


def test_losses_of_positions_average_to_the_loss(params, tokens):
    each = jax.jit(lambda p, t: decoder.losses(CONFIG, p, t))(params, tokens)
    total, _ = jax.jit(lambda p, t: decoder.loss(CONFIG, p, t, 0.0))(params, tokens)
    assert each.shape == (2, 11)
    assert jnp.mean(each) == pytest.approx(float(total), rel=1e-6)


def test_a_token_changes_nothing_before_it(params, tokens):
    logits = jax.jit(lambda t: decoder.logits(CONFIG, params, t))
    changed = tokens.copy()
    changed[:, 7] = (changed[:, 7] + 1) % CONFIG.vocab_size
    before, after = np.asarray(logits(tokens)), np.asarray(logits(changed))
    np.testing.assert_array_equal(before[:, :7], after[:, :7])
    assert np.all(np.abs(before[:, 7:] - after[:, 7:]).max(-1) > 1e-4)


def test_rows_of_a_batch_do_not_meet(params, tokens):
    logits = jax.jit(lambda t: decoder.logits(CONFIG, params, t))
    changed = tokens.copy()
    changed[0] = changed[0, ::-1]
    np.testing.assert_array_equal(logits(tokens)[1], logits(changed)[1])


def test_scanned_and_unrolled_layers_agree(params, tokens, monkeypatch):
    def run():
        return jax.jit(jax.value_and_grad(lambda p: decoder.loss(CONFIG, p, jnp.asarray(tokens))[0]))(params)

    unrolled = run()
    monkeypatch.setattr(decoder, "UNROLL_LIMIT", 0)
    scanned = run()
    for a, b in zip(jax.tree.leaves(unrolled), jax.tree.leaves(scanned), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("leaf", "std"),
    [
        ("embedding", 1.0),
        ("query", 96**-0.5),
        ("key", 96**-0.5),
        ("value", 96**-0.5),
        ("gate", 96**-0.5),
        ("up", 96**-0.5),
        ("attention_out", 64**-0.5),  # its inputs are H K
        ("mlp_out", 200**-0.5),
    ],
)
def test_initial_statistics(wide, leaf, std):
    values = np.asarray(getattr(wide, leaf, None) if leaf == "embedding" else getattr(wide.layers, leaf))
    # The standard error of a standard deviation is std / sqrt(2 n), that of a mean std / sqrt(n).
    assert values.std() == pytest.approx(std, rel=4 / math.sqrt(2 * values.size))
    assert abs(values.mean()) < 4 * std / math.sqrt(values.size)
    if leaf != "embedding":
        correlation = np.corrcoef(values[0].ravel(), values[1].ravel())[0, 1]
        assert abs(correlation) < 4 / math.sqrt(values[0].size)  # layers are drawn apart


@pytest.fixture(scope="module")
def wide() -> decoder.Decoder:
    return jax.jit(lambda: decoder.init(WIDE, jax.random.key(7)))()


def test_norm_scales_begin_at_one(wide):
    assert np.all(np.asarray(wide.norm) == 1)
    assert np.all(np.asarray(wide.layers.norm) == 1)


def test_kernels_of_one_fan_in_are_drawn_apart(wide):
    gate, up, key, value = (np.asarray(getattr(wide.layers, n)) for n in ("gate", "up", "key", "value"))
    assert abs(np.corrcoef(gate.ravel(), up.ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(key.ravel(), value.ravel())[0, 1]) < 0.1


def test_untrained_logits_have_unit_variance(wide):
    # x E^T / sqrt(D) of a normalised x; apart from the token's own, whose embedding is part of x.
    tokens = np.random.default_rng(2).integers(0, 512, (2, 32)).astype(np.int32)
    logits = np.asarray(jax.jit(lambda p, t: decoder.logits(WIDE, p, t))(wide, tokens))
    others = np.arange(512) != tokens[:, :, None]
    assert logits[others].std() == pytest.approx(1.0, abs=0.05)
