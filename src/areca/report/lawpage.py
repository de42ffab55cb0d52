"""The sections about a law of N and D: its parameters, its fit, the valleys, the residuals."""

from typing import Any

from areca.report import markup
from areca.report.figures import frontier, residuals, valleys
from areca.report.law import Law, Parameter, Valley
from areca.report.markup import Cell, absent, facts, grid, note, percent, power, section, si, table, text
from areca.report.values import Ends
from areca.report.view import View

LAW_NAMES = {
    "E": "E, irreducible loss (nats per token)",
    "A": "A, of the size term",
    "B": "B, of the data term",
    "alpha": "α, exponent of size",
    "beta": "β, exponent of data",
    "law_n_exponent": "best N of the law grows as C to the power β/(α+β)",
    "law_d_exponent": "best D of the law grows as C to the power α/(α+β)",
    "n_exponent": "best N of the valleys grows as C to the power",
    "d_exponent": "best D of the valleys grows as C to the power",
    "exponent": "L(C) = (C<sub>c</sub>/C)<sup>a</sup>, a",
    "c_c_flops": "L(C), C<sub>c</sub> in FLOPs",
    "floor": "L(C), floor",
    "floor exponent": "L(C) = floor + (C<sub>c</sub>/C)<sup>a</sup>, a",
    "floor c_c_flops": "L(C) with floor, C<sub>c</sub> in FLOPs",
    "floor floor": "L(C) with floor, floor (nats per token)",
}
STATUS_NAMES = {
    "status": "fit",
    "share_of_starts": "starts that reached the best",
    "sigma": "scatter of ln L about the law",
    "n_starts": "starts",
    "n_points": "runs fitted",
    "delta": "Huber's δ",
    "condition": "condition number of the fit",
    "at_bound": "parameters at a bound",
    "gradient_norm": "norm of the gradient at the end",
    "bootstrap_method": "bootstrap",
    "bootstrap_failed": "refits that failed",
}
METHODS = {"bootstrap": "bootstrap", "profile": "profile", "delta": "delta"}
METHODS_NOTE = (
    "Intervals by refits to resampled runs (bootstrap), by how far the objective lets a parameter go (profile "
    "likelihood), and by the curvature at the optimum (delta method). Where they differ, trust the widest."
)
LAW_NOTE = (
    "The line is L(N, D) = E + A/N<sup>α</sup> + B/D<sup>β</sup> at the best N and D of each budget; runs of other "
    "sizes lie above it. Colours and shapes are the budgets of the valleys. The band is the law's own 90% interval, "
    "from fits to resampled runs; the interval of a prediction also has the scatter of single runs."
)
FIT_NOTE = (
    "The law over the runs it was fitted to, budget by budget: a curve is L(N, D) with D = C / k N, k being the "
    "budget's own FLOPs over N D. Curves that miss the bottom of their runs miss the best size."
)
VALLEYS_NOTE = (
    "Each budget is spent on models of several sizes. The parabola of ln L in ln N has its lowest point (star) at the "
    "best size; the thin bar is that size's 90% interval, the thick one the sizes within 0.1% of the lowest loss, "
    "which no one could tell from the best. Dashed: no best size inside the sizes tried."
)
RESIDUALS_NOTE = (
    "What the law leaves unexplained; colours and shapes are those of the budgets above. Level clouds mean scatter; a "
    "slope or a bend along any of the four means that "
    "the law's form is wrong there. Heavy tails leave the line of the quantile plot at its ends."
)
NAMED_OUTLIERS = 8


def law_parts(view: View) -> list[tuple[str, str]]:
    """Their names for the contents, and their HTML."""
    law = view.law
    if law is None:
        return [("Law", section("law", "Fitted law", absent("There is no fitted law yet (law.json).")))]
    if not law.of_sizes:
        return []
    compute = view.place(
        "plot-law", "Loss against compute",
        frontier.loss_against_compute(law, view.points, view.plan, view.new, view.budgets),
        "There are no finished runs to draw.", LAW_NOTE, 480,
    )  # fmt: skip
    return [
        ("Law", section("law", "Fitted law", compute, law_table(law))),
        ("Fit", section("fit", "Fit over the data", *_fit(view, law))),
        ("Valleys", section("valleys", "IsoFLOP valleys", *_valleys(view, law))),
        ("Residuals", section("residuals", "Residuals", *_residuals(view, law))),
    ]


