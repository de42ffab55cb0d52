"""Next-token cross-entropy with z-loss, without keeping the logits (PaLM section 5: mean + 1e-4 log(Z)^2).

Legend: B batch, T position, D model width, V vocabulary, M rows (B T), C chunk of rows.

The gradient of a mean of cross-entropies is known as soon as the logits are, so both are computed in the forward pass,
a chunk of rows at a time; the backward pass only scales. Logits of one chunk exist at a time. Under a mesh a device has
its rows of x and of E: what is summed or compared over V goes over the devices that share x.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from areca.model.layout import MODEL, Layout

CHUNK_BYTES = 1 << 20  # of float32 logits at least: what stays in a core's cache


class Split(NamedTuple):
    """How rows of the embedding and of x are cut over the axes of a mesh; every device then holds its pieces."""

    vocabulary: int  # V without the padding that makes it a multiple of `model`
    data: int
    model: int

    @staticmethod
    def of(layout: Layout, vocabulary: int) -> "Split | None":
        return None if layout.devices == 1 else Split(vocabulary, layout.data, layout.model)

    def first(self, rows: int) -> Array:
        """The token id of this device's first row of the embedding, of `rows`."""
        return jax.lax.axis_index(MODEL) * rows if self.model > 1 else jnp.int32(0)

    def top(self, x: Array) -> Array:
        return jax.lax.pmax(x, MODEL) if self.model > 1 else x

    def sum(self, x: Array) -> Array:
        return jax.lax.psum(x, MODEL) if self.model > 1 else x


class Parts(NamedTuple):
    """The two terms of the training objective, to be logged apart. No gradient flows through them."""

    loss: Float[Array, ""]  # cross-entropy, nats a token
    z_loss: Float[Array, ""]


def cross_entropy(
    x_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    targets_BT: Int[Array, "B T"],
    z_loss: float,
    split: Split | None = None,
) -> tuple[Float[Array, ""], Parts]:
    """Mean over positions of -log p(target) + z_loss * log(Z)^2, in nats, and its parts; logits are x E^T / sqrt(D).

    With `split`, this device's share of them: B and V are its pieces, and the sum over all devices is the mean.

    The sum is differentiable in x and E, once. The parts are constants to differentiation: their gradients are not
    computed (for that of the cross-entropy alone, give z_loss 0).
    """
    D = x_BTD.shape[-1]
    total, loss, z = _cross_entropy(x_BTD.reshape(-1, D), embedding_VD, targets_BT.reshape(-1), z_loss, split)
    return total, Parts(jax.lax.stop_gradient(loss), jax.lax.stop_gradient(z))


def token_losses(
    x_BTD: Float[Array, "B T D"],
    embedding_VD: Float[Array, "V D"],
    targets_BT: Int[Array, "B T"],
    split: Split | None = None,
) -> Float[Array, "B T"]:
    """-log p(target) at each position, in nats, for evaluation."""
    B, T, D = x_BTD.shape
    loss_M, _ = _rows(x_BTD.reshape(-1, D), embedding_VD, targets_BT.reshape(-1), split)
    return loss_M.reshape(B, T)


def _value(x_MD: Array, e_VD: Array, target_M: Array, z_loss: float, split: Split | None) -> tuple[Array, Array, Array]:
    loss_M, log_z_M = _rows(x_MD, e_VD, target_M, split)
    return _total(loss_M, log_z_M, z_loss, split)


_cross_entropy = jax.custom_vjp(_value, nondiff_argnums=(3, 4))


def _total(loss_M: Array, log_z_M: Array, z_loss: float, split: Split | None) -> tuple[Array, Array, Array]:
    """The objective, then its two terms; with `split` this device's share of each."""
    loss, z = jnp.mean(loss_M), z_loss * jnp.mean(log_z_M**2)
    if split:
        loss, z = loss / (split.data * split.model), z / (split.data * split.model)
    return loss + z, loss, z


def _rows(x_MD: Array, e_VD: Array, target_M: Array, split: Split | None) -> tuple[Array, Array]:
    """Loss and log Z of each row."""
    logit_MV = _logits(x_MD, e_VD, split)
    if not split:
        log_z_M = jax.nn.logsumexp(logit_MV, axis=-1)
        return log_z_M - jnp.take_along_axis(logit_MV, target_M[:, None], axis=-1)[:, 0], log_z_M
    top_M = split.top(jnp.max(logit_MV, axis=-1))
    log_z_M = top_M + jnp.log(split.sum(jnp.sum(jnp.exp(logit_MV - top_M[:, None]), axis=-1)))
    return log_z_M - _picked(logit_MV, target_M, split), log_z_M


