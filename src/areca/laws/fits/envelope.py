"""Approach 1 (Hoffmann et al. 2022, section 3.1): which run has the lowest loss at each FLOP, and what follows.

Curves are smoothed (`Curve.smoothed`), 1,500 FLOP values are spaced evenly in ln C over the range that several runs
reach, and each goes to the run of lowest loss there. N_opt ~ C^a and D_opt ~ C^b are lines through the winners in
logarithms, between the last FLOP value that a run of the smallest size wins and the first that one of the largest
does: beyond, the best size is at the edge of those tried. How much of the envelope had no smaller run left is said,
since sizes may come out too large there. Intervals are over resampled runs: neighbouring FLOP values share their
winner, so the 1,500 values are no 1,500 observations.

A run's loss on the way is not that of a run which ended there: the learning rate is still high under a schedule that
decays later, so long runs look worse on the way than short runs do at their end, and sizes come out too large
(Hoffmann et al. 2022, section 3.1 and appendix B). Runs of one size with several lengths, or a constant rate, mend it.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.config import check_seed
from areca.errors import FitError
from areca.laws.fits.curves import Curve
from areca.laws.fits.resample import check_level, interval

POINTS = 1500
LEAST_RUNS = 4
LEAST_WINNERS = 3  # runs on the envelope that a line needs
SKIPPED = 0.05  # of a run's tokens: warm-up and the first fall, which follow no power law
DRAWN = 60  # points of the envelope that are kept for a figure
SCHEDULE_NOTE = (
    "approach 1 reads losses on the way: under a schedule that decays, a run's loss before its end is higher than that "
    "of a run which ends there, and the best sizes come out too large; compare with the isoFLOP valleys."
)


@dataclass(frozen=True)
class Envelope:
    """N_opt = n_coefficient x C^n_exponent and D_opt = d_coefficient x C^d_exponent, from the lowest curves."""

    n_exponent: float
    n_exponent_interval: list[float]
    n_coefficient: float
    d_exponent: float
    d_exponent_interval: list[float]
    d_coefficient: float
    flops_range: list[float]  # of the points that count
    winners: int  # runs with a share of the envelope
    runs: int
    points: list[dict[str, Any]]  # flops, n, d, loss, run: evenly over the envelope, at most 60
    level: float
    notes: list[str]

    def best(self, flops: Any) -> tuple[np.ndarray, np.ndarray]:
        """N and D at C FLOPs."""
        c = np.asarray(flops, float)
        return self.n_coefficient * c**self.n_exponent, self.d_coefficient * c**self.d_exponent

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit_envelope(
    curves: Sequence[Curve], *, samples: int = 400, seed: int = 0, level: float = 0.90, points: int = POINTS
) -> Envelope:
    """Fits both power laws to the envelope of at least four runs. FitError where too few of them take part."""
    check_seed(seed)
    check_level(level)
    if len(curves) < LEAST_RUNS:
        raise FitError(f"the envelope needs at least {LEAST_RUNS} runs and there are {len(curves)}; add runs.")
    log_c, log_l = _at_common_flops(curves, points)  # [F], [runs, F]
    log_n = np.log([c.n_params for c in curves])
    # Tokens of each run at each FLOP value.
    log_d = np.stack([np.interp(log_c, np.log(c.flops), np.log(c.n_tokens)) for c in curves])
    winner, counts = _winners(log_l, log_n, np.ones((1, len(curves)), bool))
    at = np.flatnonzero(counts[0])
    taking_part = np.unique(winner[0, at])
    if len(taking_part) < LEAST_WINNERS:
        raise FitError(
            f"only {len(taking_part)} of {len(curves)} runs have the lowest loss anywhere beside larger ones; "
            "add sizes, or runs that overlap more in FLOPs."
        )
    n_slope, n_level = (float(v[0]) for v in _lines(log_c, log_n[winner], counts))
    d_slope, d_level = (float(v[0]) for v in _lines(log_c, log_d[winner, np.arange(len(log_c))], counts))
    alone = np.mean([not (np.isfinite(log_l[:, i]) & (log_n < log_n[winner[0, i]] - 1e-9)).any() for i in at])
    generator = np.random.default_rng([seed, 0xE57E])
    drawn = generator.multinomial(len(curves), np.full(len(curves), 1 / len(curves)), size=samples) > 0
    again, there = _winners(log_l, log_n, drawn)
    spread = np.array([len(np.unique(w[t])) >= LEAST_WINNERS for w, t in zip(again, there, strict=True)])
    if spread.sum() < 0.5 * samples:
        raise FitError(
            f"without some of its runs the envelope has no line in {samples - spread.sum()} of {samples} samples, "
            "so its interval can't be had; add runs."
        )
    n_slopes, _ = _lines(log_c, log_n[again[spread]], there[spread])
    d_slopes, _ = _lines(log_c, log_d[again[spread], np.arange(len(log_c))], there[spread])
    kept = at[np.unique(np.linspace(0, len(at) - 1, min(DRAWN, len(at))).astype(int))]
    return Envelope(
        n_exponent=n_slope,
        n_exponent_interval=interval(n_slopes, level),
        n_coefficient=float(np.exp(n_level)),
        d_exponent=d_slope,
        d_exponent_interval=interval(d_slopes, level),
        d_coefficient=float(np.exp(d_level)),
        flops_range=[float(np.exp(log_c[at[0]])), float(np.exp(log_c[at[-1]]))],
        winners=len(taking_part),
        runs=len(curves),
        points=[
            {
                "flops": float(np.exp(log_c[i])),
                "n": float(np.exp(log_n[w])),
                "d": float(np.exp(log_d[w, i])),
                "loss": float(np.exp(log_l[w, i])),
                "run": curves[w].name,
            }
            for i, w in ((int(i), int(winner[0, i])) for i in kept)
        ],
        level=level,
        notes=[
            SCHEDULE_NOTE,
            *(
                [f"on {alone:.0%} of the envelope every smaller run had ended: sizes may be too large there."]
                if alone > 0.005
                else []
            ),
        ],
    )


def _at_common_flops(curves: Sequence[Curve], points: int) -> tuple[np.ndarray, np.ndarray]:
    """ln C [F] and smoothed ln L [runs, F] there, infinite where a run has not begun to count or has ended."""
    log_c = [np.log(c.flops) for c in curves]
    first = [np.log(SKIPPED) + x[-1] for x in log_c]
    begin = np.sort([max(x[0], f) for x, f in zip(log_c, first, strict=True)])[1]  # from where two runs are there
    end = np.sort([x[-1] for x in log_c])[-2]
    common = np.linspace(begin, end, points)
    losses = np.stack([
        np.interp(common, x, c.smoothed(), left=np.inf, right=np.inf) for x, c in zip(log_c, curves, strict=True)
    ])  # fmt: skip
    losses[common[None, :] < np.array(first)[:, None]] = np.inf
    return common, losses


def _winners(log_l: np.ndarray, log_n: np.ndarray, present: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(run of lowest loss [S, F], whether it counts [S, F]) for S sets of runs, present [S, runs].

    It counts after the last win of the set's smallest size and before the first of its largest, where a larger run is
    there too. (To drop only the points that the edges win would leave the noise to choose among the others.)
    """
    winner = np.empty((len(present), log_l.shape[1]), np.int64)
    counts = np.empty(winner.shape, bool)
    for s, here in enumerate(present):
        losses = np.where(here[:, None], log_l, np.inf)
        winner[s] = losses.argmin(axis=0)
        there = np.isfinite(losses)
        largest = np.where(there, log_n[:, None], -np.inf).max(axis=0)
        of_it = log_n[winner[s]]
        low = np.flatnonzero(of_it <= log_n[here].min() + 1e-9)
        high = np.flatnonzero(of_it >= log_n[here].max() - 1e-9)
        inside = np.zeros(len(of_it), bool)
        inside[low[-1] + 1 if low.size else 0 : high[0] if high.size else len(of_it)] = True
        counts[s] = there.any(axis=0) & inside & (of_it < largest - 1e-9)
    return winner, counts


def _lines(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slopes and values at x = 0 [S] of least squares of y [S, F] on x [F] where weight [S, F] is true."""
    w = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1)
    middle_x, middle_y = (w * x).sum(axis=1, keepdims=True), (w * y).sum(axis=1, keepdims=True)
    slope = (w * (x - middle_x) * (y - middle_y)).sum(axis=1) / np.maximum(
        (w * (x - middle_x) ** 2).sum(axis=1), 1e-300
    )
    return slope, middle_y[:, 0] - slope * middle_x[:, 0]


__all__ = ["SCHEDULE_NOTE", "Envelope", "fit_envelope"]