def _fit(view: View, law: Law) -> tuple[str, str]:
    if not law.complete:
        return absent("The law has no complete set of parameters, so it can't be drawn over the runs."), ""
    by_size = view.place(
        "plot-fit", "Loss against size with the law's curves",
        valleys.fits(law, view.points, view.budgets),
        "No budget is shared by runs of several sizes, so the law is not drawn against N.", FIT_NOTE, 480,
    )  # fmt: skip
    observed = view.place(
        "plot-observed", "Observed against predicted loss",
        residuals.observed(law, view.points, view.new, view.budgets, view.new_name),
        "There are no runs to compare the law with.",
        "Observed against predicted loss; on the line they agree.", 420,
    )  # fmt: skip
    return by_size, f"<h3>Observed against predicted</h3>{observed}"


def _valleys(view: View, law: Law) -> list[str]:
    drawn = view.place(
        "plot-valleys", "Loss against model size at each budget", valleys.valleys(law, view.points, view.budgets),
        "No budget has a fitted valley.", VALLEYS_NOTE, 480,
    )  # fmt: skip
    optima = view.place(
        "plot-optima", "Best size and tokens against budget", frontier.optima(law, view.points, view.plan),
        "Fewer than two budgets have an optimum inside their sizes.",
        "The valleys' lowest points and the lines through them; open markers are the planned run and, smaller, half "
        "and double its size." if view.plan else "The valleys' lowest points and the lines through them.", 360,
    )  # fmt: skip
    return [drawn, _valley_table(law.valleys), "<h3>Best size by budget</h3>", optima]


def _valley_table(found: list[Valley]) -> str:
    if not found:
        return ""
    rows: list[list[Cell | str]] = []
    for v in found:
        inside = v.bottom is not None
        width = (v.n_flat[1] / v.n_flat[0]) if v.n_flat and inside else None
        rows.append(
            [
                Cell(power(v.budget_flops), v.budget_flops),
                Cell(str(v.runs) if v.runs else markup.NONE, v.runs),
                Cell(si(v.n_opt) if inside else "none inside", v.n_opt if inside else None),
                _range(v.n_opt_interval) if inside else markup.NONE,
                _range(v.n_flat) if inside else markup.NONE,
                Cell(f"× {width:.2f}" if width else markup.NONE, width),
                Cell(si(v.d_opt) if inside else markup.NONE, v.d_opt if inside else None),
                Cell(markup.fixed(v.loss_min, 4), v.loss_min),
            ]
        )
    headers = ["budget, FLOPs", "runs", "best N", "90% interval", "N within 0.1%", "its width", "best D", "loss"]
    return table(headers, rows, "Valleys", sortable=True)


def _range(bounds: tuple[float, float] | None) -> str:
    return markup.NONE if bounds is None else f"{si(bounds[0])} to {si(bounds[1])}"


def _residuals(view: View, law: Law) -> list[str]:
    if not law.complete or not view.points:
        return [absent("The law has no complete set of parameters or no runs, so there are no residuals.")]
    places = {"n_params": "n", "n_tokens": "d", "flops": "c", "fitted": "fitted"}
    drawn = [
        view.place(
            f"plot-residuals-{short}", f"Residuals against {key.replace('_', ' ')}",
            residuals.residuals(law, view.points, view.new, view.budgets, key, view.new_name), height=320,
        )
        for key, short in places.items()
    ]  # fmt: skip
    drawn.append(
        view.place(
            "plot-quantiles", "Normal quantile plot of the residuals",
            residuals.quantiles(law, view.points, view.budgets),
            "Fewer than five runs give no quantile plot.", height=320,
        )
    )  # fmt: skip
    return [grid(*drawn), note(RESIDUALS_NOTE), _outliers(law, view)]


