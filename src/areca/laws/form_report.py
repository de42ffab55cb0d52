"""A law of any declared form as law.json holds it: parameters with intervals, its curve, a check on runs left out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.errors import FitError
from areca.laws.checks.doubts import doubts
from areca.laws.fits.bootstrap import KEPT
from areca.laws.fits.engine import response
from areca.laws.fits.fitting import Fit, Objective, fit, rows_of
from areca.laws.fits.resample import Method, Samples, resample
from areca.laws.fits.uncertainty import three_ways
from areca.laws.forms import Form

CURVE_POINTS = 80
BEYOND = 10.0  # the curve goes on to so many times the largest input
HELD_OUT = 0.25  # of the rows, those of the largest inputs
CHECK_SAMPLES = 200
LEVEL = 0.90


@dataclass(frozen=True)
class FormReport:
    """A fit of a form, with its samples."""

    fit: Fit
    samples: Samples
    intervals: dict[str, list[float]]
    standard_errors: dict[str, float]
    intervals_by: dict[str, dict[str, list[float | None]]]
    check: dict[str, Any] | None  # the rows of the largest inputs, predicted from the others
    notes: list[str]
    warnings: list[str]  # what makes the numbers no result to build on
    observed: dict[str, Any]
    level: float = LEVEL

    def to_dict(self) -> dict[str, Any]:
        f, form = self.fit, self.fit.form
        kept = {k: v for k, v in asdict(f).items() if k not in ("form", "ranges")}
        return {
            "form": form.name,
            "equation": form.equation,
            "source": form.source,
            "domain": form.domain,
            "inputs": list(form.inputs),
            "response": form.response,
            "response_unit": form.response_unit,
            "units": {p.name: p.unit for p in form.parameters},
            "constants": dict(form.constants),
            "compare": form.compare,
            **{k: list(v) if isinstance(v, tuple) else v for k, v in kept.items()},
            "ranges": {k: list(v) for k, v in f.ranges.items()},
            "intervals": self.intervals,
            "standard_errors": self.standard_errors,
            "intervals_by": self.intervals_by,
            "level": self.level,
            "bootstrap_method": self.samples.method,
            "bootstrap_failed": self.samples.failed,
            "bootstrap": {k: v[:KEPT].tolist() for k, v in self.samples.values().items()},
            "bootstrap_sigma": self.samples.sigma[:KEPT].tolist(),
            "check": self.check,
            "curve": _curve(f, self.samples, self.level),
            "observed": self.observed,
            "warnings": self.warnings,
            "notes": self.notes,
        }


def report_form(
    form: Form,
    data: Mapping[str, Any] | Any,
    *,
    objective: Objective = "huber",
    delta: float = 1e-3,
    samples: int = 1000,
    seed: int = 0,
    method: Method = "auto",
    groups: Sequence[str] = (),
    level: float = LEVEL,
    deep: bool = True,
) -> FormReport:
    """Fits a form with its bootstrap, its profile and delta intervals, and a check. FitError when it can't be had."""
    found = fit(form, data, objective=objective, delta=delta)
    drawn = resample(found, data, samples=samples, seed=seed, method=method, groups=groups or None)
    rows = rows_of(form, data)
    fitted = response(form, found.theta[None], rows.inputs)[0]
    back = np.exp if form.compare == "log" else np.asarray
    intervals = drawn.intervals(level)
    intervals_by: dict[str, dict[str, list[float | None]]] = {}
    if deep and drawn.method != "exact":
        intervals_by = three_ways(found, data, intervals, level)
    return FormReport(
        fit=found,
        samples=drawn,
        intervals=intervals,
        standard_errors=drawn.standard_errors(),
        intervals_by=intervals_by,
        check=_check(found, data, seed, level) if deep else None,
        notes=[],
        warnings=doubts(found, form, found.values, drawn.theta, intervals_by.get("profile", {}), level),
        observed={
            "inputs": {k: v.tolist() for k, v in rows.inputs.items()},
            "response": back(rows.target).tolist(),
            "fitted": back(fitted).tolist(),
        },
        level=level,
    )


def _curve(fit: Fit, samples: Samples, level: float) -> dict[str, Any] | None:
    """A form of one input over its rows and beyond, with the band of the law's own uncertainty."""
    form = fit.form
    if len(form.inputs) != 1:
        return None
    (name,) = form.inputs
    low, high = fit.ranges[name]
    at = np.geomspace(low, high * BEYOND, CURVE_POINTS)
    drawn = samples.predict(**{name: at})
    tail = 50 * (1 - level)
    lows, highs = np.nanpercentile(drawn, [tail, 100 - tail], axis=0)
    fitted = fit.predict(**{name: at})
    return {"x": name, "at": at.tolist(), "fitted": fitted.tolist(), "low": lows.tolist(), "high": highs.tolist()}


def _check(full: Fit, data: Mapping[str, Any] | Any, seed: int, level: float) -> dict[str, Any] | None:
    """The form without the quarter of the rows that lies furthest out along its inputs, against those rows.

    Furthest out is the largest product of inputs: what a prediction has to go beyond. None where the rest is too few.
    """
    form = full.form
    rows = rows_of(form, data)
    out = int(max(1, round(HELD_OUT * len(rows))))
    far = np.argsort(np.sum([np.log(v) for v in rows.inputs.values()], axis=0), kind="stable")[-out:]
    keep = np.setdiff1d(np.arange(len(rows)), far)
    back = np.exp if form.compare == "log" else np.asarray
    observed = back(rows.target)
    rest = {k: v[keep] for k, v in {**rows.inputs, form.response: observed}.items()}
    try:
        found = fit(form, rest, objective=full.objective, delta=full.delta or 1e-3)  # type: ignore[arg-type]
        drawn = resample(found, rest, samples=CHECK_SAMPLES, seed=seed)
    except FitError:
        return None
    points = []
    for i in far:
        at = {k: float(v[i]) for k, v in rows.inputs.items()}
        low, high = drawn.new_row(level, **at)
        predicted = float(found.predict(**at))
        points.append({"inputs": at, "observed": float(observed[i]), "predicted": predicted, "low": low, "high": high})
    errors = [
        p["predicted"] / p["observed"] - 1 if form.compare == "log" else p["predicted"] - p["observed"] for p in points
    ]
    return {
        "rows": len(points),
        "relative": form.compare == "log",
        "mean_error": float(np.mean(errors)),
        "worst_error": float(max(errors, key=abs)),
        "held": sum(p["low"] <= p["observed"] <= p["high"] for p in points),
        "level": level,
        "points": points,
    }


__all__ = ["FormReport", "report_form"]
