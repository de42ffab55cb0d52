"""The sections about what a law was held to, and about laws of other forms."""

from typing import Any

from areca.report import markup
from areca.report.checks import Checks, HeldOut
from areca.report.figures import checks as figures
from areca.report.figures import forms
from areca.report.figures.valleys import size_title
from areca.report.markup import Cell, absent, facts, grid, note, percent, power, section, si, table, text
from areca.report.values import an_object, ends, finite, number, sentences
from areca.report.view import View

EXTRAPOLATION_NOTE = (
    "The rehearsal of a plan: the largest budget is left out, the law is fitted to the rest and has to predict it. "
    "Intervals are of one run each. If they miss here, they deserve no trust further out."
)
LEFT_OUT_NOTE = (
    "Each budget left out in turn and predicted from the others. Errors that grow or change sign along the budgets "
    "point to a form that is wrong, not to scatter."
)
CHOICES_NOTE = (
    "The same runs, fitted with other choices; the dotted line is the law as fitted. What moves more than its interval "
    "is decided by the choice and not by the runs."
)
OTHER_STATUS = (
    ("status", "fit"), ("objective", "objective"), ("n_points", "rows fitted"), ("sigma", "scatter about the law"),
    ("share_of_starts", "starts that reached the best"), ("n_starts", "starts"), ("condition", "condition number"),
)  # fmt: skip


def check_parts(view: View) -> list[tuple[str, str]]:
    """Extrapolation, curvature and choices of a law of N and D."""
    law = view.law
    if law is None or not law.of_sizes:
        return []
    checks = law.checks
    return [
        ("Extrapolation", section("extrapolation", "Extrapolation check", *_extrapolation(view, checks))),
        ("Curvature", section("curvature", "Tests for curvature", _curvature(checks))),
        ("Choices", section("choices", "What other choices give", *_choices(view, checks))),
    ]


def _extrapolation(view: View, checks: Checks) -> list[str]:
    parts: list[str] = []
    if checks.largest is None:
        parts.append(absent("The largest budget was not held out: law.json has no validation, or has too few budgets."))
    else:
        parts.append(_said(checks.largest))
        parts.append(
            view.place(
                "plot-held-out", "The largest budget predicted from the others",
                figures.held_out(checks.largest, size_title(view.law)),
                "law.json does not name the runs that were held out, so they are not drawn.", EXTRAPOLATION_NOTE, 400,
            )
        )  # fmt: skip
        parts.append(_held_runs(checks.largest))
    parts.append("<h3>Each budget left out in turn</h3>")
    if not checks.left_out:
        parts.append(absent("No budget was left out in turn: law.json has no leave_one_out."))
        return parts
    drawn = view.place(
        "plot-left-out", "Error of prediction of each budget left out", figures.left_out(checks), "", LEFT_OUT_NOTE, 380
    )
    rows: list[list[Cell | str]] = [
        [
            Cell(power(b.budget_flops), b.budget_flops),
            Cell(markup.NONE if b.rows is None else str(b.rows), b.rows),
            Cell(percent(b.mean_error, 2, sign=True), b.mean_error),
            Cell(percent(b.worst_error, 2, sign=True), b.worst_error),
            Cell(markup.NONE if b.held is None else f"{b.held} of {b.rows}", b.held),
        ]
        for b in checks.left_out
    ]
    level = f"{checks.left_out[0].level:.0%}"
    headers = ["budget left out, FLOPs", "runs", "mean error", "worst error", f"inside their {level} intervals"]
    known = [b for b in checks.left_out if b.rows and b.held is not None]
    total = sum(b.rows or 0 for b in known)
    words = ""
    if total:
        held = sum(b.held or 0 for b in known)
        words = note(f"Over all budgets {held} of {markup.count(total, 'run')} ({held / total:.0%}) lie inside.")
    return [*parts, drawn, table(headers, rows, "Budgets left out", sortable=True), words]


def _said(held: HeldOut) -> str:
    """What came of the largest budget, in a sentence."""
    rows = markup.count(held.rows, "run") if held.rows is not None else "runs"
    reach = f" ({held.stretch:.3g} times the rest)" if held.stretch else ""
    at = f" of {power(held.budget_flops)} FLOPs" if held.budget_flops else ""
    if held.mean_error is None:
        return f"<p>The largest budget{at}{reach} was held out.</p>"
    side = "too high" if held.mean_error > 0 else "too low"
    inside = f"; {held.held} of its {rows} inside their {held.level:.0%} intervals" if held.held is not None else ""
    return (
        f"<p>Fitted without the largest budget{at}{reach}, the law predicts {percent(abs(held.mean_error), 2)} {side} "
        f"on average{inside}.</p>"
    )


def _held_runs(held: HeldOut) -> str:
    if not held.points:
        return ""
    words = {True: "yes", False: "<b>no</b>", None: markup.NONE}
    rows: list[list[Cell | str]] = [
        [
            text(p.label),
            Cell(si(p.n_params), p.n_params),
            Cell(si(p.n_tokens), p.n_tokens),
            Cell(markup.fixed(p.predicted, 4), p.predicted),
            markup.interval(p.interval),
            Cell(markup.fixed(p.loss, 4), p.loss),
            Cell(percent(p.error, 2, sign=True), p.error),
            words[p.inside],
        ]
        for p in held.points
    ]
    headers = ["run", "N", "D", "predicted", f"{held.level:.0%} interval", "achieved", "error", "inside"]
    return table(headers, rows, "Runs held out", sortable=True)


