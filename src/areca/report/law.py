"""A fitted law as the page draws it, read from law.json: parameters, valleys, and curves through them.

The law is L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, section 3.3), or for predictions an average
over forms that couple its two terms, E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q); a valley is a parabola of ln L
in ln N at one budget (their approach 2). Losses are nats per token, budgets are training FLOPs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from areca.report.gather import Run, finite, number, objects, pair, positive

PARAMETERS = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True)
class Parameter:
    """One fitted number and its interval, either None where law.json has none."""

    name: str
    value: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Point:
    """One finished run as the laws see it."""

    label: str
    n_params: float
    n_tokens: float
    flops: float
    loss: float
    budget_flops: float | None


@dataclass(frozen=True)
class Valley:
    """ln L = a + b x + c x^2 + d x^3 with x = ln N, at one budget."""

    budget_flops: float
    coefficients: tuple[float, ...] | None
    n_opt: float | None
    n_opt_interval: tuple[float, float] | None
    d_opt: float | None
    loss_min: float | None
    interior: bool | None

    def curve(self, n_params: np.ndarray) -> np.ndarray | None:
        """The curve's loss at sizes `n_params`, or None if its coefficients are not known."""
        if self.coefficients is None:
            return None
        return np.exp(np.polyval(self.coefficients[::-1], np.log(n_params)))

    @property
    def bottom(self) -> float | None:
        """The best size if it is a real one: inside the sizes tried, of a parabola that curves upwards."""
        return self.n_opt if self.interior is not False else None


