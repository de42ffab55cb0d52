"""The distribution of one new run's loss at many (N, D) at once: the samples of all forms of a law, and a run's noise.

What `predict_interval` gives the quantiles of, as arrays: for planning (`areca.plan.target`), which asks for
probabilities at hundreds of sizes, and for design (`areca.laws.design`), which asks how predictions move together.

Legend: S samples of all forms together, P points (N, D).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.errors import FitError
from areca.laws.fits.average import Member
from areca.laws.report import LawReport


@dataclass(frozen=True)
class Predictive:
    """A law's samples: which weigh `weight` (sum 1), and in which one run scatters by `sigma` in ln L."""

    forms: tuple[Member, ...]
    weight: np.ndarray  # [S]
    sigma: np.ndarray  # [S]

    @staticmethod
    def of(law: LawReport) -> "Predictive":
        """FitError for a law that holds no samples."""
        forms = law.predictor.forms
        counts = [len(f.samples.sigma) for f in forms]
        if not all(counts):
            raise FitError("the law holds no bootstrap samples, so nothing is known of its doubt; fit it again.")
        weight = np.concatenate([np.full(s, f.weight / s) for f, s in zip(forms, counts, strict=True)])
        sigma = np.maximum(np.concatenate([f.samples.sigma for f in forms]), 1e-12)
        return Predictive(forms, weight, sigma)

    def log_loss(self, n_params: Any, n_tokens: Any) -> np.ndarray:
        """ln L of every sample at each point -> [S, P]."""
        return np.concatenate([f.samples.predict_log(n_params, n_tokens) for f in self.forms])

    def probability(self, loss: float, n_params: Any, n_tokens: Any, *, form_sigma: float = 0.0) -> np.ndarray:
        """P(one run's loss <= `loss` nats) at each point -> [P]; `form_sigma` is further doubt, in ln L."""
        from scipy.special import ndtr

        sigma = np.hypot(self.sigma, form_sigma)[:, None]
        return self.weight @ ndtr((np.log(loss) - self.log_loss(n_params, n_tokens)) / sigma)
