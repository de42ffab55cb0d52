"""What a law leaves unexplained: observed against predicted, residuals against each quantity, normal quantiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from areca.report import markup
from areca.report.figures import (
    Budgets,
    Figure,
    around,
    figure,
    grouped,
    line,
    loss_axis,
    markers,
    run_hover,
)  # fmt: skip
from areca.report.figures.frontier import MANY, compute_title
from areca.report.figures.valleys import size_title
from areca.report.law import Law, Point

TITLE = "loss above (+) or below the law, %"
AGAINST = ("n_params", "n_tokens", "flops", "fitted")
OUTLYING = 3.5  # robust standard deviations (Iglewicz and Hoaglin 1993)


@dataclass(frozen=True)
class Outlier:
    """A run far from the law."""

    point: Point
    percent: float
    deviations: float  # over the scatter, which is 1.4826 times the median absolute deviation


def residual_percent(law: Law, points: Sequence[Point]) -> list[float]:
    """100 (loss / L(N, D) - 1) of each point."""
    return list(100 * (np.asarray([p.loss for p in points]) / law.at(points) - 1))


def scatter_percent(values: Sequence[float]) -> float:
    """The residuals' robust standard deviation, 1.4826 times their median absolute deviation."""
    return float(1.4826 * np.median(np.abs(np.asarray(values) - np.median(values))))


def outliers(law: Law, points: Sequence[Point]) -> list[Outlier]:
    """The fitted runs beyond OUTLYING robust standard deviations from the law, the furthest first."""
    if not law.complete or len(points) < 5:
        return []
    values = residual_percent(law, points)
    scale, centre = scatter_percent(values), float(np.median(values))
    if not scale > 0:
        return []
    far = [Outlier(p, v, (v - centre) / scale) for p, v in zip(points, values, strict=True)]
    return sorted((o for o in far if abs(o.deviations) > OUTLYING), key=lambda o: -abs(o.deviations))


def residuals(
    law: Law, points: Sequence[Point], new: Sequence[Point], budgets: Budgets, against: str, new_name: str
) -> Figure | None:
    """How far each run lies from L(N, D), in percent of the law's value, against N, D, C or the fitted loss."""
    if not law.complete or not points:
        return None

    def values(group: Sequence[Point]) -> list[float]:
        return [float(v) for v in law.at(group)] if against == "fitted" else [getattr(p, against) for p in group]

    data: list[Figure] = []
    for budget, group in grouped(points, budgets):
        colour, symbol = budgets.style(budget)
        marker: Figure = {"color": colour, "symbol": symbol, "size": 8 if len(points) < MANY else 6}
        shown = residual_percent(law, group)
        words = [f"{markup.percent(v / 100, 2, sign=True)} of the law" for v in shown]
        data.append(markers(values(group), shown, budgets.label(budget), marker, **run_hover(group, words)))
    if new:
        marker = {"color": "@c3", "symbol": "circle", "size": 11, "line": {"color": "@ink", "width": 1.5}}
        data.append(markers(values(new), residual_percent(law, new), new_name, marker, **run_hover(new)))
    drawn = [v for v in values([*points, *new]) if np.isfinite(v) and v > 0]
    if not drawn:
        return None
    x = {
        "n_params": {"title": size_title(law), "limits": around(drawn, 1.3)},
        "n_tokens": {"title": "D: training tokens", "limits": around(drawn, 1.3)},
        "flops": {"title": compute_title(law), "limits": around(drawn, 1.3), "labels": markup.power},
        "fitted": loss_axis("fitted loss, nats per token", drawn),
    }[against]
    return figure(data, x, {"title": TITLE, "zeroline": True}, showlegend=False)


def quantiles(law: Law, points: Sequence[Point], budgets: Budgets) -> Figure | None:
    """The residuals in order against the quantiles of a normal distribution; normal ones lie on the line."""
    if not law.complete or len(points) < 5:
        return None
    values = np.asarray(residual_percent(law, points))
    if not np.isfinite(values).all():
        return None
    order = np.argsort(values)
    count = len(points)
    expected = [NormalDist().inv_cdf((i + 0.5) / count) for i in range(count)]
    ranked = [points[i] for i in order]
    styles = [budgets.style(p.budget_flops) for p in ranked]
    marker: Figure = {
        "color": [c for c, _ in styles],
        "symbol": [s for _, s in styles],
        "size": 7 if count < MANY else 6,
    }
    scale, centre = scatter_percent(list(values)), float(np.median(values))
    ends = [expected[0], expected[-1]]
    through = {"color": "@ink", "width": 1.5, "dash": "dash"}
    name = f"normal, scatter {markup.significant(scale, 2)}%"
    data = [line(ends, [centre + scale * e for e in ends], through, name=name, hoverinfo="skip")]
    data.append(markers(expected, values[order], "runs", marker, showlegend=False, **run_hover(ranked)))
    return figure(data, {"title": "normal quantile, standard deviations"}, {"title": TITLE})


def observed(law: Law, points: Sequence[Point], new: Sequence[Point], budgets: Budgets, new_name: str) -> Figure | None:
    """Observed loss against the law's; on the line they agree."""
    if not law.complete or not points:
        return None
    both = [*points, *new]
    fitted = [float(v) for v in law.at(both)]
    drawn = [p.loss for p in both] + [v for v in fitted if np.isfinite(v) and v > 0]
    if max(drawn) / min(drawn) > 1e3:
        return None  # an absurd law
    low, high = min(drawn), max(drawn)
    data = [line([low, high], [low, high], {"color": "@ink", "width": 1.5}, name="equal", hoverinfo="skip")]
    for budget, group in grouped(points, budgets):
        colour, symbol = budgets.style(budget)
        marker: Figure = {"color": colour, "symbol": symbol, "size": 8 if len(points) < MANY else 6}
        more = {"showlegend": False, "legendgroup": budgets.label(budget)}
        y = [p.loss for p in group]
        data.append(markers(law.at(group), y, budgets.label(budget), marker, **more, **run_hover(group)))
    if new:
        marker = {"color": "@c3", "symbol": "circle", "size": 10, "line": {"color": "@ink", "width": 1.5}}
        data.append(markers(law.at(new), [p.loss for p in new], new_name, marker, **run_hover(new)))
    return figure(
        data,
        loss_axis("predicted by the law, nats per token", drawn),
        loss_axis("observed loss, nats per token", drawn),
    )
