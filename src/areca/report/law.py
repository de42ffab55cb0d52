"""A fitted law as the page draws it: parameters, valleys, and curves through them. `lawfile` reads it from law.json.

The law is L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, section 3.3), or for predictions an average
over forms that couple its two terms, E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q); a valley is a parabola of ln L
in ln N at one budget (their approach 2). Losses are nats per token, budgets are training FLOPs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from areca import counted
from areca.counted import FlopsCount
from areca.report.checks import Checks
from areca.report.values import Ends, positive

PARAMETERS = ("E", "A", "B", "alpha", "beta")


@dataclass(frozen=True)
class Parameter:
    """One fitted number and its interval, either None where law.json has none."""

    name: str
    value: float
    interval: Ends | None


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
    n_flat: tuple[float, float] | None = None  # N within 0.1% of the lowest loss
    runs: int = 0

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
class ComputeLaw:
    """L(C) = floor + (c_c / C)^exponent."""

    parameters: tuple[Parameter, ...]

    def predict(self, flops: np.ndarray) -> np.ndarray | None:
        """Nats per token, or None if the law was not fitted."""
        found = {p.name: p.value for p in self.parameters}
        if "exponent" not in found or "c_c_flops" not in found:
            return None
        return found.get("floor", 0.0) + (found["c_c_flops"] / flops) ** found["exponent"]


@dataclass(frozen=True)
class Law:
    """What law.json says, in the shape that the figures need."""

    parameters: dict[str, Parameter]
    status: dict[str, Any]
    forms: list[Form]  # of sum 1 in weight; empty if no parameters are known
    valleys: list[Valley]
    exponents: list[Parameter]
    compute: ComputeLaw
    with_floor: ComputeLaw
    notes: list[str]
    checks: Checks
    points: list[Point] = field(default_factory=list)  # what it was fitted to
    columns: dict[str, str] = field(default_factory=dict)  # what each quantity was called or how it was derived
    methods: dict[str, dict[str, Ends]] = field(default_factory=dict)  # intervals by method, then by parameter
    level: float = 0.90
    others: list[dict[str, Any]] = field(default_factory=list)  # laws of other forms, as in law.json
    fingerprint: str = ""  # tells it from other laws; "" of a law.json without
    flops_count: FlopsCount = "exact"

    @property
    def counts_embeddings(self) -> bool:
        """Whether its N is of all parameters, as its table's column says by its name."""
        return counted.n_count(self.columns.get("n_params", "")) == "total"

    def size_of(self, run: Any) -> float | None:
        """N of a run, a plan or a plan's neighbour as this law counts it; None where that is not recorded."""
        return positive(run, "n_params_total" if self.counts_embeddings else "n_params")

    def flops_of(self, run: Any) -> float | None:
        """C of a run, a plan or a plan's neighbour as this law's rows count it; None where that is not recorded.

        Exact FLOPs as recorded, or k N D: k is 6, or the rows' median where a table counts in a way of its own.
        """
        if self.flops_count == "exact":
            return positive(run, "flops_exact")
        n, d = self.size_of(run), positive(run, "n_tokens")
        return counted.flops_as(self.flops_count, n, d, 0.0, flops_per_nd(self.points)) if n and d else None

    @property
    def complete(self) -> bool:
        """Whether L(N, D) can be evaluated: all five parameters are there and positive."""
        known = all(name in self.parameters and self.parameters[name].value > 0 for name in PARAMETERS)
        return known and bool(self.forms)

    @property
    def of_sizes(self) -> bool:
        """Whether it says anything of N, D and C, rather than of other forms alone."""
        return bool(self.parameters or self.valleys or self.compute.parameters or self.points)

    def predict(self, n_params: np.ndarray, n_tokens: np.ndarray) -> np.ndarray:
        """L(N, D) in nats per token: the weighted mean of ln L over the forms."""
        return np.exp(sum(f.weight * f.log_losses(f.theta, n_params, n_tokens)[0] for f in self.forms))

    def at(self, points: Sequence[Point]) -> np.ndarray:
        """L(N, D) of each point."""
        return self.predict(np.asarray([p.n_params for p in points]), np.asarray([p.n_tokens for p in points]))

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
        k = flops_per_nd(points)
        g = (alpha * a / (beta * b)) ** (1 / (alpha + beta))
        n_params = g * (flops / k) ** (beta / (alpha + beta))
        return n_params, flops / k / n_params


def flops_per_nd(points: Sequence[Point]) -> float:
    """The median of C / (N D): 6 where there are no points."""
    return counted.flops_per_nd(rows_of(points))


def rows_of(points: Sequence[Point]) -> list[counted.Row]:
    """N, D and C of each."""
    return [(p.n_params, p.n_tokens, p.flops) for p in points]
