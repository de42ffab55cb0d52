"""One token after another: keys and values of earlier positions are cached, and several steps are one program.

Legend: B texts (lanes), T position, S cached position, D model width, H heads, G key-value heads, K head width,
F feed-forward width, V vocabulary, X columns of joined kernels, N tokens drawn in one call.

Two functions, each compiled once for its shapes: `prefill` reads a text, `advance` draws some tokens of every lane that
has any left, with the choice inside the program. The weights are those of `areca.model.prepared`, and where they are
packed products and attention are kernels of ours. The bookkeeping of lanes is in `areca.model.lanes`.
"""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, UInt32

from areca.kernels import attention as kernels
from areca.kernels.product import Packed
from areca.model import decoder
from areca.model.attention import attention, rotate_halves
from areca.model.config import ModelConfig
from areca.model.prepared import Layer, Weights, times, times_columns
from areca.model.sampling import Settings, pick

MOST = 16  # tokens that a call of `advance` draws of each lane


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Rotated keys, and values, of every layer; what lies past a text's last position is never read."""

    key: tuple[Float[Array, "B S G K"], ...]
    value: tuple[Float[Array, "B S G K"], ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """Where each text of a batch is. One without tokens left is computed, and not looked at."""

    token: Int[Array, "B"]  # the last of the text, still to be read
    position: Int[Array, "B"]  # where it is read
    left: Int[Array, "B"]  # tokens that may be drawn
    drawn: Int[Array, "B"]  # tokens drawn before, folded into the key
    key: UInt32[Array, "B 2"]
    settings: Settings


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Drawn:
    """What a call of `advance` drew; -1 where a lane had nothing left. `scores` are there if they were asked for."""

    token: Int[Array, "B N"]
    score: Float[Array, "B N"] | None  # log-probability of the token, in nats, before temperature and cuts
    top_token: Int[Array, "B N C"] | None  # the likeliest
    top_score: Float[Array, "B N C"] | None


def empty_cache(config: ModelConfig, lanes: int, length: int) -> Cache:
    """Room for `length` positions of each lane."""
    c = config.resolved()
    return _zeros((lanes, length, c.n_kv_heads, c.head_dim), c.n_layers, decoder.compute_dtype())


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _zeros(shape: tuple[int, ...], layers: int, dtype: jnp.dtype) -> Cache:
    zeros = tuple(jnp.zeros(shape, dtype) for _ in range(2 * layers))
    return Cache(zeros[:layers], zeros[layers:])


def cache_bytes(config: ModelConfig, lanes: int, length: int) -> int:
    """Bytes of such a cache: 2 L B S G K numbers."""
    c = config.resolved()
    return 2 * c.n_layers * lanes * length * c.n_kv_heads * c.head_dim * decoder.compute_dtype().itemsize


@functools.partial(jax.jit, static_argnums=0)
def prefill(config: ModelConfig, weights: Weights, tokens_T: Int[Array, "T"]) -> Cache:
    """Keys and values of a text that is padded on the right to T: a cache of one lane, for `place`.

    One text at a time: a text's numbers then depend on its own length alone, and on the CPU several at once are no
    faster.
    """
    c = config.resolved()
    T = tokens_T.shape[0]
    x_BTD = _embed(weights, tokens_T[None], jnp.arange(T)[None])
    angles = decoder.angles_at(c, T)
    keys, values = [], []

    def attend(q: Array, k: Array, v: Array) -> Array:
        keys.append(k)
        values.append(v)
        return attention(q, k, v)

    for p in weights.layers[:-1]:
        x_BTD = _block(c, p, x_BTD, angles, attend)
    key, value = _keys_and_values(c, weights.layers[-1], x_BTD, angles)
    return Cache((*keys, key), (*values, value))


@functools.partial(jax.jit, donate_argnums=0)
def place(cache: Cache, read: Cache, lane: Int[Array, ""]) -> Cache:
    """The cache with what was read of a text at the beginning of a lane."""
    return jax.tree.map(lambda old, new: jax.lax.dynamic_update_slice(old, new, (lane, 0, 0, 0)), cache, read)


@functools.partial(jax.jit, static_argnums=1)
def resize(cache: Cache, length: int) -> Cache:
    """The cache with room for `length` positions; what lies past them is dropped."""

    def one(a: Array) -> Array:
        return jnp.pad(a[:, :length], ((0, 0), (0, max(0, length - a.shape[1])), (0, 0), (0, 0)))

    return jax.tree.map(one, cache)


@functools.partial(jax.jit, static_argnums=(0, 5, 6), donate_argnums=2)
def advance(
    config: ModelConfig, weights: Weights, cache: Cache, lanes: Lanes, steps: Int[Array, ""], stop: int, top: int
) -> tuple[Cache, Drawn]:
    """Draws at most `steps` (up to MOST) tokens of every lane that has any left.

    A lane ends at token `stop` (which is drawn), or with its `left`. Token n of a text is drawn with the key folded
    from (its key, n). With `top` 1 or more log-probabilities are found, of the token and of the `top` likeliest.
    """
    c = config.resolved()
    B, S = cache.key[0].shape[:2]
    table = decoder.angles_at(c, S)
    key_B = jax.random.wrap_key_data(lanes.key)
    some = jnp.zeros((B, MOST), jnp.float32)
    many = jnp.zeros((B, MOST, max(1, top)), jnp.float32)
    none = Drawn(
        jnp.full((B, MOST), -1, jnp.int32),
        some if top else None,
        many.astype(jnp.int32) if top else None,
        many if top else None,
    )

    def going(carry: tuple) -> Array:
        i, _, at, _ = carry
        return (i < steps) & jnp.any(at[2] > 0)

    def draw(carry: tuple) -> tuple:
        i, cache, (token_B, position_B, left_B, drawn_B), out = carry
        taken = jnp.max(jnp.where(left_B > 0, jnp.arange(1, B + 1, dtype=jnp.int32), 0))
        logits_BV, cache = _read(c, weights, cache, token_B, position_B, table, taken)
        new_B = pick(logits_BV, lanes.settings, jax.vmap(jax.random.fold_in)(key_B, drawn_B), weights.packed)
        active_B = left_B > 0
        out = _record(out, i, jnp.where(active_B, new_B, -1), logits_BV, top)
        one_B = active_B.astype(jnp.int32)
        left_B = jnp.where(new_B == stop, 0, left_B - one_B)
        return i + 1, cache, (jnp.where(active_B, new_B, token_B), position_B + one_B, left_B, drawn_B + one_B), out

    at = (lanes.token, lanes.position, lanes.left, lanes.drawn)
    _, cache, _, out = jax.lax.while_loop(going, draw, (jnp.int32(0), cache, at, none))
    return cache, out


def _record(out: Drawn, i: Array, token_B: Array, logits_BV: Array, top: int) -> Drawn:
    token_BN = out.token.at[:, i].set(token_B)
    if out.score is None or out.top_token is None or out.top_score is None:
        return Drawn(token_BN, None, None, None)
    score_BV = jax.nn.log_softmax(logits_BV, axis=-1)
    score_B = jnp.take_along_axis(score_BV, jnp.maximum(token_B, 0)[:, None], axis=1)[:, 0]
    top_score_BC, top_token_BC = jax.lax.top_k(score_BV, top)
    return Drawn(
        token_BN,
        out.score.at[:, i].set(score_B),
        out.top_token.at[:, i].set(top_token_BC),
        out.top_score.at[:, i].set(top_score_BC),
    )


def _read(
    c: ModelConfig,
    weights: Weights,
    cache: Cache,
    token_B: Array,
    position_B: Array,
    table: decoder.Angles,
    taken: Array,
) -> tuple[Array, Cache]:
    """Reads one token of each text at its own position below S: logits of the next, and the cache with it.

    Lanes from `taken` on have no text; kernels of ours leave them out.
    """
    B, S = cache.key[0].shape[:2]
    position_B1 = position_B[:, None]
    x_BTD = _embed(weights, token_B[:, None], position_B1)
    angles = None if table is None else (table[0][0][position_B1], table[1][0][position_B1])
    hidden_BS = jnp.arange(S)[None, :] > position_B1
    keys, values = [], []
    for p, key_BSGK, value_BSGK in zip(weights.layers, cache.key, cache.value, strict=True):

        def attend(q: Array, k: Array, v: Array, old_k: Array = key_BSGK, old_v: Array = value_BSGK) -> Array:
            rows = jnp.arange(B)
            keys.append(old_k.at[rows, position_B].set(k[:, 0]))
            values.append(old_v.at[rows, position_B].set(v[:, 0]))
            if weights.packed:
                return kernels.attend(q[:, 0], keys[-1], values[-1], position_B, taken)[:, None]
            return _attend_one(q, keys[-1], values[-1], hidden_BS)

        x_BTD = _block(c, p, x_BTD, angles, attend, taken)
    x_BD = decoder.layer_norm(x_BTD, c.norm_epsilon, weights.norm, weights.norm_bias)[:, 0]
    logits_BV = times(x_BD, weights.output, taken, jnp.dtype(jnp.float32))
    return logits_BV, Cache(tuple(keys), tuple(values))


def _embed(weights: Weights, tokens_BT: Array, position_BT: Array) -> Array:
    x_BTD = weights.embedding[tokens_BT]
    return x_BTD if weights.positions is None else x_BTD + weights.positions[position_BT]


def _block(
    c: ModelConfig,
    p: Layer,
    x_BTD: Array,
    angles: decoder.Angles,
    attend: Callable[[Array, Array, Array], Array],
    rows: Array | None = None,
) -> Array:
    """`areca.model.decoder.block` on joined kernels, for all rows or so many."""
    H, GK, F = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, c.d_ff
    qkv, mlp = [H, GK, GK], [F, F] if c.mlp == "swiglu" else [F]
    h_BTD = decoder.layer_norm(x_BTD, c.norm_epsilon, p.norm, p.norm_bias)
    if c.block == "parallel":
        outs = jax.lax.split(_product(h_BTD, p.into[0], p.into_bias[0], rows), qkv + mlp, axis=2)
        both = jnp.concatenate([_attended(c, outs[:3], angles, attend), _activated(outs[3:])], axis=2)
        return x_BTD + _product(both, p.out[0], p.out_bias[0], rows)
    outs = jax.lax.split(_product(h_BTD, p.into[0], p.into_bias[0], rows), qkv, axis=2)
    x_BTD = x_BTD + _product(_attended(c, outs, angles, attend), p.out[0], p.out_bias[0], rows)
    assert p.mlp_norm is not None
    h_BTD = decoder.layer_norm(x_BTD, c.norm_epsilon, p.mlp_norm, p.mlp_norm_bias)
    outs = jax.lax.split(_product(h_BTD, p.into[1], p.into_bias[1], rows), mlp, axis=2)
    return x_BTD + _product(_activated(outs), p.out[1], p.out_bias[1], rows)


def _keys_and_values(c: ModelConfig, p: Layer, x_BTD: Array, angles: decoder.Angles) -> tuple[Array, Array]:
    """What `attend` is given in a block, without the rest of it."""
    B, T, D = x_BTD.shape
    first, last = c.n_heads * c.head_dim, (c.n_heads + 2 * c.n_kv_heads) * c.head_dim
    h_MD = decoder.layer_norm(x_BTD, c.norm_epsilon, p.norm, p.norm_bias).reshape(B * T, D)
    out, bias = times_columns(h_MD, p.into[0], first, last), p.into_bias[0]
    if bias is not None:
        out = out + bias[None, first:last].astype(out.dtype)
    k_BTX, v_BTX = jnp.split(out.reshape(B, T, -1), 2, axis=2)
    return _heads(c, k_BTX, angles), _heads(c, v_BTX)


def _product(x_BTX: Array, kernel_XY: Array | Packed, bias_Y: Array | None, rows: Array | None) -> Array:
    B, T, X = x_BTX.shape
    out = times(x_BTX.reshape(B * T, X), kernel_XY, rows).reshape(B, T, -1)
    return out if bias_Y is None else out + bias_Y.astype(out.dtype)[None, None]


def _attended(
    c: ModelConfig, qkv: Sequence[Array], angles: decoder.Angles, attend: Callable[[Array, Array, Array], Array]
) -> Array:
    B, T, _ = qkv[0].shape
    q_BTHK, k_BTGK = (_heads(c, x, angles) for x in qkv[:2])
    return attend(q_BTHK, k_BTGK, _heads(c, qkv[2])).reshape(B, T, -1)


def _heads(c: ModelConfig, x_BTX: Array, angles: decoder.Angles = None) -> Array:
    """Heads side by side as an axis, rotated if there are angles."""
    x_BTHK = x_BTX.reshape(*x_BTX.shape[:2], -1, c.head_dim)
    if angles is None:
        return x_BTHK
    cos, sin = (a.astype(x_BTHK.dtype)[:, :, None] for a in angles)
    return rotate_halves(x_BTHK, cos, sin)


def _activated(inputs: Sequence[Array]) -> Array:
    return jax.nn.silu(inputs[0]) * inputs[1] if len(inputs) == 2 else jax.nn.gelu(inputs[0])


def _attend_one(q_BTHK: Array, k_BSGK: Array, v_BSGK: Array, hidden_BS: Array) -> Array:
    """Attention of one query position (T = 1) over the cached positions that are not hidden from it."""
    B, T, H, K = q_BTHK.shape
    q_BGXK = q_BTHK.reshape(B, k_BSGK.shape[2], -1, K)  # X heads share a key
    score_BGXS = jnp.einsum("bgxk,bsgk->bgxs", q_BGXK, k_BSGK, preferred_element_type=jnp.float32) / math.sqrt(K)
    p_BGXS = jax.nn.softmax(jnp.where(hidden_BS[:, None, None], -jnp.inf, score_BGXS), axis=-1)
    return jnp.einsum("bgxs,bsgk->bgxk", p_BGXS.astype(q_BTHK.dtype), v_BSGK).reshape(B, T, H, K)
