"""Chinchilla's parametric law, L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, approach 3).

Its two terms may be coupled: L = E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q). q = 1 is Chinchilla's sum; without E and
with q = 1 / beta it is Kaplan's L(N, D) (2020, equation 1.5), which lets the scarcer of N and D decide. The forms are
`areca.laws.forms.declared`'s, fitted by `areca.laws.fits.fitting`; here they have their parameters by name, a frontier,
and predictions in plain numpy.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.errors import ConfigError, FitError
from areca.laws.fits.fitting import Fit, Objective, check_objective, fit, rows_of
from areca.laws.forms import Form
from areca.laws.reading.observations import Observations

PARAMETERS = ("A", "B", "E", "alpha", "beta")
N_PARAMETERS = len(PARAMETERS)
MIN_ROWS = N_PARAMETERS + 1


@dataclass(frozen=True)
class ParametricFit:
    """A converged fit. A and B are in nats x parameters^alpha and nats x tokens^beta, E in nats per token."""

    A: float
    B: float
    E: float
    alpha: float
    beta: float
    objective: str  # "huber", "lad", "l2" or "huber-density", of the residuals of ln L
    delta: float  # Huber's; 0 for lad and l2
    objective_value: float  # the sum over observations
    gradient_norm: float  # largest derivative over the sum of its terms' sizes
    n_starts: int
    share_of_starts: float  # starts that ended within 1e-4 of the best objective
    at_bound: tuple[str, ...]  # parameters the box stopped: the data do not determine them
    n_points: int
    sigma: float  # standard deviation of ln L of one run about the law, n - 5 degrees of freedom
    n_range: tuple[float, float]  # smallest and largest N fitted
    d_range: tuple[float, float]
    status: str = "converged"
    coupling: float = 1.0  # q
    condition: float = 1.0  # of the parameters, how alike they act: their J'J with columns of one length
    scale: float = 0.0  # of the residuals, where the objective has one (huber-density)

    @property
    def theta(self) -> np.ndarray:
        """[5]: ln A, ln B, ln E, alpha, beta."""
        with np.errstate(divide="ignore"):  # a law without a floor
            return np.array([*np.log([self.A, self.B, self.E]), self.alpha, self.beta])

    @property
    def form(self) -> Form:
        from areca.laws.forms.declared import coupled  # needs jax, which reading a law does without

        return coupled(self.coupling)

    @property
    def degrees_of_freedom(self) -> int:
        return self.n_points - N_PARAMETERS

    def predict(self, n_params: Any, n_tokens: Any) -> np.ndarray:
        """Loss in nats per token at N parameters (non-embedding) and D tokens, broadcast together."""
        n, d = np.asarray(n_params, float), np.asarray(n_tokens, float)
        return np.exp(log_loss(self.theta, np.log(n), np.log(d), self.coupling))

    def frontier(self, flops: Any) -> tuple[np.ndarray, np.ndarray]:
        """The N and D of least loss under C = 6 N D (Hoffmann et al. 2022, equation 4)."""
        return frontier(self.theta, flops, self.coupling)

    def generic(self) -> Fit:
        """The same fit as `areca.laws.fits.fitting` knows it."""
        return Fit(
            form=self.form, values={k: getattr(self, k) for k in PARAMETERS}, objective=self.objective,
            delta=self.delta, objective_value=self.objective_value, gradient_norm=self.gradient_norm,
            n_starts=self.n_starts, share_of_starts=self.share_of_starts, at_bound=self.at_bound,
            condition=self.condition, n_points=self.n_points, sigma=self.sigma,
            ranges={"n_params": self.n_range, "n_tokens": self.d_range}, scale=self.scale, status=self.status,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "ParametricFit":
        known: dict[str, Any] = {k: v for k, v in values.items() if k in ParametricFit.__dataclass_fields__}
        known |= {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
        return ParametricFit(**known)


def log_loss(theta: np.ndarray, log_n: Any, log_d: Any, coupling: float = 1.0) -> np.ndarray:
    """ln L for theta [..., 5] at ln N and ln D, which broadcast with [...]."""
    a, b, e, alpha, beta = np.moveaxis(np.asarray(theta, float), -1, 0)
    of_n, of_d = a - alpha * log_n, b - beta * log_d
    return np.logaddexp(np.logaddexp(coupling * of_n, coupling * of_d) / coupling, e)


def frontier(theta: np.ndarray, flops: Any, coupling: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """N and D of least loss under C = 6 N D, for theta [..., 5] and FLOPs that broadcast with [...]."""
    a, b, _, alpha, beta = np.moveaxis(np.asarray(theta, float), -1, 0)
    c, both = np.asarray(flops, float) / 6, alpha + beta
    with np.errstate(divide="ignore", over="ignore"):  # a resampled law of a few rows may have its best N at 0
        g = (alpha / beta) ** (1 / (coupling * both)) * np.exp((a - b) / both)
        return g * c ** (beta / both), c ** (alpha / both) / g


def fit_parametric(
    observations: Observations,
    *,
    objective: Objective = "huber",
    delta: float = 1e-3,
    weights: np.ndarray | None = None,
    coupling: float = 1.0,
) -> ParametricFit:
    """Fits L(N, D) with a given coupling of its terms to at least six observations.

    `objective` as in `areca.laws.fits.fitting.fit`. Raises FitError when the rows can't determine the law or the
    optimiser did not converge: there is no such thing as a half-converged result.
    """
    from areca.laws.forms.declared import coupled

    check_objective(objective, delta)
    check_coupling(coupling)
    check_identifiable(observations)
    found = fit(coupled(coupling), observations, objective=objective, delta=delta, weights=weights)
    for name, letter in (("A", "N"), ("B", "D")):
        if name in found.at_bound or _negligible(found, observations, name):
            raise FitError(
                f"the loss does not fall with {letter} in these rows, so L(N, D) can't be fitted; "
                "check that the columns are mapped as meant, or add runs."
            )
    return ParametricFit(
        **{k: found.values[k] for k in PARAMETERS},  # type: ignore[arg-type]
        objective=objective,
        delta=found.delta,
        objective_value=found.objective_value,
        gradient_norm=found.gradient_norm,
        n_starts=found.n_starts,
        share_of_starts=found.share_of_starts,
        at_bound=found.at_bound,
        n_points=found.n_points,
        sigma=found.sigma,
        n_range=found.ranges["n_params"],
        d_range=found.ranges["n_tokens"],
        coupling=coupling,
        condition=found.condition,
        scale=found.scale,
    )


def _negligible(found: Fit, observations: Observations, amplitude: str) -> bool:
    """Whether the term of A (or B) is nowhere a millionth of the loss: the fit has taken it away."""
    rows = rows_of(found.form, observations)
    of, power = {"A": ("n_params", "alpha"), "B": ("n_tokens", "beta")}[amplitude]
    term = np.log(found.values[amplitude]) - found.values[power] * np.log(rows.inputs[of])
    return bool((term - rows.target).max() < np.log(1e-6))


def check_coupling(coupling: float) -> None:
    """ConfigError unless it lies in the range that the solver was tried on."""
    if not 1.0 <= coupling <= 10.0:
        raise ConfigError(f"coupling is {coupling}; it must lie between 1 (Chinchilla's sum of terms) and 10.")


def check_identifiable(observations: Observations) -> None:
    """FitError when no optimiser could tell the five parameters from these rows."""
    rows = len(observations)
    if rows < MIN_ROWS:
        raise FitError(
            f"L(N, D) has {N_PARAMETERS} parameters and the table has {rows} rows; it needs at least {MIN_ROWS}."
        )
    for name, values in (("N", observations.n_params), ("D", observations.n_tokens)):
        distinct = len(np.unique(np.round(np.log(values), 6)))
        if distinct < 3:
            raise FitError(
                f"L(N, D) needs at least 3 distinct values of {name} and the table has {distinct}; "
                f"add runs of other {'sizes' if name == 'N' else 'lengths'}."
            )
    x, y = np.log(observations.n_params), np.log(observations.n_tokens)
    spread = np.linalg.svd(np.stack([x - x.mean(), y - y.mean()]), compute_uv=False)
    if spread[1] < 0.01 * spread[0]:
        raise FitError(
            "N and D move together in every row, so the law can't tell their effects apart; "
            "add runs with another number of tokens per parameter."
        )
