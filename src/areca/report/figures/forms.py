"""Laws of other forms (scores, critical batch, learning rates, L(C) with a floor): curve with band, and residuals."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from areca.report import markup
from areca.report.figures import Figure, around, band, figure, line, loss_axis, markers
from areca.report.values import an_object, numbers

NAMES = {
    "n_params": "N: parameters", "n_tokens": "D: training tokens", "flops": "C: training compute, FLOPs",
    "loss": "loss, nats per token", "steps": "steps", "unique_tokens": "unique tokens", "s_min": "least steps S_min",
}  # fmt: skip


@dataclass(frozen=True)
class Other:
    """One law of another form. Arrays hold NaN where a value is missing."""

    name: str
    response: str  # with its unit
    logarithmic: bool  # whether residuals are ratios
    inputs: dict[str, np.ndarray] = field(default_factory=dict)  # of the rows fitted
    observed: np.ndarray = field(default_factory=lambda: np.empty(0))
    fitted: np.ndarray = field(default_factory=lambda: np.empty(0))
    x: str = ""  # the curve's input
    curve: dict[str, np.ndarray] = field(default_factory=dict)  # at, fitted, low, high


def read_other(form: dict[str, Any]) -> Other:
    """An entry of law.json's `forms`."""
    seen, curve = an_object(form, "observed"), an_object(form, "curve")
    observed, fitted = _array(seen.get("response")), _array(seen.get("fitted"))
    if len(fitted) != len(observed):
        fitted = np.full(len(observed), np.nan)
    inputs = {str(k): a for k, v in an_object(seen, "inputs").items() if len(a := _array(v)) == len(observed)}
    drawn = {key: _array(curve.get(key)) for key in ("at", "fitted", "low", "high")}
    drawn = {key: a for key, a in drawn.items() if len(a) == len(drawn["at"]) and len(a)}
    named = str(curve.get("x", ""))
    unit = form.get("response_unit")
    response = str(form.get("response", "response")).replace("_", " ")
    return Other(
        name=str(form.get("form", "a law")),
        response=f"{response}, {unit}" if isinstance(unit, str) and unit else response,
        logarithmic=form.get("compare") != "linear",
        inputs=inputs,
        observed=observed,
        fitted=fitted,
        x=named or next(iter(inputs), ""),
        curve=drawn if {"at", "fitted"} <= drawn.keys() else {},
    )


def curve(law: Other) -> Figure | None:
    """The fitted curve with its band over the rows, for a law of one input."""
    if not law.curve:
        return None
    at, fitted = law.curve["at"], law.curve["fitted"]
    data: list[Figure] = []
    if {"low", "high"} <= law.curve.keys():
        data += band(at, law.curve["low"], law.curve["high"], "90% band")
    data.append(line(at, fitted, {"color": "@ink", "width": 2}, name="fitted", hoverinfo="skip"))
    seen = law.inputs.get(law.x)
    drawn = [*law.observed[np.isfinite(law.observed)], *fitted[np.isfinite(fitted)]]
    spans = [v for v in (*at, *(seen if seen is not None else ())) if np.isfinite(v)]
    if not drawn or not spans:
        return None
    if seen is not None:
        words = f"{markup.text(label(law.x))} %{{x:.4g}}<br>{markup.text(law.response)} %{{y:.4g}}<extra></extra>"
        marker: Figure = {"color": "@c0", "symbol": "circle", "size": 8}
        data.append(markers(seen, law.observed, "observed", marker, hovertemplate=words))
    x = _axis(label(law.x), spans, min(spans) > 0 and max(spans) / min(spans) > 5)
    return figure(data, x, _axis(law.response, drawn, law.logarithmic and min(drawn) > 0))


def agreement(law: Other) -> Figure | None:
    """Observed against fitted, for a law of several inputs or without a curve."""
    good = np.isfinite(law.observed) & np.isfinite(law.fitted)
    if not good.any():
        return None
    x, y = law.fitted[good], law.observed[good]
    drawn = [*x, *y]
    ends = [min(drawn), max(drawn)]
    data = [line(ends, ends, {"color": "@ink", "width": 1.5}, name="equal", hoverinfo="skip")]
    marker: Figure = {"color": "@c0", "symbol": "circle", "size": 8}
    hover = "fitted %{x:.4g}, observed %{y:.4g}<extra></extra>"
    data.append(markers(x, y, "rows", marker, hovertemplate=hover))
    logarithmic = law.logarithmic and ends[0] > 0
    return figure(
        data, _axis(f"fitted {law.response}", drawn, logarithmic), _axis(f"observed {law.response}", drawn, logarithmic)
    )


def residuals(law: Other) -> Figure | None:
    """Observed over fitted minus 1 in percent, or the difference, against the first input or the fitted value."""
    good = np.isfinite(law.observed) & np.isfinite(law.fitted)
    if law.logarithmic:
        good &= (law.fitted > 0) & (law.observed > 0)
    if not good.any():
        return None
    seen = law.inputs.get(law.x)
    place = law.fitted if seen is None else seen
    good &= np.isfinite(place)
    x, o, f = place[good], law.observed[good], law.fitted[good]
    if not len(x):
        return None
    y = 100 * (o / f - 1) if law.logarithmic else o - f
    title = "above (+) or below the law, %" if law.logarithmic else f"observed minus fitted {law.response}"
    marker: Figure = {"color": "@c0", "symbol": "circle", "size": 8}
    hover = "%{x:.4g}<br>%{y:+.3g}<extra></extra>"
    data = [markers(x, y, "rows", marker, hovertemplate=hover, showlegend=False)]
    words = f"fitted {law.response}" if seen is None else label(law.x)
    axis = _axis(words, list(x), min(x) > 0 and max(x) / min(x) > 5)
    return figure(data, axis, {"title": title, "zeroline": True})


def label(name: str) -> str:
    """An input's name as an axis shows it."""
    return NAMES.get(name, name.replace("_", " "))


def _axis(title: str, values: list[float], logarithmic: bool) -> Figure:
    title = markup.text(title)
    if not logarithmic:
        return {"title": title}
    low, high = min(values), max(values)
    if high / low < 20 and "loss" in title:
        return loss_axis(title, values)
    return {"title": title, "limits": around(values, max(1.05, (high / low) ** 0.06)), "labels": _plain}


def _plain(value: float) -> str:
    """Numbers people read at a glance; the very large and small as powers."""
    if 1e3 <= value < 1e15:
        return markup.si(value)
    return f"{value:g}" if 1e-3 <= value < 1e3 else markup.power(value)


def _array(value: Any) -> np.ndarray:
    return np.asarray([np.nan if v is None else v for v in numbers(value)], dtype=np.float64)
