"""What all figures share: plain plotly JSON, colours of budgets, axes, ticks.

A colour that begins with "@" is a name of report.css (`@c0` is `--c0`); the page's script puts in the value for
light or dark. Budgets are colours and marker shapes, the same ones in every figure.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from areca.report import markup

COLOURS = 6  # @c0 ... of report.css
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "pentagon")

Figure = dict[str, Any]


class Budgets:
    """The colour and shape of each budget, from the smallest to the largest."""

    def __init__(self, values: Sequence[float | None]) -> None:
        self.values = sorted({v for v in values if v is not None and v > 0})

    def style(self, budget: float | None) -> tuple[str, str]:
        """`(colour, marker symbol)`; runs without a budget are drawn in ink."""
        near = [i for i, v in enumerate(self.values) if same_budget(v, budget)]
        if not near:
            return "@muted", "circle"
        i = near[0]
        return f"@c{i % COLOURS}", SHAPES[i % len(SHAPES)]

    def rank(self, budget: float | None) -> int:
        """The place in a legend: budgets rise, then what has none."""
        near = [i for i, v in enumerate(self.values) if same_budget(v, budget)]
        return 1 + (near[0] if near else len(self.values))

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
    """An axis with its title; logarithmic ones label 1, 2 and 5 of each decade through `limits`."""
    limits = options.pop("limits", None)
    labels = options.pop("labels", markup.si)
    if limits is not None:
        low, high = limits
        ticks = decade_ticks(low, high)
        options |= {
            "type": "log",
            "tickvals": ticks,
            "ticktext": [markup.short(labels(t)) for t in ticks],
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
