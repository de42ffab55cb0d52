"""Figures about the laws: valleys, best size by budget, loss against compute, residuals."""

from collections.abc import Sequence

import numpy as np

from areca.report import markup
from areca.report.figures import Budgets, Figure, around, figure, line, log_space, markers, rounded, same_budget
from areca.report.gather import pair, positive
from areca.report.law import Law, Point, Valley

N_TITLE = "N: parameters without embeddings"
C_TITLE = "C: training compute, exact FLOPs"
LOSS_TITLE = "held-out loss, nats per token"


def valleys(law: Law, points: Sequence[Point], budgets: Budgets) -> Figure | None:
    """Loss against size at each budget: runs, parabola, vertex with its interval (Hoffmann et al. 2022, figure 3)."""
    drawn = [v for v in law.valleys if v.coefficients]
    members = {v.budget_flops: [p for p in points if same_budget(p.budget_flops, v.budget_flops)] for v in drawn}
    sizes = [p.n_params for group in members.values() for p in group] + [v.bottom for v in drawn if v.bottom]
    if not sizes:
        return None
    data: list[Figure] = []
    for valley in drawn:
        data += _valley_traces(valley, members[valley.budget_flops], budgets)
    return figure(data, {"title": N_TITLE, "limits": around(sizes, 1.3)}, {"title": LOSS_TITLE})


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
    traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "name": label + (" (no optimum inside)" if valley.interior is False else ""),
            "legendgroup": label,
            "marker": {"color": colour, "symbol": symbol, "size": 9},
            **_run_hover(group),
            "x": rounded(p.n_params for p in group),
            "y": rounded(p.loss for p in group),
        }
    )
    curve = valley.curve(np.asarray([bottom])) if bottom else None
    if curve is not None and bottom:
        error: Figure = {}
        words = f"optimum at {label}<br>N {markup.si(bottom)}, D {markup.si(valley.d_opt)}, loss {curve[0]:.4f}"
        if valley.n_opt_interval:
            low, high = valley.n_opt_interval
            spread = {"array": rounded([high - bottom]), "arrayminus": rounded([bottom - low])}
            error = {"error_x": {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, **spread}}
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
                "marker": {"color": "@paper", "symbol": "star", "size": 15, "line": {"color": colour, "width": 2}},
                **error,
            }
        )
    return traces


def optima(law: Law, points: Sequence[Point], plan: Figure | None) -> Figure | None:
    """Best N and D against budget, the lines through them, and the planned run."""
    known = [v for v in law.valleys if v.bottom and v.d_opt]
    if len(known) < 2:
        return None
    budget = [v.budget_flops for v in known]
    planned = positive(plan, "flops_exact")
    c = log_space(*around([*budget, *([planned] if planned else [])], 1.5), count=20)
    data: list[Figure] = []
    n_line, d_line = law.frontier(c, points)
    sets = (
        ("N", "@c0", "circle", n_line, [v.n_opt for v in known], positive(plan, "n_params")),
        ("D", "@c1", "square", d_line, [v.d_opt for v in known], positive(plan, "n_tokens")),
    )
    for name, colour, symbol, through, best, chosen in sets:
        exponent = np.log(through[-1] / through[0]) / np.log(c[-1] / c[0])
        data.append(
            line(
                c,
                through,
                {"color": colour, "width": 2},
                name=f"best {name} ~ C<sup>{exponent:.2f}</sup>",
                hoverinfo="skip",
            )
        )
        hover = f"budget %{{x:.2e}} FLOPs<br>best {name} %{{y:.3s}}<extra></extra>"
        marker: Figure = {"color": colour, "symbol": symbol, "size": 10}
        data.append(markers(budget, best, f"{name} of a valley", marker, hovertemplate=hover, showlegend=False))
        if planned and chosen:
            marker = {"color": "@paper", "symbol": symbol, "size": 12, "line": {"color": colour, "width": 2}}
            hover = f"planned run, %{{x:.2e}} FLOPs<br>{name} %{{y:.3s}}<extra></extra>"
            data.append(markers([planned], [chosen], f"planned {name}", marker, hovertemplate=hover))
    ends = [y for trace in data for y in trace["y"]]
    x = {"title": C_TITLE, "limits": (float(c[0]), float(c[-1])), "labels": markup.power}
    return figure(data, x, {"title": "parameters or tokens", "limits": around(ends)})


