"""Is it a straight line? Tests for a bend where a law says that there is none.

A power law is a line in logarithms: the frontier's L(C), the best size N_opt(C). And about a law that fits, residuals
have no shape along ln N, ln D or ln C. Each test adds a square and asks whether its coefficient differs from 0.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.laws.fits.isoflop import IsoFlop
from areca.laws.fits.parametric import N_PARAMETERS, ParametricFit
from areca.laws.fits.resample import interval
from areca.laws.reading.observations import Observations

LEAST_BUDGETS = 3
DOUBT = 0.05


@dataclass(frozen=True)
class Bend:
    """The coefficient of the square of a logarithm, with its interval."""

    of: str
    coefficient: float
    interval: list[float]
    p_value: float  # two-sided
    says: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bends(observations: Observations, fit: ParametricFit, valleys: IsoFlop | None, level: float = 0.90) -> list[Bend]:
    """Every test that the rows can carry."""
    found = []
    if valleys is not None:
        x = np.log([v.budget_flops for v in valleys.valleys])
        losses = np.log([v.loss_min for v in valleys.valleys])
        found += _line("L(C) on the frontier", x, losses, np.log(valleys.loss_samples), level, _says_loss)
        good = [i for i, v in enumerate(valleys.valleys) if v.interior and v.curved and v.n_opt]
        optima = np.log([valleys.valleys[i].n_opt or 1.0 for i in good])
        found += _line("N_opt(C)", x[good], optima, valleys.n_samples[:, good], level, _says_size)
    return found + _residuals(observations, fit, level)


def _line(of: str, x: np.ndarray, y: np.ndarray, samples: np.ndarray, level: float, says: Any) -> list[Bend]:
    """A parabola through y [budgets], its square's coefficient in y and in samples of it [S, budgets]."""
    if len(x) < LEAST_BUDGETS:
        return []
    centred = x - x.mean()
    basis = np.stack([np.ones_like(x), centred, centred**2], axis=1)
    invert = np.linalg.pinv(basis)[2]
    value, drawn = float(invert @ y), samples @ invert
    above = (np.count_nonzero(drawn > 0) + 1) / (len(drawn) + 2)
    p = float(2 * min(above, 1 - above))
    return [Bend(of, value, interval(drawn, level), p, says(value, p))]


def _says_loss(value: float, p: float) -> str:
    if p > DOUBT:
        return "no bend can be seen: a power law without a floor and one with a floor fit alike."
    if value > 0:
        return "the loss falls ever more slowly: a floor (or a break), so a pure power law is an optimist beyond."
    return "the loss falls ever faster: small runs are worse than their law, as badly tuned or too short ones are."


def _says_size(value: float, p: float) -> str:
    if p > DOUBT:
        return "no bend can be seen: one exponent for the best size."
    return (
        f"the best size's exponent {'rises' if value > 0 else 'falls'} with compute, so the line through these budgets "
        "misleads beyond them; last-layer FLOPs, warm-up and tuning at small sizes do this (Porian et al. 2024)."
    )


def _residuals(observations: Observations, fit: ParametricFit, level: float) -> list[Bend]:
    """A square of ln N, ln D or ln C beside the law's own derivatives, by least squares on the residuals of ln L."""
    from scipy.stats import t

    from areca.laws.fits.engine import jacobian

    inputs = {"n_params": observations.n_params, "n_tokens": observations.n_tokens}
    residual = np.log(observations.loss) - np.log(fit.predict(observations.n_params, observations.n_tokens))
    columns = jacobian(fit.form, fit.theta, inputs)
    freedom = len(residual) - N_PARAMETERS - 1
    if freedom < 2 or fit.sigma < 1e-9:
        return []
    found = []
    for letter, values in (("N", inputs["n_params"]), ("D", inputs["n_tokens"]), ("C", observations.flops)):
        z = np.log(values) - np.log(values).mean()
        design = np.concatenate([columns / np.linalg.norm(columns, axis=0), (z**2)[:, None]], axis=1)
        solution, _, rank, _ = np.linalg.lstsq(design, residual, rcond=1e-10)
        if rank < design.shape[1]:
            continue
        left = residual - design @ solution
        error = float(np.sqrt((left**2).sum() / freedom * np.linalg.inv(design.T @ design)[-1, -1]))
        value, half = float(solution[-1]), float(t.ppf((1 + level) / 2, freedom)) * error
        p = float(2 * t.sf(abs(value) / error, freedom)) if error > 0 else 1.0
        words = f"no shape of the residuals along ln {letter} can be seen."
        if p <= DOUBT:
            way = "up" if value > 0 else "down"
            words = f"the residuals bend {way} along ln {letter}: the form misses something there."
        found.append(Bend(f"residuals along ln {letter}", value, [value - half, value + half], p, words))
    return found
