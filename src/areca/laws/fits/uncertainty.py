"""Two more ways to an interval, to hold the bootstrap against: the profile of the objective, and the delta method.

They rest on other assumptions. The profile follows the objective where it is bent and asks that its fall be that of a
likelihood; the delta method takes the law as linear about the optimum, so it is a cross-check and no result. Where the
three differ much, the data do not determine the parameter.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from areca.errors import ConfigError, closest
from areca.laws.fits.engine import bounds, huber, jacobian, response
from areca.laws.fits.fitting import LAD_DELTAS, Fit, descend, rows_of
from areca.laws.fits.resample import check_level

GRID = 24  # values of the parameter on each side, a refit each


@dataclass(frozen=True)
class Profile:
    """The best objective with one parameter held at each of several values."""

    parameter: str
    values: np.ndarray  # [G] rising
    objective: np.ndarray  # [G]
    deviance: np.ndarray  # [G] to be compared with `cut`
    cut: float
    interval: list[float]  # an end that the values tried do not reach is infinite


def profile(fit: Fit, data: Mapping[str, Any] | Any, parameter: str, *, level: float = 0.90) -> Profile:
    """The profile likelihood of one parameter and its interval.

    For least squares the deviance is twice the log of the ratio of likelihoods with the scale of the errors profiled
    out and n - p in place of n. For the others it is the rise of the objective, scaled by the errors' own
    E psi' / E psi^2 so that it is a chi-square whatever the errors are (Ronchetti 1982): to take them for Laplace's, as
    the objective suggests, made intervals of normal errors too narrow. The cut is the square of Student's t with n - p
    degrees of freedom.
    """
    from scipy.stats import t

    check_level(level)
    form = fit.form
    if parameter not in form.names:
        raise ConfigError(f"{form.name} has no parameter {parameter!r}{closest(parameter, form.names)}.")
    rows, k = rows_of(form, data), form.names.index(parameter)
    error = np.sqrt(max(delta_covariance(fit, data)[k, k], 1e-300))
    low, high = bounds(form)
    cut = float(t.ppf((1 + level) / 2, fit.degrees_of_freedom) ** 2)
    offsets = np.unique(np.concatenate([-(s := np.geomspace(0.05, 12, GRID)), [0.0], s]))
    held = np.unique(np.clip(fit.theta[k] + offsets * error, low[k], high[k]))
    # Outwards from the optimum, each value from where its neighbour ended: the valley is bent.
    order = np.argsort(np.abs(held - fit.theta[k]), kind="stable")
    theta = np.repeat(fit.theta[None], len(held), axis=0)
    theta[:, k] = held
    lower, upper = np.repeat(low[None], len(held), axis=0), np.repeat(high[None], len(held), axis=0)
    lower[:, k], upper[:, k] = held, held
    best = np.full(len(held), np.inf)
    found = theta.copy()
    for _ in range(3):
        solved, _scale = descend(form, rows, theta, _plain(fit), fit.delta, lower=lower, upper=upper)
        better = solved.objective < best
        best = np.where(better, solved.objective, best)
        found[better] = solved.theta[better]
        for i in order:  # next: from the neighbour on the optimum's side
            j = i - np.sign(held[i] - fit.theta[k]).astype(int)
            theta[i] = found[j]
            theta[i, k] = held[i]
    residual = response(form, fit.theta[None], rows.inputs)[0] - rows.target
    unit = fit.delta if _plain(fit) == "huber" else LAD_DELTAS[-1]  # of the function that stands for the absolute value
    least = min(float(best.min()), float(huber(residual, np.inf if fit.objective == "l2" else unit).sum()))
    if fit.objective == "l2":
        deviance = fit.degrees_of_freedom * np.log(best / least) if least > 0 else np.zeros(len(best))
    else:
        slope, square = _influence(fit, residual)
        deviance = 2 * (best - least) / unit * slope / square * fit.degrees_of_freedom / len(rows)
    ends = [_crossing(held, deviance, cut, fit.theta[k], side) for side in (-1, 1)]
    p = form.parameters[k]
    ends = [float(np.exp(e)) if p.log else float(e) for e in ends]
    return Profile(parameter, np.exp(held) if p.log else held, best, deviance, cut, ends)


def _plain(fit: Fit) -> str:
    return "lad" if fit.objective == "huber-density" else fit.objective


def _crossing(held: np.ndarray, deviance: np.ndarray, cut: float, centre: float, side: int) -> float:
    """Where the deviance passes the cut on one side, by linear interpolation; infinite if it does not."""
    index = [i for i in np.argsort(side * held) if side * (held[i] - centre) >= 0]
    for i, j in itertools.pairwise(index):
        if deviance[j] > cut >= deviance[i]:
            share = (cut - deviance[i]) / (deviance[j] - deviance[i])
            return float(held[i] + share * (held[j] - held[i]))
    return side * np.inf


def delta_covariance(fit: Fit, data: Mapping[str, Any] | Any) -> np.ndarray:
    """[p, p]: covariance of the parameters as searched (positive ones by their logarithm), to first order.

    That of an M-estimator, v (J'J)^-1: v is s^2 for least squares, and E psi^2 / (E psi')^2 with n - p in place of n
    for the others (Huber 1981, section 7.6).
    """
    form, rows = fit.form, rows_of(fit.form, data)
    columns = jacobian(form, fit.theta, rows.inputs)
    residual = response(form, fit.theta[None], rows.inputs)[0] - rows.target
    n, freedom = len(rows), max(fit.degrees_of_freedom, 1)
    if fit.objective == "l2":
        spread = (residual**2).sum() / freedom
    else:
        slope, square = _influence(fit, residual)
        spread = square / slope**2 * n / freedom
    return spread * np.linalg.pinv(columns.T @ columns)


def _influence(fit: Fit, residual: np.ndarray) -> tuple[float, float]:
    """(E psi', E psi^2) of the errors, psi being the derivative of Huber's function over delta (the sign, for lad).

    E psi' of least absolute deviations is twice the density at 0: half of the residuals over the width they take,
    without the p that the fit made vanish.
    """
    n, p = len(residual), len(fit.form.parameters)
    band = max(float(np.sort(np.abs(residual))[p + max((n - p) // 2, 1) - 1]), 1e-300)
    delta = fit.delta if fit.objective == "huber" else 0.0
    psi = np.clip(residual, -delta, delta) / delta if delta else np.sign(residual)
    within = (np.abs(residual) <= max(band, delta)).sum()
    return float((within - p) / max(n - p, 1) / max(band, delta)), float((psi**2).mean())


def delta_intervals(fit: Fit, data: Mapping[str, Any] | Any, level: float = 0.90) -> dict[str, list[float]]:
    """Intervals by the delta method: estimate +- t x standard error, as searched."""
    from scipy.stats import t

    check_level(level)
    half = t.ppf((1 + level) / 2, fit.degrees_of_freedom) * np.sqrt(np.diag(delta_covariance(fit, data)))
    ends = [fit.form.values(fit.theta + s * half) for s in (-1, 1)]
    return {name: [float(ends[0][name]), float(ends[1][name])] for name in fit.form.names}


def three_ways(
    fit: Fit, data: Mapping[str, Any] | Any, bootstrap: Mapping[str, list[float]], level: float
) -> dict[str, dict[str, list[float | None]]]:
    """Intervals of the parameters by `bootstrap`, as given, by profile and by delta method; None: an end unbounded."""
    names = fit.form.names
    found = {
        "bootstrap": {k: v for k, v in bootstrap.items() if k in names},
        "profile": {name: profile(fit, data, name, level=level).interval for name in names},
        "delta": delta_intervals(fit, data, level),
    }
    return {
        way: {name: [float(e) if np.isfinite(e) else None for e in ends] for name, ends in by.items()}
        for way, by in found.items()
    }


__all__ = ["Profile", "delta_covariance", "delta_intervals", "profile", "three_ways"]
