"""Text from a model: tokens drawn one at a time, with the keys and values of earlier positions kept in a cache.

Legend: B texts, T position, S cached position, D model width, H heads, G key-value heads, K head width, V vocabulary,
L layers, C candidates that a draw chooses among.

Two programs, compiled once for a shape: `prefill` reads whole prompts, padded to the context, `step` one token more of
each text. The cache is as long as the context that the model was trained on. A text that outgrows it goes on from its
last half context, read anew: positions the model never saw in training are not asked of it.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key

from areca.errors import ConfigError
from areca.model import decoder
from areca.model.attention import attention
from areca.model.config import ModelConfig

DRAW = 1  # the purpose folded into the seed's key (0 draws initial parameters)


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: from softmax(logits / temperature), cut to top_k tokens, then to mass top_p."""

    temperature: float = 0.8  # 0: always the likeliest
    top_k: int = 40  # of the likeliest tokens; 0: all
    top_p: float = 1.0  # the likeliest tokens that together reach this probability (Holtzman et al. 2020)

    def check(self) -> None:
        """Raises ConfigError for a setting that can't be followed."""
        if not (0 <= self.temperature < math.inf):
            raise ConfigError(f"temperature is {self.temperature}; it must be 0 (the likeliest token) or more.")
        if self.top_k < 0:
            raise ConfigError(f"top_k is {self.top_k}; give a number of tokens, or 0 for all.")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p is {self.top_p}; it must be more than 0 and at most 1 (all).")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Rotated keys, and values, of every layer; what lies past a text's last position is never read."""

    key: Float[Array, "L B S G K"]
    value: Float[Array, "L B S G K"]


def generate(
    config: ModelConfig,
    params: decoder.Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    context: int,
    sampling: Sampling = Sampling(),
    seed: int = 0,
    stop: int | None = None,
    vocabulary: int | None = None,
) -> list[list[int]]:
    """Continues every prompt by at most `tokens` tokens, and returns the continuations.

    Args:
        prompts: token ids, each from 1 to `context` - 1 of them.
        context: tokens the model was trained on at a time, and sees at most.
        seed: of the draws; that of token n of prompt i is folded from (seed, i, n), so it depends on no other prompt.
        stop: the token that ends a text (it is the last of its continuation).
        vocabulary: ids from here on are never drawn (a model's table may be longer than its tokenizer's).

    Raises:
        ConfigError: a setting, an empty or too long prompt, an id that the model does not have.
    """
    sampling.check()
    vocabulary = min(vocabulary or config.vocab_size, config.vocab_size)
    _check_prompts(prompts, tokens, context, vocabulary)
    if not prompts or not tokens:
        return [[] for _ in prompts]
    choose = functools.partial(_choose, sampling, vocabulary, jax.random.fold_in(jax.random.key(seed), DRAW))
    texts = [list(p) for p in prompts]
    first = [0] * len(texts)  # where in a text its cache begins
    done = [False] * len(texts)
    cache = logits_BV = None
    for n in range(tokens):
        seen = [len(t) - f for t, f in zip(texts, first, strict=True)]
        if cache is None or max(seen) > context:
            keep = max(1, context // 2)
            first = [len(t) - keep if s > context else f for t, f, s in zip(texts, first, seen, strict=True)]
            logits_BV, cache = _prefill(config, params, *_padded(texts, first, context))
        else:
            last_B = np.array([t[-1] for t in texts], np.int32)
            logits_BV, cache = _step(config, params, cache, last_B, np.array(seen, np.int32) - 1)
        for i, token in enumerate(np.asarray(choose(np.int32(n), logits_BV)).tolist()):
            if not done[i]:
                texts[i].append(token)
                done[i] = token == stop
        if all(done):
            break
    return [t[len(p) :] for t, p in zip(texts, prompts, strict=True)]


def prefill(
    config: ModelConfig, params: decoder.Decoder, tokens_BT: Int[Array, "B T"], length_B: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], Cache]:
    """Reads the first `length_B` tokens of each row: logits of the token after them, and a cache of T positions."""
    c = config.resolved()
    x_BTD = decoder.embed(params, params.embedding.astype(decoder.compute_dtype()), tokens_BT)
    angles = decoder.angles_at(c, tokens_BT.shape[1])

    def layer(x_BTD: Array, p: decoder.Layers) -> tuple[Array, Cache]:
        kept: list[Cache] = []

        def attend(q_BTHK: Array, k_BTGK: Array, v_BTGK: Array) -> Array:
            kept.append(Cache(k_BTGK, v_BTGK))
            return attention(q_BTHK, k_BTGK, v_BTGK)

        return decoder.block(c, p, x_BTD, angles, attend), kept[0]

    x_BTD, cache = jax.lax.scan(layer, x_BTD, params.layers)
    x_BD = x_BTD[jnp.arange(len(length_B)), length_B - 1]
    return _logits(c, params, x_BD), cache


