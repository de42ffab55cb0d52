"""Figures about the laws as plain plotly JSON: valleys, best size by budget, loss against compute, residuals.

A colour that begins with "@" is a name of report.css (`@c0` is `--c0`); the page's script puts in the value for
light or dark. Budgets are colours and marker shapes, the same ones in every figure.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from areca.report import markup
from areca.report.gather import number, pair
from areca.report.law import Law, Point, Valley

COLOURS = 6  # @c0 ... of report.css
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "pentagon")
N_TITLE = "N: parameters without embeddings"
D_TITLE = "D: training tokens"
C_TITLE = "C: training compute, exact FLOPs"
LOSS_TITLE = "held-out loss, nats per token"

Figure = dict[str, Any]


class Budgets:
    """The colour and shape of each budget, from the smallest to the largest."""

    def __init__(self, values: Sequence[float | None]) -> None:
        self.values = sorted({v for v in values if v is not None})

    def style(self, budget: float | None) -> tuple[str, str]:
        """`(colour, marker symbol)`; runs without a budget are drawn in ink."""
        if budget is None or budget not in self.values:
            return "@ink", "circle-open"
        i = self.values.index(budget)
        return f"@c{i % COLOURS}", SHAPES[i % len(SHAPES)]

    def label(self, budget: float | None) -> str:
        return "no budget" if budget is None else f"{markup.power(budget)} FLOPs"


def figure(data: list[Figure], x: Figure, y: Figure, **layout: Any) -> Figure:
    """A figure with the page's common layout; the script adds the colours of light or dark."""
    base = {
        "margin": {"l": 62, "r": 14, "t": 10, "b": 54},
        "hovermode": "closest",
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "font": {"size": 12}},
        "xaxis": axis(**x),
        "yaxis": axis(**y),
    }
    return {"data": data, "layout": base | layout}


def axis(title: str, **options: Any) -> Figure:
    """An axis with its title; logarithmic ones label 1, 2 and 5 of each decade through `limits`."""
    limits = options.pop("limits", None)
    labels = options.pop("labels", markup.si)
    if limits is not None:
        low, high = limits
        ticks = decade_ticks(low, high)
        options |= {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [labels(t) for t in ticks],
            "range": [float(np.log10(low)), float(np.log10(high))],
        }
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | options


