"""Reads law.json into a `Law`. Parts that are absent or not understood are left out; nothing here raises for them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from areca.counted import flops_count
from areca.report.checks import Checks, read_checks, short_label
from areca.report.law import PARAMETERS, ComputeLaw, Form, Law, Parameter, Point, Valley, rows_of
from areca.report.rundirs import Run
from areca.report.values import Ends, an_object, ends, finite, number, objects, pair, positive, sentences

STATUS = (
    "status", "share_of_starts", "n_starts", "n_points", "sigma", "objective_value", "gradient_norm", "condition",
    "bootstrap_method", "bootstrap_failed",
)  # fmt: skip
SAME = 1e-9  # relative: numbers that were copied, not measured again
NO_LAW = Law({}, {}, [], [], [], ComputeLaw(()), ComputeLaw(()), [], Checks())
SAME_BUDGET = 0.10  # relative: FLOPs that belong to one valley, as the fit groups them


def read_law(value: dict[str, Any] | None) -> Law | None:
    """law.json's content as a Law."""
    if value is None:
        return None
    parametric, isoflop = an_object(value, "parametric"), an_object(value, "isoflop")
    parameters = {p.name: p for p in (_parameter(parametric, name) for name in PARAMETERS) if p}
    status = {
        key: found
        for key in STATUS
        if (found := parametric.get(key)) is not None and not isinstance(found, dict | list)
    }
    status |= {key: value[key] for key in ("objective", "delta") if value.get(key) is not None}
    status |= {"at_bound": ", ".join(sentences(parametric.get("at_bound")))} if "at_bound" in parametric else {}
    exponents = [*_own_exponents(parametric, parameters)]
    exponents += [p for p in (_parameter(isoflop, name) for name in ("n_exponent", "d_exponent")) if p]
    level = positive(parametric, "level") or positive(isoflop, "level") or 0.90
    valleys = [v for v in map(_valley, objects(isoflop.get("valleys"))) if v]
    points = _points(value, isoflop, valleys)
    columns = {str(k): v for k, v in an_object(value, "columns").items() if isinstance(v, str)}
    mark = value.get("fingerprint")
    return Law(
        parameters=parameters,
        status=status,
        forms=_forms(value, parametric),
        valleys=valleys,
        exponents=exponents,
        compute=_compute(an_object(value, "compute")),
        with_floor=_compute(an_object(value, "compute_with_floor")),
        notes=[*sentences(parametric.get("warnings")), *sentences(value.get("notes"))],
        checks=read_checks(value),
        points=points,
        columns=columns,
        methods=_methods(value, parametric),
        level=level if level < 1 else 0.90,
        others=[form for form in objects(value.get("forms")) if isinstance(form.get("values"), dict)],
        fingerprint=mark if isinstance(mark, str) else "",
        flops_count=flops_count(columns.get("flops", ""), rows_of(points)),
    )


def with_count_of(law: Law, runs: Sequence[Run]) -> Law:
    """The law itself, or one without rows with the count of FLOPs that all the runs beside it have."""
    finished = [run.result for run in runs if run.result]
    if law.points or all(positive(result, "flops_exact") for result in finished):
        return law
    return replace(law, flops_count="6nd")


def points_of(runs: Sequence[Run], law: Law | None) -> list[Point]:
    """The finished runs that have a size, tokens, FLOPs and a loss, N and C counted as the law's rows count them."""
    law = law or with_count_of(NO_LAW, runs)
    points = []
    for run in runs:
        n, flops = law.size_of(run.result), law.flops_of(run.result)
        d, loss = (positive(run.result, key) for key in ("n_tokens", "loss"))
        if n and d and loss and flops:
            points.append(Point(run.name, n, d, flops, loss, run.budget_flops))
    return points


def fitted_and_new(runs: Sequence[Run], law: Law | None) -> tuple[list[Point], list[Point]]:
    """(what the law was fitted to, runs that it has not seen). Without observations in law.json, runs count as fitted.

    Runs of a sweep of learning rates that the law was not fitted to are neither.
    """
    points = points_of(runs, law)
    if law is None or not law.points:
        return points, []
    names = {p.label for p in law.points}
    swept = {run.name for run in runs if "learning_rate_factor" in run.labels}
    new = [p for p in points if p.label not in names and p.label not in swept and not _among(p, law.points)]
    return law.points, new


def _among(point: Point, others: Sequence[Point]) -> bool:
    return any(
        abs(point.n_params / p.n_params - 1) < SAME
        and abs(point.n_tokens / p.n_tokens - 1) < SAME
        and abs(point.loss / p.loss - 1) < SAME
        for p in others
    )


def _parameter(source: dict[str, Any], name: str) -> Parameter | None:
    value = number(source, name)
    if value is None:
        return None
    found = an_object(source, "intervals").get(name)
    return Parameter(name, value, _known(ends(found if found is not None else source.get(f"{name}_interval"))))


