"""Causal attention of shared key-value heads, and rotary positions (PaLM section 2; Shazeer 2019; Su et al. 2021).

Legend: B batch, T query position, S source position, H heads, G key-value heads, K head width.

Scores are the only T x T arrays. They are made for a block of queries at a time against the sources that the block can
see, and are recomputed in the backward pass, so that they stay in cache and nothing of size T x T is kept.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

QUERY_BLOCK = 128  # queries whose scores exist at one time


def rope_angles(context: int, head_dim: int, theta: float) -> tuple[Array, Array]:
    """cos and sin of position x theta^(-2i/K), each [T, K/2] in float32."""
    frequency_k = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle_Tk = jnp.arange(context, dtype=jnp.float32)[:, None] * frequency_k[None, :]
    return jnp.cos(angle_Tk), jnp.sin(angle_Tk)


def pairs_to_halves(kernel: Array) -> Array:
    """Reorders the last axis from interleaved pairs (0 1)(2 3).. to halves 0 2 .. | 1 3 ..

    RoPE rotates interleaved pairs. Queries and keys meet only in their inner product, which any common order leaves
    alone, so the kernels are reordered (small) and the activations (large) are rotated as two contiguous halves.
    """
    *rest, width = kernel.shape
    return jnp.swapaxes(kernel.reshape(*rest, width // 2, 2), -1, -2).reshape(*rest, width)


def rotate_halves(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates the pairs (x[..., i], x[..., K/2 + i]) by the angles; cos and sin broadcast against [..., K/2]."""
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def attention(
    q_BTHK: Float[Array, "B T H K"], k_BSGK: Float[Array, "B S G K"], v_BSGK: Float[Array, "B S G K"]
) -> Float[Array, "B T H K"]:
    """softmax(q k^T / sqrt(K)) v with a causal mask; H / G heads in a row share a key and a value head.

    G = 1 is multi-query attention (Shazeer 2019), G = H multi-head, between them grouped (Ainslie et al. 2023).
    """
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    each = H // G  # heads that share a key: they are rows of one product, and groups are entries of a larger batch
    q_BRK = q_BTHK.reshape(B, T, G, each, K).swapaxes(1, 2).reshape(B * G, T * each, K)
    k_BSK, v_BSK = (x.swapaxes(1, 2).reshape(B * G, -1, K) for x in (k_BSGK, v_BSGK))
    out = _attention(q_BRK, k_BSK, v_BSK, each)
    return out.reshape(B, G, T, each, K).swapaxes(1, 2).reshape(B, T, H, K)


def _value(q_BRK: Array, k_BSK: Array, v_BSK: Array, heads: int) -> Array:
    return _forward(q_BRK, k_BSK, v_BSK, heads)[0]


_attention = jax.custom_vjp(_value, nondiff_argnums=(3,))


# Rows R are (query, head) in that order, T H of them: one matrix product serves all heads, since they share the keys.


def _blocks(rows: int, heads: int) -> list[tuple[int, int]]:
    step = QUERY_BLOCK * heads
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _probabilities(q_BRK: Array, k_BSK: Array, start: int, stop: int, heads: int) -> Array:
    """Attention of rows start..stop over the sources they see, [B, R, S], in float32."""
    sources = stop // heads
    score_BRS = jnp.einsum("brk,bsk->brs", q_BRK[:, start:stop], k_BSK[:, :sources], preferred_element_type=jnp.float32)
    query_R = jnp.arange(start, stop) // heads
    hidden_RS = query_R[:, None] < jnp.arange(sources)[None, :]
    score_BRS = jnp.where(hidden_RS[None], -jnp.inf, score_BRS * (1.0 / math.sqrt(q_BRK.shape[-1])))
    weight_BRS = jnp.exp(score_BRS - jnp.max(score_BRS, axis=-1, keepdims=True))
    return weight_BRS / jnp.sum(weight_BRS, axis=-1, keepdims=True)


def _forward(q_BRK: Array, k_BSK: Array, v_BSK: Array, heads: int) -> tuple[Array, tuple[Array, Array, Array]]:
    outs = []
    for start, stop in _blocks(q_BRK.shape[1], heads):
        p_BRS = _probabilities(q_BRK, k_BSK, start, stop, heads).astype(q_BRK.dtype)
        outs.append(jnp.einsum("brs,bsk->brk", p_BRS, v_BSK[:, : stop // heads]))
    return jnp.concatenate(outs, axis=1), (q_BRK, k_BSK, v_BSK)


def _backward(heads: int, saved: tuple[Array, Array, Array], d_BRK: Array) -> tuple[Array, Array, Array]:
    q_BRK, k_BSK, v_BSK = saved
    dtype = q_BRK.dtype
    S = k_BSK.shape[1]
    dqs = []
    dk_BKS = jnp.zeros(k_BSK.swapaxes(1, 2).shape, jnp.float32)
    dv_BKS = jnp.zeros_like(dk_BKS)
    for start, stop in _blocks(q_BRK.shape[1], heads):
        sources = stop // heads
        p_BRS = _probabilities(q_BRK, k_BSK, start, stop, heads)
        do_BRK = d_BRK[:, start:stop]
        dp_BRS = jnp.einsum("brk,bsk->brs", do_BRK, v_BSK[:, :sources], preferred_element_type=jnp.float32)
        ds_BRS = p_BRS * (dp_BRS - jnp.sum(p_BRS * dp_BRS, axis=-1, keepdims=True))
        ds_BRS = (ds_BRS * (1.0 / math.sqrt(q_BRK.shape[-1]))).astype(dtype)
        dqs.append(jnp.einsum("brs,bsk->brk", ds_BRS, k_BSK[:, :sources]))
        # As q^T ds, which the CPU multiplies several times faster than ds^T q.
        pad = ((0, 0), (0, 0), (0, S - sources))
        dk_BKS += jnp.pad(_outer(q_BRK[:, start:stop], ds_BRS), pad)
        dv_BKS += jnp.pad(_outer(do_BRK, p_BRS.astype(dtype)), pad)
    dk_BSK, dv_BSK = (g.swapaxes(1, 2).astype(dtype) for g in (dk_BKS, dv_BKS))
    return jnp.concatenate(dqs, axis=1), dk_BSK, dv_BSK


def _outer(a_BRK: Array, b_BRS: Array) -> Array:
    return jnp.einsum("brk,brs->bks", a_BRK, b_BRS, preferred_element_type=jnp.float32)


_attention.defvjp(_forward, _backward)
