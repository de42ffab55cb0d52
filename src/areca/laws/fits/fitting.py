"""`fit`: a declared form to observations, from many starts, with its convergence checked and told.

There is no such thing as a half-converged result: a fit either comes with the share of starts that agree on it, or as
a FitError that says what is wrong with the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from areca.errors import ConfigError, DataError, FitError
from areca.laws.fits.engine import Rows, Solutions, evaluate, huber, jacobian, response, solve
from areca.laws.fits.starts import starts
from areca.laws.forms import Form
from areca.laws.forms.equation import check_predict, refuse_no_number

Objective = Literal["huber", "lad", "l2", "huber-density"]
LAD_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # the last leaves the sum of |r| within n x 5e-8 of its minimum
SMOOTHER = (0.1, 0.03, 0.01, 0.004)  # deltas a problem that stopped short is led through
LARGE = 1e6  # a delta that makes Huber's function the square
AGREEMENT = 1e-4  # relative: starts whose objective is as close to the best are "at the optimum"
SINGULAR = 1e13  # of the condition number: more is beyond float64


@dataclass(frozen=True)
class Fit:
    """A converged fit of a form."""

    form: Form
    values: dict[str, float]  # parameters by name
    objective: str
    delta: float  # Huber's; 0 for lad and l2
    objective_value: float  # the sum over observations; of huber-density the negative log-likelihood
    gradient_norm: float  # largest derivative over the sum of its terms' sizes
    n_starts: int
    share_of_starts: float  # starts that ended within AGREEMENT of the best objective
    at_bound: tuple[str, ...]  # parameters the box stopped: the data do not determine them
    condition: float  # of J'J at the optimum with its columns scaled to one length: how alike parameters act
    n_points: int
    sigma: float  # standard deviation of a row about the law, of ln of the response (or of itself), n - p degrees
    ranges: dict[str, tuple[float, float]]  # of each input, and of the response, fitted
    scale: float = 0.0  # huber-density: the scale sigma of the residuals that maximises the likelihood
    status: str = "converged"
    derived: dict[str, float] = field(default_factory=dict)

    @property
    def theta(self) -> np.ndarray:
        """[p] parameters as searched."""
        return self.form.inner(self.values)

    @property
    def degrees_of_freedom(self) -> int:
        return self.n_points - len(self.form.parameters)

    def predict(self, **inputs: Any) -> np.ndarray:
        """The response at inputs that broadcast together."""
        columns = np.broadcast_arrays(*(np.asarray(inputs[k], np.float64) for k in self.form.inputs))
        flat = dict(zip(self.form.inputs, (c.ravel() for c in columns), strict=True))
        return evaluate(self.form, self.values, flat)[0].reshape(columns[0].shape)


def rows_of(form: Form, data: Mapping[str, Any] | Any) -> Rows:
    """The form's inputs and response out of observations, or of arrays by name. DataError names a column that lacks."""
    take = data.__getitem__ if isinstance(data, Mapping) else data.column
    columns = {}
    for name in dict.fromkeys((*form.inputs, form.response)):
        try:
            columns[name] = np.atleast_1d(np.asarray(take(name), np.float64))
        except KeyError:
            raise DataError(f"{form.name} needs a column {name!r}; there are {', '.join(map(str, data))}.") from None
        bad = np.flatnonzero(~np.isfinite(columns[name]) | ((columns[name] <= 0) & (name != form.response)))
        if bad.size:
            raise DataError(
                f"{name} is {columns[name][bad[0]]} in row {bad[0] + 1}; {form.name} needs a positive number there."
            )
    observed = columns[form.response]
    if form.compare == "log" and not (observed > 0).all():
        i = int(np.flatnonzero(~(observed > 0))[0])
        raise DataError(f"{form.response} is {observed[i]} in row {i + 1}; it must be positive.")
    if form.response == "score" and (observed > 1).any():
        i = int(np.flatnonzero(observed > 1)[0])
        raise DataError(f"score is {observed[i]:g} in row {i + 1}, and a score is a share of 1; divide percent by 100.")
    target = np.log(observed) if form.compare == "log" else observed
    return Rows({k: columns[k] for k in form.inputs}, target)


