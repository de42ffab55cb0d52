"""Pictures of the valleys, the law and the curves as SVG and PNG, for papers and README files. Drawn by matplotlib."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from areca.files import write_atomic
from areca.report import markup
from areca.report.curves import downsample, heldout
from areca.report.figures import Budgets, around, decade_ticks, log_space, same_budget
from areca.report.gather import Gathered, pair, positive
from areca.report.law import Law, Point, points_of
from areca.report.spikes import marks

# Okabe and Ito's colours in the order of report.css, and shapes in the order of figures.SHAPES.
PALETTE = {"@c0": "#0072b2", "@c1": "#d98c00", "@c2": "#009e73", "@c3": "#d55e00", "@c4": "#b8628f", "@c5": "#3a9bd0"}
PALETTE |= {"@ink": "#1b1f24", "@muted": "#5c6570"}
SHAPES = {"circle": "o", "square": "s", "triangle-up": "^", "diamond": "D", "cross": "P", "pentagon": "p"}
STYLE: dict[Any, Any] = {
    "axes.edgecolor": "#5c6570", "axes.labelcolor": "#1b1f24", "axes.spines.right": False, "axes.spines.top": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e8ebef", "font.size": 9.5, "axes.titlesize": 10.5,
    "axes.titlelocation": "left", "axes.titleweight": "bold", "legend.fontsize": 8.5, "legend.frameon": False,
    "xtick.color": "#5c6570", "ytick.color": "#5c6570", "lines.linewidth": 1.6, "svg.hashsalt": "areca",
    "svg.fonttype": "path", "mathtext.default": "regular",
}  # fmt: skip


def draw(found: Gathered, law: Law | None, out: Path) -> list[Path]:
    """Writes valleys, law, overview (both side by side) and curves, each as .svg and .png, into `out`.

    What the files have no data for is left out; returns the paths written.
    """
    budgets = Budgets([run.budget_flops for run in found.runs])
    points = points_of(found.runs, law)
    checked = points_of([found.verify]) if found.verify else []
    written: list[Path] = []
    with mpl.rc_context(STYLE):
        if law is not None and points:
            has_valleys = any(v.coefficients for v in law.valleys)
            if has_valleys:
                written += _save(_one(lambda ax: _valleys(ax, law, points, budgets)), out / "valleys")
            written += _save(_one(lambda ax: _law(ax, law, points, found.plan, checked, budgets)), out / "law")
            if has_valleys:
                both = Figure(figsize=(11, 4.2), layout="constrained")
                left, right = both.subplots(1, 2)
                _valleys(left, law, points, budgets)
                _law(right, law, points, found.plan, checked, budgets)
                left.set_title("IsoFLOP valleys")
                right.set_title("Law, prediction and the run that tests it" if checked else "Fitted law")
                written += _save(both, out / "overview")
        if any(run.metrics["loss"] for run in found.all_runs):
            written += _save(_one(lambda ax: _curves(ax, found, budgets)), out / "curves")
    return written


def _one(paint: Any) -> Figure:
    picture = Figure(figsize=(6.4, 4.2), layout="constrained")
    paint(picture.subplots())
    return picture


def _save(picture: Figure, stem: Path) -> list[Path]:
    """The picture as SVG and PNG, whole or absent, the same bytes for the same data."""
    paths = []
    for suffix, metadata in ((".svg", {"Date": None, "Creator": "areca"}), (".png", {"Software": "areca"})):
        content = io.BytesIO()
        picture.savefig(content, format=suffix[1:], dpi=160, metadata=metadata)
        paths.append(stem.with_suffix(suffix))
        write_atomic(paths[-1], content.getvalue())
    return paths


def _valleys(ax: Axes, law: Law, points: Sequence[Point], budgets: Budgets) -> None:
    sizes: list[float] = []
    for valley in law.valleys:
        group = [p for p in points if same_budget(p.budget_flops, valley.budget_flops)]
        colour, shape = _style(budgets, valley.budget_flops)
        near = [p.n_params for p in group] + ([valley.bottom] if valley.bottom else [])
        if not near:
            continue
        sizes += near
        n = log_space(*around(near, 1.12))
        curve = valley.curve(n)
        if curve is not None:
            ax.plot(n, curve, color=colour, ls="--" if valley.interior is False else "-")
        label = f"{_power(valley.budget_flops)} FLOPs"
        ax.plot([p.n_params for p in group], [p.loss for p in group], shape, color=colour, ms=5.5, label=label)
        bottom = valley.curve(np.asarray([valley.bottom])) if valley.bottom else None
        if bottom is not None and valley.bottom:
            spread = None
            if valley.n_opt_interval:
                low, high = valley.n_opt_interval
                spread = [[max(valley.bottom - low, 0)], [max(high - valley.bottom, 0)]]
            star: dict[str, Any] = {"mfc": "white", "ms": 12, "mew": 1.4, "capsize": 3, "elinewidth": 1.2}
            ax.errorbar([valley.bottom], bottom, xerr=spread, fmt="*", color=colour, **star)
    if sizes:
        _logarithmic(ax, *around(sizes, 1.3))
    ax.set(xlabel="N, parameters without embeddings", ylabel="held-out loss, nats per token")
    _legend(ax, "best")


def _law(
    ax: Axes,
    law: Law,
    points: Sequence[Point],
    plan: dict[str, Any] | None,
    checked: Sequence[Point],
    budgets: Budgets,
) -> None:
    planned = checked[0].flops if checked else positive(plan, "flops_exact")
    low, high = around([p.flops for p in points] + ([planned] if planned else []), 1.6)
    if law.complete:
        c = log_space(low, high)
        n, d = law.frontier(c, points)
        band = law.band(n, d)
        if band:
            ax.fill_between(c, *band, color="#1b1f24", alpha=0.14, lw=0, label="90% band of the law")
        ax.plot(c, law.predict(n, d), color=PALETTE["@ink"], label="L(N, D) at best N and D")
    for point in points:
        colour, shape = _style(budgets, point.budget_flops)
        ax.plot([point.flops], [point.loss], shape, color=colour, ms=4.5)
    predicted, baseline = positive(plan, "predicted_loss"), positive(plan, "naive_baseline_loss")
    if baseline and planned:
        line = [max(p.flops for p in points), planned]
        ax.plot(line, [baseline] * 2, ":", color=PALETTE["@muted"], lw=1.3, label="best rung carried over")
    if planned and predicted:
        bounds = pair((plan or {}).get("interval_90"))
        spread = [[max(predicted - bounds[0], 0)], [max(bounds[1] - predicted, 0)]] if bounds else None
        diamond: dict[str, Any] = {"mfc": "white", "ms": 7, "mew": 1.5, "capsize": 4, "zorder": 3}
        diamond["label"] = "predicted, 90% interval"
        ax.errorbar([planned], [predicted], yerr=spread, fmt="D", color=PALETTE["@ink"], **diamond)
    for point in checked:
        ax.plot([point.flops], [point.loss], "o", color=PALETTE["@c3"], ms=5, zorder=4, label="achieved")
    _logarithmic(ax, low, high, _power)
    ax.set(xlabel="C, training compute in exact FLOPs", ylabel="held-out loss, nats per token")
    _legend(ax, "upper right")


def _curves(ax: Axes, found: Gathered, budgets: Budgets) -> None:
    spans: list[float] = []
    labelled: set[str] = set()
    for i, run in enumerate(found.all_runs):
        x, y = downsample(run.metrics["tokens"], run.metrics["loss"])
        if not len(x):
            continue
        spans += [float(x.min()), float(x.max())]
        if run is found.verify:
            colour, label, width = PALETTE["@ink"], "verifying run", 2.0
        elif budgets.values:
            label = f"{_power(run.budget_flops)} FLOPs" if run.budget_flops else "runs without a budget"
            colour, width = _style(budgets, run.budget_flops)[0], 1.0
        else:
            colour, label, width = PALETTE[f"@c{i % 6}"], run.name.replace("$", r"\$"), 1.3
        ax.plot(x, y, color=colour, lw=width, label=None if label in labelled else label)
        labelled.add(label)
        held = heldout(run)
        ax.plot([t for t, _ in held], [v for _, v in held], "o", color=colour, ms=3.5, mec="white", mew=0.6)
        for mark in marks(run):
            shape = {"spike": "x", "rewind": "<"}[mark.kind]
            name = None if mark.kind in labelled else mark.kind
            ax.plot([mark.tokens], [mark.loss], shape, color=PALETTE["@c3"], ms=6, label=name)
            labelled.add(mark.kind)
    _logarithmic(ax, *around(spans, 1.15))
    ax.set(xlabel="tokens seen", ylabel="training loss (dots: held-out), nats per token")
    if len(labelled) <= 10:
        _legend(ax, "upper right")


def _style(budgets: Budgets, budget: float | None) -> tuple[str, str]:
    colour, shape = budgets.style(budget)
    return PALETTE[colour], SHAPES.get(shape, "o")


def _legend(ax: Axes, where: Literal["best", "upper right"]) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc=where)


def _logarithmic(ax: Axes, low: float, high: float, labels: Any = markup.si) -> None:
    ax.set_xscale("log")
    ax.set_xlim(low, high)
    ax.xaxis.set_major_locator(FixedLocator(decade_ticks(low, high)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: markup.short(labels(value))))


def _power(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    factor = "" if mantissa == "1.0" else f"{float(mantissa):g} \\times "
    return f"${factor}10^{{{int(exponent)}}}$"
