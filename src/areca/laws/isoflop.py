"""IsoFLOP valleys (Hoffmann et al. 2022, approach 2): for each budget a parabola of ln L in ln N, its lowest point,
and the power laws N_opt ~ C^a and D_opt ~ C^b through the lowest points.

The noise is estimated from the residuals of all valleys together (a valley of five runs has two degrees of freedom,
four such have eight) and every interval comes from refits to parabolas plus noise of that size. A valley whose best
size is at its edge, or that does not curve upwards, is reported as such and left out of the power laws.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.laws.bootstrap import interval
from areca.laws.observations import Observations

LEVEL = 0.90
FLAT = 1e-3  # the valley's width is the range of N within 0.1% of its lowest loss


@dataclass(frozen=True)
class Valley:
    """ln L = a + b ln N + c (ln N)^2 at one budget. Sizes are parameters without embeddings."""

    budget_flops: float
    a: float
    b: float
    c: float
    n_opt: float | None  # None: the parabola has no lowest point
    n_opt_interval: list[float] | None
    n_flat: list[float] | None  # N within 0.1% of the lowest loss
    d_opt: float | None
    loss_min: float  # at n_opt, or of the best run where there is none
    loss_min_interval: list[float] | None
    interior: bool  # n_opt lies between the smallest and the largest size
    curved: bool  # the curvature is positive in at least 95% of the refits
    points: list[dict[str, float]]


@dataclass(frozen=True)
class IsoFlop:
    """The valleys, and N_opt = n_coefficient x C^n_exponent, D_opt = d_coefficient x C^d_exponent.

    The exponents are None where fewer than two budgets have an interior best size.
    """

    valleys: list[Valley]
    sigma: float  # of ln L about the parabolas
    n_exponent: float | None
    n_exponent_interval: list[float] | None
    n_coefficient: float | None
    d_exponent: float | None
    d_exponent_interval: list[float] | None
    d_coefficient: float | None
    level: float
    notes: list[str]
    loss_samples: np.ndarray  # [S, valleys] lowest loss in each refit, for L(C); not written
    n_samples: np.ndarray  # [S, valleys] ln N of it; not written

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self)
        del values["loss_samples"], values["n_samples"]
        return values


def fit_isoflop(
    observations: Observations, *, samples: int = 1000, seed: int = 0, level: float = LEVEL
) -> IsoFlop | None:
    """The valleys of every budget that at least four sizes share; None where there is no such budget."""
    groups = observations.budgets()
    if not groups:
        return None
    generator = np.random.default_rng([seed, 0x150F])
    log_n, log_d, log_l = np.log(observations.n_params), np.log(observations.n_tokens), np.log(observations.loss)
    bases, fits, squares, freedom = [], [], 0.0, 0
    for _, rows in groups:
        x = log_n[rows]
        basis = np.stack([np.ones_like(x), x - x.mean(), (x - x.mean()) ** 2], axis=1)
        fit = np.linalg.lstsq(basis, log_l[rows], rcond=None)[0]
        squares += float(((log_l[rows] - basis @ fit) ** 2).sum())
        freedom += len(rows) - 3
        bases.append(basis)
        fits.append(fit)
    sigma = float(np.sqrt(squares / freedom))
    drawn_sigma = sigma * np.sqrt(freedom / generator.chisquare(freedom, samples))
    valleys, notes, vertex_samples, d_samples, loss_samples = [], [], [], [], []
    for (budget, rows), basis, fit in zip(groups, bases, fits, strict=True):
        noise = drawn_sigma[:, None] * generator.standard_normal((samples, len(rows)))
        refits = (basis @ fit + noise) @ np.linalg.pinv(basis).T  # [S, 3]
        tokens = np.polyfit(basis[:, 1], log_d[rows], min(2, len(rows) - 1))
        valley, vertices, lows = _valley(budget, observations, rows, fit, refits, tokens, level)
        valleys.append(valley)
        vertex_samples.append(vertices)
        d_samples.append(np.polyval(tokens, vertices - log_n[rows].mean()))
        loss_samples.append(lows)
    flat = [f"{v.budget_flops:.3g}" for v in valleys if not v.curved]
    edge = [f"{v.budget_flops:.3g}" for v in valleys if v.curved and not v.interior]
    if flat:
        notes.append(f"no valley (curvature not distinguishable from 0) at {', '.join(flat)} FLOPs.")
    if edge:
        notes.append(f"the best size is at the edge of those tried at {', '.join(edge)} FLOPs; add runs beyond it.")
    good = [i for i, v in enumerate(valleys) if v.interior and v.curved]
    if len(good) < 2:
        notes.append(f"N_opt(C) needs at least two budgets with an interior best size; there are {len(good)}.")
        n_law = d_law = (None, None, None)
    else:
        log_c = np.log([valleys[i].budget_flops for i in good])
        n_law = _power_law(log_c, [valleys[i].n_opt for i in good], [vertex_samples[i] for i in good], level)
        d_law = _power_law(log_c, [valleys[i].d_opt for i in good], [d_samples[i] for i in good], level)
    return IsoFlop(
        valleys, sigma, *n_law, *d_law, level, notes, np.stack(loss_samples, axis=1), np.stack(vertex_samples, axis=1)
    )


def _valley(
    budget: float,
    observations: Observations,
    rows: np.ndarray,
    fit: np.ndarray,
    refits: np.ndarray,
    tokens: np.ndarray,
    level: float,
) -> tuple[Valley, np.ndarray, np.ndarray]:
    """The valley, and of its refits the vertices (ln N, within the sizes tried) and lowest losses."""
    log_n = np.log(observations.n_params[rows])
    centre = log_n.mean()
    low, high = log_n.min() - centre, log_n.max() - centre
    best_run = int(rows[np.argmin(observations.loss[rows])])
    has_vertex = fit[2] > 0
    vertex = float(-fit[1] / (2 * fit[2])) if has_vertex else 0.0
    interior = bool(has_vertex and low < vertex < high)
    curvature = np.where(refits[:, 2] > 0, refits[:, 2], np.nan)
    edges = np.where(
        refits[:, 0] + refits[:, 1] * low + refits[:, 2] * low**2
        < refits[:, 0] + refits[:, 1] * high + refits[:, 2] * high**2,
        low,
        high,
    )
    vertices = np.clip(np.where(np.isnan(curvature), edges, -refits[:, 1] / (2 * curvature)), low, high)
    lows = np.exp(refits[:, 0] + refits[:, 1] * vertices + refits[:, 2] * vertices**2)
    curved = bool(np.mean(refits[:, 2] > 0) >= 0.95)
    half = float(np.sqrt(np.log1p(FLAT) / fit[2])) if has_vertex else 0.0
    # In ln N itself rather than about its mean: ln L = a + b ln N + c (ln N)^2.
    a = float(fit[0] - fit[1] * centre + fit[2] * centre**2)
    b = float(fit[1] - 2 * fit[2] * centre)
    loss_min = np.exp(fit[0] + fit[1] * vertex + fit[2] * vertex**2) if interior else observations.loss[best_run]
    valley = Valley(
        budget_flops=budget,
        a=a,
        b=b,
        c=float(fit[2]),
        n_opt=float(np.exp(vertex + centre)) if has_vertex else None,
        n_opt_interval=[float(np.exp(v + centre)) for v in interval(vertices, level)] if has_vertex else None,
        n_flat=[float(np.exp(vertex + centre + s * half)) for s in (-1, 1)] if has_vertex else None,
        d_opt=float(np.exp(np.polyval(tokens, vertex))) if has_vertex else None,
        loss_min=float(loss_min),
        loss_min_interval=interval(lows, level) if interior else None,
        interior=interior,
        curved=curved,
        points=[
            {k: float(getattr(observations, k)[i]) for k in ("n_params", "n_tokens", "flops", "loss")} for i in rows
        ],
    )  # fmt: skip
    return valley, vertices + centre, lows


def _power_law(
    log_c: np.ndarray, optima: list[float | None], samples: list[np.ndarray], level: float
) -> tuple[float, list[float], float]:
    """Exponent, its interval, coefficient of optimum = coefficient x C^exponent, by least squares in logarithms."""
    x = log_c - log_c.mean()
    y = np.log(np.array(optima, dtype=np.float64))
    slope = float((x * y).sum() / (x * x).sum())
    slopes = (x[:, None] * np.stack(samples)).sum(axis=0) / (x * x).sum()
    return slope, interval(slopes, level), float(np.exp(y.mean() - slope * log_c.mean()))