def fit(
    form: Form,
    data: Mapping[str, Any] | Any,
    *,
    objective: Objective = "huber",
    delta: float = 1e-3,
    weights: np.ndarray | None = None,
) -> Fit:
    """Fits a form to observations, or to arrays by name.

    `objective` is the sum over observations, of the residual (of ln of the response, or of itself where the form
    compares linearly), of Huber's function (`delta`), of the absolute value, of half the square; or "huber-density",
    the negative log-likelihood of errors whose density falls as exp(-huber(r / scale, delta)), with the scale found
    too (Besiroglu et al. 2024). Raises FitError when the rows can't determine the law or no start converged.
    """
    check_objective(objective, delta)
    check_predict(form)
    rows = rows_of(form, data)
    check_rows(form, rows)
    weight = np.ones(len(rows)) if weights is None else np.asarray(weights, np.float64)
    if weight.shape != rows.target.shape or not (np.isfinite(weight).all() and (weight >= 0).all() and weight.any()):
        raise ConfigError(f"weights must be {len(rows)} numbers, none negative and not all 0.")
    theta = starts(form, rows)
    found, scales = descend(form, rows, theta, objective, delta, weight=weight, rescue=False)
    agree, value = _agreeing(found, rows, objective, delta)
    if agree.sum() < 2:
        found, scales = descend(form, rows, theta, objective, delta, weight=weight)
        agree, value = _agreeing(found, rows, objective, delta)
    best = int(np.argmin(value))
    title = form.equation.partition(" = ")[0]
    if not np.isfinite(value[best]):
        refuse_no_number(form, rows, theta)
    if not np.isfinite(value[best]) or not agree.any():
        raise FitError(
            f"the fit of {title} did not converge: the best of {len(agree)} starts still has a relative gradient of "
            f"{found.gradient[best]:.1e}; look for rows of another kind, or try --objective l2."
        )
    if agree.sum() < 2 and len(agree) > 1:
        raise FitError(
            f"the fit of {title} can't be trusted: of {len(agree)} starts only one reached the best objective; "
            f"look for rows of another kind, or add runs over a wider range of {' and '.join(form.inputs)}."
        )
    best = int(np.argmin(np.where(agree, value, np.inf)))
    chosen = found.theta[best]
    residual = response(form, chosen[None], rows.inputs)[0] - rows.target
    values = {k: float(v) for k, v in form.values(chosen).items()}
    at_bound = tuple(n for n, at in zip(form.names, found.at_bound[best], strict=True) if at)
    condition = conditioning(form, chosen, rows, ~found.at_bound[best])
    freedom = max(len(rows) - len(form.parameters), 1)
    return Fit(
        form=form,
        values=values,
        objective=objective,
        delta=delta if objective in ("huber", "huber-density") else 0.0,
        objective_value=float(total(residual, objective, delta, weight, scales[best])),
        gradient_norm=float(found.gradient[best]),
        n_starts=len(agree),
        share_of_starts=float(agree.mean()),
        at_bound=at_bound,
        condition=condition,
        n_points=len(rows),
        sigma=float(np.sqrt((weight * residual**2).sum() * len(rows) / weight.sum() / freedom)),
        ranges={
            k: (float(v.min()), float(v.max()))
            for k, v in {**rows.inputs, form.response: _observed(form, rows)}.items()
        },
        scale=float(scales[best]),
        derived=derived(form, values),
    )


