"""The best N and D for a budget under a fitted law, C = 6 N D, with intervals.

Of one form the optimum is closed (Hoffmann et al. 2022, equation 4). Of an average over couplings it is where the
averaged prediction is least, and its interval is of all forms' samples, each form with its weight.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from areca.errors import ConfigError
from areca.laws.fits.resample import check_level, interval

if TYPE_CHECKING:
    from areca.laws.fits.average import Average


@dataclass(frozen=True)
class Optimum:
    """N parameters without embeddings and D tokens of least predicted loss at C = 6 N D FLOPs."""

    flops: float
    n: float
    d: float
    loss: float  # nats per token, the law's prediction there
    intervals: dict[str, list[float]]  # of n, d and loss (the law's, without the noise of a run), at `level`
    level: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def optimum(average: "Average", flops: float, level: float = 0.90) -> Optimum:
    """The optimum at `flops`; ConfigError unless that is a positive number."""
    check_level(level)
    if not (np.isfinite(flops) and flops > 0):
        raise ConfigError(f"the budget is {flops} FLOPs; give a positive number, such as 1e20.")
    ends = [float(f.fit.frontier(flops)[0]) for f in average.forms]
    n = _least(average, flops, min(ends), max(ends))
    d = flops / 6 / n
    samples = [f.samples.frontier(flops)[0] for f in average.forms]
    weight = np.concatenate([np.full(len(v), f.weight / len(v)) for v, f in zip(samples, average.forms, strict=True)])
    of_n = weighted_interval(np.concatenate(samples), weight, level)
    at = np.concatenate([np.exp(f.samples.predict_log(n, d)[:, 0]) for f in average.forms])
    return Optimum(
        flops=float(flops),
        n=n,
        d=d,
        loss=float(average.predict(n, d)),
        intervals={
            "n": of_n,
            "d": [flops / 6 / of_n[1], flops / 6 / of_n[0]],
            "loss": weighted_interval(at, weight, level),
        },
        level=level,
    )


def _least(average: "Average", flops: float, low: float, high: float) -> float:
    """N between two where the averaged loss along the budget is least: each form's loss rises outside of them."""
    if high / low < 1 + 1e-9:
        return low
    for _ in range(4):
        n = np.geomspace(low, high, 201)
        k = int(np.argmin(average.predict(n, flops / 6 / n)))
        low, high = n[max(k - 1, 0)], n[min(k + 1, 200)]
    return float(np.sqrt(low * high))


def weighted_interval(values: np.ndarray, weight: np.ndarray, level: float) -> list[float]:
    """[low, high]: the central percentile interval of weighted values (equal weights: numpy's percentiles)."""
    if np.ptp(weight) == 0:
        return interval(values, level)
    order = np.argsort(values)
    below = np.cumsum(weight[order]) - weight[order] / 2
    tails: Sequence[float] = ((1 - level) / 2, (1 + level) / 2)
    return [float(v) for v in np.interp(tails, below / weight.sum(), values[order])]


__all__ = ["Optimum", "optimum", "weighted_interval"]
