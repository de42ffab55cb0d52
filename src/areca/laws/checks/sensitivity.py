"""How much the law moves with choices that are the analyst's and not the data's.

Points dropped, the objective, what N counts and what C counts move exponents by more than the noise of the runs does
(Besiroglu et al. 2024, Porian et al. 2024), so a law is printed beside its siblings.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from areca.errors import ArecaError, FitError
from areca.laws.fits.parametric import ParametricFit, fit_parametric
from areca.laws.reading.observations import Observations

STRETCH = 4.0  # the target: so many times the largest budget
HIGHEST = (1, 5)
LEAST_TOTAL = 1.01  # totals below so much of N are N itself


def sensitivity(observations: Observations, fit: ParametricFit) -> dict[str, Any]:
    """{"flops": the target, "rows": [one for each choice]}: parameters, exponent, best N and loss at the target.

    A choice whose law can't be fitted has the reason in `failed`. The best N is that of least loss at a cost of 6 N D,
    or for the last choice at the rows' own C over N D, carried on along ln N.
    """
    target = STRETCH * float(observations.flops.max())
    if observations.budget is not None and np.isfinite(observations.budget).any():
        target = STRETCH * float(np.nanmax(observations.budget))
    rows = [_row("as fitted", fit, target, lambda n: 6.0)]
    for choice, make, cost in _choices(observations, fit):
        try:
            rows.append(_row(choice, make(), target, cost))
        except ArecaError as error:
            rows.append({"choice": choice, "failed": str(error)})
    return {"flops": target, "rows": rows}


Choice = tuple[str, Callable[[], ParametricFit], Callable[[float], float]]


def _choices(o: Observations, fit: ParametricFit) -> list[Choice]:
    def again(rows: Observations, **options: Any) -> ParametricFit:
        options = {"objective": fit.objective, "delta": fit.delta or 1e-3, "coupling": fit.coupling} | options
        return fit_parametric(rows, **options)

    def six(_: float) -> float:
        return 6.0

    found: list[Choice] = []
    for count in HIGHEST:
        if count < len(o) - 6:
            words = f"without the {count} of highest loss" if count > 1 else "without the highest loss"
            found.append((words, lambda count=count: again(o.drop_highest(count)), six))
    groups = o.budgets()
    if len(groups) > 2:
        for which, (_, rows) in (("smallest", groups[0]), ("largest", groups[-1])):
            keep = np.ones(len(o), dtype=bool)
            keep[rows] = False
            found.append((f"without the {which} budget", lambda keep=keep: again(o.select(keep)), six))
    for objective, delta, words in (
        ("huber", 1e-3, "Huber, delta 1e-3"), ("huber", 1e-2, "Huber, delta 1e-2"),
        ("lad", 0.0, "least absolute deviations"), ("l2", 0.0, "least squares"),
    ):  # fmt: skip
        if (objective, delta) != (fit.objective, fit.delta):
            found.append((words, lambda k=objective, d=delta: again(o, objective=k, delta=d or 1e-3), six))
    others = [q for q in (1.0, 2.0) if q != fit.coupling]
    found += [(f"terms coupled by {q:g}", lambda q=q: again(o, coupling=q), six) for q in others]
    total = _total(o)
    if total is not None:
        with_embeddings = replace(o, n_params=total, flops=6 * total * o.n_tokens)
        found.append(("N with embeddings", lambda: again(with_embeddings), six))
    ratio = o.flops / (o.n_params * o.n_tokens)
    if np.abs(ratio / 6 - 1).max() > 0.01:
        found.append(("C as in the rows, not 6 N D", lambda: fit, _carried(o.n_params, ratio)))
    return found


def _total(o: Observations) -> np.ndarray | None:
    """Parameters with embeddings, where every row has them and they are more than N."""
    total = getattr(o, "others", {}).get("n_params_total")
    if total is None or not np.isfinite(total).all() or not (total > LEAST_TOTAL * o.n_params).any():
        return None
    return total


def _carried(n_params: np.ndarray, ratio: np.ndarray) -> Callable[[float], float]:
    """C / N D at a size: ln of what exceeds 6 as a line in ln N, where it exceeds it, else the rows' mean."""
    excess = ratio - 6
    if (excess > 0).all() and np.ptp(np.log(n_params)) > 0.1:
        slope, height = np.polyfit(np.log(n_params), np.log(excess), 1)
        return lambda n: 6 + float(np.exp(height + slope * np.log(n)))
    mean = float(np.exp(np.log(ratio).mean()))
    return lambda n: mean


def _row(choice: str, fit: ParametricFit, flops: float, cost: Callable[[float], float]) -> dict[str, Any]:
    n, slope = _optimum(fit, flops, cost)
    return {
        "choice": choice,
        "n_points": fit.n_points,
        **{name: getattr(fit, name) for name in ("A", "B", "E", "alpha", "beta")},
        "n_exponent": slope,
        "n_opt": n,
        "predicted_loss": float(fit.predict(n, flops / (cost(n) * n))),
        "failed": None,
    }


def _optimum(fit: ParametricFit, flops: float, cost: Callable[[float], float]) -> tuple[float, float]:
    """The N of least loss at C = cost(N) N D, and the slope of ln N in ln C there."""
    from scipy.optimize import minimize_scalar

    def best(c: float) -> float:
        guess = np.log(float(fit.frontier(c)[0]))
        found: Any = minimize_scalar(
            lambda x: float(fit.predict(np.exp(x), c / (cost(float(np.exp(x))) * np.exp(x)))),
            bounds=(guess - 4, guess + 4), method="bounded", options={"xatol": 1e-7},
        )  # fmt: skip
        if not found.success:
            raise FitError(f"the best size at {c:.3g} FLOPs could not be found.")
        return float(found.x)

    step = 0.05
    up, down = best(flops * np.exp(step)), best(flops * np.exp(-step))
    return float(np.exp(best(flops))), (up - down) / (2 * step)
