"""What all figures share: plain plotly JSON, colours of budgets, axes, ticks.

A colour that begins with "@" is a name of report.css (`@c0` is `--c0`); the page's script puts in the value for
light or dark, `static` the one for paper. Budgets are colours and marker shapes, the same ones in every figure.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from areca.report import markup

COLOURS = 6  # @c0 ... of report.css
RAMP = 10  # @r0 ... of report.css, from dark to light (light to dark on dark paper)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "pentagon")
NAMED = 7  # budgets that a legend names at most

Figure = dict[str, Any]


class Budgets:
    """The colour and shape of each budget, from the smallest to the largest. Beyond six the colours are a ramp."""

    def __init__(self, values: Sequence[float | None]) -> None:
        self.values: list[float] = []
        for value in sorted({v for v in values if v is not None and v > 0}):
            if not self.values or not same_budget(self.values[-1], value):
                self.values.append(value)

    def place(self, budget: float | None) -> int | None:
        """The budget's index among the values, None for one that is not among them."""
        near = [i for i, v in enumerate(self.values) if same_budget(v, budget)]
        return min(near, key=lambda i: abs(self.values[i] / (budget or 1.0) - 1)) if near else None

    def style(self, budget: float | None) -> tuple[str, str]:
        """`(colour, marker symbol)`; runs without a budget are muted circles."""
        i = self.place(budget)
        if i is None:
            return "@muted", "circle"
        if len(self.values) <= COLOURS:
            return f"@c{i}", SHAPES[i]
        return f"@r{round(i * (RAMP - 1) / (len(self.values) - 1))}", SHAPES[i % len(SHAPES)]

    def rank(self, budget: float | None) -> int:
        """The place in a legend: budgets rise, then what has none."""
        i = self.place(budget)
        return 1 + (len(self.values) if i is None else i)

    def named(self, budget: float | None) -> bool:
        """Whether a legend names the budget: all of a few, of many the ends and some between."""
        i, count = self.place(budget), len(self.values)
        if i is None or count <= NAMED:
            return True
        return i in {round(k * (count - 1) / (NAMED - 1)) for k in range(NAMED)}

    def label(self, budget: float | None) -> str:
        """The legend's words."""
        return "runs without a budget" if budget is None else f"{markup.short(markup.power(budget))} FLOPs"


def same_budget(one: float | None, other: float | None) -> bool:
    """Whether two budgets are the same one: what is recorded may be the mean of what was spent."""
    if one is None or other is None:
        return one is other
    return abs(one / other - 1) < 0.05


def figure(data: list[Figure], x: Figure, y: Figure, **layout: Any) -> Figure:
    """A figure with the page's common layout; the script adds the colours of light or dark."""
    base = {
        "margin": {"l": 62, "r": 14, "t": 10, "b": 54},
        "hovermode": "closest",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
            "traceorder": "normal",
        },
        "xaxis": axis(**x),
        "yaxis": axis(**y),
    }
    return {"data": data, "layout": base | layout}


def axis(title: str, **options: Any) -> Figure:
    """An axis with its title; with `limits` a logarithmic one, labelled by `labels`."""
    limits = options.pop("limits", None)
    labels: Callable[[float], str] = options.pop("labels", markup.si)
    if limits is not None:
        low, high = limits
        ticks = decade_ticks(low, high)
        options |= {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [markup.short(labels(t)) for t in ticks],
            "range": [float(np.log10(low)), float(np.log10(high))],
        }
        between = minor_ticks(low, high, ticks)
        if between:
            options["minor"] = {"tickvals": between, "ticks": "outside", "ticklen": 3}
    return {"title": {"text": title, "standoff": 8}, "automargin": True, "zeroline": False} | options


def loss_axis(title: str, values: Sequence[float], room: float = 0.06) -> Figure:
    """A logarithmic axis of losses, with some room around them, labelled in plain numbers."""
    low, high = min(values), max(values)
    factor = (high / low) ** room if high > low else 1.02
    return {"title": title, "limits": (low / factor, high * factor), "labels": "{:.4g}".format}


