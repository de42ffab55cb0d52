"""The critical batch size from runs at several batches, and its law over loss (Kaplan et al. 2020, section 5.1).

A loss is reached in S steps or E = B S tokens, and over batches B

    (S / S_min - 1) (E / E_min - 1) = 1,        B_crit = E_min / S_min

(McCandlish et al. 2018, equation 2.11), which is S = S_min (1 + B_crit / B). S_min steps are needed with ever larger
batches, E_min tokens with ever smaller ones, twice either at B_crit. Over losses B_crit(L) = B* / L^(1 / a_B).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from areca.errors import DataError

Curve = Sequence[tuple[float, float]]  # (step, held-out loss) along a run


@dataclass(frozen=True)
class Tradeoff:
    """Steps against tokens to one loss; intervals are of `level`, by the delta method on the logarithms."""

    loss: float  # the target, nats a token
    batch: list[float]  # tokens a step, of the runs that reach it
    steps: list[float]
    s_min: float
    s_min_interval: list[float]
    e_min: float  # tokens
    e_min_interval: list[float]
    b_crit: float  # tokens
    b_crit_interval: list[float]
    log_b_crit_error: float  # standard error of ln B_crit
    scatter: float  # of ln S about the curve, one standard deviation
    within: bool  # whether B_crit lies between the smallest and the largest batch
    level: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class BatchLaw:
    """B_crit(L) = b_star / L^(1 / alpha) in tokens, L in nats a token."""

    b_star: float
    alpha: float
    alpha_interval: list[float]
    doubling: float  # the fall of loss, as a fraction, over which B_crit doubles: 1 - 2^-alpha
    doubling_interval: list[float]
    level: float

    def predict(self, loss: Any) -> np.ndarray:
        """Tokens at a loss."""
        return self.b_star * np.asarray(loss, float) ** (-1.0 / self.alpha)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def steps_to(curve: Curve, target: float) -> float | None:
    """The step at which a run's loss first reaches `target`, None if it never does.

    Between two evaluations the loss is a line in the logarithm of the step. A first evaluation that is below already
    says only that it came earlier, and gives None too.
    """
    for (s0, l0), (s1, l1) in pairwise(curve):
        if l0 <= target:
            return None
        if l1 <= target:
            return float(math.exp(np.interp(target, [l1, l0], [math.log(s1), math.log(s0)])))
    return None


def fastest(curves: Mapping[float, Sequence[Curve]], target: float) -> dict[float, float]:
    """For each batch (tokens a step) the fewest steps to `target` over its curves, which differ in learning rate."""
    reached = {b: [s for c in of if (s := steps_to(c, target)) is not None] for b, of in curves.items()}
    return {b: min(steps) for b, steps in sorted(reached.items()) if steps}


def fit_tradeoff(loss: float, batch: Sequence[float], steps: Sequence[float], *, level: float = 0.9) -> Tradeoff:
    """The trade-off to one loss by least squares on ln S. DataError for fewer than four batches."""
    b, s = np.asarray(batch, float), np.asarray(steps, float)
    if len(b) < 4 or len(np.unique(b)) < 4:
        raise DataError(
            f"the loss {loss:g} is reached at {len(np.unique(b))} batch sizes; a critical batch needs four."
        )
    if not (np.all(b > 0) and np.all(s > 0) and np.all(np.isfinite(b * s))):
        raise DataError(f"batches and steps to the loss {loss:g} must be positive numbers.")

    def residual(p: np.ndarray) -> np.ndarray:
        return p[0] + np.logaddexp(0.0, p[1] - np.log(b)) - np.log(s)

    starts = [np.array([np.log(s.min()), x]) for x in np.linspace(np.log(b.min()), np.log(b.max()), 5)]
    fit = min((least_squares(residual, x, xtol=1e-12, ftol=1e-12) for x in starts), key=lambda f: f.cost)
    free = max(1, len(b) - 2)
    scatter = math.sqrt(2 * fit.cost / free)
    covariance = scatter**2 * np.linalg.pinv(fit.jac.T @ fit.jac)
    wide = float(student.ppf(0.5 + level / 2, free))

    def around(direction: list[float]) -> tuple[float, list[float], float]:
        d = np.array(direction)
        value, error = float(d @ fit.x), float(math.sqrt(d @ covariance @ d))
        return math.exp(value), [math.exp(value - wide * error), math.exp(value + wide * error)], error

    (s_min, s_range, _), (b_crit, b_range, error), (e_min, e_range, _) = map(around, ([1, 0], [0, 1], [1, 1]))
    return Tradeoff(
        float(loss), b.tolist(), s.tolist(), s_min, s_range, e_min, e_range, b_crit, b_range, error, scatter,
        bool(b.min() <= b_crit <= b.max()), level,
    )  # fmt: skip


def fit_batch_law(tradeoffs: Sequence[Tradeoff], *, level: float = 0.9) -> BatchLaw:
    """B_crit(L) as a power law through the critical batches, each weighed by its error.

    Where the fit leaves more scatter than the errors explain the interval widens to it. Targets of one set of runs are
    not independent of each other, so it is still the narrower side of the truth. DataError for fewer than three losses.
    """
    if len({t.loss for t in tradeoffs}) < 3:
        raise DataError(f"B_crit is known at {len({t.loss for t in tradeoffs})} losses; its law needs three or more.")
    x, y = np.log([t.loss for t in tradeoffs]), np.log([t.b_crit for t in tradeoffs])
    error = np.maximum([t.log_b_crit_error for t in tradeoffs], 1e-6)
    design = np.stack([np.ones_like(x), -x], axis=1) / error[:, None]
    (log_b, power), *_ = np.linalg.lstsq(design, y / error, rcond=None)
    free = max(1, len(x) - 2)
    excess = float(np.sum((design @ [log_b, power] - y / error) ** 2)) / free
    slope_error = math.sqrt(np.linalg.inv(design.T @ design)[1, 1] * max(1.0, excess))
    wide = float(student.ppf(0.5 + level / 2, free))
    low, high = power - wide * slope_error, power + wide * slope_error

    def alpha(p: float) -> float:
        return 1.0 / p if p > 0 else math.inf

    alphas = [alpha(high), alpha(low)]
    return BatchLaw(
        b_star=math.exp(log_b),
        alpha=alpha(power),
        alpha_interval=alphas,
        doubling=1 - 2 ** -alpha(power),
        doubling_interval=[1 - 2**-a for a in alphas],
        level=level,
    )


def noise_at(losses: Sequence[float], trace: Sequence[float], grad_sq: Sequence[float], target: float) -> float | None:
    """B_simple in tokens where a run passes a loss: the ratio of the means of its estimates over the steps about it.

    `losses` are those of the steps in training; the steps taken are those within a tenth of the run of the one at which
    a running median of theirs first reaches `target`. None if it never does, or where no signal rises above the noise.
    """
    loss = np.asarray(losses, float)
    half = max(2, len(loss) // 40)
    smooth = np.array([np.median(loss[max(0, i - half) : i + half + 1]) for i in range(len(loss))])
    below = np.flatnonzero(smooth <= target)
    if not below.size:
        return None
    at, near = int(below[0]), max(5, len(loss) // 20)
    rows = slice(max(0, at - near), at + near + 1)
    top, bottom = float(np.mean(np.asarray(trace)[rows])), float(np.mean(np.asarray(grad_sq)[rows]))
    return top / bottom if top > 0 and bottom > 0 else None
