"""A law of repeated data that was fitted to runs (`areca fit --form data-constrained`), as plans take it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from areca.counted import n_count
from areca.errors import DataError
from areca.lawjson import check_law, fingerprint
from areca.laws.fits.resample import predictive
from areca.laws.law import Counted, Ranges
from areca.laws.published import DataConstrained

FORM = "data-constrained"
NAMES = {"A": "A", "B": "B", "E": "E", "alpha": "alpha", "beta": "beta", "R_D": "r_d", "R_N": "r_n"}


@dataclass(frozen=True)
class FittedDataConstrained(DataConstrained):
    """Muennighoff et al.'s law with constants of our own, and the samples behind them. N is as in the rows fitted."""

    n_counts: Counted = "non-embedding"
    n_column: str = ""  # what N was called in the rows
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what makes it no result to build on
    samples: dict[str, np.ndarray] = field(default_factory=dict)  # by the fields' names, [S]
    sigma: np.ndarray = field(default_factory=lambda: np.zeros(0))  # [S] of one run's ln L

    def interval(
        self, n_params: float, n_tokens: float, level: float, flops: float | None = None,
        unique_tokens: float | None = None,
    ) -> tuple[float, float]:  # fmt: skip
        drawn: Any = replace(self, **self.samples)  # every constant an array of its samples
        centre = np.log(DataConstrained.predict(drawn, n_params, n_tokens, unique_tokens))
        low, high = predictive(centre, self.sigma, None, level)
        return float(np.exp(low)), float(np.exp(high))


def read_repeated(values: Any, where: Path | str) -> FittedDataConstrained | None:
    """The law in a law.json that holds only forms; None where none of them is of repeated data."""
    if not isinstance(values, dict) or values.get("parametric") is not None:
        return None
    found = next((f for f in values.get("forms") or [] if isinstance(f, dict) and f.get("form") == FORM), None)
    if found is None:
        return None
    check_law(values, str(where))
    try:
        constants = {**found["constants"], **found["values"]}
        samples = {**{k: np.full(len(found["bootstrap_sigma"]), v) for k, v in found["constants"].items()}}
        samples |= {k: np.asarray(v, np.float64) for k, v in found["bootstrap"].items()}
        n, d = (tuple(found["ranges"][k]) for k in ("n_params", "n_tokens"))
        rows = {k: np.asarray(v) for k, v in found["observed"]["inputs"].items()}
        flops = 6 * rows["n_params"] * rows["n_tokens"]
        column = str((found.get("columns") or {}).get("n_params", ""))
        return FittedDataConstrained(
            "fit",
            f"{found['objective']} fit of {FORM} to {found['n_points']} runs",
            **{NAMES[k]: float(v) for k, v in constants.items()},  # type: ignore[arg-type]
            ranges=Ranges(n, d, (float(flops.min()), float(flops.max()))),
            no_interval="",
            fingerprint=fingerprint(values),
            n_counts=n_count(column),
            n_column=column,
            notes=tuple(found.get("notes") or ()),
            warnings=tuple(map(str, found.get("warnings") or ())),
            samples={NAMES[k]: v for k, v in samples.items()},
            sigma=np.asarray(found["bootstrap_sigma"], np.float64),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where} is not a law written by `areca fit` ({error}); fit it again.") from None
