"""How the next token is chosen from logits: likeliest, or drawn, each text of a batch by settings of its own.

Legend: B texts, V vocabulary.

A draw is the largest of logit / temperature + Gumbel noise over the tokens that top_k and top_p leave (which has the
probabilities of their softmax). The noise belongs to a token's id and the text's key alone, and what is left is found
by comparing, so a text's draws are the same whatever the settings of its neighbours are.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Key, UInt32

from areca.errors import ConfigError

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
class Settings:
    """The settings of every text of a batch, as `Sampling` has them; top_k is 0 for all."""

    temperature: Float[Array, "B"]
    top_k: Int[Array, "B"]
    top_p: Float[Array, "B"]


@jax.jit
def text_key(seed: Int[Array, ""], index: Int[Array, ""]) -> UInt32[Array, "2"]:
    """The key data of text `index` of a seed: folded from (seed, purpose, text)."""
    return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), DRAW), index))


def pick(logits_BV: Float[Array, "B V"], settings: Settings, key_B: Key[Array, "B"]) -> Int[Array, "B"]:
    """One token for each row. The likeliest of equals is the one of the lower id; top_k keeps what equals its last."""
    likeliest_B = _argmax(logits_BV)
    greedy_B = settings.temperature == 0

    def drawn() -> Array:
        V = logits_BV.shape[-1]
        score_BV = logits_BV / jnp.where(greedy_B, 1.0, settings.temperature)[:, None]
        k_B, p_B = settings.top_k, settings.top_p
        cut_B = ~greedy_B & ((k_B > 0) & (k_B < V) | (p_B < 1))
        score_BV = jax.lax.cond(jnp.any(cut_B), lambda: _cut(score_BV, k_B, p_B), lambda: score_BV)
        noise_BV = jax.vmap(lambda key: jax.random.gumbel(key, (V,), jnp.float32))(key_B)
        choice_B = _argmax(score_BV + noise_BV)
        return jnp.where(greedy_B, likeliest_B, choice_B)

    return jax.lax.cond(jnp.all(greedy_B), lambda: likeliest_B, drawn)


def _cut(score_BV: Array, k_B: Array, p_B: Array) -> Array:
    """The scores with -inf for what top_k, then top_p of what that leaves, takes away."""
    V = score_BV.shape[-1]
    rank_BV = _ordered(score_BV)
    k_B = jnp.where(k_B > 0, jnp.minimum(k_B, V), V)
    kept_BV = rank_BV >= _threshold(rank_BV, jnp.ones_like(score_BV), k_B.astype(jnp.float32))[:, None]
    score_BV = jnp.where(kept_BV, score_BV, -jnp.inf)

    def nucleus() -> Array:
        mass_BV = jnp.exp(score_BV - jnp.max(score_BV, axis=-1, keepdims=True))
        wanted_B = p_B * _sum(mass_BV)
        likely_BV = rank_BV >= _threshold(rank_BV, mass_BV, wanted_B)[:, None]
        return jnp.where(likely_BV | (p_B >= 1)[:, None], score_BV, -jnp.inf)

    return jax.lax.cond(jnp.any(p_B < 1), nucleus, lambda: score_BV)


def _threshold(rank_BV: Array, mass_BV: Array, wanted_B: Array) -> Array:
    """The largest rank at which the entries of that rank or more have the wanted mass; found bit by bit, no sort."""

    def bit(i: Array, found_B: Array) -> Array:
        larger_B = found_B | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        enough_B = _sum(jnp.where(rank_BV >= larger_B[:, None], mass_BV, 0.0)) >= wanted_B
        return jnp.where(enough_B, larger_B, found_B)

    return jax.lax.fori_loop(0, 32, bit, jnp.zeros(rank_BV.shape[0], jnp.uint32))


def _ordered(x: Array) -> Array:
    """float32 as uint32 of the same order."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))


def _sum(x_BV: Array) -> Array:
    """The sum of each row."""
    return jnp.sum(jnp.sum(_side_by_side(x_BV, 0.0), axis=1), axis=-1)


def _argmax(x_BV: Array) -> Array:
    """The first place of each row's largest; the last place where there is none (a row with NaN)."""
    V = x_BV.shape[1]
    largest_B = jnp.max(jnp.max(_side_by_side(x_BV, -jnp.inf), axis=1), axis=-1)
    place_BV = jnp.where(x_BV == largest_B[:, None], jnp.arange(V, dtype=jnp.int32)[None], V - 1)
    return jnp.min(jnp.min(_side_by_side(place_BV, V - 1), axis=1), axis=-1)


def _side_by_side(x_BV: Array, rest: float | int, lanes: int = 64) -> Array:
    """Each row as rows of `lanes`, to be reduced one by one first: the CPU vectorises that, one long reduction not."""
    B, V = x_BV.shape
    return jnp.pad(x_BV, ((0, 0), (0, -V % lanes)), constant_values=rest).reshape(B, -1, lanes)


__all__ = ["Sampling", "Settings", "pick", "text_key"]
