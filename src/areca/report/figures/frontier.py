"""Along compute: the law at the best sizes of each budget, and those sizes; the planned run on both."""

from collections.abc import Sequence

import numpy as np

from areca.report import markup
from areca.report.figures import Budgets, Figure, around, band, figure, line, log_space, loss_axis, markers, run_hover
from areca.report.figures import spread as error_bars
from areca.report.law import Law, Point
from areca.report.values import an_object, pair, positive

MANY = 80  # points, from which on they are drawn small
LOSS_TITLE = "held-out loss, nats per token"


def compute_title(law: Law | None) -> str:
    """The axis of C in FLOPs: exact ones, or as the law's table counted them."""
    kinds = {"exact": "exact FLOPs", "6nd": "FLOPs as 6 N D", "table": "FLOPs as in the table"}
    return f"C: training compute, {kinds[law.flops_count if law else 'exact']}"


def loss_against_compute(
    law: Law, points: Sequence[Point], plan: Figure | None, achieved: Sequence[Point], budgets: Budgets
) -> Figure | None:
    """The law along its best sizes with its band, L(C), the runs it was fitted to, the plan, runs not seen."""
    planned = law.flops_of(plan) or (achieved[0].flops if achieved and plan else None)
    span = [p.flops for p in (*points, *achieved)] + ([planned] if planned else [])
    if not span:
        return None
    low, high = around(span, 1.6)
    data, through = _law_traces(law, points, low, high)
    if points:
        styles = [budgets.style(p.budget_flops) for p in points]
        size, opacity = (8, 1.0) if len(points) < MANY else (5, 0.75)
        marker: Figure = {"color": [c for c, _ in styles], "symbol": [s for _, s in styles], "size": size}
        marker["opacity"] = opacity
        data.append(
            markers([p.flops for p in points], [p.loss for p in points], "runs fitted", marker, **run_hover(points))
        )
    data += through  # over the cloud of the runs
    losses = [p.loss for p in (*points, *achieved)]
    if plan and planned:
        data += _plan_traces(plan, planned, points)
        losses += [v for v in (positive(plan, "predicted_loss"), *(pair(plan.get("interval_90")) or ())) if v and v > 0]
    if achieved:
        marker = {"color": "@c3", "symbol": "circle", "size": 9, "line": {"color": "@paper", "width": 1}}
        x, y = [p.flops for p in achieved], [p.loss for p in achieved]
        data.append(markers(x, y, "achieved" if plan else "runs not fitted", marker, **run_hover(achieved)))
    best = [v for trace in data if trace.get("name") == "law at best N and D" for v in trace["y"] if v]
    near = [v for v in best if 0.5 * min(losses, default=0) < v < 2 * max(losses, default=0)]
    return figure(
        data,
        {"title": compute_title(law), "limits": (low, high), "labels": markup.power},
        loss_axis(LOSS_TITLE, losses + near) if losses else {"title": LOSS_TITLE},
    )


def _law_traces(law: Law, points: Sequence[Point], low: float, high: float) -> tuple[list[Figure], list[Figure]]:
    """(the band, the lines)."""
    c = log_space(low, high)
    data: list[Figure] = []
    shade: list[Figure] = []
    if law.complete:
        n, d = law.frontier(c, points)
        bounds = law.band(n, d)
        if bounds:
            shade = band(c, *bounds, "90% band of the law")
    for of, dash, words in ((law.compute, "dash", "L(C), no floor"), (law.with_floor, "dot", "L(C) with a floor")):
        loss = of.predict(c)
        if loss is not None:
            hover = f"{words}<br>%{{x:.2e}} FLOPs, loss %{{y:.4f}}<extra></extra>"
            stroke = {"width": 1.8, "color": "@c0", "dash": dash}
            data.append(line(c, loss, stroke, name=words, hovertemplate=hover))
    if law.complete:
        hover = "law at best N and D<br>%{x:.2e} FLOPs, loss %{y:.4f}<extra></extra>"
        stroke, name = {"color": "@ink", "width": 2}, "law at best N and D"
        data.append(line(c, law.predict(n, d), stroke, name=name, legendrank=1, hovertemplate=hover))
    return shade, data


