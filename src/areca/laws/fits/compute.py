"""Loss against compute on the frontier, L(C) = (C_c / C)^a (Kaplan et al. 2020, equation 1.3), also with a floor.

The frontier is the lowest loss of each budget: the vertex of its valley where the best size is interior, the best run
otherwise. The pure power law has no floor, so beyond the budgets fitted it is an optimist; L(C) = E + (C_c / C)^a
needs four budgets. C_c is given in FLOPs and in PF-days (8.64e19 FLOPs).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.laws.fits.bootstrap import interval
from areca.laws.fits.isoflop import IsoFlop

PF_DAY = 8.64e19  # FLOPs
FLOOR_BUDGETS = 4


@dataclass(frozen=True)
class ComputeLaw:
    """L(C) = floor + (c_c_flops / C)^exponent in nats per token."""

    exponent: float
    exponent_interval: list[float]
    c_c_flops: float
    c_c_pf_days: float
    floor: float
    floor_interval: list[float] | None
    points: list[dict[str, float]]  # budget_flops, loss
    level: float

    def predict(self, flops: Any) -> np.ndarray:
        """Nats per token at C FLOPs."""
        return self.floor + (self.c_c_flops / np.asarray(flops, float)) ** self.exponent

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit_compute(valleys: IsoFlop, *, with_floor: bool = False) -> ComputeLaw | None:
    """L(C) through the lowest losses of at least two budgets (four with a floor); None where there are fewer."""
    budgets = np.array([v.budget_flops for v in valleys.valleys])
    if len(budgets) < (FLOOR_BUDGETS if with_floor else 2):
        return None
    losses = np.array([v.loss_min for v in valleys.valleys])
    samples = valleys.loss_samples
    fit = _with_floor if with_floor else _without_floor
    floor, exponent, log_c_c = (float(v[0]) for v in fit(np.log(budgets), losses[None, :]))
    floors, exponents, _ = fit(np.log(budgets), samples)
    return ComputeLaw(
        exponent=exponent,
        exponent_interval=interval(exponents, valleys.level),
        c_c_flops=float(np.exp(log_c_c)),
        c_c_pf_days=float(np.exp(log_c_c) / PF_DAY),
        floor=floor,
        floor_interval=interval(floors, valleys.level) if with_floor else None,
        points=[{"budget_flops": float(c), "loss": float(x)} for c, x in zip(budgets, losses, strict=True)],
        level=valleys.level,
    )


def _without_floor(log_c: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Least squares of ln L on ln C for each row of losses [S, budgets] -> floor 0, exponent, ln C_c."""
    x = log_c - log_c.mean()
    y = np.log(losses)
    exponent = -(y * x).sum(axis=1) / (x * x).sum()
    return np.zeros(len(losses)), exponent, log_c.mean() + y.mean(axis=1) / exponent


def _with_floor(log_c: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Variable projection: for each floor the line of ln(L - floor) on ln C; the floor of least residual in ln L.

    The floor is searched over [0, lowest loss) on a grid, twice refined.
    """
    x = log_c - log_c.mean()
    fraction_low, fraction_high = np.zeros(len(losses)), np.full(len(losses), 0.999)
    best = np.zeros(len(losses))
    lowest = losses.min(axis=1)
    for _ in range(3):
        grid = fraction_low[:, None] + (fraction_high - fraction_low)[:, None] * np.linspace(0, 1, 81)  # [S, G]
        excess = losses[:, None, :] - (grid * lowest[:, None])[:, :, None]
        y = np.log(excess)
        slope = (y * x).sum(axis=2) / (x * x).sum()
        line = y.mean(axis=2)[:, :, None] + slope[:, :, None] * x
        residual = np.log((grid * lowest[:, None])[:, :, None] + np.exp(line)) - np.log(losses)[:, None, :]
        pick = (residual**2).sum(axis=2).argmin(axis=1)
        best = grid[np.arange(len(losses)), pick]
        step = (fraction_high - fraction_low) / 80
        fraction_low, fraction_high = np.maximum(best - step, 0), np.minimum(best + step, 0.999)
    floor = best * lowest
    y = np.log(losses - floor[:, None])
    exponent = -(y * x).sum(axis=1) / (x * x).sum()
    return floor, exponent, log_c.mean() + y.mean(axis=1) / exponent
