"""What a law can be held to before a run is bought on it: fit without the largest budget, predict its runs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.errors import FitError
from areca.laws.average import fit_average
from areca.laws.observations import Observations
from areca.laws.parametric import Objective

SAMPLES = 200


@dataclass(frozen=True)
class Validation:
    """The runs of the largest budget against a law fitted to the rest."""

    budget_flops: float
    stretch: float  # the budget over the largest left in
    rows: int
    mean_error: float  # of predicted over achieved loss, minus 1
    worst_error: float
    held: int  # runs inside their interval
    level: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def failed(self) -> bool:
        """Fewer runs held than chance allows one time in a hundred (not a strict test: they share the law's error)."""
        from scipy.stats import binom

        return bool(binom.cdf(self.held, self.rows, self.level) < 0.01)


def validate_largest_budget(
    observations: Observations,
    *,
    objective: Objective,
    delta: float,
    couplings: Sequence[float] = (1.0,),
    seed: int,
    level: float = 0.90,
) -> Validation | None:
    """None where the budgets are fewer than two, or what remains can't carry the law."""
    groups = observations.budgets()
    if len(groups) < 2:
        return None
    budget, rows = groups[-1]
    out = np.zeros(len(observations), dtype=bool)
    out[rows] = True
    out |= observations.flops > observations.flops[rows].max()
    rest = observations.select(~out)
    try:
        law, _ = fit_average(rest, objective=objective, delta=delta, couplings=couplings, samples=SAMPLES, seed=seed)
    except FitError:
        return None
    achieved = observations.loss[rows]
    errors = law.predict(observations.n_params[rows], observations.n_tokens[rows]) / achieved - 1
    held = 0
    for i in rows:
        low, high = law.interval(float(observations.n_params[i]), float(observations.n_tokens[i]), level)
        held += int(low <= observations.loss[i] <= high)
    return Validation(
        budget_flops=budget,
        stretch=float(budget / rest.flops.max()),
        rows=len(rows),
        mean_error=float(errors.mean()),
        worst_error=float(errors[np.argmax(np.abs(errors))]),
        held=held,
        level=level,
    )