def _plan_traces(plan: Figure, planned: float, points: Sequence[Point]) -> list[Figure]:
    data: list[Figure] = []
    predicted, baseline = positive(plan, "predicted_loss"), positive(plan, "naive_baseline_loss")
    if predicted:
        bounds = pair(plan.get("interval_90"))
        words = f"predicted loss {predicted:.4f}"
        if bounds:
            words += f"<br>90% interval {bounds[0]:.4f} to {bounds[1]:.4f}"
        marker: Figure = {"color": "@paper", "symbol": "diamond", "size": 11, "line": {"color": "@ink", "width": 2}}
        extra = {"text": [words], "hovertemplate": "%{text}<extra></extra>"}
        name = "predicted, 90% interval" if bounds else "predicted"
        data.append(markers([planned], [predicted], name, marker, **extra, **error_bars([predicted], [bounds], "@ink")))
    if baseline and points:
        best = positive(plan.get("baseline"), "flops") or max(p.flops for p in points)  # as the law's rows count
        dotted, words = {"color": "@muted", "width": 1.5, "dash": "dot"}, "best run carried over"
        hover = f"{words}: %{{y:.4f}}<extra></extra>"
        data.append(line([best, planned], [baseline, baseline], dotted, name=words, hovertemplate=hover))
    return data


def optima(law: Law, points: Sequence[Point], plan: Figure | None) -> Figure | None:
    """Best N and D against budget, the lines through them, and the planned run with its neighbours."""
    known = [v for v in law.valleys if v.bottom and v.d_opt]
    if len(known) < 2:
        return None
    budget = [v.budget_flops for v in known]
    planned = law.flops_of(plan)
    c = log_space(*around([*budget, *([planned] if planned else [])], 1.5), count=20)
    data: list[Figure] = []
    n_line, d_line = law.frontier(c, points)
    near = [an_object(an_object(plan, "neighbours"), name) for name in ("half", "double")]
    sets = (
        ("N", "@c0", "circle", n_line, [v.n_opt for v in known], law.size_of),
        ("D", "@c1", "square", d_line, [v.d_opt for v in known], _tokens),
    )
    for name, colour, symbol, through, best, value_of in sets:
        exponent = np.log(through[-1] / through[0]) / np.log(c[-1] / c[0])
        words = f"best {name} ~ C<sup>{exponent:.2f}</sup>"
        data.append(line(c, through, {"color": colour, "width": 2}, name=words, hoverinfo="skip"))
        hover = f"budget %{{x:.2e}} FLOPs<br>best {name} %{{y:.3s}}<extra></extra>"
        marker: Figure = {"color": colour, "symbol": symbol, "size": 10}
        bars = {}
        if name == "N":
            bars = error_bars([float(v.n_opt or 0) for v in known], [v.n_opt_interval for v in known], colour)
        data.append(markers(budget, best, f"{name} of a valley", marker, hovertemplate=hover, showlegend=False, **bars))
        chosen = value_of(plan)
        if planned and chosen:
            marker = {"color": "@paper", "symbol": symbol, "size": 12, "line": {"color": colour, "width": 2}}
            hover = f"planned run, %{{x:.2e}} FLOPs<br>{name} %{{y:.3s}}<extra></extra>"
            data.append(markers([planned], [chosen], f"planned {name}", marker, hovertemplate=hover))
            beside = [(law.flops_of(other), value_of(other)) for other in near]
            beside = [(x, y) for x, y in beside if x and y]
            if beside:
                small = marker | {"size": 7, "line": {"color": colour, "width": 1.2}}
                hover = f"half or double the size<br>{name} %{{y:.3s}}<extra></extra>"
                x, y = zip(*beside, strict=True)
                other = markers(x, y, "neighbours", small, hovertemplate=hover)
                data.append(other | {"showlegend": False})
    drawn = [y for trace in data for y in trace["y"] if y and y > 0]
    if not drawn:
        return None
    x = {"title": compute_title(law), "limits": (float(c[0]), float(c[-1])), "labels": markup.power}
    return figure(data, x, {"title": "parameters or tokens", "limits": around(drawn)})


def _tokens(run: Figure | None) -> float | None:
    return positive(run, "n_tokens")
