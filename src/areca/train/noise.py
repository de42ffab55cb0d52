"""The gradient noise scale B_simple = tr(Sigma) / |G|^2 of McCandlish et al. 2018, measured in training.

G is the true gradient and Sigma the covariance of one token's gradient about it, so B_simple is the batch, in tokens,
at which a step's noise is as large as its signal. Both come from one step (their appendix A.1): the squared norm of the
gradient of a part of the batch, and that of the whole, differ by tr(Sigma) alone. Each step's two estimates are
unbiased, their ratio is not, so numerator and denominator are smoothed apart.

Legend: B sequences, S context + 1.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from areca.config import RunConfig
from areca.errors import ConfigError

ESTIMATES = ("noise_trace", "noise_grad_sq")  # of one step: tr(Sigma) of a token, |G|^2
SMOOTHING = 0.98  # of the running means: about 50 steps
MOST_PARTS = 8


def gradients_of_parts(
    gradient: Callable[[Any, Array], tuple[Any, Any]], params: Any, tokens_BS: Array, parts: int
) -> tuple[Any, Any, Array]:
    """The mean over equal parts of the batch of `gradient(params, part)`, a (gradient, whatever else), and the mean of
    the parts' squared gradient norms.

    The whole batch's gradient is then a sum over parts, in order: equal to the one computed at once to rounding.
    """

    def one(total: Any, part_BS: Array) -> tuple[Any, tuple[Any, Array]]:
        grads, rest = gradient(params, part_BS)
        return jax.tree.map(jnp.add, total, grads), (rest, optax.tree.norm(grads, squared=True))

    rows = tokens_BS.reshape(parts, tokens_BS.shape[0] // parts, *tokens_BS.shape[1:])
    total, (rest, squares) = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), rows)
    mean = jax.tree.map(lambda g: g / parts, total)
    return mean, jax.tree.map(lambda r: jnp.mean(r, axis=0), rest), jnp.mean(squares)


def estimate(small_sq: Any, big_sq: Any, small: int, big: int) -> tuple[Any, Any]:
    """ESTIMATES from the squared norms of the gradients of batches of `small` and `big` tokens; either may be negative.

    E|G_B|^2 = |G|^2 + tr(Sigma) / B at both sizes, solved for the two unknowns.
    """
    trace = (small_sq - big_sq) / (1.0 / small - 1.0 / big)
    grad_sq = (big * big_sq - small * small_sq) / (big - small)
    return trace, grad_sq


class NoiseScale:
    """B_simple in tokens along a run, a function of the metrics up to a step; `rows` are those of the steps before."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self._trace = self._grad_sq = 0.0
        for row in rows:
            self.observe(row)

    def observe(self, row: Mapping[str, Any]) -> float | None:
        """The ratio of the running means with this step's estimates, None while it says nothing.

        What the means lack at first for having begun at zero is the same factor in both.
        """
        trace, grad_sq = (row.get(name) for name in ESTIMATES)
        if trace is not None and grad_sq is not None and math.isfinite(trace) and math.isfinite(grad_sq):
            self._trace += (1.0 - SMOOTHING) * (trace - self._trace)
            self._grad_sq += (1.0 - SMOOTHING) * (grad_sq - self._grad_sq)
        return self._trace / self._grad_sq if self._trace > 0 and self._grad_sq > 0 else None


def parts_for(config: RunConfig, most: int = MOST_PARTS) -> int:
    """The most parts, up to `most`, that every batch of a run can be cut into evenly on its devices."""
    batches = [batch for _, batch in config.batch.ramp]
    data = config.parallel.data
    for parts in range(most, 1, -1):
        if all(batch % (parts * data) == 0 for batch in batches):
            return parts
    raise ConfigError(
        f"batch.ramp has batches of {', '.join(map(str, batches))} sequences, which {data} "
        f"device{'s' if data > 1 else ''} can't all cut into 2 to {most} equal parts; the noise scale needs batches "
        "that can be cut, such as multiples of 8."
    )


def check(config: RunConfig) -> None:
    """ConfigError unless the batches can be cut into `noise_parts`, or into those of `batch.accumulate`."""
    parts, many = config.noise_parts, config.batch.accumulate
    if many < 1:
        raise ConfigError(f"batch.accumulate is {many}; it must be at least 1.")
    if parts < 0 or parts == 1:
        raise ConfigError(
            f"noise_parts is {parts}; give 2 or more parts of a batch, or 0 not to measure the noise scale."
        )
    if many > 1 and parts:
        raise ConfigError(
            f"batch.accumulate is {many} and noise_parts {parts}, which computes a batch in parts too; set one of "
            "them only."
        )
    name, number = ("noise_parts", parts) if parts else ("batch.accumulate", many)
    data = config.parallel.data
    for _, batch in config.batch.ramp:
        if number > 1 and batch % (number * data):
            on = f" on {data} devices" if data > 1 else ""
            raise ConfigError(
                f"{name} is {number}, which does not cut a batch of {batch} sequences{on} into equal parts; choose one "
                "that does."
            )
