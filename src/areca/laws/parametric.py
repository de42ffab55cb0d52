"""Chinchilla's parametric law, L(N, D) = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, approach 3).

Its two terms may be coupled: L = E + ((A / N^alpha)^q + (B / D^beta)^q)^(1/q). q = 1 is Chinchilla's sum; without E and
with q = 1 / beta it is Kaplan's L(N, D) (2020, equation 1.5), which lets the scarcer of N and D decide.

Fitted on ln L from a grid of starts, with analytic derivatives in float64 and a convergence check. The starts are
better than the paper's grid of all five: for each pair of exponents the best A, B and E follow by linear least squares
(variable projection), since 54% of the plain grid ends far from the optimum (Besiroglu et al. 2024).
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import numpy as np

from areca.errors import ConfigError, FitError
from areca.laws.observations import Observations
from areca.laws.solver import N_PARAMETERS, Solutions, huber, minimise, predict_log_loss

Objective = Literal["huber", "lad", "l2"]
PARAMETERS = ("A", "B", "E", "alpha", "beta")
EXPONENT_STARTS = (0.08, 0.16, 0.25, 0.35, 0.47, 0.62, 0.82, 1.1)
EXPONENT_BOUNDS = (0.01, 3.0)
LAD_DELTAS = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7)  # the last leaves the sum of |r| within n x 5e-8 of its minimum
SMOOTHER = (0.1, 0.03, 0.01, 0.004)  # deltas a problem that stopped short is led through
AGREEMENT = 1e-4  # relative: starts whose objective is as close to the best are "at the optimum"
MIN_ROWS = N_PARAMETERS + 1


@dataclass(frozen=True)
class ParametricFit:
    """A converged fit. A and B are in nats x parameters^alpha and nats x tokens^beta, E in nats per token."""

    A: float
    B: float
    E: float
    alpha: float
    beta: float
    objective: str  # "huber", "lad" or "l2", of the residuals of ln L
    delta: float  # Huber's; 0 for the others
    objective_value: float  # the sum over observations
    gradient_norm: float  # largest derivative over the sum of its terms' sizes
    n_starts: int
    share_of_starts: float  # starts that ended within AGREEMENT of the best objective
    at_bound: tuple[str, ...]  # parameters the box stopped: the data do not determine them
    n_points: int
    sigma: float  # standard deviation of ln L of one run about the law, n - 5 degrees of freedom
    n_range: tuple[float, float]  # smallest and largest N fitted
    d_range: tuple[float, float]
    status: str = "converged"
    coupling: float = 1.0  # q

    @property
    def theta(self) -> np.ndarray:
        """[5]: ln A, ln B, ln E, alpha, beta."""
        return np.array([np.log(self.A), np.log(self.B), np.log(self.E), self.alpha, self.beta])

    @property
    def degrees_of_freedom(self) -> int:
        return self.n_points - N_PARAMETERS

    def predict(self, n_params: Any, n_tokens: Any) -> np.ndarray:
        """Loss in nats per token at N parameters (non-embedding) and D tokens, broadcast together."""
        n, d = np.asarray(n_params, float), np.asarray(n_tokens, float)
        of_n, of_d, q = self.A * n**-self.alpha, self.B * d**-self.beta, self.coupling
        return self.E + (of_n + of_d if q == 1.0 else (of_n**q + of_d**q) ** (1 / q))

    def frontier(self, flops: Any) -> tuple[np.ndarray, np.ndarray]:
        """The N and D of least loss under C = 6 N D (Hoffmann et al. 2022, equation 4)."""
        c = np.asarray(flops, float) / 6
        both = self.alpha + self.beta
        g = (self.alpha / self.beta) ** (1 / (self.coupling * both)) * (self.A / self.B) ** (1 / both)
        return g * c ** (self.beta / (self.alpha + self.beta)), c ** (self.alpha / (self.alpha + self.beta)) / g

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @staticmethod
    def from_dict(values: dict[str, Any]) -> "ParametricFit":
        known: dict[str, Any] = {k: v for k, v in values.items() if k in ParametricFit.__dataclass_fields__}
        known |= {k: tuple(v) for k, v in known.items() if isinstance(v, list)}
        return ParametricFit(**known)


def fit_parametric(
    observations: Observations,
    *,
    objective: Objective = "huber",
    delta: float = 1e-3,
    weights: np.ndarray | None = None,
    coupling: float = 1.0,
) -> ParametricFit:
    """Fits L(N, D) with a given coupling of its terms to at least six observations.

    `objective` is the sum over observations, of the residual of ln L, of Huber's function (`delta`), of the absolute
    value, or of half the square. Raises FitError when the rows can't determine the law or the optimiser did not
    converge: there is no such thing as a half-converged result.
    """
    check_objective(objective, delta)
    check_coupling(coupling)
    check_identifiable(observations)
    problem = Problem.of(observations, objective, delta, coupling)
    weight = np.ones((1, len(observations))) if weights is None else np.asarray(weights, float)[None, :]
    solutions = problem.solve(problem.starts(), problem.target[None, :], weight)
    best = int(np.argmin(solutions.objective))
    floor = 1e-12 * len(observations) * (1.0 if objective == "lad" else max(problem.deltas[-1], 1e-6))
    agree = solutions.objective <= solutions.objective[best] * (1 + AGREEMENT) + floor
    agree &= solutions.converged | (solutions.objective <= floor)
    if not agree.any() or not np.isfinite(solutions.objective[best]):
        raise FitError(
            f"the fit of L(N, D) did not converge: the best of {len(agree)} starts still has a relative gradient of "
            f"{solutions.gradient[best]:.1e}; look for rows of another kind, or try --objective l2."
        )
    if agree.sum() < 2:
        raise FitError(
            f"the fit of L(N, D) can't be trusted: of {len(agree)} starts only one reached the best objective; "
            "look for rows of another kind, or add runs over a wider range of N and D."
        )
    best = int(np.argmin(np.where(agree, solutions.objective, np.inf)))
    for k, letter in ((0, "N"), (1, "D")):
        if solutions.at_bound[best, k]:
            raise FitError(
                f"the loss does not fall with {letter} in these rows, so L(N, D) can't be fitted; "
                "check that the columns are mapped as meant, or add runs."
            )
    theta = problem.uncentre(solutions.theta[best][None, :])[0]
    residual = predict_log_loss(solutions.theta[best][None, :], problem.x, problem.y, coupling)[0] - problem.target
    return ParametricFit(
        A=float(np.exp(theta[0])),
        B=float(np.exp(theta[1])),
        E=float(np.exp(theta[2])),
        alpha=float(theta[3]),
        beta=float(theta[4]),
        objective=objective,
        delta=delta if objective == "huber" else 0.0,
        objective_value=float(_sum(residual, objective, delta)),
        gradient_norm=float(solutions.gradient[best]),
        n_starts=len(agree),
        share_of_starts=float(agree.mean()),
        at_bound=tuple(name for name, at in zip(PARAMETERS, solutions.at_bound[best], strict=True) if at),
        n_points=len(observations),
        sigma=float(np.sqrt((residual**2).sum() / (len(observations) - N_PARAMETERS))),
        n_range=(float(observations.n_params.min()), float(observations.n_params.max())),
        d_range=(float(observations.n_tokens.min()), float(observations.n_tokens.max())),
        coupling=coupling,
    )


@dataclass(frozen=True)
class Problem:
    """The centred regression: what the solver needs, and the way back to the law's parameters."""

    x: np.ndarray  # [n] ln N - x0
    y: np.ndarray  # [n] ln D - y0
    target: np.ndarray  # [n] ln L
    x0: float
    y0: float
    deltas: tuple[float, ...]  # solved in turn, each from where the one before ended
    lower: np.ndarray
    upper: np.ndarray
    coupling: float = 1.0

    @staticmethod
    def of(observations: Observations, objective: str, delta: float, coupling: float = 1.0) -> "Problem":
        x, y, target = np.log(observations.n_params), np.log(observations.n_tokens), np.log(observations.loss)
        deltas = {"huber": (delta,), "lad": LAD_DELTAS, "l2": (1e6,)}[objective]
        if objective == "huber" and delta < 1e-3:
            deltas = (*(d for d in LAD_DELTAS if d > delta), delta)
        low, high = float(target.min()), float(target.max())
        exponent_low, exponent_high = EXPONENT_BOUNDS
        return Problem(
            x - x.mean(), y - y.mean(), target, float(x.mean()), float(y.mean()), deltas,
            lower=np.array([low - 14, low - 14, low - 7, exponent_low, exponent_low]),
            upper=np.array([high + 3, high + 3, low, exponent_high, exponent_high]),
            coupling=coupling,
        )  # fmt: skip

    def starts(self) -> np.ndarray:
        """[64, 5]: for each pair of exponents, A, B and E by non-negative least squares on L relative to itself."""
        loss = np.exp(self.target)
        floor = 1e-3 * loss.min()
        rows = []
        for alpha in EXPONENT_STARTS:
            for beta in EXPONENT_STARTS:
                columns = np.stack([np.exp(-alpha * self.x), np.exp(-beta * self.y), np.ones_like(loss)], axis=1)
                amplitude = np.linalg.lstsq(columns / loss[:, None], np.ones_like(loss), rcond=None)[0]
                a, b, e = np.log(np.maximum(amplitude, floor))
                rows.append([a, b, e, alpha, beta])
        return np.array(rows)

    def solve(self, theta: np.ndarray, target: np.ndarray, weight: np.ndarray) -> Solutions:
        """`minimise` through the sequence of deltas, from centred theta [S, 5].

        Problems that stop short, in the bent and narrow valleys of a small delta, go on through larger ones first.
        """
        found = self._descend(theta, target, weight, self.deltas)
        short = np.flatnonzero(~found.converged)
        if short.size and self.deltas[-1] < SMOOTHER[-1]:
            shape = (len(theta), self.target.size)
            targets, weights = np.broadcast_to(target, shape)[short], np.broadcast_to(weight, shape)[short]
            again = self._descend(found.theta[short], targets, weights, (*SMOOTHER, *self.deltas))
            better = again.converged | (again.objective < found.objective[short])
            for name in ("theta", "objective", "gradient", "converged", "at_bound"):
                getattr(found, name)[short[better]] = getattr(again, name)[better]
        return found

    def _descend(
        self, theta: np.ndarray, target: np.ndarray, weight: np.ndarray, deltas: tuple[float, ...]
    ) -> Solutions:
        found = None
        for delta in deltas:
            found = minimise(
                theta, self.x, self.y, target, weight,
                delta=delta, lower=self.lower, upper=self.upper, coupling=self.coupling,
            )  # fmt: skip
            theta = found.theta
        assert found is not None
        return found

    def uncentre(self, theta: np.ndarray) -> np.ndarray:
        """Centred [S, 5] -> ln A, ln B, ln E, alpha, beta."""
        shift = np.stack([theta[:, 3] * self.x0, theta[:, 4] * self.y0, *(np.zeros(len(theta)),) * 3], axis=1)
        return theta + shift

    def centre(self, theta: np.ndarray) -> np.ndarray:
        """The inverse of `uncentre`."""
        shift = np.stack([theta[:, 3] * self.x0, theta[:, 4] * self.y0, *(np.zeros(len(theta)),) * 3], axis=1)
        return theta - shift


def check_coupling(coupling: float) -> None:
    """ConfigError unless it lies in the range that the solver was tried on."""
    if not 1.0 <= coupling <= 10.0:
        raise ConfigError(f"coupling is {coupling}; it must lie between 1 (Chinchilla's sum of terms) and 10.")


def check_objective(objective: str, delta: float) -> None:
    """ConfigError unless the objective is known and delta positive."""
    if objective not in get_args(Objective):
        raise ConfigError(f"objective is {objective!r}; choose one of {', '.join(map(repr, get_args(Objective)))}.")
    if objective == "huber" and not 0 < delta < 1e30:
        raise ConfigError(f"delta is {delta}; Huber's delta must be a positive number (1e-3 in the Chinchilla paper).")


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


def _sum(residual: np.ndarray, objective: str, delta: float) -> float:
    if objective == "lad":
        return float(np.abs(residual).sum())
    return float(huber(residual, delta if objective == "huber" else np.inf).sum())
