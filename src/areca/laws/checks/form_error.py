"""By how much a law may be wrong in its form beyond its rows: from runs held out, and from the frontier's power law."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from areca.laws.checks.validation import SHORT


def form_error(
    validation: Mapping[str, Any] | None, compute: Mapping[str, Any] | None, centre: float, flops: float, beyond: float
) -> tuple[float, float]:
    """(how far too high, how far too low) a prediction of ln L = `centre` may be, in ln L and with their signs.

    `validation` and `compute` as in law.json; `flops` is the run's C as the rows count it and `beyond` how far that is
    past the rows, in ln C. `LawReport.predict_interval` says how the two are made of them.
    """
    too_high = [0.0]  # negative where the law may be too low
    if validation:
        stretch = validation["stretch"]
        further = beyond / np.log(stretch) if stretch >= SHORT else 1.0
        too_high.append(np.log1p(validation["mean_error"]) * further)
    if compute:
        too_high.append(0.5 * (centre - compute["exponent"] * np.log(compute["c_c_flops"] / flops)))
    return float(max(too_high)), float(min(too_high))


def missing_doubt(validation: Mapping[str, Any] | None, compute: Mapping[str, Any] | None, beyond: bool) -> str:
    """What an interval lacks of it, as a sentence; "" where nothing. `beyond` is whether C is past the rows."""
    if not validation and not compute:
        return "the interval trusts the law's form: no runs could be held out to doubt it by."
    if not beyond:
        return "the interval trusts the law's form: its doubt begins above the largest FLOPs of the rows."
    if validation and validation["stretch"] < SHORT:
        beside = ", or half of the distance to L(C) where that is more" if compute else ""
        return (
            f"the runs held out to doubt the law's form by are only {validation['stretch']:.3g} times the rest, too "
            f"short a way to see an error grow: the interval has their mean error of {validation['mean_error']:+.2%} "
            f"unscaled{beside}."
        )
    return ""


__all__ = ["form_error", "missing_doubt"]
