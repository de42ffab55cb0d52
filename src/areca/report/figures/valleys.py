"""Loss against size at each budget: the valleys' parabolas with their honest width, and the law's own curves."""

from collections.abc import Sequence

import numpy as np

from areca.report import markup
from areca.report.figures import (
    Budgets,
    Figure,
    around,
    band,
    figure,
    grouped,
    line,
    log_space,
    loss_axis,
    markers,
    rounded,
    run_hover,
    same_budget,
)  # fmt: skip
from areca.report.figures import spread as error_bars
from areca.report.figures.frontier import LOSS_TITLE, MANY
from areca.report.law import Law, Point, Valley, flops_per_nd

N_TITLE = "N: parameters without embeddings"
N_TOTAL_TITLE = "N: parameters, embeddings included"
BANDS = 8  # budgets with a band at most: more would hide each other


def size_title(law: Law | None) -> str:
    """The axis of N; a column of another name is said."""
    return N_TOTAL_TITLE if law and law.counts_embeddings else N_TITLE


def valleys(law: Law, points: Sequence[Point], budgets: Budgets) -> Figure | None:
    """Loss against size at each budget: runs, parabola, vertex with its interval (Hoffmann et al. 2022, figure 3).

    The thick part of a parabola's floor is N within 0.1% of the lowest loss.
    """
    drawn = [v for v in law.valleys if v.coefficients]
    members = {v.budget_flops: [p for p in points if same_budget(p.budget_flops, v.budget_flops)] for v in drawn}
    sizes = [p.n_params for group in members.values() for p in group] + [v.bottom for v in drawn if v.bottom]
    losses = [p.loss for group in members.values() for p in group]
    if not sizes:
        return None
    data: list[Figure] = []
    flat_named = False
    for valley in drawn:
        data += _valley_traces(valley, members[valley.budget_flops], budgets)
        flat = _flat_trace(valley, budgets, not flat_named)
        data, flat_named = data + flat, flat_named or bool(flat)
    x = {"title": size_title(law), "limits": around(sizes, 1.3)}
    return figure(data, x, loss_axis(LOSS_TITLE, losses) if losses else {"title": LOSS_TITLE})


def _flat_trace(valley: Valley, budgets: Budgets, named: bool) -> list[Figure]:
    if not valley.n_flat or not valley.bottom:
        return []
    n = log_space(*valley.n_flat, count=12)
    colour, _ = budgets.style(valley.budget_flops)
    label = budgets.label(valley.budget_flops)
    words = f"N within 0.1% of the lowest loss<br>{markup.si(n[0])} to {markup.si(n[-1])}<extra>{label}</extra>"
    stroke = {"color": colour, "width": 7}
    more = {"opacity": 0.4, "legendgroup": "flat", "showlegend": named, "legendrank": 900, "hovertemplate": words}
    return [line(n, valley.curve(n), stroke, name="N within 0.1%", **more)]


def _valley_traces(valley: Valley, group: list[Point], budgets: Budgets) -> list[Figure]:
    colour, symbol = budgets.style(valley.budget_flops)
    label = budgets.label(valley.budget_flops)
    bottom = valley.bottom
    sizes = [p.n_params for p in group] + ([bottom] if bottom else [])
    traces: list[Figure] = []
    if sizes:
        n = log_space(*around(sizes, 1.12))
        stroke = {"color": colour, "width": 2, "dash": "dash" if valley.interior is False else "solid"}
        traces.append(line(n, valley.curve(n), stroke, legendgroup=label, showlegend=False, hoverinfo="skip"))
    few = len(budgets.values) <= 7
    traces.append(
        markers(
            [p.n_params for p in group],
            [p.loss for p in group],
            label + (" (no optimum inside)" if valley.interior is False and few else ""),
            {"color": colour, "symbol": symbol, "size": 9 if few else 7},
            legendgroup=label,
            legendrank=budgets.rank(valley.budget_flops),
            showlegend=budgets.named(valley.budget_flops),
            **run_hover(group),
        )
    )
    curve = valley.curve(np.asarray([bottom])) if bottom else None
    if curve is not None and bottom:
        words = f"optimum at {label}<br>N {markup.si(bottom)}, D {markup.si(valley.d_opt)}, loss {curve[0]:.4f}"
        error: Figure = {}
        if valley.n_opt_interval:
            low, high = valley.n_opt_interval
            error = error_bars([bottom], [(low, high)], colour, "x")
            words += f"<br>90% interval of N {markup.si(low)} to {markup.si(high)}"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "optimum",
                "legendgroup": label,
                "showlegend": False,
                "x": rounded([bottom]),
                "y": rounded(curve),
                "text": [words],
                "hovertemplate": "%{text}<extra></extra>",
                "marker": {"color": "@paper", "symbol": "star", "size": 14, "line": {"color": colour, "width": 2}},
                **error,
            }
        )
    return traces


def fits(law: Law, points: Sequence[Point], budgets: Budgets) -> Figure | None:
    """L(N, D) with its band over the runs, against N at each budget, where D = C / (k N) with the budget's own k."""
    groups = [(b, g) for b, g in grouped(points, budgets) if b is not None and len({p.n_params for p in g}) > 1]
    if not law.complete or not groups:
        return None
    data: list[Figure] = []
    many = len(groups) > BANDS
    for i, (budget, group) in enumerate(groups):
        colour, symbol = budgets.style(budget)
        label = budgets.label(budget)
        n = log_space(*around([p.n_params for p in group], 1.15), count=40)
        d = budget / flops_per_nd(group) / n if budget else n
        bounds = law.band(n, d)
        if bounds:
            more = {"showlegend": i == 0, "legendrank": 900, "legendgroup": "band"}
            data += band(n, *bounds, "90% band of the law", "@faint" if many else "@band", **more)
        stroke = {"color": colour, "width": 2}
        data.append(line(n, law.predict(n, d), stroke, legendgroup=label, showlegend=False, hoverinfo="skip"))
        marker: Figure = {"color": colour, "symbol": symbol, "size": 9 if len(points) < MANY else 7}
        more = {"legendgroup": label, "legendrank": budgets.rank(budget), "showlegend": budgets.named(budget)}
        x, y = [p.n_params for p in group], [p.loss for p in group]
        data.append(markers(x, y, label, marker, **more, **run_hover(group)))
    drawn = [p for _, group in groups for p in group]
    x = {"title": size_title(law), "limits": around([p.n_params for p in drawn], 1.3)}
    return figure(data, x, loss_axis(LOSS_TITLE, [p.loss for p in drawn]))