def decade_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the limits; 1 alone over more than three decades, every second over ten."""
    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    span = np.log10(high / low)
    steps = (1, 2, 5) if span < 2.2 else (1, 3) if span < 3.5 else (1,)
    if span > 10:
        decades = decades[::2]
    ticks = [float(f"{m}e{int(d)}") for d in decades for m in steps]
    return [t for t in ticks if low <= t <= high]


def around(values: Sequence[float], factor: float = 1.25) -> tuple[float, float]:
    """Limits of a logarithmic axis with some room."""
    return min(values) / factor, max(values) * factor


def log_space(low: float, high: float, count: int = 60) -> np.ndarray:
    return np.exp(np.linspace(np.log(low), np.log(high), count))


def rounded(values: Any, digits: int = 6) -> list[float | None]:
    """Floats with so many significant digits, to keep the page small; what is not finite becomes a gap."""
    return [float(f"{v:.{digits - 1}e}") if v is not None and np.isfinite(v) else None for v in values]


def valleys(law: Law, points: Sequence[Point], budgets: Budgets) -> Figure | None:
    """Loss against size at each budget: runs, parabola, vertex with its interval (Hoffmann et al. 2022, figure 3)."""
    drawn = [v for v in law.valleys if v.coefficients]
    members = {v.budget_flops: [p for p in points if p.budget_flops == v.budget_flops] for v in drawn}
    sizes = [p.n_params for group in members.values() for p in group] + [v.n_opt for v in drawn if v.n_opt]
    if not sizes:
        return None
    data: list[Figure] = []
    for valley in drawn:
        data += _valley_traces(valley, members[valley.budget_flops], budgets)
    return figure(data, {"title": N_TITLE, "limits": around(sizes, 1.3)}, {"title": LOSS_TITLE})


def _valley_traces(valley: Valley, group: list[Point], budgets: Budgets) -> list[Figure]:
    colour, symbol = budgets.style(valley.budget_flops)
    label = budgets.label(valley.budget_flops)
    sizes = [p.n_params for p in group] + ([valley.n_opt] if valley.n_opt and valley.interior is not False else [])
    traces: list[Figure] = []
    if sizes:
        n = log_space(*around(sizes, 1.12))
        line = {"color": colour, "width": 2, "dash": "dash" if valley.interior is False else "solid"}
        traces.append(_line(n, valley.curve(n), line, legendgroup=label, showlegend=False, hoverinfo="skip"))
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
    curve = valley.curve(np.asarray([valley.n_opt])) if valley.n_opt and valley.interior is not False else None
    if curve is not None and valley.n_opt:
        error: Figure = {}
        words = f"optimum at {label}<br>N {markup.si(valley.n_opt)}, D {markup.si(valley.d_opt)}, loss {curve[0]:.4f}"
        if valley.n_opt_interval:
            low, high = valley.n_opt_interval
            spread = {"array": rounded([high - valley.n_opt]), "arrayminus": rounded([valley.n_opt - low])}
            error = {"error_x": {"type": "data", "symmetric": False, "color": colour, "thickness": 1.5, **spread}}
            words += f"<br>90% interval of N {markup.si(low)} to {markup.si(high)}"
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "optimum",
                "legendgroup": label,
                "showlegend": False,
                "x": rounded([valley.n_opt]),
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
    known = [v for v in law.valleys if v.n_opt and v.d_opt and v.interior is not False]
    if len(known) < 2:
        return None
    budget = [v.budget_flops for v in known]
    planned = number(plan, "flops_exact")
    c = log_space(*around([*budget, *([planned] if planned else [])], 1.5), count=20)
    data: list[Figure] = []
    n_line, d_line = law.frontier(c, points)
    sets = (
        ("N", "@c0", "circle", n_line, [v.n_opt for v in known], number(plan, "n_params")),
        ("D", "@c1", "square", d_line, [v.d_opt for v in known], number(plan, "n_tokens")),
    )
    for name, colour, symbol, line, best, chosen in sets:
        exponent = np.log(line[-1] / line[0]) / np.log(c[-1] / c[0])
        data.append(
            _line(c, line, {"color": colour, "width": 2}, name=f"best {name} ~ C<sup>{exponent:.2f}</sup>", hoverinfo="skip")
        )
        hover = f"budget %{{x:.2e}} FLOPs<br>best {name} %{{y:.3s}}<extra></extra>"
        marker: Figure = {"color": colour, "symbol": symbol, "size": 10}
        data.append(_markers(budget, best, f"{name} of a valley", marker, hovertemplate=hover, showlegend=False))
        if planned and chosen:
            marker = {"color": "@paper", "symbol": symbol, "size": 12, "line": {"color": colour, "width": 2}}
            hover = f"planned run, %{{x:.2e}} FLOPs<br>{name} %{{y:.3s}}<extra></extra>"
            data.append(_markers([planned], [chosen], f"planned {name}", marker, hovertemplate=hover))
    ends = [y for trace in data for y in trace["y"]]
    x = {"title": C_TITLE, "limits": (float(c[0]), float(c[-1])), "labels": markup.power}
    return figure(data, x, {"title": "parameters or tokens", "limits": around(ends)})


def loss_against_compute(
    law: Law, points: Sequence[Point], plan: Figure | None, achieved: Point | None, budgets: Budgets
) -> Figure | None:
    """The law along its best sizes with its band, the runs it was fitted to, the prediction and what training gave."""
    planned = achieved.flops if achieved else number(plan, "flops_exact")
    span = [p.flops for p in points] + ([planned] if planned else [])
    if not span:
        return None
    low, high = around(span, 1.6)
    data = _law_traces(law, points, low, high) if law.complete else []
    for budget in [*budgets.values, None]:
        group = [p for p in points if p.budget_flops == budget]
        if group:
            colour, symbol = budgets.style(budget)
            marker: Figure = {"color": colour, "symbol": symbol, "size": 8, "opacity": 0.85}
            name = "runs" if budget is None else f"runs at {budgets.label(budget)}"
            data.append(_markers([p.flops for p in group], [p.loss for p in group], name, marker, **_run_hover(group)))
    predicted, baseline = number(plan, "predicted_loss"), number(plan, "naive_baseline_loss")
    if planned and predicted:
        bounds = pair((plan or {}).get("interval_90"))
        error: Figure = {}
        words = f"predicted loss {predicted:.4f}"
        if bounds:
            words += f"<br>90% interval {bounds[0]:.4f} to {bounds[1]:.4f}"
            spread = {"array": rounded([bounds[1] - predicted]), "arrayminus": rounded([predicted - bounds[0]])}
            error = {"error_y": {"type": "data", "symmetric": False, "color": "@ink", "thickness": 2, "width": 8, **spread}}
        marker = {"color": "@paper", "symbol": "diamond", "size": 12, "line": {"color": "@ink", "width": 2}}
        extra = {"text": [words], "hovertemplate": "%{text}<extra></extra>", **error}
        data.append(_markers([planned], [predicted], "predicted, 90% interval", marker, **extra))
    if achieved:
        marker = {"color": "@c3", "symbol": "star", "size": 14, "line": {"color": "@paper", "width": 1}}
        data.append(_markers([achieved.flops], [achieved.loss], "achieved", marker, **_run_hover([achieved])))
    if baseline and planned:
        best = max((p.flops for p in points), default=low)
        dotted = {"color": "@muted", "width": 1.5, "dash": "dot"}
        words = "best rung carried over"
        data.append(_line([best, planned], [baseline, baseline], dotted, name=words, hovertemplate=f"{words}: %{{y:.4f}}<extra></extra>"))
    return figure(data, {"title": C_TITLE, "limits": (low, high), "labels": markup.power}, {"title": LOSS_TITLE})


def _law_traces(law: Law, points: Sequence[Point], low: float, high: float) -> list[Figure]:
    c = log_space(low, high)
    n, d = law.frontier(c, points)
    data: list[Figure] = []
    band = law.band(n, d)
    if band:
        flat = {"width": 0, "color": "@band"}
        data.append(_line(c, band[0], flat, showlegend=False, hoverinfo="skip"))
        data.append(_line(c, band[1], flat, name="its 90% band", fill="tonexty", fillcolor="@band", hoverinfo="skip"))
    hover = "law at best N and D<br>%{x:.2e} FLOPs, loss %{y:.4f}<extra></extra>"
    data.append(_line(c, law.predict(n, d), {"color": "@ink", "width": 2}, name="law at best N and D", hovertemplate=hover))
    return data


def residuals(law: Law, points: Sequence[Point], achieved: Point | None, budgets: Budgets) -> Figure | None:
    """How far each run lies from L(N, D), in percent of the law's value, against compute."""
    if not law.complete or not points:
        return None
    data: list[Figure] = []
    for budget in [*budgets.values, None]:
        group = [p for p in points if p.budget_flops == budget]
        if group:
            colour, symbol = budgets.style(budget)
            name = "runs" if budget is None else f"runs at {budgets.label(budget)}"
            marker: Figure = {"color": colour, "symbol": symbol, "size": 9}
            data.append(_markers([p.n_params for p in group], residual_percent(law, group), name, marker, **_run_hover(group)))
    if achieved:
        marker = {"color": "@c3", "symbol": "star", "size": 14, "line": {"color": "@paper", "width": 1}}
        shown = residual_percent(law, [achieved])
        data.append(_markers([achieved.n_params], shown, "verifying run", marker, **_run_hover([achieved])))
    sizes = [p.n_params for p in [*points, *([achieved] if achieved else [])]]
    y = {"title": "loss above (+) or below the law, %", "zeroline": True}
    return figure(data, {"title": N_TITLE, "limits": around(sizes, 1.3)}, y)


def residual_percent(law: Law, points: Sequence[Point]) -> list[float]:
    """100 (loss / L(N, D) - 1) of each point."""
    predicted = law.predict(np.asarray([p.n_params for p in points]), np.asarray([p.n_tokens for p in points]))
    return list(100 * (np.asarray([p.loss for p in points]) / predicted - 1))


def _line(x: Any, y: Any, line: Figure, **options: Any) -> Figure:
    return {"type": "scatter", "mode": "lines", "x": rounded(x), "y": rounded(y), "line": line} | options


def _markers(x: Any, y: Any, name: str, marker: Figure, **options: Any) -> Figure:
    return {"type": "scatter", "mode": "markers", "x": rounded(x), "y": rounded(y), "name": name, "marker": marker} | options


def _run_hover(points: Sequence[Point]) -> Figure:
    words = [
        f"{markup.text(p.label)}<br>N {markup.si(p.n_params)}, D {markup.si(p.n_tokens)}, "
        f"{markup.power(p.flops, 3)} FLOPs<br>loss {p.loss:.4f}"
        for p in points
    ]
    return {"text": words, "hovertemplate": "%{text}<extra></extra>"}