def _agreeing(found: Solutions, rows: Rows, objective: str, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """[S] bool: starts that converged to the best objective; and the objectives."""
    value = found.objective
    floor = 1e-12 * len(rows) * (1.0 if objective == "lad" else max(_deltas(objective, delta)[-1], 1e-6))
    best = float(value.min())
    agree = value <= best + AGREEMENT * abs(best) + floor
    return agree & (found.converged | (value <= floor)), value


def descend(
    form: Form,
    rows: Rows,
    theta: np.ndarray,
    objective: str,
    delta: float,
    *,
    target: np.ndarray | None = None,
    weight: np.ndarray | None = None,
    lower: np.ndarray | None = None,
    upper: np.ndarray | None = None,
    rescue: bool = True,
) -> tuple[Solutions, np.ndarray]:
    """`solve` from theta [S, p] through the objective's sequence of deltas -> solutions, and scales [S] (0 unless
    the objective has one).

    With `rescue`, problems that stop short, in the bent and narrow valleys of a small delta, go on through larger ones
    first. Of
    "huber-density" the solutions' objective is the negative log-likelihood.
    """
    shared: dict[str, Any] = {"target": target, "weight": weight, "lower": lower, "upper": upper}
    deltas = _deltas(objective, delta)
    found = _through(form, rows, theta, deltas, shared)
    short = np.flatnonzero(~found.converged) if rescue else np.array([])
    if short.size and deltas[-1] < SMOOTHER[-1]:
        part = {k: v if v is None or np.ndim(v) < 2 else v[short] for k, v in shared.items()}
        again = _through(form, rows, found.theta[short], (*SMOOTHER, *deltas), part)
        better = again.converged | (again.objective < found.objective[short])
        found.take(short, again, better)
    if objective != "huber-density":
        return found, np.zeros(len(theta))
    return _free_scale(form, rows, found, delta, shared)


def _through(form: Form, rows: Rows, theta: np.ndarray, deltas: tuple[float, ...], shared: dict[str, Any]) -> Solutions:
    found = None
    for d in deltas:
        found = solve(form, rows, theta, delta=d, **shared)
        theta = found.theta
    assert found is not None
    return found


def _free_scale(
    form: Form, rows: Rows, found: Solutions, delta: float, shared: dict[str, Any]
) -> tuple[Solutions, np.ndarray]:
    """Parameters and scale in turns until the likelihood rests; given the scale, Huber's delta is delta x scale."""
    target = rows.target if shared["target"] is None else shared["target"]
    weight = np.ones(len(rows)) if shared["weight"] is None else shared["weight"]
    before = np.full(len(found.theta), np.inf)
    scales = np.zeros(len(found.theta))
    likelihood = before
    for _ in range(60):
        residual = response(form, found.theta, rows.inputs) - target
        scales = best_scale(residual, delta, weight)
        likelihood = np.array([
            total(r, "huber-density", delta, w, s)
            for r, w, s in zip(residual, np.broadcast_to(weight, residual.shape), scales, strict=True)
        ])  # fmt: skip
        if (before - likelihood <= 1e-10 * np.maximum(np.abs(likelihood), 1.0)).all():
            break
        before = likelihood
        # No smaller than what least absolute deviations are solved to.
        found = solve(form, rows, found.theta, delta=np.maximum(delta * scales, LAD_DELTAS[-1]), **shared)
    found.objective[:] = np.where(np.isfinite(found.objective), likelihood, np.inf)
    return found, scales


def best_scale(residual: np.ndarray, delta: float, weight: np.ndarray) -> np.ndarray:
    """[S]: the scale s of most likelihood for residuals [S, n] of density ~ exp(-huber(r / s, delta)) / s.

    Where it rests, sum w psi(r / s) r / s = sum w; the left side falls with s, so halving finds it.
    """
    size = np.abs(residual)
    low = np.full(len(size), -60.0)
    high = np.log(np.maximum(size.max(axis=1), 1e-300)) + 20
    weight = np.broadcast_to(weight, size.shape)
    for _ in range(80):
        middle = (low + high) / 2
        z = size / np.exp(middle)[:, None]
        more = (weight * np.minimum(z, delta) * z).sum(axis=1) > weight.sum(axis=1)
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return np.exp((low + high) / 2)


def total(residual: np.ndarray, objective: str, delta: float, weight: np.ndarray, scale: float = 0.0) -> float:
    """The objective of residuals [n]."""
    if objective == "lad":
        return float((weight * np.abs(residual)).sum())
    if objective != "huber-density":
        return float((weight * huber(residual, delta if objective == "huber" else np.inf)).sum())
    from scipy.special import erf

    # The integral of exp(-huber(z, delta)): a normal's middle and two exponential tails.
    norm = np.sqrt(2 * np.pi) * erf(delta / np.sqrt(2)) + 2 / delta * np.exp(-(delta**2) / 2)
    return float((weight * (huber(residual / scale, delta) + np.log(scale * norm))).sum())


def conditioning(form: Form, theta: np.ndarray, rows: Rows, free: np.ndarray) -> float:
    """The condition number of J'J, columns scaled to one length, of the parameters in `free`."""
    columns = jacobian(form, theta, rows.inputs)[:, free]
    length = np.linalg.norm(columns, axis=0)
    if columns.size == 0:
        return 1.0
    if not (length > 0).all():
        return float("inf")
    return float(np.linalg.cond(columns / length) ** 2)


def derived(form: Form, values: Mapping[str, Any]) -> dict[str, Any]:
    """The form's derived quantities of parameters by name (numbers, or samples [S])."""
    from types import SimpleNamespace

    at = SimpleNamespace(**form.constants, **values)
    return {
        name: float(v) if np.ndim(v := function(at)) == 0 else np.asarray(v) for name, function in form.derived.items()
    }


def check_objective(objective: str, delta: float) -> None:
    """ConfigError unless the objective is known and delta positive."""
    if objective not in get_args(Objective):
        raise ConfigError(f"objective is {objective!r}; choose one of {', '.join(map(repr, get_args(Objective)))}.")
    if objective in ("huber", "huber-density") and not 0 < delta < 1e30:
        raise ConfigError(f"delta is {delta}; Huber's delta must be a positive number (1e-3 in the Chinchilla paper).")


def check_rows(form: Form, rows: Rows) -> None:
    """FitError when no optimiser could tell the parameters from these rows."""
    title, p = form.equation.partition(" = ")[0], len(form.parameters)
    if len(rows) < p + 1:
        raise FitError(f"{title} has {p} parameters and the table has {len(rows)} rows; it needs at least {p + 1}.")
    for name, values in rows.inputs.items():
        distinct = len(np.unique(np.round(np.log(values), 6)))
        if distinct < 2:
            raise FitError(
                f"{title} needs at least 2 distinct values of {name} and the table has {distinct}; add runs of others."
            )
    if len({tuple(np.round(np.log(v), 6)) for v in np.stack(list(rows.inputs.values()), axis=1)}) < p:
        raise FitError(
            f"{title} has {p} parameters and the rows have fewer distinct values of {', '.join(form.inputs)}; "
            "add others."
        )


def _observed(form: Form, rows: Rows) -> np.ndarray:
    return np.exp(rows.target) if form.compare == "log" else rows.target


def _deltas(objective: str, delta: float) -> tuple[float, ...]:
    """Deltas solved in turn, each from where the one before ended."""
    if objective == "l2":
        return (LARGE,)
    if objective == "lad":
        return LAD_DELTAS
    if objective == "huber-density":
        return (1e-3,)  # where the free scale begins
    return (*(d for d in LAD_DELTAS if d > delta), delta) if delta < 1e-3 else (delta,)


__all__ = ["AGREEMENT", "Fit", "Objective", "check_objective", "derived", "descend", "fit", "rows_of", "total"]
