"""Attention and rotary positions against their definitions, written out plainly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.model.attention import QUERY_BLOCK, attention, pairs_to_halves, rope_angles, rotate_halves
from areca.train.ahead.transfers import equations, product_flops


def _plain(q_BTHK, k_BSGK, v_BSGK):
    """softmax(q k^T / sqrt(K)) v with the whole T x T matrix and no blocks, in float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q_BTHK, k_BSGK, v_BSGK))
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    score = jnp.einsum("bthk,bshk->bhts", q, k) / jnp.sqrt(jnp.float32(q.shape[-1]))
    seen = jnp.tril(jnp.ones(score.shape[-2:], bool))
    return jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(jnp.where(seen[None, None], score, -jnp.inf), axis=-1), v)


def _inputs(T: int, H: int, dtype=jnp.float32, B: int = 2, K: int = 4, G: int = 1):
    keys = jax.random.split(jax.random.key(T * 10 + H), 4)
    shapes = [(B, T, H, K), (B, T, G, K), (B, T, G, K), (B, T, H, K)]
    return [(2 * jax.random.normal(k, s)).astype(dtype) for k, s in zip(keys, shapes, strict=True)]


def _value_and_gradients(function, q, k, v, out_gradient):
    out, pull = jax.vjp(function, q, k, v)
    return [out, *pull(out_gradient.astype(out.dtype))]


# Around the block of 128 queries: within one, exactly one, one query more, two and a half.
# One key head for all, one each, one for two.
@pytest.mark.parametrize(
    ("T", "H", "G"),
    [(1, 1, 1), (1, 3, 1), (7, 2, 1), (128, 1, 1), (129, 1, 1), (129, 3, 1), (320, 2, 1), (129, 3, 3), (7, 4, 2)],
)
def test_values_and_gradients_are_those_of_plain_attention(T, H, G):
    assert QUERY_BLOCK == 128
    inputs = _inputs(T, H, G=G)
    ours = jax.jit(lambda *x: _value_and_gradients(attention, *x))(*inputs)
    plain = jax.jit(lambda *x: _value_and_gradients(_plain, *x))(*inputs)
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("T", "H"), [(256, 1), (9 * 128 + 5, 2), (10 * 128, 1)])
def test_looped_blocks_are_those_of_plain_attention(T, H, monkeypatch):
    # Nine blocks in stretches of two, the last of one, and five queries more; ten in stretches of two.
    monkeypatch.setattr("areca.model.attention.UNROLLED", 2)
    inputs = _inputs(T, H, B=1)
    looped = jax.jit(lambda *x: _value_and_gradients(attention, *x))(*inputs)
    plain = jax.jit(lambda *x: _value_and_gradients(_plain, *x))(*inputs)
    for a, b in zip(looped, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=2e-5)


def _equations_and_products(T):
    """Equations of the traced gradient, and FLOPs of its matrix products, for one head of width 4."""
    x = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(1, T, 1, 4)] * 4]
    jaxpr = jax.make_jaxpr(lambda *x: _value_and_gradients(attention, *x))(*x)
    return sum(1 for _ in equations(jaxpr)), product_flops(jaxpr)


def test_a_program_does_not_grow_with_a_long_context():
    assert _equations_and_products(32_768)[0] == _equations_and_products(4096)[0]
    assert _equations_and_products(2048)[0] < 2 * _equations_and_products(4096)[0]


@pytest.mark.parametrize(("T", "share"), [(128, 1), (512, 5 / 8), (2048, 17 / 32), (4096, 9 / 16), (32_768, 9 / 16)])
def test_hidden_scores_are_mostly_not_multiplied(T, share):
    # Two products forward and five backward (scores again, dP, dQ, dK, dV) of 2 T T K FLOPs each.
    assert _equations_and_products(T)[1] == share * 7 * 2 * T * T * 4


def test_bfloat16_agrees_to_its_precision():
    inputs = _inputs(129, 2, jnp.bfloat16)
    ours = jax.jit(lambda *x: _value_and_gradients(attention, *x))(*inputs)
    plain = jax.jit(lambda *x: _value_and_gradients(_plain, *x))(*inputs)
    for a, b in zip(ours, plain, strict=True):
        assert a.dtype == jnp.bfloat16
        error = np.linalg.norm(np.asarray(a, np.float32) - np.asarray(b, np.float32))
        assert error < 0.01 * np.linalg.norm(np.asarray(b, np.float32))


def test_scores_that_overflow_exp_are_harmless():
    q, k, v, _ = _inputs(5, 1)
    out = attention(1e4 * q, k, v)  # every query sees one source only: the one with the largest score
    best = jnp.argmax(
        jnp.where(jnp.tril(jnp.ones((5, 5), bool))[None], jnp.einsum("btk,bsk->bts", q[:, :, 0], k[:, :, 0]), -1e9), -1
    )
    np.testing.assert_allclose(
        out[:, :, 0], np.take_along_axis(np.asarray(v)[:, :, 0], np.asarray(best)[..., None], 1), atol=1e-6
    )


def _rotated(x_TK: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """RoFormer's equation 34: the pair (x[2i], x[2i+1]) as a complex number, turned by t theta^(-2i/K)."""
    K = x_TK.shape[-1]
    turn = np.exp(1j * positions[:, None] * theta ** (-np.arange(0, K, 2) / K))
    z = (x_TK[:, 0::2] + 1j * x_TK[:, 1::2]) * turn
    return np.stack([z.real, z.imag], axis=-1).reshape(x_TK.shape)


def test_rotating_halves_of_reordered_kernels_is_rotating_interleaved_pairs():
    rng = np.random.default_rng(0)
    T, D, K, theta = 9, 5, 8, 100.0
    h = rng.normal(size=(T, D))
    query, key = rng.normal(size=(D, K)), rng.normal(size=(D, K))
    expected = _rotated(h @ query, np.arange(T), theta) @ _rotated(h @ key, np.arange(T), theta).T
    cos, sin = rope_angles(T, K, theta)
    q, k = (
        rotate_halves(jnp.asarray(h, jnp.float32) @ pairs_to_halves(jnp.asarray(w, jnp.float32)), cos, sin)
        for w in (query, key)
    )
    np.testing.assert_allclose(q @ k.T, expected, atol=1e-4)


def test_scores_depend_on_relative_positions_only():
    rng = np.random.default_rng(1)
    q, k = (jnp.asarray(np.tile(rng.normal(size=8), (64, 1)), jnp.float32) for _ in range(2))
    cos, sin = rope_angles(64, 8, 10_000.0)
    score_TS = np.asarray(rotate_halves(q, cos, sin) @ rotate_halves(k, cos, sin).T)
    for distance in (0, 1, 7, 40):
        along = np.diagonal(score_TS, -distance)
        np.testing.assert_allclose(along, along[0], atol=2e-5)
    assert np.ptp([np.diagonal(score_TS, -d)[0] for d in range(40)]) > 0.5  # and do depend on those


def test_a_rotation_keeps_lengths():
    x = jax.random.normal(jax.random.key(3), (50, 6))
    cos, sin = rope_angles(50, 6, 10_000.0)
    np.testing.assert_allclose(
        jnp.linalg.norm(rotate_halves(x, cos, sin), axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5
    )


@pytest.mark.parametrize("width", [2, 6, 8])
def test_pairs_become_halves(width):
    order = np.asarray(pairs_to_halves(jnp.arange(width)[None]))[0]
    assert order.tolist() == [*range(0, width, 2), *range(1, width, 2)]
