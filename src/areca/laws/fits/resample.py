"""What a fit does not know: resampled fits of any form, and intervals on whatever follows from the parameters.

Four ways of drawing a sample:

- `parametric` (the default below 60 rows): the law is refitted to its own predictions plus normal noise. The noise
  has the residuals' standard deviation with n - p degrees of freedom, itself drawn anew for every sample from its
  chi-square distribution, which makes the intervals as wide as Student's t demands for a ladder of 12 to 20 runs.
  Pairs would leave some samples of so small a table without a size or a budget.
- `residual`: residuals are drawn with replacement, smoothed, and scaled to a standard deviation drawn as above. A fit
  of small delta passes through p of its rows, whose residuals of 0 make intervals of plain draws too narrow.
- `pairs` (the default from 60 rows): rows are drawn with replacement; it asks nothing of the noise.
- `cluster`: whole groups of rows (a budget, a series of runs, a laboratory) are drawn with replacement, because rows of
  one group may err together; one group fewer than there are, which widens the intervals by what G groups hide of their
  own spread (Rao and Wu 1988).

How often the intervals of each hold the truth: docs/what-the-intervals-mean.md, by benchmarks/coverage.py.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal, get_args

import numpy as np

from areca.errors import ConfigError, FitError
from areca.laws.fits.engine import Rows, evaluate, response
from areca.laws.fits.fitting import Fit, derived, descend, rows_of
from areca.laws.forms import Form

Method = Literal["auto", "parametric", "residual", "pairs", "cluster"]
PAIRS_FROM_ROWS = 60
MIN_GROUPS = 5
MAX_FAILED = 0.1
CLOSE = 3e-3  # relative gradient: a sample as near its optimum is off by far less than samples differ
EXACT = 1e-6  # scatter below which the rows are the law itself (made, not measured): nothing to resample
MOST_SAMPLES = 1_000_000
SMOOTHING = 0.5  # of drawn residuals: the normal noise added, in their standard deviations


@dataclass(frozen=True)
class Samples:
    """Resampled fits of a form."""

    form: Form
    theta: np.ndarray  # [S, p] parameters as searched
    sigma: np.ndarray  # [S] standard deviation of one row about the law in that sample
    method: str
    failed: int  # samples whose refit did not converge; they are left out

    def values(self) -> dict[str, np.ndarray]:
        """Each parameter by name, [S]."""
        return self.form.values(self.theta)

    def predict(self, **inputs: Any) -> np.ndarray:
        """[S, points]: the response of every sample at inputs that broadcast together."""
        return evaluate(self.form, self.values(), inputs)

    def of(self, quantity: Callable[[Any], Any]) -> np.ndarray:
        """[S]: any quantity of the parameters, which it reads as attributes."""
        return np.asarray(quantity(SimpleNamespace(**self.form.constants, **self.values())))

    def intervals(self, level: float = 0.90) -> dict[str, list[float]]:
        """Percentile intervals of the parameters and of the form's derived quantities."""
        check_level(level)
        values = self.values()
        return {name: interval(v, level) for name, v in {**values, **derived(self.form, values)}.items()}

    def standard_errors(self) -> dict[str, float]:
        """Standard deviations of the parameters over the samples."""
        return {name: float(v.std(ddof=1)) for name, v in self.values().items()}

    def new_row(self, level: float = 0.90, **inputs: float) -> tuple[float, float]:
        """(low, high): where the response of one new row falls with probability `level`."""
        at = self.predict(**inputs)[:, 0]
        if self.form.compare == "log":
            low, high = predictive(np.log(at), self.sigma, None, level)
            return float(np.exp(low)), float(np.exp(high))
        return predictive(at, self.sigma, None, level)


