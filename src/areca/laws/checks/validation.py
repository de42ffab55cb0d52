"""What a law can be held to before a run is bought on it: fit without some runs, predict them.

Left out are the largest budget (which is what a plan does: go beyond), each budget in turn, or each group of rows; of
a table whose rows share no budgets the fifth of largest C. To tell of going beyond, what is left in must end well
below.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.errors import FitError
from areca.laws.fits.average import fit_average
from areca.laws.fits.fitting import Objective
from areca.laws.reading.observations import Observations

SAMPLES = 200
ENOUGH = 1.8  # "about twice": a stretch that asks a law to go beyond its rows
SHORT = 1.5  # below it, an error is that of a neighbour, and says nothing of how it grows (in ln C)
LARGEST = 0.2  # of the rows, where no two budgets are shared
LARGEST_RUNS = "the fifth of largest C"


@dataclass(frozen=True)
class Validation:
    """Runs against a law fitted to others."""

    budget_flops: float  # of the runs left out (their geometric mean where they have no common budget)
    stretch: float  # the budget over the largest left in; below 1 where the law is asked to fill in
    rows: int
    mean_error: float  # of predicted over achieved loss, minus 1
    worst_error: float
    held: int  # runs inside their interval
    level: float
    points: list[dict[str, Any]]  # label, n_params, n_tokens, flops, loss, predicted, low, high
    left_out: str = ""  # the group's name, where groups were held out
    left_in: int = 0  # runs that the law was fitted to

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def failed(self) -> bool:
        """Fewer runs held than chance allows one time in a hundred (not a strict test: they share the law's error)."""
        from scipy.stats import binom

        return bool(binom.cdf(self.held, self.rows, self.level) < 0.01)


@dataclass(frozen=True)
class How:
    """How every law of a validation is fitted: as the one it validates."""

    objective: Objective
    delta: float
    couplings: Sequence[float] = (1.0,)
    seed: int = 0
    level: float = 0.90


def validate_largest_budget(observations: Observations, how: How) -> Validation | None:
    """The largest budget from the smaller ones. Where there are no two, or the largest is one by chance, with more than
    a fifth of the rows beyond, the fifth of largest C from the rest.

    Where the rest ends at more than 1 / `ENOUGH` of what is held out, runs are dropped from it until it ends at half,
    if it still carries a law. None where nothing can be held out: too few rows remain, or all are of about one C.
    """
    groups = observations.budgets()
    fifth = max(1, round(LARGEST * len(observations)))
    budget, rows = groups[-1] if groups else (0.0, np.arange(0))
    if shared := len(groups) >= 2 and (observations.flops > observations.flops[rows].max()).sum() <= fifth:
        name = ""
    else:
        name, rows = LARGEST_RUNS, np.argsort(observations.flops, kind="stable")[-fifth:]
        budget = float(np.exp(np.log(observations.flops[rows]).mean()))
    beyond = observations.flops > observations.flops[rows].max()
    left_in = ~beyond
    left_in[rows] = False
    found = None
    if left_in.any() and budget < ENOUGH * observations.flops[left_in].max():
        near = np.flatnonzero(beyond | (observations.flops > budget / 2))
        found = hold_out(observations, rows, how, budget=budget, also=near, name=name)
    found = found or hold_out(observations, rows, how, budget=budget, also=np.flatnonzero(beyond), name=name)
    return found if shared or (found and found.stretch >= SHORT) else None


def leave_one_budget_out(
    observations: Observations, how: How, *, largest: Validation | None = None
) -> list[Validation]:
    """Each budget from all the others; those that the others can't carry a law for are absent.

    `largest` is what `validate_largest_budget` found, which is not made again where it left out nothing else.
    """
    groups = observations.budgets()
    if len(groups) < 2:
        return []
    if largest and largest.left_in + largest.rows == len(observations):
        groups.pop()
    else:
        largest = None
    found = [hold_out(observations, rows, how, budget=budget) for budget, rows in groups] + [largest]
    return [v for v in found if v is not None]


def leave_one_group_out(observations: Observations, labels: Sequence[str], how: How) -> list[Validation]:
    """Each group of rows, by its label, from all the others."""
    names = np.asarray(labels, dtype=object).astype(str)
    found = []
    for name in dict.fromkeys(names):
        rows = np.flatnonzero(names == name)
        budget = float(np.exp(np.log(observations.flops[rows]).mean()))
        if v := hold_out(observations, rows, how, budget=budget, name=str(name)):
            found.append(v)
    return found


def hold_out(
    observations: Observations,
    rows: np.ndarray,
    how: How,
    *,
    budget: float,
    also: np.ndarray | None = None,
    name: str = "",
) -> Validation | None:
    """The law without `rows` (and without `also`) against `rows`; None where the rest does not carry one."""
    out = np.zeros(len(observations), dtype=bool)
    out[rows] = True
    if also is not None:
        out[also] = True
    if out.all():
        return None
    rest = observations.select(~out)
    try:
        law, _ = fit_average(
            rest, objective=how.objective, delta=how.delta, couplings=how.couplings, samples=SAMPLES, seed=how.seed
        )
    except FitError:
        return None
    points = []
    for i in rows:
        n, d = float(observations.n_params[i]), float(observations.n_tokens[i])
        low, high = law.interval(n, d, how.level)
        points.append({
            "label": observations.name(int(i)), "n_params": n, "n_tokens": d, "flops": float(observations.flops[i]),
            "loss": float(observations.loss[i]), "predicted": float(law.predict(n, d)), "low": low, "high": high,
        })  # fmt: skip
    errors = np.array([p["predicted"] / p["loss"] - 1 for p in points])
    return Validation(
        budget_flops=budget,
        stretch=float(budget / rest.flops.max()),
        rows=len(rows),
        mean_error=float(errors.mean()),
        worst_error=float(errors[np.argmax(np.abs(errors))]),
        held=sum(p["low"] <= p["loss"] <= p["high"] for p in points),
        level=how.level,
        points=points,
        left_out=name,
        left_in=len(rest),
    )
