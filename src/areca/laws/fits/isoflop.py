"""IsoFLOP valleys (Hoffmann et al. 2022, approach 2): for each budget a parabola of ln L in ln N, its lowest point,
and the power laws N_opt ~ C^a and D_opt ~ C^b through the lowest points.

Two things keep the lowest points where they are. A valley is steeper on one side wherever alpha and beta differ, which
moves a parabola's vertex by more than its own interval when sizes reach far; so all valleys share one cubic term, as
Chinchilla's law says they nearly do. And runs far up the sides (10% above their budget's lowest loss) have nothing to
say about the bottom, and are left out. The noise is estimated from the residuals of all valleys together and every
interval comes from refits to these curves plus noise of that size. A valley whose best size is at its edge, or that
does not curve upwards, is reported as such and left out of the power laws.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.laws.fits.bootstrap import interval
from areca.laws.reading.observations import Observations

LEVEL = 0.90
FLAT = 1e-3  # the valley's width is the range of N within 0.1% of its lowest loss
WINDOW = 0.10  # of ln L above the lowest run: what is higher does not shape the bottom
LEAST_ROWS = 5  # of a budget that are kept whatever their loss, those of nearest size to the lowest run
SKEW_FREEDOM = 5  # degrees of freedom of the parabolas' residuals from which the shared cubic term is fitted


@dataclass(frozen=True)
class Valley:
    """ln L = a + b ln N + c (ln N)^2 + d (ln N)^3 at one budget. Sizes are parameters without embeddings."""

    budget_flops: float
    a: float
    b: float
    c: float
    d: float  # the same in all valleys; 0 where the runs are too few to tell
    n_opt: float | None  # None: the curve has no lowest point
    n_opt_interval: list[float] | None
    n_flat: list[float] | None  # N within 0.1% of the lowest loss
    d_opt: float | None
    loss_min: float  # at n_opt, or of the best run where there is none
    loss_min_interval: list[float] | None
    interior: bool  # n_opt lies between the smallest and the largest size
    curved: bool  # the curvature amid the sizes is positive in at least 95% of the refits
    rows_used: int  # runs the curve was fitted to, of `points`
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
    groups = [(budget, rows, rows[_near(log_n[rows], log_l[rows])]) for budget, rows in groups]
    bases, cubes = [], []
    for _, _, used in groups:
        x = log_n[used] - log_n[used].mean()
        bases.append(np.stack([np.ones_like(x), x, x * x], axis=1))
        cubes.append(x**3)
    freedom = sum(len(used) - 3 for *_, used in groups)
    skewed = freedom >= SKEW_FREEDOM
    freedom -= int(skewed)
    fits, skew = _curves(bases, cubes, [log_l[used][None] for *_, used in groups], skewed)
    expected = [basis @ fit[0] + skew[0] * cube for basis, cube, fit in zip(bases, cubes, fits, strict=True)]
    squares = sum(((log_l[used] - e) ** 2).sum() for (*_, used), e in zip(groups, expected, strict=True))
    sigma = float(np.sqrt(squares / freedom))
    drawn_sigma = sigma * np.sqrt(freedom / generator.chisquare(freedom, samples))
    noisy = [e + drawn_sigma[:, None] * generator.standard_normal((samples, len(e))) for e in expected]
    refits, skews = _curves(bases, cubes, noisy, skewed)
    valleys, notes, vertex_samples, d_samples, loss_samples = [], [], [], [], []
    for k, (budget, rows, used) in enumerate(groups):
        tokens = np.polyfit(bases[k][:, 1], log_d[used], min(2, len(used) - 1))
        fit, again = np.append(fits[k][0], skew[0]), np.column_stack([refits[k], skews])
        valley, vertices, lows = _valley(budget, observations, rows, used, fit, again, tokens, level)
        valleys.append(valley)
        vertex_samples.append(vertices)
        d_samples.append(np.polyval(tokens, vertices - log_n[used].mean()))
        loss_samples.append(lows)
    far = sum(len(rows) - len(used) for _, rows, used in groups)
    if far:
        notes.append(
            f"{far} runs more than {WINDOW:.0%} above the lowest loss of their budget do not shape its valley."
        )
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


def _near(log_n: np.ndarray, log_l: np.ndarray) -> np.ndarray:
    """Indices of the runs that shape the bottom: within WINDOW of the lowest, and the LEAST_ROWS of nearest size."""
    lowest = int(np.argmin(log_l))
    nearest = np.argsort(np.abs(log_n - log_n[lowest]), kind="stable")[:LEAST_ROWS]
    return np.union1d(np.flatnonzero(log_l <= log_l[lowest] + WINDOW), nearest)


def _curves(
    bases: list[np.ndarray], cubes: list[np.ndarray], targets: list[np.ndarray], skewed: bool
) -> tuple[list[np.ndarray], np.ndarray]:
    """Least squares of ln L = f0 + f1 x + f2 x^2 + d x^3 with one d for all valleys -> f [S, 3] of each, d [S].

    targets [S, rows] of each valley; x is ln N about the valley's mean.
    """
    inverses = [np.linalg.pinv(basis) for basis in bases]
    skew = np.zeros(len(targets[0]))
    if skewed:
        # What of x^3 the parabolas can't make themselves: orthogonal to them, so d is found first (Frisch and Waugh).
        rests = [cube - basis @ (inverse @ cube) for cube, basis, inverse in zip(cubes, bases, inverses, strict=True)]
        length = sum(float(rest @ rest) for rest in rests)
        if length > 0:  # four sizes in two values of x have no cubic part
            skew = np.stack([t @ rest for t, rest in zip(targets, rests, strict=True)]).sum(axis=0) / length
    return [
        (target - skew[:, None] * cube) @ inverse.T
        for target, cube, inverse in zip(targets, cubes, inverses, strict=True)
    ], skew


def _vertex(curves: np.ndarray) -> np.ndarray:
    """[S]: x of the lowest point of f0 + f1 x + f2 x^2 + d x^3, curves [S, 4]; NaN where there is none."""
    _, f1, f2, d = np.moveaxis(curves, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        below = f2 + np.sqrt(f2 * f2 - 3 * f1 * d)  # the root at which the second derivative is positive
        return np.where(below > 0, -f1 / below, np.nan)


def _height(curves: np.ndarray, x: np.ndarray) -> np.ndarray:
    f0, f1, f2, d = np.moveaxis(curves, -1, 0)
    return f0 + x * (f1 + x * (f2 + x * d))


def _valley(
    budget: float,
    observations: Observations,
    rows: np.ndarray,
    used: np.ndarray,
    fit: np.ndarray,
    refits: np.ndarray,
    tokens: np.ndarray,
    level: float,
) -> tuple[Valley, np.ndarray, np.ndarray]:
    """The valley, and of its refits the vertices (ln N, within the sizes used) and lowest losses.

    fit [4] and refits [S, 4] are coefficients in ln N about the mean of the sizes used.
    """
    log_n = np.log(observations.n_params[used])
    centre = log_n.mean()
    low, high = log_n.min() - centre, log_n.max() - centre
    best_run = int(rows[np.argmin(observations.loss[rows])])
    vertex = float(_vertex(fit[None])[0])
    has_vertex = bool(np.isfinite(vertex))
    interior = bool(has_vertex and low < vertex < high)
    again = _vertex(refits)
    edges = np.where(
        _height(refits, np.full(len(refits), low)) < _height(refits, np.full(len(refits), high)), low, high
    )
    vertices = np.clip(np.where(np.isnan(again), edges, again), low, high)
    lows = np.exp(_height(refits, vertices))
    curved = bool(np.mean(refits[:, 2] > 0) >= 0.95)
    # In ln N itself rather than about its mean.
    shifted = np.polynomial.Polynomial(fit)(np.polynomial.Polynomial([-centre, 1.0])).coef
    a, b, c, d = (float(v) for v in np.pad(shifted, (0, 4 - len(shifted))))
    loss_min = np.exp(_height(fit[None], np.array([vertex]))[0]) if interior else observations.loss[best_run]
    valley = Valley(
        budget_flops=budget,
        a=a,
        b=b,
        c=c,
        d=d,
        n_opt=float(np.exp(vertex + centre)) if has_vertex else None,
        n_opt_interval=[float(np.exp(v + centre)) for v in interval(vertices, level)] if has_vertex else None,
        n_flat=[float(np.exp(vertex + centre + e)) for e in _flat(fit, vertex)] if has_vertex else None,
        d_opt=float(np.exp(np.polyval(tokens, vertex))) if has_vertex else None,
        loss_min=float(loss_min),
        loss_min_interval=interval(lows, level) if interior else None,
        interior=interior,
        curved=curved,
        rows_used=len(used),
        points=[
            {k: float(getattr(observations, k)[i]) for k in ("n_params", "n_tokens", "flops", "loss")} for i in rows
        ],
    )  # fmt: skip
    return valley, vertices + centre, lows


def _flat(fit: np.ndarray, vertex: float) -> tuple[float, float]:
    """How far from the vertex, in ln N to both sides, the loss is 0.1% above its lowest."""
    curvature = fit[2] + 3 * fit[3] * vertex
    half = float(np.sqrt(np.log1p(FLAT) / curvature))
    ends = np.roots([fit[3], curvature, 0.0, -np.log1p(FLAT)])
    ends = ends.real[np.abs(ends.imag) < 1e-9 * np.abs(ends)]
    below, above = ends[ends < 0], ends[ends > 0]
    return (float(below.max()) if below.size else -half, float(above.min()) if above.size else half)


def _power_law(
    log_c: np.ndarray, optima: list[float | None], samples: list[np.ndarray], level: float
) -> tuple[float, list[float], float]:
    """Exponent, its interval, coefficient of optimum = coefficient x C^exponent, by least squares in logarithms."""
    x = log_c - log_c.mean()
    y = np.log(np.array(optima, dtype=np.float64))
    slope = float((x * y).sum() / (x * x).sum())
    slopes = (x[:, None] * np.stack(samples)).sum(axis=0) / (x * x).sum()
    return slope, interval(slopes, level), float(np.exp(y.mean() - slope * log_c.mean()))