def _curvature(checks: Checks) -> str:
    if not checks.curvature:
        return absent("law.json has no tests for curvature in log-log.")
    rows: list[list[Cell | str]] = [
        [
            text(c.of),
            Cell(markup.significant(c.coefficient, 3), c.coefficient),
            markup.interval(c.interval, 3),
            Cell(f"{c.p_value:.2g}" if c.p_value is not None else markup.NONE, c.p_value),
            f'<span class="wrap">{text(c.says)}</span>',
        ]
        for c in checks.curvature
    ]
    headers = ["bend of", "coefficient", "interval", "p", "what it says"]
    words = (
        "A straight line in log-log has a coefficient of 0. A bend that is there makes every extrapolation doubtful."
    )
    return table(headers, rows, "Tests for curvature") + note(words)


def _choices(view: View, checks: Checks) -> list[str]:
    if not checks.choices:
        return [absent("law.json has no table of other choices (points dropped, objective, how N and C are counted).")]
    height = 130 + 26 * len(checks.choices)
    drawn = [
        view.place(f"plot-choices-{short}", f"{title} under each choice", figures.choices(checks, key), height=height)
        for (key, title), short in zip(figures.PANELS.items(), ("exponent", "size", "loss"), strict=True)
    ]
    columns = (
        ("n_exponent", lambda v: markup.significant(v, 4)), ("alpha", lambda v: markup.significant(v, 4)),
        ("beta", lambda v: markup.significant(v, 4)), ("E", lambda v: markup.significant(v, 4)), ("n_opt", si),
        ("predicted_loss", lambda v: markup.fixed(v, 4)),
    )  # fmt: skip
    rows: list[list[Cell | str]] = []
    for choice in checks.choices:
        points = Cell(f"{choice.n_points:.0f}" if choice.n_points is not None else markup.NONE, choice.n_points)
        cells = [Cell(shown(choice.values.get(key)), choice.values.get(key)) for key, shown in columns]
        name = text(choice.name) + (' <span class="tag">failed</span>' if choice.failed else "")
        rows.append([name, points, *cells])
    headers = ["choice", "rows", "N exponent", "α", "β", "E", "best N", "predicted loss"]
    at = f" Best N and loss are at {power(checks.choices_at)} FLOPs." if checks.choices_at else ""
    failed = [f"{text(c.name)}: {text(c.failed)}" for c in checks.choices if c.failed]
    told = f'<ul class="warnings">{"".join(f"<li>{f}</li>" for f in failed)}</ul>' if failed else ""
    return [grid(*drawn), note(CHOICES_NOTE + at), table(headers, rows, "Choices", sortable=True), told]


def other_parts(view: View) -> list[tuple[str, str]]:
    """A section for the laws of other forms, if there are any."""
    laws = view.law.others if view.law else []
    if not laws:
        return []
    body = "".join(_other(view, form, i) for i, form in enumerate(laws))
    return [("Other laws", section("forms", "Laws of other forms", body))]


def _other(view: View, form: dict[str, Any], i: int) -> str:
    law = forms.read_other(form)
    equation, source = (form.get(key) for key in ("equation", "source"))
    said = [text(s) for s in (equation, source) if isinstance(s, str) and s]
    name = text(law.name)
    drawn = [
        view.place(f"plot-form-{i}", f"{name} over its rows", forms.curve(law) or forms.agreement(law), height=340),
        view.place(f"plot-form-{i}-residuals", f"Residuals of {name}", forms.residuals(law), height=340),
    ]
    parts = grid(*drawn) if any(drawn) else absent(f"{law.name} comes without its rows, so it is not drawn.")
    intervals, errors = an_object(form, "intervals"), an_object(form, "standard_errors")
    rows = [
        [text(key), markup.significant(number({"v": v}, "v")), markup.interval(ends(intervals.get(key))),
         markup.significant(number(errors, key), 2)]
        for key, v in an_object(form, "values").items()
    ]  # fmt: skip
    status = [(words, _fact(key, form[key])) for key, words in OTHER_STATUS if form.get(key) is not None]
    bound = sentences(form.get("at_bound"))
    if "at_bound" in form:
        status.append(("parameters at a bound", f"<b>{text(', '.join(bound))}</b>" if bound else "none"))
    warning = ""
    if form.get("status") not in (None, "converged"):
        warning = absent(f"The fit of {law.name} did not converge; its numbers are not a result.")
    doubts = sentences(form.get("warnings"))
    warning += f'<ul class="warnings">{"".join(f"<li>{text(d)}</li>" for d in doubts)}</ul>' if doubts else ""
    shown = table(["parameter", "value", "90% interval", "standard error"], rows, f"{law.name}") if rows else ""
    return f"<h3>{name}</h3>" + warning + (note(" · ".join(said)) if said else "") + parts + shown + facts(status)


def _fact(key: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return text(value)
    known = finite(value)
    if known is None:
        return text("not a number")
    return percent(known, 0) if key == "share_of_starts" else markup.plain(known)
