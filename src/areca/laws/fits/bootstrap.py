"""Bootstrap samples of L(N, D): intervals on its parameters, its frontier and a new run's loss.

How samples are drawn and refitted is `areca.laws.fits.resample`'s; here they are read in plain numpy, also from
law.json.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from areca.laws.fits.parametric import N_PARAMETERS, PARAMETERS, ParametricFit, frontier, log_loss
from areca.laws.fits.resample import EXACT, PAIRS_FROM_ROWS, Method, check_level, interval, predictive, resample
from areca.laws.reading.observations import Observations

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
        return log_loss(self.theta[:, None], n.astype(float), d.astype(float), self.coupling)

    def frontier(self, flops: float) -> tuple[np.ndarray, np.ndarray]:
        """N and D [S] of least loss under C = 6 N D in every sample."""
        return frontier(self.theta, flops, self.coupling)

    def of(self, quantity: Callable[[Any], Any]) -> np.ndarray:
        """[S]: any quantity of the law, which it reads as attributes A, B, E, alpha, beta."""
        a, b, e, alpha, beta = np.moveaxis(self.theta, -1, 0)
        return np.asarray(quantity(SimpleNamespace(A=np.exp(a), B=np.exp(b), E=np.exp(e), alpha=alpha, beta=beta)))

    def interval_of(self, quantity: Callable[[Any], Any], level: float = 0.90) -> list[float]:
        """The percentile interval of any quantity of the law: `samples.interval_of(lambda p: p.alpha / p.beta)`."""
        check_level(level)
        return interval(self.of(quantity), level)

    def frontier_intervals(self, flops: float, level: float = 0.90) -> dict[str, list[float]]:
        """Of N and D of least loss under C = 6 N D."""
        check_level(level)
        return {name: interval(v, level) for name, v in zip("nd", self.frontier(flops), strict=True)}

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
    observations: Observations,
    fit: ParametricFit,
    *,
    samples: int = 1000,
    seed: int = 0,
    method: Method = "auto",
    groups: Sequence[Any] | None = None,
) -> Bootstrap:
    """Refits the law to `samples` resampled tables by the objective of `fit`, all at once.

    `cluster` draws whole groups: `groups` names each row's, or else the observations do, by their group or budget.
    FitError when more than a tenth of the refits do not converge.
    """
    if groups is None:
        groups = getattr(observations, "group", ()) or None
    if groups is None and observations.budget is not None and np.isfinite(observations.budget).all():
        groups = observations.budget.tolist()
    drawn = resample(fit.generic(), observations, samples=samples, seed=seed, method=method, groups=groups)
    return Bootstrap(drawn.theta, drawn.sigma, drawn.method, drawn.failed, fit.coupling)


def predict_interval(
    samples: Bootstrap | Sequence[tuple[float, Bootstrap]], n_params: float, n_tokens: float, level: float = 0.90
) -> tuple[float, float]:
    """(low, high) in nats: where the loss of one new run at (N, D) falls with probability `level`.

    Both sources are in it: the law's own uncertainty (the samples' spread at this point) and the noise of a single run
    (each sample's sigma). The predictive distribution is the mixture over samples of normals in ln L, and over forms of
    the law where several are given with their weights.
    """
    forms = [(1.0, samples)] if isinstance(samples, Bootstrap) else samples
    centre = np.concatenate([s.predict_log(n_params, n_tokens)[:, 0] for _, s in forms])
    sigma = np.concatenate([s.sigma for _, s in forms])
    weight = np.concatenate([np.full(len(s.sigma), w / len(s.sigma)) for w, s in forms])
    low, high = predictive(centre, sigma, weight, level)
    return float(np.exp(low)), float(np.exp(high))


__all__ = [
    "EXACT", "KEPT", "N_PARAMETERS", "PAIRS_FROM_ROWS", "Bootstrap", "bootstrap", "check_level", "interval",
    "predict_interval",
]  # fmt: skip