def loss_against_compute(
    law: Law, points: Sequence[Point], plan: Figure | None, achieved: Point | None, budgets: Budgets
) -> Figure | None:
    """The law along its best sizes with its band, the runs it was fitted to, the prediction and what training gave."""
    planned = achieved.flops if achieved else positive(plan, "flops_exact")
    span = [p.flops for p in points] + ([planned] if planned else [])
    if not span:
        return None
    low, high = around(span, 1.6)
    data = _law_traces(law, points, low, high) if law.complete else []
    if points:
        styles = [budgets.style(p.budget_flops) for p in points]
        marker: Figure = {"color": [c for c, _ in styles], "symbol": [s for _, s in styles], "size": 8}
        data.append(
            markers([p.flops for p in points], [p.loss for p in points], "runs fitted", marker, **_run_hover(points))
        )
    predicted, baseline = positive(plan, "predicted_loss"), positive(plan, "naive_baseline_loss")
    if planned and predicted:
        bounds = pair((plan or {}).get("interval_90"))
        error: Figure = {}
        words = f"predicted loss {predicted:.4f}"
        if bounds:
            words += f"<br>90% interval {bounds[0]:.4f} to {bounds[1]:.4f}"
            spread = {"array": rounded([bounds[1] - predicted]), "arrayminus": rounded([predicted - bounds[0]])}
            error = {
                "error_y": {"type": "data", "symmetric": False, "color": "@ink", "thickness": 2, "width": 9, **spread}
            }
        marker = {"color": "@paper", "symbol": "diamond", "size": 11, "line": {"color": "@ink", "width": 2}}
        extra = {"text": [words], "hovertemplate": "%{text}<extra></extra>", **error}
        data.append(markers([planned], [predicted], "predicted, 90% interval", marker, **extra))
    if achieved:
        marker = {"color": "@c3", "symbol": "circle", "size": 9, "line": {"color": "@paper", "width": 1}}
        data.append(markers([achieved.flops], [achieved.loss], "achieved", marker, **_run_hover([achieved])))
    if baseline and planned:
        best = max((p.flops for p in points), default=low)
        dotted = {"color": "@muted", "width": 1.5, "dash": "dot"}
        words = "best rung carried over"
        data.append(
            line(
                [best, planned],
                [baseline, baseline],
                dotted,
                name=words,
                hovertemplate=f"{words}: %{{y:.4f}}<extra></extra>",
            )
        )
    return figure(data, {"title": C_TITLE, "limits": (low, high), "labels": markup.power}, {"title": LOSS_TITLE})


def _law_traces(law: Law, points: Sequence[Point], low: float, high: float) -> list[Figure]:
    c = log_space(low, high)
    n, d = law.frontier(c, points)
    data: list[Figure] = []
    band = law.band(n, d)
    if band:
        flat = {"width": 0, "color": "@band"}
        data.append(line(c, band[0], flat, showlegend=False, hoverinfo="skip"))
        data.append(
            line(c, band[1], flat, name="90% band of the law", fill="tonexty", fillcolor="@band", hoverinfo="skip")
        )
    compute = law.of_compute(c)
    if compute is not None:
        dashed = {"width": 1.5, "color": "@c0", "dash": "dash"}
        words = "power law L(C) alone"
        data.append(
            line(
                c,
                compute,
                dashed,
                name=words,
                hovertemplate=f"{words}<br>%{{x:.2e}} FLOPs, loss %{{y:.4f}}<extra></extra>",
            )
        )
    hover = "law at best N and D<br>%{x:.2e} FLOPs, loss %{y:.4f}<extra></extra>"
    data.append(
        line(
            c,
            law.predict(n, d),
            {"color": "@ink", "width": 2},
            name="law at best N and D",
            legendrank=1,
            hovertemplate=hover,
        )
    )
    return data


def residuals(law: Law, points: Sequence[Point], achieved: Point | None, budgets: Budgets) -> Figure | None:
    """How far each run lies from L(N, D), in percent of the law's value, against compute."""
    if not law.complete or not points:
        return None
    data: list[Figure] = []
    for budget in [*budgets.values, None]:
        group = [p for p in points if same_budget(p.budget_flops, budget)]
        if group:
            colour, symbol = budgets.style(budget)
            name = budgets.label(budget)
            marker: Figure = {"color": colour, "symbol": symbol, "size": 9}
            data.append(
                markers([p.n_params for p in group], residual_percent(law, group), name, marker, **_run_hover(group))
            )
    if achieved:
        marker = {"color": "@c3", "symbol": "circle", "size": 11, "line": {"color": "@ink", "width": 1.5}}
        shown = residual_percent(law, [achieved])
        data.append(markers([achieved.n_params], shown, "verifying run", marker, **_run_hover([achieved])))
    sizes = [p.n_params for p in [*points, *([achieved] if achieved else [])]]
    y = {"title": "loss above (+) or below the law, %", "zeroline": True}
    return figure(data, {"title": N_TITLE, "limits": around(sizes, 1.3)}, y)


def residual_percent(law: Law, points: Sequence[Point]) -> list[float]:
    """100 (loss / L(N, D) - 1) of each point."""
    predicted = law.predict(np.asarray([p.n_params for p in points]), np.asarray([p.n_tokens for p in points]))
    return list(100 * (np.asarray([p.loss for p in points]) / predicted - 1))


def _run_hover(points: Sequence[Point]) -> Figure:
    words = [
        f"{markup.text(p.label)}<br>N {markup.si(p.n_params)}, D {markup.si(p.n_tokens)}, "
        f"{markup.power(p.flops, 3)} FLOPs<br>loss {p.loss:.4f}"
        for p in points
    ]
    return {"text": words, "hovertemplate": "%{text}<extra></extra>"}