@dataclass(frozen=True)
class Form:
    """One coupling q of the law with its share of the prediction; theta and the resampled fits as in law.json."""

    weight: float
    coupling: float
    theta: np.ndarray  # [1, 5] of ln A, ln B, ln E, alpha, beta
    bootstrap: np.ndarray  # [R, 5]

    @property
    def floor(self) -> float:
        """E, in nats per token."""
        return float(np.exp(self.theta[0, 2]))

    def log_losses(self, theta: np.ndarray, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """ln L for each row of theta and each point."""
        ln_a, ln_b, ln_e, alpha, beta = (column[:, None] for column in theta.T)
        of_n, of_d, q = ln_a - alpha * np.log(n_params), ln_b - beta * np.log(n_tokens), self.coupling
        return np.logaddexp(ln_e, np.logaddexp(q * of_n, q * of_d) / q)


@dataclass(frozen=True)
class Law:
    """What law.json says, in the shape that the figures need."""

    parameters: dict[str, Parameter]
    status: dict[str, Any]
    forms: list[Form]  # of sum 1 in weight; empty if no parameters are known
    valleys: list[Valley]
    exponents: list[Parameter]
    compute: list[Parameter]
    notes: list[str]
    rows: frozenset[str] = frozenset()  # the names of what it was fitted to

    @property
    def complete(self) -> bool:
        """Whether L(N, D) can be evaluated: all five parameters are there and positive."""
        known = all(name in self.parameters and self.parameters[name].value > 0 for name in PARAMETERS)
        return known and bool(self.forms)

    def predict(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """L(N, D) in nats per token: the weighted mean of ln L over the forms."""
        return np.exp(sum(f.weight * f.log_losses(f.theta, n_params, n_tokens)[0] for f in self.forms))

    def band(self, n_params: np.ndarray, n_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The 5th and 95th percentiles of L(N, D) over the resampled fits: the law's own uncertainty, without noise."""
        if not self.forms or min(len(f.bootstrap) for f in self.forms) < 10:
            return None
        losses = np.concatenate([np.exp(f.log_losses(f.bootstrap, n_params, n_tokens)) for f in self.forms])
        weights = np.concatenate([np.full(len(f.bootstrap), f.weight / len(f.bootstrap)) for f in self.forms])
        order = np.argsort(losses, axis=0)
        losses = np.take_along_axis(losses, order, axis=0)
        below = np.cumsum(weights[order], axis=0) - 0.5 * weights[order]  # of the weight, up to the middle of each
        low, high = (
            np.array([np.interp(p, below[:, i], losses[:, i]) for i in range(losses.shape[1])]) for p in (0.05, 0.95)
        )
        return low, high

    def of_compute(self, flops: np.ndarray) -> np.ndarray | None:
        """Kaplan's L(C) = floor + (C_c / C)^exponent through the valleys, or None if it was not fitted."""
        found = {p.name: p.value for p in self.compute}
        if "exponent" not in found or "c_c_flops" not in found:
            return None
        return found.get("floor", 0.0) + (found["c_c_flops"] / flops) ** found["exponent"]

    def frontier(self, flops: np.ndarray, points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
        """Best N and D at each budget: the line through the valleys' lowest points, or else the law's closed form.

        The closed form takes FLOPs = k N D with k the points' median (6 if there are none).
        """
        known = [v for v in self.valleys if v.bottom and v.d_opt]
        if len(known) >= 2:
            x = np.log([v.budget_flops for v in known])
            sizes, tokens = np.asarray([v.n_opt for v in known]), np.asarray([v.d_opt for v in known])
            lines = [np.polyfit(x, np.log(y), 1) for y in (sizes, tokens)]
            n_params, n_tokens = (np.exp(np.polyval(line, np.log(flops))) for line in lines)
            return n_params, n_tokens
        _, a, b, alpha, beta = (self.parameters[name].value for name in PARAMETERS)
        k = float(np.median([p.flops / (p.n_params * p.n_tokens) for p in points])) if points else 6.0
        g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
        n_params = g * (flops / k) ** (beta / (alpha + beta))
        return n_params, flops / k / n_params


def read_law(value: dict[str, Any] | None) -> Law | None:
    """law.json's content as a Law; parts that are absent or not understood are left out."""
    if value is None:
        return None
    parametric, isoflop, compute = (_object(value, name) for name in ("parametric", "isoflop", "compute"))
    parameters = {p.name: p for p in (_parameter(parametric, name) for name in PARAMETERS) if p}
    status = {
        key: found
        for key in ("status", "share_of_starts", "n_starts", "n_points", "sigma", "objective_value")
        if (found := parametric.get(key)) is not None and not isinstance(found, dict | list)
    }
    status |= {key: value[key] for key in ("objective", "delta") if value.get(key) is not None}
    notes = value.get("notes")
    exponents = [p for p in (_parameter(isoflop, name) for name in ("n_exponent", "d_exponent")) if p]
    return Law(
        parameters=parameters,
        status=status,
        forms=_forms(value, parametric),
        valleys=[v for v in map(_valley, objects(isoflop.get("valleys"))) if v],
        exponents=exponents,
        compute=[p for p in (_parameter(compute, name) for name in ("exponent", "c_c_flops", "floor")) if p],
        notes=[note for note in notes if isinstance(note, str)] if isinstance(notes, list) else [],
        rows=frozenset(str(row.get("label")) for row in objects(value.get("observations"))),
    )


def points_of(runs: Sequence[Run], law: Law | None = None) -> list[Point]:
    """The finished runs that have a size, tokens, FLOPs and a loss.

    With a law, runs of a sweep of learning rates that it was not fitted to are left out: they are no points of it.
    """
    points = []
    for run in runs:
        if law is not None and law.rows and run.name not in law.rows and "learning_rate_factor" in _labels(run):
            continue
        n, d, loss = (positive(run.result, key) for key in ("n_params", "n_tokens", "loss"))
        flops = positive(run.result, "flops_exact") or positive(run.result, "flops_6nd")
        if n and d and loss and flops:
            points.append(Point(run.name, n, d, flops, loss, run.budget_flops))
    return points


def _labels(run: Run) -> dict[str, Any]:
    return _object(run.result or {}, "labels")


def _object(source: dict[str, Any], name: str) -> dict[str, Any]:
    value = source.get(name)
    return value if isinstance(value, dict) else {}


def _parameter(source: dict[str, Any], name: str) -> Parameter | None:
    value = number(source, name)
    if value is None:
        return None
    intervals = source.get("intervals")
    found = intervals.get(name) if isinstance(intervals, dict) else None
    return Parameter(name, value, pair(found if found is not None else source.get(f"{name}_interval")))


def _valley(item: dict[str, Any]) -> Valley | None:
    budget = positive(item, "budget_flops")
    if budget is None:
        return None
    a, b, c = (number(item, key) for key in "abc")
    coefficients = None if a is None or b is None or c is None else (a, b, c, number(item, "d") or 0.0)
    shape = [item[key] for key in ("interior", "curved") if isinstance(item.get(key), bool)]
    return Valley(
        budget_flops=budget,
        coefficients=coefficients,
        n_opt=positive(item, "n_opt"),
        n_opt_interval=_above_zero(pair(item.get("n_opt_interval"))),
        d_opt=positive(item, "d_opt"),
        loss_min=positive(item, "loss_min"),
        interior=all(shape) if shape else None,
    )


def _above_zero(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    return bounds if bounds and bounds[0] > 0 else None


def _forms(value: dict[str, Any], parametric: dict[str, Any]) -> list[Form]:
    """The forms of `average`, or the parametric law alone."""
    forms = []
    for item in objects(value.get("average")) or [parametric]:
        numbers = [positive(item, name) for name in ("A", "B", "E", "alpha", "beta")]
        weight = number(item, "weight") if item is not parametric else 1.0
        if None in numbers or weight is None:
            return []
        a, b, e, alpha, beta = (float(x or 0) for x in numbers)
        theta = np.array([[np.log(a), np.log(b), np.log(e), alpha, beta]])
        samples = _bootstrap(item.get("bootstrap"))
        forms.append(
            Form(weight, positive(item, "coupling") or 1.0, theta, np.empty((0, 5)) if samples is None else samples)
        )
    total = sum(f.weight for f in forms)
    return [replace(f, weight=f.weight / total) for f in forms] if total > 0 else []


def _bootstrap(rows: Any) -> np.ndarray | None:
    if not isinstance(rows, list):
        return None
    good = [row for row in rows if isinstance(row, list) and len(row) == 5 and all(finite(x) is not None for x in row)]
    return np.asarray(good, dtype=np.float64) if good else None