def resample(
    fit: Fit,
    data: Mapping[str, Any] | Any,
    *,
    samples: int = 1000,
    seed: int = 0,
    method: Method = "auto",
    groups: Sequence[Any] | None = None,
) -> Samples:
    """Refits the form to `samples` resampled tables by the objective of `fit`, all at once.

    `groups` names each row's group for `cluster`. FitError when more than a tenth of the refits do not converge.
    """
    if method not in get_args(Method):
        raise ConfigError(f"the bootstrap is {method!r}; choose one of {', '.join(map(repr, get_args(Method)))}.")
    if samples < 20:
        raise ConfigError(f"the bootstrap has {samples} samples; an interval needs at least 20.")
    if samples > MOST_SAMPLES:
        raise ConfigError(f"the bootstrap has {samples} samples; more than {MOST_SAMPLES:,} tell nothing new.")
    form, rows = fit.form, rows_of(fit.form, data)
    n, freedom = len(rows), fit.degrees_of_freedom
    if method == "auto":
        method = "pairs" if n >= PAIRS_FROM_ROWS else "parametric"
    if fit.sigma < EXACT:
        theta = np.repeat(fit.theta[None], samples, axis=0)
        return Samples(form, theta, np.full(samples, fit.sigma), "exact", 0)
    centre = fit.theta[None]
    expected = response(form, centre, rows.inputs)[0]
    residual = rows.target - expected
    generator = np.random.default_rng([seed, 0xB007])
    target, weight, sigma = rows.target, np.ones(n), np.full(samples, fit.sigma)
    if method in ("parametric", "residual"):
        sigma = fit.sigma * np.sqrt(freedom / generator.chisquare(freedom, samples))
        noise = generator.standard_normal((samples, n))
        if method == "residual":
            drawn = (residual - residual.mean())[generator.integers(0, n, (samples, n))] / residual.std()
            noise = (drawn + SMOOTHING * noise) / np.hypot(1.0, SMOOTHING)
        target = expected + sigma[:, None] * noise
    else:
        weight = _drawn(n, groups, method, samples, generator)
        sigma = np.sqrt((weight * residual**2).sum(axis=1) * n / weight.sum(axis=1) / freedom)
    theta, converged = refit(fit, rows, target, weight, samples)
    failed = int((~converged).sum())
    if failed > MAX_FAILED * samples:
        raise FitError(
            f"{failed} of {samples} bootstrap refits did not converge, so the intervals can't be trusted; "
            f"add runs over a wider range of {' and '.join(form.inputs)}, or try --objective l2."
        )
    return Samples(form, theta[converged], sigma[converged], method, failed)


def _drawn(
    n: int, groups: Sequence[Any] | None, method: str, samples: int, generator: np.random.Generator
) -> np.ndarray:
    """[samples, n]: how often each row is drawn."""
    if method == "pairs":
        labels, count = np.arange(n), n
    else:
        if groups is None or len(groups) != n:
            raise ConfigError(
                "the cluster bootstrap draws whole groups of rows; name the column that says which, with --group."
            )
        _, labels = np.unique(np.asarray(groups, dtype=object).astype(str), return_inverse=True)
        count = int(labels.max()) + 1
        if count < MIN_GROUPS:
            raise ConfigError(
                f"the cluster bootstrap draws groups and there are {count}; it needs at least {MIN_GROUPS}."
            )
    times = count if method == "pairs" else count - 1
    drawn = generator.multinomial(times, np.full(count, 1 / count), size=samples)
    return drawn[:, labels].astype(np.float64)


def refit(fit: Fit, rows: Rows, target: np.ndarray, weight: np.ndarray, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """(theta [S, p], converged [S]): each sample's law from the fit itself, and where that fails from beside it.

    In six simulated ladders of 12 to 24 runs no sample of 300 had a better optimum from the second start.
    """
    centre = np.repeat(fit.theta[None], samples, axis=0)
    found, _ = descend(fit.form, rows, centre, fit.objective, fit.delta, target=target, weight=weight)
    failed = np.flatnonzero(~found.converged)
    if failed.size:
        aside = np.array([-0.5 if p.log else -0.3 * v for p, v in zip(fit.form.parameters, fit.theta, strict=True)])
        part = [v[failed] if np.ndim(v) == 2 else v for v in (target, weight)]
        again, _ = descend(
            fit.form, rows, centre[failed] + aside, fit.objective, fit.delta, target=part[0], weight=part[1]
        )
        found.take(failed, again)
    return found.theta, found.converged | (found.gradient <= CLOSE)


def interval(values: np.ndarray, level: float) -> list[float]:
    """[low, high]: the central percentile interval."""
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail])
    return [float(low), float(high)]


def predictive(centre: np.ndarray, sigma: np.ndarray, weight: np.ndarray | None, level: float) -> tuple[float, float]:
    """(low, high) of one new row: quantiles of the mixture over samples of normals (centre [S], sigma [S]).

    Both sources are in it: the law's own uncertainty (the spread of `centre`) and the noise of a single row. The
    quantiles are computed, not drawn, so the interval has no noise beyond the samples'.
    """
    from scipy.optimize import root_scalar
    from scipy.special import ndtr

    check_level(level)
    sigma = np.maximum(sigma, 1e-12)
    weight = np.full(len(centre), 1 / len(centre)) if weight is None else weight
    span = 12 * sigma.max() + np.ptp(centre)

    def quantile(p: float) -> float:
        bracket = (centre.min() - span, centre.max() + span)
        return root_scalar(lambda v: weight @ ndtr((v - centre) / sigma) - p, bracket=bracket, method="brentq").root

    return float(quantile((1 - level) / 2)), float(quantile((1 + level) / 2))


def check_level(level: float) -> None:
    """ConfigError unless it is a probability."""
    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; a probability between 0 and 1 is needed, such as 0.9.")


__all__ = [
    "EXACT",
    "MOST_SAMPLES",
    "PAIRS_FROM_ROWS",
    "Method",
    "Samples",
    "check_level",
    "interval",
    "predictive",
    "resample",
]
