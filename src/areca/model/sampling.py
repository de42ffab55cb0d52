"""How the next token is chosen from logits: likeliest, or drawn, each text of a batch by settings of its own.

Legend: B texts, V vocabulary.

A draw is where one number of the text's key, uniform below 1, falls among the probabilities of the tokens that top_k
and top_p leave. What is left is found by comparing, so a text's draws are the same whatever its neighbours' settings
are.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int, Key, UInt32

from areca.errors import ConfigError
from areca.kernels.threshold import threshold

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


def pick(
    logits_BV: Float[Array, "B V"], settings: Settings, key_B: Key[Array, "B"], ours: bool = False
) -> Int[Array, "B"]:
    """One token for each row. The likeliest of equals is the one of the lower id; top_k keeps what equals its last.

    Args:
        ours: find what is kept with a kernel of ours, on the CPU; it keeps the same.
    """
    likeliest_B = _argmax(logits_BV)
    greedy_B = settings.temperature == 0

    def drawn() -> Array:
        V = logits_BV.shape[-1]
        k_B, p_B = settings.top_k, settings.top_p
        few_B, likely_B = ~greedy_B & (k_B > 0) & (k_B < V), ~greedy_B & (p_B < 1)
        # Below the largest, so that no temperature is too low, and cut by the logits, so that none is too high.
        below_BV = logits_BV - jnp.take_along_axis(logits_BV, likeliest_B[:, None], axis=1)
        mass_BV = jnp.exp(below_BV / jnp.where(greedy_B, 1.0, settings.temperature)[:, None])

        def cut(mass_BV: Array, cut_B: Array, weight_BV: Array | None, wanted_B: Array) -> Array:
            find = threshold if ours else _threshold
            least = float(np.finfo(np.float32).tiny)  # or a share too small for float32 would be reached by nothing
            low_B = find(logits_BV, weight_BV, jnp.where(cut_B, jnp.maximum(wanted_B, least), -1.0))
            return jnp.where(logits_BV >= low_B[:, None], mass_BV, 0.0)

        def top_k() -> Array:
            return cut(mass_BV, few_B, None, k_B.astype(jnp.float32))

        mass_BV = jax.lax.cond(jnp.any(few_B), top_k, lambda: mass_BV)

        def top_p() -> Array:
            return cut(mass_BV, likely_B, mass_BV, p_B * _sum(mass_BV))

        mass_BV = jax.lax.cond(jnp.any(likely_B), top_p, lambda: mass_BV)
        return jnp.where(greedy_B, likeliest_B, _draw(mass_BV, jax.vmap(jax.random.uniform)(key_B)))

    return jax.lax.cond(jnp.all(greedy_B), lambda: likeliest_B, drawn)


def _threshold(score_BV: Array, weight_BV: Array | None, wanted_B: Array) -> Array:
    """`areca.kernels.threshold.threshold` for any device: all rows at once, bit by bit."""
    rank_BV = _ordered(score_BV)
    weight_BV = jnp.ones_like(score_BV) if weight_BV is None else weight_BV

    def bit(i: Array, found_B: Array) -> Array:
        larger_B = found_B | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        enough_B = _sum(jnp.where(rank_BV >= larger_B[:, None], weight_BV, 0.0)) >= wanted_B
        return jnp.where(enough_B, larger_B, found_B)

    found_B = jax.lax.fori_loop(0, 32, bit, jnp.zeros(rank_BV.shape[0], jnp.uint32))
    low_B = jax.lax.bitcast_convert_type(
        jnp.where(found_B >> 31 == 1, found_B & jnp.uint32((1 << 31) - 1), ~found_B), jnp.float32
    )
    return jnp.where((wanted_B < 0) | jnp.isnan(low_B), -jnp.inf, low_B)


def _draw(mass_BV: Array, uniform_B: Array) -> Array:
    """A token of each row with the probability of its mass: which of 64 columns it is in, then its place there."""
    mass_BNL = _side_by_side(mass_BV, 0.0)
    mass_BL = jnp.sum(mass_BNL, axis=1)
    column_B, rest_B = _reach(mass_BL, uniform_B * jnp.sum(mass_BL, axis=1))
    mass_BN = jnp.take_along_axis(mass_BNL, column_B[:, None, None], axis=2)[:, :, 0]
    place_B, _ = _reach(mass_BN, rest_B)
    return place_B * mass_BNL.shape[2] + column_B


def _reach(mass_BX: Array, target_B: Array) -> tuple[Array, Array]:
    """The first entry with a mass at which the sum passes the target, or else the last; what is left of it there."""
    sum_BX = jnp.cumsum(mass_BX, axis=1)
    place_X = jnp.arange(mass_BX.shape[1], dtype=jnp.int32)[None]
    last_B = jnp.max(jnp.where(mass_BX > 0, place_X, 0), axis=1)
    place_B = jnp.min(jnp.where((sum_BX > target_B[:, None]) & (mass_BX > 0), place_X, last_B[:, None]), axis=1)
    before_BX = sum_BX - mass_BX
    return place_B, target_B - jnp.take_along_axis(before_BX, place_B[:, None], axis=1)[:, 0]


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