def _known(bounds: Ends | None) -> Ends | None:
    return None if bounds == (None, None) else bounds


def _own_exponents(parametric: dict[str, Any], parameters: dict[str, Parameter]) -> list[Parameter]:
    """N_opt ~ C^(beta / (alpha + beta)) and D_opt of the law itself, where it gives their intervals."""
    intervals = an_object(parametric, "intervals")
    if not {"alpha", "beta"} <= parameters.keys() or not {"n_exponent", "d_exponent"} & intervals.keys():
        return []
    alpha, beta = parameters["alpha"].value, parameters["beta"].value
    if not alpha + beta:
        return []
    shares = (("law_n_exponent", "n_exponent", beta), ("law_d_exponent", "d_exponent", alpha))
    return [Parameter(name, part / (alpha + beta), _known(ends(intervals.get(key)))) for name, key, part in shares]


def _compute(source: dict[str, Any]) -> ComputeLaw:
    return ComputeLaw(tuple(p for p in (_parameter(source, name) for name in ("exponent", "c_c_flops", "floor")) if p))


def _methods(value: dict[str, Any], parametric: dict[str, Any]) -> dict[str, dict[str, Ends]]:
    """Intervals by method; the bootstrap's are those of `parametric` where they are not named."""
    found: dict[str, dict[str, Ends]] = {}
    sources = {"bootstrap": an_object(parametric, "intervals")} | an_object(value, "intervals_by")
    for method, intervals in sources.items():
        if isinstance(intervals, dict):
            known = {str(name): bounds for name, item in intervals.items() if (bounds := ends(item)) is not None}
            if known:
                found[str(method)] = known
    return found


def _points(value: dict[str, Any], isoflop: dict[str, Any], valleys: Sequence[Valley]) -> list[Point]:
    """The observations, each with the budget it was meant for or of the valley it is in."""
    members = {
        (number(p, "n_params"), number(p, "loss")): positive(item, "budget_flops")
        for item in objects(isoflop.get("valleys"))
        for p in objects(item.get("points"))
    }
    points = []
    for i, row in enumerate(objects(value.get("observations"))):
        n, d, flops, loss = (positive(row, key) for key in ("n_params", "n_tokens", "flops", "loss"))
        if not (n and d and flops and loss):
            continue
        budget = positive(row, "budget_flops") or members.get((n, loss))
        if budget is None and not members:
            near = [v.budget_flops for v in valleys if abs(flops / v.budget_flops - 1) < SAME_BUDGET]
            budget = min(near, key=lambda b, c=flops: abs(np.log(c / b)), default=None)
        label = row.get("label")
        points.append(
            Point(short_label(label) if isinstance(label, str) else f"row {i + 1}", n, d, flops, loss, budget)
        )
    return points


def _valley(item: dict[str, Any]) -> Valley | None:
    budget = positive(item, "budget_flops")
    if budget is None:
        return None
    a, b, c = (number(item, key) for key in "abc")
    coefficients = None if a is None or b is None or c is None else (a, b, c, number(item, "d") or 0.0)
    shape = [item[key] for key in ("interior", "curved") if isinstance(item.get(key), bool)]
    return Valley(
        budget_flops=budget,
        coefficients=coefficients,
        n_opt=positive(item, "n_opt"),
        n_opt_interval=_above_zero(pair(item.get("n_opt_interval"))),
        d_opt=positive(item, "d_opt"),
        loss_min=positive(item, "loss_min"),
        interior=all(shape) if shape else None,
        n_flat=_above_zero(pair(item.get("n_flat"))),
        runs=len(objects(item.get("points"))),
    )


def _above_zero(bounds: tuple[float, float] | None) -> tuple[float, float] | None:
    return bounds if bounds and bounds[0] > 0 else None


def _forms(value: dict[str, Any], parametric: dict[str, Any]) -> list[Form]:
    """The forms of `average`, or the parametric law alone."""
    forms = []
    for item in objects(value.get("average")) or [parametric]:
        numbers = [positive(item, name) for name in ("A", "B", "E", "alpha", "beta")]
        weight = number(item, "weight") if item is not parametric else 1.0
        if None in numbers or weight is None:
            return []
        a, b, e, alpha, beta = (float(x or 0) for x in numbers)
        theta = np.array([[np.log(a), np.log(b), np.log(e), alpha, beta]])
        samples = _bootstrap(item.get("bootstrap"))
        forms.append(
            Form(weight, positive(item, "coupling") or 1.0, theta, np.empty((0, 5)) if samples is None else samples)
        )
    total = sum(f.weight for f in forms)
    return [replace(f, weight=f.weight / total) for f in forms] if total > 0 else []


def _bootstrap(rows: Any) -> np.ndarray | None:
    if not isinstance(rows, list):
        return None
    good = [row for row in rows if isinstance(row, list) and len(row) == 5 and all(finite(x) is not None for x in row)]
    return np.asarray(good, dtype=np.float64) if good else None
