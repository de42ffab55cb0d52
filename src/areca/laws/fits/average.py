"""One prediction from several couplings of L(N, D), weighed by how well each fits the rows.

How strongly the terms of N and D are coupled (`areca.laws.fits.parametric`) is not known beforehand, and a law that is
wrong about it is wrong beyond its rows: with too weak a coupling the runs off the frontier pull the floor E up, and the
law predicts too high. So several are fitted and averaged by their evidence (Hoeting et al. 1999, Bayesian model
averaging), and an interval over all of them also has the doubt about the form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.errors import FitError
from areca.laws.fits.bootstrap import KEPT, Bootstrap, bootstrap, predict_interval
from areca.laws.fits.fitting import Objective
from areca.laws.fits.parametric import N_PARAMETERS, ParametricFit, check_coupling, fit_parametric
from areca.laws.reading.observations import Observations

COUPLINGS = (1.0, 1.5, 2.0)  # from Chinchilla's sum to a root of squares (docs/log.md)


@dataclass(frozen=True)
class Member:
    """One coupling with its fit, its samples and its share of the prediction."""

    weight: float
    fit: ParametricFit
    samples: Bootstrap

    def to_dict(self) -> dict[str, Any]:
        kept = self.samples.thinned(KEPT)
        return {
            "weight": self.weight,
            **self.fit.to_dict(),
            "bootstrap": kept.theta.tolist(),
            "bootstrap_columns": ["lnA", "lnB", "lnE", "alpha", "beta"],
            "bootstrap_sigma": kept.sigma.tolist(),
            "bootstrap_method": kept.method,
            "bootstrap_failed": kept.failed,
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "Member":
        fit = ParametricFit.from_dict(values)
        samples = Bootstrap(
            np.array(values["bootstrap"], dtype=np.float64).reshape(-1, 5),
            np.array(values["bootstrap_sigma"], dtype=np.float64),
            values["bootstrap_method"],
            values["bootstrap_failed"],
            fit.coupling,
        )
        return Member(float(values.get("weight", 1.0)), fit, samples)


@dataclass(frozen=True)
class Average:
    """Forms whose weights add up to one."""

    forms: tuple[Member, ...]

    def predict(self, n_params: Any, n_tokens: Any) -> np.ndarray:
        """Loss in nats per token: the weighted mean of ln L."""
        if len(self.forms) == 1:
            return self.forms[0].fit.predict(n_params, n_tokens)
        return np.exp(sum(f.weight * np.log(f.fit.predict(n_params, n_tokens)) for f in self.forms))

    def interval(self, n_params: float, n_tokens: float, level: float) -> tuple[float, float]:
        """(low, high) in nats for one new run, over all forms (`bootstrap.predict_interval`)."""
        return predict_interval([(f.weight, f.samples) for f in self.forms], n_params, n_tokens, level)


def fit_average(
    observations: Observations,
    *,
    objective: Objective,
    delta: float,
    couplings: Sequence[float],
    samples: int,
    seed: int,
    known: tuple[ParametricFit, Bootstrap] | None = None,
) -> tuple[Average, list[str]]:
    """Fits each coupling and weighs it; also a sentence for each that could not be fitted. FitError if none could.

    `known` is a fit of one coupling with its samples, made from the same arguments, which is not made again.
    """
    fits, notes, failure = [], [], None
    for coupling in dict.fromkeys(couplings):
        check_coupling(coupling)
        if known is not None and known[0].coupling == coupling:
            fits.append(known)
            continue
        try:
            fit = fit_parametric(observations, objective=objective, delta=delta, coupling=coupling)
            fits.append((fit, bootstrap(observations, fit, samples=samples, seed=seed)))
        except FitError as error:
            failure = error
            notes.append(f"with a coupling of {coupling:g} there is no fit, so it is left out: {error}")
    if not fits:
        raise failure or FitError("there is no coupling to fit; give at least one, such as 1.")
    weights = evidence_weights(observations, [fit for fit, _ in fits])
    return Average(tuple(Member(w, *both) for w, both in zip(weights, fits, strict=True))), notes


def evidence_weights(observations: Observations, fits: Sequence[ParametricFit]) -> list[float]:
    """Weights of sum 1 for fits by one objective: each form's evidence, with a flat prior over the forms.

    With p = 5 parameters and a scale that are integrated out under the usual reference prior, the evidence of n rows is
    scale^-(n - p): flatter than the likelihood's scale^-n, which matters when rows are few. The scale is that of the
    errors that the objective is made for: root mean square for least squares, mean absolute residual (Laplace) for
    least absolute deviations and for Huber's function with a delta below the scatter.
    """
    target = np.log(observations.loss)
    residuals = [np.log(f.predict(observations.n_params, observations.n_tokens)) - target for f in fits]
    power = 2 if fits[0].objective == "l2" else 1
    scales = np.array([np.mean(np.abs(r) ** power) ** (1 / power) for r in residuals])
    evidence = -(len(target) - N_PARAMETERS) * np.log(np.maximum(scales, 1e-12))
    weight = np.exp(evidence - evidence.max())
    return [float(w) for w in weight / weight.sum()]