def _outliers(law: Law, view: View) -> str:
    far = residuals.outliers(law, view.points)
    if not far:
        return note(f"No run lies more than {residuals.OUTLYING:g} robust standard deviations from the law.")
    rows: list[list[Cell | str]] = [
        [
            text(o.point.label),
            Cell(si(o.point.n_params), o.point.n_params),
            Cell(si(o.point.n_tokens), o.point.n_tokens),
            Cell(power(o.point.flops), o.point.flops),
            Cell(markup.fixed(o.point.loss, 4), o.point.loss),
            Cell(percent(o.percent / 100, 2, sign=True), o.percent),
            Cell(markup.fixed(o.deviations, 1), o.deviations),
        ]
        for o in far[:NAMED_OUTLIERS]
    ]
    more = len(far) - len(rows)
    headers = ["outlier", "N", "D", "FLOPs", "loss", "from the law", "robust deviations"]
    said = note(
        f"{markup.count(len(far), 'run')} of {len(view.points)} beyond {residuals.OUTLYING:g} robust standard "
        "deviations" + (f"; the furthest {len(rows)} are shown." if more > 0 else ".")
    )
    return "<h3>Outliers</h3>" + table(headers, rows, "Outliers", sortable=True) + said


def law_table(law: Law) -> str:
    """The fitted numbers with their intervals by each method, and how the fit went."""
    compute = [p for p in law.compute.parameters if p.name != "floor" or p.value]
    floored = [Parameter(f"floor {p.name}", p.value, p.interval) for p in law.with_floor.parameters]
    entries = [*law.parameters.values(), *law.exponents, *compute, *floored]
    methods = list(law.methods) or ["bootstrap"]
    methods.sort(key=lambda m: list(METHODS).index(m) if m in METHODS else len(METHODS))
    rows = [
        [_law_name(p.name), markup.significant(p.value), *(markup.interval(_interval(law, p, m)) for m in methods)]
        for p in entries
    ]
    level = f"{law.level:.0%}"
    headers = [f"{level} interval"] if len(methods) == 1 else [f"{level}, {METHODS.get(m, text(m))}" for m in methods]
    status = [(STATUS_NAMES.get(k, text(k.replace("_", " "))), _status(k, v)) for k, v in law.status.items()]
    if len(law.forms) > 1:
        shares = (f"{percent(f.weight, 0)} of q = {f.coupling:g} (E {f.floor:.3f})" for f in law.forms)
        status.append(("predictions: average over couplings q of the terms of N and D", ", ".join(shares)))
    warning = ""
    if law.status.get("status", "converged") != "converged":
        warning = absent("The fit did not converge; its numbers are not a result.")
    if not entries:
        warning += absent("law.json holds no L(N, D) with parameters.")
    notes = f'<ul class="warnings">{"".join(f"<li>{text(n)}</li>" for n in law.notes)}</ul>' if law.notes else ""
    shown = table(["parameter", "value", *headers], rows, "Fitted law") if rows else ""
    if len(methods) > 1:
        shown += note(METHODS_NOTE)
    return warning + shown + (facts(status) if status else "") + notes


def _interval(law: Law, parameter: Parameter, method: str) -> Ends | None:
    """The interval by a method; what has one of its own shows it under the bootstrap, where it came from."""
    name = parameter.name.removeprefix("law_")
    own = parameter.name in law.parameters or parameter.name.startswith("law_")
    if own and name in law.methods.get(method, {}):
        return law.methods[method][name]
    return parameter.interval if method == "bootstrap" else None


def _law_name(name: str) -> str:
    return LAW_NAMES.get(name, text(name))


def _status(key: str, value: Any) -> str:
    if key == "at_bound":
        return f"<b>{text(value)}</b>" if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "<b>no</b>"
    if isinstance(value, int | float):
        if key == "sigma":
            return percent(value, 2)
        if key == "share_of_starts":
            return percent(value, 0)
        return markup.plain(value)
    return text(value)