def _logits(x_MD: Array, e_VD: Array, split: Split | None) -> Array:
    """x E^T / sqrt(D) in float32; rows of E that only pad are given minus infinity."""
    logit_MV = jnp.einsum("md,vd->mv", x_MD, e_VD, preferred_element_type=jnp.float32) * (x_MD.shape[-1] ** -0.5)
    if not split or split.vocabulary % split.model == 0:
        return logit_MV
    V = e_VD.shape[0]
    return jnp.where((split.first(V) + jnp.arange(V) < split.vocabulary)[None, :], logit_MV, -jnp.inf)


def _picked(logit_MV: Array, target_M: Array, split: Split | None) -> Array:
    """The logit of each row's target, wherever it lies."""
    if not split:
        return jnp.take_along_axis(logit_MV, target_M[:, None], axis=-1)[:, 0]
    V = logit_MV.shape[1]
    local_M = target_M - split.first(V)
    here_M = (local_M >= 0) & (local_M < V)
    found_M = jnp.take_along_axis(logit_MV, jnp.clip(local_M, 0, V - 1)[:, None], axis=-1)[:, 0]
    return split.sum(jnp.where(here_M, found_M, 0.0))


def chunks(rows: int, vocabulary: int, width: int) -> int:
    """How many equal chunks of rows: a chunk's logits are about CHUNK_BYTES, or as large as the gradient of E.

    That gradient is read and written once a chunk, so smaller chunks would move more of it than of logits.
    """
    few = 4 * rows * vocabulary > 8 * CHUNK_BYTES  # too many for the cache whatever the chunk: fewer, larger ones
    chunk_bytes = max(16 * CHUNK_BYTES if few else CHUNK_BYTES, 4 * vocabulary * width)
    wanted = min(rows, max(1, -(-rows * vocabulary * 4 // chunk_bytes)))
    return next(n for n in range(wanted, rows + 1) if rows % n == 0)


def _forward(x_MD: Array, e_VD: Array, target_M: Array, z_loss: float, split: Split | None):
    M, D = x_MD.shape
    V = e_VD.shape[0]
    n = chunks(M, V, D)
    scale = D**-0.5
    each = scale / (M * split.data if split else M)  # the mean's 1 / M joins the scale
    first = split.first(V) if split else 0

    def chunk(de_DV: Array, rows: tuple[Array, Array]):
        x_CD, target_C = rows
        logit_CV = _logits(x_CD, e_VD, split)
        top_C = jnp.max(logit_CV, axis=-1)
        top_C = split.top(top_C) if split else top_C
        weight_CV = jnp.exp(logit_CV - top_C[:, None])
        sum_C = jnp.sum(weight_CV, axis=-1)
        sum_C = split.sum(sum_C) if split else sum_C
        log_z_C = top_C + jnp.log(sum_C)
        picked_C = _picked(logit_CV, target_C, split)
        # d/dlogit of (log Z - picked + z log Z^2) = p (1 + 2 z log Z) - [target].
        per_weight_C = (1.0 + 2.0 * z_loss * log_z_C) / sum_C * each
        is_target_CV = target_C[:, None] == (first + jnp.arange(V))[None, :]
        dlogit_CV = weight_CV * per_weight_C[:, None] - jnp.where(is_target_CV, each, 0.0)
        dlogit_CV = dlogit_CV.astype(x_CD.dtype)
        dx_CD = jnp.einsum("cv,vd->cd", dlogit_CV, e_VD)
        # As x^T dlogit: the CPU multiplies it three times faster than dlogit^T x.
        de_DV = de_DV + jnp.einsum("cd,cv->dv", x_CD, dlogit_CV, preferred_element_type=jnp.float32)
        return de_DV, (log_z_C - picked_C, log_z_C, dx_CD)

    zero_DV = jnp.zeros((D, V), jnp.float32)
    chunked = (x_MD.reshape(n, M // n, D), target_M.reshape(n, M // n))
    de_DV, (loss, log_z, dx) = jax.lax.scan(chunk, zero_DV, chunked)
    saved = (dx.reshape(M, D), de_DV.T.astype(e_VD.dtype))
    return _total(loss, log_z, z_loss, split), saved


def _backward(z_loss: float, split: Split | None, saved: tuple[Array, Array], cotangents: tuple[Array, Array, Array]):
    dx_MD, de_VD = saved
    g = cotangents[0]  # those of the parts are zero: cross_entropy lets no gradient through them
    return dx_MD * g.astype(dx_MD.dtype), de_VD * g.astype(de_VD.dtype), None


_cross_entropy.defvjp(_forward, _backward)