def step(
    config: ModelConfig, params: decoder.Decoder, cache: Cache, token_B: Int[Array, "B"], position_B: Int[Array, "B"]
) -> tuple[Float[Array, "B V"], Cache]:
    """Reads one more token of each text, at its own position below S: logits of the next, and the cache with it."""
    c = config.resolved()
    B, S = cache.key.shape[1:3]
    table_VD = params.embedding.astype(decoder.compute_dtype())
    x_BTD = decoder.embed(params, table_VD, token_B[:, None], position_B[:, None])
    angles = decoder.angles_at(c, S, position_B[:, None])
    hidden_BS = jnp.arange(S)[None, :] > position_B[:, None]

    def layer(x_BTD: Array, inputs: tuple[decoder.Layers, Cache]) -> tuple[Array, Cache]:
        p, old = inputs
        new: list[Cache] = []

        def attend(q_BTHK: Array, k_BTGK: Array, v_BTGK: Array) -> Array:
            rows = jnp.arange(B)
            k_BSGK = old.key.at[rows, position_B].set(k_BTGK[:, 0])
            v_BSGK = old.value.at[rows, position_B].set(v_BTGK[:, 0])
            new.append(Cache(k_BSGK, v_BSGK))
            return _attend_one(q_BTHK, k_BSGK, v_BSGK, hidden_BS)

        return decoder.block(c, p, x_BTD, angles, attend), new[0]

    x_BTD, cache = jax.lax.scan(layer, x_BTD, (params.layers, cache))
    return _logits(c, params, x_BTD[:, 0]), cache


def pick(logits_BV: Float[Array, "B V"], sampling: Sampling, key_B: Key[Array, "B"]) -> Int[Array, "B"]:
    """One token for each row. Ties go to the lower id."""
    V = logits_BV.shape[-1]
    if sampling.temperature == 0:
        return jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
    score_BC, token_BC = jax.lax.top_k(logits_BV / sampling.temperature, min(sampling.top_k or V, V))
    if sampling.top_p < 1:
        p_BC = jax.nn.softmax(score_BC, axis=-1)
        likelier_BC = jnp.cumsum(p_BC, axis=-1) - p_BC  # 0 for the likeliest, which is always kept
        score_BC = jnp.where(likelier_BC < sampling.top_p, score_BC, -jnp.inf)
    choice_B = jax.vmap(jax.random.categorical)(key_B, score_BC)
    return jnp.take_along_axis(token_BC, choice_B[:, None], axis=-1)[:, 0]


def _attend_one(q_BTHK: Array, k_BSGK: Array, v_BSGK: Array, hidden_BS: Array) -> Array:
    """Attention of one query position (T = 1) over the cached positions that are not hidden from it."""
    B, T, H, K = q_BTHK.shape
    q_BGXK = q_BTHK.reshape(B, k_BSGK.shape[2], -1, K)  # X heads share a key
    score_BGXS = jnp.einsum("bgxk,bsgk->bgxs", q_BGXK, k_BSGK, preferred_element_type=jnp.float32) / math.sqrt(K)
    p_BGXS = jax.nn.softmax(jnp.where(hidden_BS[:, None, None], -jnp.inf, score_BGXS), axis=-1)
    return jnp.einsum("bgxs,bsgk->bgxk", p_BGXS.astype(q_BTHK.dtype), v_BSGK).reshape(B, T, H, K)


def _logits(config: ModelConfig, params: decoder.Decoder, x_BD: Array) -> Array:
    return decoder.unembed(params, decoder.last_norm(config, params, x_BD[:, None]))[:, 0]


_prefill = functools.partial(jax.jit, static_argnums=0)(prefill)
_step = functools.partial(jax.jit, static_argnums=0, donate_argnums=2)(step)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _choose(sampling: Sampling, vocabulary: int, key: Array, n: Array, logits_BV: Array) -> Array:
    """Token n of every text. A draw's key is folded from (seed, purpose, text, n)."""
    texts = jnp.arange(logits_BV.shape[0])
    key_B = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, i), n))(texts)
    return pick(logits_BV[:, :vocabulary], sampling, key_B)


def _padded(texts: list[list[int]], first: list[int], context: int) -> tuple[np.ndarray, np.ndarray]:
    """What the cache is to hold of each text, padded on the right, and how many tokens that is."""
    tokens_BT = np.zeros((len(texts), context), np.int32)
    length_B = np.array([len(t) - f for t, f in zip(texts, first, strict=True)], np.int32)
    for row, text, start, length in zip(tokens_BT, texts, first, length_B, strict=True):
        row[:length] = text[start:]
    return tokens_BT, length_B


def _check_prompts(prompts: Sequence[Sequence[int]], tokens: int, context: int, vocabulary: int) -> None:
    if tokens < 0:
        raise ConfigError(f"tokens is {tokens}; give the number of tokens to generate.")
    if context < 2:
        raise ConfigError(f"a model of context {context} can't continue a text; it needs at least 2.")
    for prompt in prompts:
        if not len(prompt):
            raise ConfigError("a prompt has no tokens; start from the token that ends documents.")
        if len(prompt) >= context:
            raise ConfigError(
                f"the prompt is {len(prompt)} tokens long and the model was trained on {context} at a time; "
                f"shorten it to at most {context - 1}."
            )
        if not all(0 <= t < vocabulary for t in prompt):
            raise ConfigError(f"the prompt has a token outside of the model's vocabulary of {vocabulary}.")
