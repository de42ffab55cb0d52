"""What makes a fit that converged no result to build on: one line for each, to stand beside its numbers.

Few degrees of freedom, a parameter that its range stopped, intervals that end at a range, an exponent whose profile
likelihood has no end, few starts at the optimum, parameters that act alike: each line names it, and says what it does
to a prediction.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from areca.laws.forms import Form

FEW = 3  # degrees of freedom: to there Student's t makes a 90% interval wider by 1.4 times and more
LOW_SHARE = 0.25  # of the starts
ALIKE = 1e9  # condition of J'J; laws of enough rows have 1e1 to 1e6


class Fitted(Protocol):
    """What `Fit` and `ParametricFit` have in common, as far as it is looked at."""

    @property
    def n_points(self) -> int: ...
    @property
    def n_starts(self) -> int: ...
    @property
    def share_of_starts(self) -> float: ...
    @property
    def at_bound(self) -> tuple[str, ...]: ...
    @property
    def condition(self) -> float: ...


def doubts(
    fit: Fitted,
    form: Form,
    values: Mapping[str, float],
    samples: np.ndarray,
    profile: Mapping[str, Sequence[float | None]],
    level: float,
) -> list[str]:
    """The lines, the gravest first. `samples` [S, p] are resampled parameters as searched, `profile` the profile
    likelihood's intervals by parameter ({} without them)."""
    exponents = [p.name for p in form.parameters if not p.log]
    found: list[str] = []
    if not fit.condition < ALIKE:
        found.append(
            f"not identified: some parameters do what others do (condition {fit.condition:.2g}), so only the curve "
            "through the rows means something; don't predict beyond them."
        )
    endless = [n for n in exponents if None in profile.get(n, ()) and n not in fit.at_bound]
    if endless:
        found.append(
            f"{_and(endless)} not identified: these rows set no end to {_its(endless)} {level:.0%} interval (profile "
            "likelihood), so a prediction far beyond them can be anything."
        )
    wide = [n for n in exponents if n not in (*endless, *fit.at_bound) and _wide(form, n, values[n], samples, level)]
    for name in fit.at_bound:
        beside = f" and {_and(wide)} not identified beside it" if wide else ""
        floor = " (no floor: beyond the rows the law falls on to 0)" if _no_floor(form, name, values[name]) else ""
        found.append(
            f"{name} is at the bound of its range, {values[name]:.3g}{floor}: the rows do not determine it{beside}; "
            "the other numbers, and predictions beyond the rows, hold only if that bound is the truth."
        )
    found += _of_freedom(fit.n_points, len(form.parameters), level)
    found += _of_samples(form, samples, fit.at_bound, level)
    if fit.share_of_starts < LOW_SHARE and fit.n_starts > 1:
        reached = round(fit.share_of_starts * fit.n_starts)
        found.append(
            f"only {reached} of {fit.n_starts} starts reached this optimum: the rows leave it flat or give it rivals, "
            "so parameters and predictions can jump when a run is added."
        )
    return found


def _of_freedom(n: int, p: int, level: float) -> list[str]:
    from scipy import stats

    freedom = n - p
    if freedom > FEW:
        return []
    wider = stats.t.ppf((1 + level) / 2, freedom) / stats.norm.ppf((1 + level) / 2)
    more = np.sqrt(freedom / stats.chi2.ppf((1 - level) / 2, freedom))
    return [
        f"{freedom} degree{'s' * (freedom > 1)} of freedom ({n} rows for {p} parameters): the scatter can be "
        f"{more:.2g} times what is seen, which makes intervals {wider:.2g} times as wide as many rows would, and a "
        "wrong form would not show; add runs before you rely on a prediction."
    ]


def _of_samples(form: Form, samples: np.ndarray, at_bound: Sequence[str], level: float) -> list[str]:
    """A parameter that ends at its range in so many resampled fits that its interval's end is the range's."""
    found = []
    for k, p in enumerate(form.parameters):
        if p.name in at_bound or len(samples) == 0:
            continue
        for end in (p.low, p.high):
            share = float(np.mean(np.abs(samples[:, k] - p.inner(end)) <= 1e-6))
            if share > (1 - level) / 2:
                found.append(f"{p.name} at {end:.3g} in {share:.0%}")
    if not found:
        return []
    return [
        f"resampled fits end at the bound of a range ({', '.join(found)} of them): intervals end there because the "
        "range does, so the rows do not limit it on that side, nor predictions beyond them."
    ]


def _wide(form: Form, name: str, value: float, samples: np.ndarray, level: float) -> bool:
    """An interval wider than the value itself."""
    if len(samples) == 0:
        return False
    tail = 50 * (1 - level)
    low, high = np.percentile(samples[:, form.names.index(name)], [tail, 100 - tail])
    return bool(high - low > abs(value))


def _no_floor(form: Form, name: str, value: float) -> bool:
    low = next(p.low for p in form.parameters if p.name == name)
    return name == "E" and value <= 1.01 * low and form.compare == "log"


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]} are" if len(names) > 1 else f"{names[0]} is"


def _its(names: Sequence[str]) -> str:
    return "their" if len(names) > 1 else "its"


__all__ = ["doubts"]
