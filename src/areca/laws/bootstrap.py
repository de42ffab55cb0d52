"""What a fit does not know: bootstrap samples of the law, intervals on its parameters and on a new run's loss.

Three ways of drawing a sample:

- `parametric` (the default below 60 rows): the law is refitted to its own predictions plus normal noise. The noise
  has the residuals' standard deviation with n - 5 degrees of freedom, itself drawn anew for every sample from its
  chi-square distribution, which makes the intervals as wide as Student's t demands for a ladder of 12 to 20 runs.
  Pairs would leave some samples of so small a table without a size or a budget.
- `residual`: residuals, inflated by sqrt(n / (n - 5)), are drawn with replacement.
- `pairs` (the default from 60 rows): rows are drawn with replacement; it asks nothing of the noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from areca.errors import ConfigError, FitError
from areca.laws.observations import Observations
from areca.laws.parametric import PARAMETERS, ParametricFit, Problem
from areca.laws.solver import N_PARAMETERS, predict_log_loss

Method = Literal["auto", "parametric", "residual", "pairs"]
PAIRS_FROM_ROWS = 60
MAX_FAILED = 0.1
EXACT = 1e-6  # scatter of ln L below which the rows are the law itself (made, not measured): nothing to resample
MOST_SAMPLES = 1_000_000
KEPT = 400  # samples written to law.json


@dataclass(frozen=True)
class Bootstrap:
    """Samples of the law."""

    theta: np.ndarray  # [S, 5]: ln A, ln B, ln E, alpha, beta
    sigma: np.ndarray  # [S] standard deviation of one run's ln L in that sample
    method: str
    failed: int  # samples whose refit did not converge; they are left out
    coupling: float = 1.0

    def predict_log(self, n_params: Any, n_tokens: Any) -> np.ndarray:
        """ln L of every sample at each (N, D) pair -> [S, points]."""
        n, d = np.broadcast_arrays(np.log(np.atleast_1d(n_params)), np.log(np.atleast_1d(n_tokens)))
        return predict_log_loss(self.theta, n.astype(float), d.astype(float), self.coupling)

    def parameter_intervals(self, level: float = 0.90) -> dict[str, list[float]]:
        """Percentile intervals of A, B, E, alpha, beta and the exponents of N and D on the frontier of C = 6 N D."""
        alpha, beta = self.theta[:, 3], self.theta[:, 4]
        values = {
            **{name: np.exp(self.theta[:, k]) for k, name in enumerate("ABE")},
            "alpha": alpha,
            "beta": beta,
            "n_exponent": beta / (alpha + beta),
            "d_exponent": alpha / (alpha + beta),
        }
        return {name: interval(v, level) for name, v in values.items()}

    def standard_errors(self) -> dict[str, float]:
        """Standard deviations over the samples."""
        columns = np.concatenate([np.exp(self.theta[:, :3]), self.theta[:, 3:]], axis=1)
        return {name: float(columns[:, k].std(ddof=1)) for k, name in enumerate(PARAMETERS)}

    def thinned(self, count: int = KEPT) -> "Bootstrap":
        """The first `count` samples (they are independent)."""
        return replace(self, theta=self.theta[:count], sigma=self.sigma[:count])


def bootstrap(
    observations: Observations, fit: ParametricFit, *, samples: int = 1000, seed: int = 0, method: Method = "auto"
) -> Bootstrap:
    """Refits the law to `samples` resampled tables by the objective of `fit`, all at once.

    FitError when more than a tenth of the refits do not converge.
    """
    if samples < 20:
        raise ConfigError(f"the bootstrap has {samples} samples; an interval needs at least 20.")
    if samples > MOST_SAMPLES:
        raise ConfigError(f"the bootstrap has {samples} samples; more than {MOST_SAMPLES:,} tell nothing new.")
    if method == "auto":
        method = "pairs" if len(observations) >= PAIRS_FROM_ROWS else "parametric"
    if fit.sigma < EXACT:
        theta = np.repeat(fit.theta[None, :], samples, axis=0)
        return Bootstrap(theta, np.full(samples, fit.sigma), "exact", 0, fit.coupling)
    n, freedom = len(observations), fit.degrees_of_freedom
    problem = Problem.of(observations, fit.objective, fit.delta, fit.coupling)
    centre = problem.centre(fit.theta[None, :])
    expected = predict_log_loss(centre, problem.x, problem.y, fit.coupling)[0]
    residual = problem.target - expected
    generator = np.random.default_rng([seed, 0xB007])
    target, weight, sigma = problem.target[None, :], np.ones((1, n)), np.full(samples, fit.sigma)
    if method == "parametric":
        sigma = fit.sigma * np.sqrt(freedom / generator.chisquare(freedom, samples))
        target = expected + sigma[:, None] * generator.standard_normal((samples, n))
    elif method == "residual":
        inflated = (residual - residual.mean()) * np.sqrt(n / freedom)
        target = expected + inflated[generator.integers(0, n, (samples, n))]
    else:
        drawn = generator.integers(0, n, (samples, n))
        weight = np.apply_along_axis(np.bincount, 1, drawn, minlength=n).astype(np.float64)
        sigma = np.sqrt((weight * residual**2).sum(axis=1) / freedom)
    theta, converged = solve_samples(problem, centre, target, weight, samples)
    failed = int((~converged).sum())
    if failed > MAX_FAILED * samples:
        raise FitError(
            f"{failed} of {samples} bootstrap refits did not converge, so the intervals can't be trusted; "
            "add runs over a wider range of N and D, or try --objective l2."
        )
    return Bootstrap(problem.uncentre(theta[converged]), sigma[converged], method, failed, fit.coupling)


def solve_samples(
    problem: Problem, centre: np.ndarray, target: np.ndarray, weight: np.ndarray, samples: int
) -> tuple[np.ndarray, np.ndarray]:
    """(theta [S, 5], converged [S]): each sample's law from the fit itself, and where that fails from a lower floor.

    In six simulated ladders of 12 to 24 runs no sample of 300 had a better optimum from the second start.
    """
    found = problem.solve(np.repeat(centre, samples, axis=0), target, weight)
    failed = np.flatnonzero(~found.converged)
    if failed.size:
        low = centre - [0, 0, 0.5, 0.3 * centre[0, 3], 0.3 * centre[0, 4]]
        targets = np.broadcast_to(target, (samples, target.shape[1]))[failed]
        weights = np.broadcast_to(weight, (samples, weight.shape[1]))[failed]
        again = problem.solve(np.repeat(low, failed.size, axis=0), targets, weights)
        found.theta[failed], found.converged[failed] = again.theta, again.converged
    return found.theta, found.converged


def interval(values: np.ndarray, level: float) -> list[float]:
    """[low, high]: the central percentile interval."""
    tail = 50 * (1 - level)
    low, high = np.percentile(values, [tail, 100 - tail])
    return [float(low), float(high)]


def predict_interval(
    samples: Bootstrap | Sequence[tuple[float, Bootstrap]], n_params: float, n_tokens: float, level: float = 0.90
) -> tuple[float, float]:
    """(low, high) in nats: where the loss of one new run at (N, D) falls with probability `level`.

    Both sources are in it: the law's own uncertainty (the samples' spread at this point) and the noise of a single run
    (each sample's sigma). The predictive distribution is the mixture over samples of normals in ln L, and over forms of
    the law where several are given with their weights; its quantiles are computed, not drawn, so the interval has no
    noise beyond the samples'.
    """
    from scipy.optimize import root_scalar
    from scipy.special import ndtr

    if not 0 < level < 1:
        raise ConfigError(f"level is {level}; a probability between 0 and 1 is needed, such as 0.9.")
    forms = [(1.0, samples)] if isinstance(samples, Bootstrap) else samples
    centre = np.concatenate([s.predict_log(n_params, n_tokens)[:, 0] for _, s in forms])
    sigma = np.maximum(np.concatenate([s.sigma for _, s in forms]), 1e-12)
    weight = np.concatenate([np.full(len(s.sigma), w / len(s.sigma)) for w, s in forms])
    span = 12 * sigma.max() + np.ptp(centre)

    def quantile(p: float) -> float:
        bracket = (centre.min() - span, centre.max() + span)
        return root_scalar(lambda v: weight @ ndtr((v - centre) / sigma) - p, bracket=bracket, method="brentq").root

    low, high = quantile((1 - level) / 2), quantile((1 + level) / 2)
    return float(np.exp(low)), float(np.exp(high))


__all__ = ["KEPT", "N_PARAMETERS", "Bootstrap", "bootstrap", "interval", "predict_interval"]
