"""The fused cross-entropy against a plain one, closed forms, and every way of cutting it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.model import loss
from areca.model.loss import cross_entropy, token_losses


def _inputs(B: int = 2, T: int = 9, D: int = 6, V: int = 11):
    keys = jax.random.split(jax.random.key(V), 3)
    x = 3 * jax.random.normal(keys[0], (B, T, D))
    return x, jax.random.normal(keys[1], (V, D)), jax.random.randint(keys[2], (B, T), 0, V)


def _plain(x_BTD, e_VD, target_BT, z_loss):
    logit = jnp.einsum("btd,vd->btv", x_BTD, e_VD) / jnp.sqrt(jnp.float32(x_BTD.shape[-1]))
    log_z = jax.nn.logsumexp(logit, axis=-1)
    picked = jnp.sum(jax.nn.one_hot(target_BT, e_VD.shape[0]) * logit, axis=-1)
    return jnp.mean(log_z - picked) + z_loss * jnp.mean(log_z**2)


# All 18 rows at once, nine, six, one.
@pytest.mark.parametrize("chunks", [1, 2, 3, 18])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
def test_value_and_gradients_are_those_of_the_plain_loss(monkeypatch, chunks, z_loss):
    monkeypatch.setattr(loss, "chunks", lambda *_: chunks)
    x, e, target = _inputs()
    (ours, parts), grads = jax.value_and_grad(cross_entropy, argnums=(0, 1), has_aux=True)(x, e, target, z_loss)
    plain, expected = jax.value_and_grad(_plain, argnums=(0, 1))(x, e, target, z_loss)
    np.testing.assert_allclose(ours, plain, rtol=1e-6)
    np.testing.assert_allclose(parts.loss + parts.z_loss, ours, rtol=1e-6)
    for a, b in zip(grads, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5)
    assert cross_entropy(x, e, target, z_loss)[0] == pytest.approx(float(plain), rel=1e-6)  # without differentiation


@pytest.mark.parametrize(
    ("rows", "vocabulary", "width", "chunks"),
    [
        (4096, 8192, 1, 8),  # 128 MiB in all: 16 MiB each
        (4096, 8192, 1024, 4),  # as large as the gradient of the table
        (1, 8192, 64, 1),
        (18, 11, 6, 1),
        (127, 32_000, 8, 1),  # 16 MiB
        (127, 150_000, 8, 127),  # 5 would do, but a prime number of rows has no others
        (2, 4_000_000, 1, 2),  # one row is the least
        (4096, 257, 1, 8),  # 4 MiB in all: 1 MiB each would be 5, and 8 divides
    ],
)
def test_chunks_divide_the_rows_and_fit(rows, vocabulary, width, chunks):
    assert loss.chunks(rows, vocabulary, width) == chunks


def test_equal_logits_cost_the_logarithm_of_the_vocabulary():
    _, e, target = _inputs(V=32)
    total, parts = cross_entropy(jnp.zeros((2, 9, 6)), e, target, 1e-4)
    assert parts.loss == pytest.approx(math.log(32), rel=1e-6)
    assert parts.z_loss == pytest.approx(1e-4 * math.log(32) ** 2, rel=1e-6)
    assert total == pytest.approx(math.log(32) + 1e-4 * math.log(32) ** 2, rel=1e-6)


def test_the_gradient_scales_with_what_is_above_it():
    x, e, target = _inputs()
    grad = jax.grad(lambda x: cross_entropy(x, e, target, 0.1)[0])(x)
    thrice = jax.grad(lambda x: 3.0 * cross_entropy(x, e, target, 0.1)[0])(x)
    np.testing.assert_allclose(thrice, 3 * grad, rtol=1e-5)


def test_the_parts_add_nothing_to_the_gradient():
    x, e, target = _inputs()

    def objective(x, weight):
        total, parts = cross_entropy(x, e, target, 0.1)
        return total + weight * parts.loss - 2 * weight * parts.z_loss

    np.testing.assert_array_equal(jax.grad(objective)(x, 0.0), jax.grad(objective)(x, 5.0))


def test_logits_that_overflow_exp_are_harmless():
    x, e, target = _inputs()
    (total, _), grads = jax.value_and_grad(cross_entropy, argnums=(0, 1), has_aux=True)(1e4 * x, e, target, 1e-4)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in (total, *grads))
    assert total == pytest.approx(float(_plain(1e4 * x, e, target, 1e-4)), rel=1e-5)


def test_losses_of_positions_average_to_the_loss():
    x, e, target = _inputs()
    each = token_losses(x, e, target)
    assert each.shape == target.shape
    assert jnp.mean(each) == pytest.approx(float(cross_entropy(x, e, target, 0.0)[0]), rel=1e-6)
    alone = token_losses(x[1:, 4:5], e, target[1:, 4:5])
    np.testing.assert_allclose(alone[0, 0], each[1, 4], rtol=1e-5)


def test_bfloat16_activations_give_bfloat16_gradients_near_the_plain_ones():
    x, e, target = _inputs()
    low = x.astype(jnp.bfloat16), e.astype(jnp.bfloat16)
    grads = jax.grad(lambda x, e: cross_entropy(x, e, target, 1e-4)[0], argnums=(0, 1))(*low)
    expected = jax.grad(_plain, argnums=(0, 1))(*(a.astype(jnp.float32) for a in low), target, 1e-4)
    for a, b in zip(grads, expected, strict=True):
        assert a.dtype == jnp.bfloat16
        error = np.linalg.norm(np.asarray(a, np.float32) - np.asarray(b))
        assert error < 0.02 * np.linalg.norm(np.asarray(b))
