"""Causal attention of shared key-value heads, and rotary positions (PaLM section 2; Shazeer 2019; Su et al. 2021).

Legend: B batch, T query position, S source position, H heads, G key-value heads, K head width.

Scores are the only T x T arrays. They are made for a block of queries at a time against the sources that the block can
see, and are recomputed in the backward pass, so that they stay in cache and nothing of size T x T is kept.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

QUERY_BLOCK = 128  # queries whose scores exist at one time
UNROLLED = 16  # blocks that a program writes out; a longer context loops over them, in STRETCHES equal stretches
STRETCHES = 8


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


def documents(tokens_BT: Int[Array, "B T"], end: int) -> Int[Array, "B T"]:
    """The number, in its sequence, of the document that each token belongs to; `end` is the token between documents.

    That token belongs to the document it comes before, as when text is drawn from it: there it is the first to be seen.
    """
    return jnp.cumsum((tokens_BT == end).astype(jnp.int32), axis=1)


def attention(
    q_BTHK: Float[Array, "B T H K"],
    k_BSGK: Float[Array, "B S G K"],
    v_BSGK: Float[Array, "B S G K"],
    document_BS: Int[Array, "B S"] | None = None,
) -> Float[Array, "B T H K"]:
    """softmax(q k^T / sqrt(K)) v with a causal mask; H / G heads in a row share a key and a value head.

    G = 1 is multi-query attention (Shazeer 2019), G = H multi-head, between them grouped (Ainslie et al. 2023). With
    `documents` a query sees sources of its own document only (T = S). Rotary positions need not begin anew with each:
    scores depend on the distance of query and source alone. As many products are made as without.
    """
    B, T, H, K = q_BTHK.shape
    G = k_BSGK.shape[2]
    each = H // G  # heads that share a key: they are rows of one product, and groups are entries of a larger batch
    q_BRK = q_BTHK.reshape(B, T, G, each, K).swapaxes(1, 2).reshape(B * G, T * each, K)
    k_BSK, v_BSK = (x.swapaxes(1, 2).reshape(B * G, -1, K) for x in (k_BSGK, v_BSGK))
    if document_BS is None:
        out = _attention(q_BRK, k_BSK, v_BSK, each)
    else:
        out = _within_documents(q_BRK, k_BSK, v_BSK, jnp.repeat(document_BS, G, axis=0), each)
    return out.reshape(B, G, T, each, K).swapaxes(1, 2).reshape(B, T, H, K)


def _value(q_BRK: Array, k_BSK: Array, v_BSK: Array, heads: int) -> Array:
    return _forward(q_BRK, k_BSK, v_BSK, heads)[0]


def _value_within(q_BRK: Array, k_BSK: Array, v_BSK: Array, document_BS: Array, heads: int) -> Array:
    return _forward(q_BRK, k_BSK, v_BSK, heads, document_BS)[0]


_attention = jax.custom_vjp(_value, nondiff_argnums=(3,))
_within_documents = jax.custom_vjp(_value_within, nondiff_argnums=(4,))


# Rows R are (query, head) in that order, T H of them: one matrix product serves all heads, since they share the keys.


def _stretches(rows: int, heads: int) -> list[tuple[int, int, int]]:
    """(first row, end, blocks) of each stretch; a last one has what is left of a block.

    Up to UNROLLED blocks each is a stretch of its own: about half of T x T is multiplied, and nothing loops. The blocks
    of a longer one see what the last of them sees: 9/16 of T x T, in a program that does not grow with T.
    """
    block = QUERY_BLOCK * heads
    whole = rows // block
    step = 1 if whole <= UNROLLED else -(-whole // STRETCHES)
    counts = [min(step, whole - first) for first in range(0, whole, step)]
    found = [(i * step * block, (i * step + n) * block, n) for i, n in enumerate(counts)]
    return found if whole * block == rows else [*found, (whole * block, rows, 1)]


def _probabilities(
    q_BRK: Array, k_BSK: Array, first: int | Array, heads: int, document_BS: Array | None = None
) -> Array:
    """Attention of the rows from `first` on over the sources that are given, [B, R, S], in float32."""
    score_BRS = jnp.einsum("brk,bsk->brs", q_BRK, k_BSK, preferred_element_type=jnp.float32)
    query_R = (first + jnp.arange(q_BRK.shape[1])) // heads
    hidden_RS = query_R[:, None] < jnp.arange(k_BSK.shape[1])[None, :]
    hidden_BRS = hidden_RS[None]
    if document_BS is not None:
        sources_BS = document_BS[:, : k_BSK.shape[1]]
        hidden_BRS = hidden_BRS | (document_BS[:, query_R][:, :, None] != sources_BS[:, None, :])
    score_BRS = jnp.where(hidden_BRS, -jnp.inf, score_BRS * (1.0 / math.sqrt(q_BRK.shape[-1])))
    weight_BRS = jnp.exp(score_BRS - jnp.max(score_BRS, axis=-1, keepdims=True))
    return weight_BRS / jnp.sum(weight_BRS, axis=-1, keepdims=True)


def _over_blocks(body: Callable[..., Any], total: Any, first: int, blocks: int, *rows: Array) -> tuple[Any, Array]:
    """(total, y_BRK) of `total, y = body(total, first, *rows)` for the blocks of a stretch in turn."""
    if blocks == 1:
        return body(total, first, *rows)
    B, R, K = rows[0].shape
    size = R // blocks
    cut = tuple(x.reshape(B, blocks, size, K).swapaxes(0, 1) for x in rows)
    firsts = first + size * jnp.arange(blocks)
    total, y = jax.lax.scan(lambda total, each: body(total, *each), total, (firsts, *cut))
    return total, y.swapaxes(0, 1).reshape(B, R, K)


def _forward(
    q_BRK: Array, k_BSK: Array, v_BSK: Array, heads: int, document_BS: Array | None = None
) -> tuple[Array, tuple[Array, Array, Array]]:
    outs = []
    for start, stop, blocks in _stretches(q_BRK.shape[1], heads):
        k_seen, v_seen = k_BSK[:, : stop // heads], v_BSK[:, : stop // heads]

        def block(
            _: None, first: int | Array, q_BRK: Array, k: Array = k_seen, v: Array = v_seen
        ) -> tuple[None, Array]:
            p_BRS = _probabilities(q_BRK, k, first, heads, document_BS).astype(q_BRK.dtype)
            return None, jnp.einsum("brs,bsk->brk", p_BRS, v)

        outs.append(_over_blocks(block, None, start, blocks, q_BRK[:, start:stop])[1])
    return jnp.concatenate(outs, axis=1), (q_BRK, k_BSK, v_BSK)


def _backward(
    heads: int, saved: tuple[Array, Array, Array], d_BRK: Array, document_BS: Array | None = None
) -> tuple[Array, Array, Array]:
    q_BRK, k_BSK, v_BSK = saved
    dtype = q_BRK.dtype
    B, S, K = k_BSK.shape
    dqs = []
    dk_BKS = jnp.zeros((B, K, S), jnp.float32)
    dv_BKS = jnp.zeros_like(dk_BKS)
    for start, stop, blocks in _stretches(q_BRK.shape[1], heads):
        seen = stop // heads
        k_seen, v_seen = k_BSK[:, :seen], v_BSK[:, :seen]

        def block(total: Any, first: int | Array, q_BRK: Array, do_BRK: Array, k: Array = k_seen, v: Array = v_seen):
            p_BRS = _probabilities(q_BRK, k, first, heads, document_BS)
            dp_BRS = jnp.einsum("brk,bsk->brs", do_BRK, v, preferred_element_type=jnp.float32)
            ds_BRS = p_BRS * (dp_BRS - jnp.sum(p_BRS * dp_BRS, axis=-1, keepdims=True))
            ds_BRS = (ds_BRS * (1.0 / math.sqrt(q_BRK.shape[-1]))).astype(dtype)
            # As q^T ds, which the CPU multiplies several times faster than ds^T q.
            outer = _outer(q_BRK, ds_BRS), _outer(do_BRK, p_BRS.astype(dtype))
            total = outer if total is None else jax.tree.map(jnp.add, total, outer)
            return total, jnp.einsum("brs,bsk->brk", ds_BRS, k)

        total = None if blocks == 1 else (jnp.zeros((B, K, seen), jnp.float32),) * 2
        (dk, dv), dq = _over_blocks(block, total, start, blocks, q_BRK[:, start:stop], d_BRK[:, start:stop])
        dqs.append(dq)
        pad = ((0, 0), (0, 0), (0, S - seen))
        dk_BKS += jnp.pad(dk, pad)
        dv_BKS += jnp.pad(dv, pad)
    dk_BSK, dv_BSK = (g.swapaxes(1, 2).astype(dtype) for g in (dk_BKS, dv_BKS))
    return jnp.concatenate(dqs, axis=1), dk_BSK, dv_BSK


def _outer(a_BRK: Array, b_BRS: Array) -> Array:
    return jnp.einsum("brk,brs->bks", a_BRK, b_BRS, preferred_element_type=jnp.float32)


def _forward_within(q_BRK: Array, k_BSK: Array, v_BSK: Array, document_BS: Array, heads: int) -> tuple[Array, Any]:
    out, saved = _forward(q_BRK, k_BSK, v_BSK, heads, document_BS)
    return out, (saved, document_BS)


def _backward_within(heads: int, saved: Any, d_BRK: Array) -> tuple[Array, Array, Array, None]:
    inputs, document_BS = saved
    return *_backward(heads, inputs, d_BRK, document_BS), None


_attention.defvjp(_forward, _backward)
_within_documents.defvjp(_forward_within, _backward_within)