def decade_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten within the limits; 1 alone over more than three decades, every second over ten.

    Within less than a decade that leaves too few: then round numbers at even steps.
    """
    decades = np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    span = np.log10(high / low)
    steps = (1, 2, 5) if span < 2.2 else (1, 3) if span < 3.5 else (1,)
    if span > 10:
        decades = decades[::2]
    ticks = [float(f"{m}e{int(d)}") for d in decades for m in steps]
    ticks = [t for t in ticks if low <= t <= high]
    if len(ticks) >= 4 or span > 1.5 or not span > 1e-9:
        return ticks
    raw = (high - low) / 7
    size = 10.0 ** np.floor(np.log10(raw))
    step = size * next(m for m in (1, 2, 2.5, 5, 10) if m * size >= raw * (1 - 1e-9))
    first = int(np.ceil(low / step))
    return [float(f"{k * step:.6g}") for k in range(first, first + 16) if k * step <= high]


def minor_ticks(low: float, high: float, ticks: Sequence[float]) -> list[float]:
    """The whole multiples of powers of ten between the labelled ticks, from half a decade to six."""
    if not 0.5 < np.log10(high / low) < 6:
        return []
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    every = [float(f"{m}e{d}") for d in decades for m in range(1, 10)]
    return [t for t in every if low <= t <= high and not any(abs(t / known - 1) < 1e-6 for known in ticks)]


def around(values: Sequence[float], factor: float = 1.25) -> tuple[float, float]:
    """Limits of a logarithmic axis with some room."""
    return min(values) / factor, max(values) * factor


def log_space(low: float, high: float, count: int = 60) -> np.ndarray:
    """Numbers even in their logarithm, ends included."""
    return np.exp(np.linspace(np.log(low), np.log(high), count))


def rounded(values: Any, digits: int = 6) -> list[float | None]:
    """Floats with so many significant digits, to keep the page small; what is not finite becomes a gap."""
    return [float(f"{v:.{digits - 1}e}") if v is not None and np.isfinite(v) else None for v in values]


def line(x: Any, y: Any, line: Figure, **options: Any) -> Figure:
    """A trace of lines."""
    return {"type": "scatter", "mode": "lines", "x": rounded(x), "y": rounded(y), "line": line} | options


def markers(x: Any, y: Any, name: str, marker: Figure, **options: Any) -> Figure:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(x),
        "y": rounded(y),
        "name": name,
        "marker": marker,
    } | options


def band(x: Any, low: Any, high: Any, name: str, colour: str = "@band", **options: Any) -> list[Figure]:
    """Two traces with the area between them filled; the second is the one that a legend names."""
    flat = {"width": 0, "color": colour}
    shown = {"name": name, "fill": "tonexty", "fillcolor": colour, "hoverinfo": "skip"} | options
    return [line(x, low, flat, hoverinfo="skip", showlegend=False), line(x, high, flat, **shown)]


def spread(centre: Sequence[float], bounds: Sequence[Any], colour: str, direction: str = "y") -> Figure:
    """Error bars from (low, high) of each point; an end that is None has no bar."""
    low = [max(c - b[0], 0.0) if b and b[0] is not None else 0.0 for c, b in zip(centre, bounds, strict=True)]
    high = [max(b[1] - c, 0.0) if b and b[1] is not None else 0.0 for c, b in zip(centre, bounds, strict=True)]
    bars = {"type": "data", "symmetric": False, "array": rounded(high), "arrayminus": rounded(low)}
    return {f"error_{direction}": bars | {"color": colour, "thickness": 1.5, "width": 4}}


def grouped(items: Sequence[Any], budgets: Budgets) -> list[tuple[float | None, list[Any]]]:
    """(budget, points) from the smallest budget up, then what has none; each point once."""
    groups: dict[float | None, list[Any]] = {}
    for item in items:
        place = budgets.place(item.budget_flops)
        groups.setdefault(None if place is None else budgets.values[place], []).append(item)
    return sorted(groups.items(), key=lambda group: budgets.rank(group[0]))


def run_hover(points: Sequence[Any], more: Sequence[str] = ()) -> Figure:
    """What a point says when pointed at: name, N, D, FLOPs, loss, and a line of its own."""
    lines = more or [""] * len(points)
    words = [
        f"{markup.text(p.label)}<br>N {markup.si(p.n_params)}, D {markup.si(p.n_tokens)}, "
        f"{markup.power(p.flops, 3)} FLOPs<br>loss {p.loss:.4f}{f'<br>{extra}' if extra else ''}"
        for p, extra in zip(points, lines, strict=True)
    ]
    return {"text": words, "hovertemplate": "%{text}<extra></extra>"}
