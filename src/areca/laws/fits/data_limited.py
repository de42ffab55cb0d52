"""What a limited text allows: L(D) of early-stopped runs, and overfitting over sizes (Kaplan et al. 2020, section 4).

    L(D) = (D_c / D)^a_D, also with a floor                                      (equation 1.2)
    L(N, D) = [(N_c / N)^(a_N / a_D) + D_c / D]^a_D                              (equation 1.5)

so that the excess of L(N, D) over L(N, infinity) is a function of N^(a_N / a_D) / D alone. D is the distinct text, the
loss that of the best step. Losses are in nats a token.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares
from scipy.stats import t as student

from areca.errors import DataError


@dataclass(frozen=True)
class DataLaw:
    """L(D) = floor + (d_c / D)^alpha."""

    alpha: float
    alpha_interval: list[float]  # by the delta method
    d_c: float
    floor: float
    scatter: float  # of ln L, one standard deviation
    level: float

    def predict(self, tokens: Any) -> np.ndarray:
        """Nats a token of early-stopped runs on so much text."""
        return self.floor + (self.d_c / np.asarray(tokens, float)) ** self.alpha

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Overfitting:
    """L(N, D) = [(n_c / N)^(alpha_n / alpha_d) + d_c / D]^alpha_d."""

    alpha_n: float
    alpha_n_interval: list[float]
    alpha_d: float
    alpha_d_interval: list[float]
    n_c: float
    d_c: float
    exponent: float  # alpha_n / alpha_d: overfitting is a function of N^exponent / D
    exponent_interval: list[float]
    scatter: float
    level: float

    def predict(self, n_params: Any, tokens: Any) -> np.ndarray:
        """Nats a token; `tokens` may be infinite."""
        n, d = np.asarray(n_params, float), np.asarray(tokens, float)
        return ((self.n_c / n) ** self.exponent + self.d_c / d) ** self.alpha_d

    def excess(self, n_params: Any, tokens: Any) -> np.ndarray:
        """L(N, D) / L(N, infinity) - 1, which only N^exponent / D decides."""
        return self.predict(n_params, tokens) / self.predict(n_params, np.inf) - 1.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit_data_law(tokens: Any, loss: Any, *, with_floor: bool = False, level: float = 0.9) -> DataLaw:
    """L(D) by least squares on ln L. DataError for fewer than three amounts of text, four with a floor."""
    d, y = np.asarray(tokens, float), np.log(np.asarray(loss, float))
    needed = 4 if with_floor else 3
    if len(np.unique(d)) < needed:
        raise DataError(f"L(D) needs runs on {needed} amounts of text, not {len(np.unique(d))}.")

    def residual(p: np.ndarray) -> np.ndarray:  # ln alpha, ln d_c, floor
        power = np.exp(np.clip(np.exp(p[0]) * (p[1] - np.log(d)), -700, 700))
        return np.log(power + (p[2] if with_floor else 0.0)) - y

    slope = max(1e-3, -np.polyfit(np.log(d), y, 1)[0])
    floors = np.linspace(0, 0.9, 4) * np.exp(y.min()) if with_floor else [0.0]
    starts = [[math.log(slope / max(0.1, 1 - f / np.exp(y.min()))), np.log(d).mean() + y.mean() / slope, f]
              for f in floors]  # fmt: skip
    k = 3 if with_floor else 2
    bounds = ([-np.inf, -np.inf, 0.0][:k], [np.inf, np.inf, np.exp(y.min())][:k])
    fit = _best(residual, [s[:k] for s in starts], bounds)
    (scatter, covariance), free = _spread(fit, len(y), k), max(1, len(y) - k)
    alpha, wide = math.exp(fit.x[0]), float(student.ppf(0.5 + level / 2, free)) * math.sqrt(covariance[0, 0])
    return DataLaw(
        alpha=alpha,
        alpha_interval=[alpha * math.exp(-wide), alpha * math.exp(wide)],
        d_c=math.exp(fit.x[1]),
        floor=float(fit.x[2]) if with_floor else 0.0,
        scatter=scatter,
        level=level,
    )


def fit_overfitting(n_params: Any, tokens: Any, loss: Any, *, level: float = 0.9) -> Overfitting:
    """Kaplan's L(N, D) by least squares on ln L. DataError for fewer than five runs, or two of N or D."""
    n, d, y = (np.asarray(v, float) for v in (n_params, tokens, np.log(loss)))
    if len(y) < 5 or len(np.unique(n)) < 2 or len(np.unique(d)) < 2:
        raise DataError(
            f"L(N, D) needs five runs of two sizes on two amounts of text, not {len(y)} of {len(np.unique(n))} on "
            f"{len(np.unique(d))}."
        )
    n0, d0 = np.exp(np.log(n).mean()), np.exp(np.log(d).mean())

    # ln of the two terms at the middle N and D, ln alpha_d, ln (alpha_n / alpha_d)
    def residual(p: np.ndarray) -> np.ndarray:
        terms = np.logaddexp(p[0] - np.exp(p[3]) * np.log(n / n0), p[1] - np.log(d / d0))
        return np.exp(p[2]) * terms - y

    starts = [
        [y.mean() / a - 0.7, y.mean() / a - 0.7, math.log(a), math.log(r)] for a in (0.05, 0.15, 0.4) for r in (0.5, 1)
    ]
    fit = _best(residual, starts, (-np.inf, np.inf))
    (scatter, covariance), free = _spread(fit, len(y), 4), max(1, len(y) - 4)
    wide = float(student.ppf(0.5 + level / 2, free))

    def around(direction: list[float]) -> tuple[float, list[float]]:
        v = np.array(direction)
        value, error = float(v @ fit.x), wide * math.sqrt(v @ covariance @ v)
        return math.exp(value), [math.exp(value - error), math.exp(value + error)]

    (alpha_d, d_range), (ratio, r_range), (alpha_n, n_range) = map(around, ([0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 1]))
    return Overfitting(
        alpha_n=alpha_n,
        alpha_n_interval=n_range,
        alpha_d=alpha_d,
        alpha_d_interval=d_range,
        n_c=float(n0 * math.exp(fit.x[0] / ratio)),
        d_c=float(d0 * math.exp(fit.x[1])),
        exponent=ratio,
        exponent_interval=r_range,
        scatter=scatter,
        level=level,
    )


def _best(residual: Any, starts: list[list[float]], bounds: Any) -> Any:
    """The lowest of the least-squares fits from the starts."""
    fits = [least_squares(residual, s, bounds=bounds, xtol=1e-13, ftol=1e-13, max_nfev=5000) for s in starts]
    return min(fits, key=lambda f: f.cost)


def _spread(fit: Any, rows: int, parameters: int) -> tuple[float, np.ndarray]:
    """(standard deviation of a row, covariance of the parameters)."""
    scatter = math.sqrt(2 * fit.cost / max(1, rows - parameters))
    return scatter, scatter**2 * np.linalg.pinv(fit.jac.T @ fit.jac)
