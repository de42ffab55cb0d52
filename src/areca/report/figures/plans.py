"""A plan's valley at its own compute, and the runs that a design would add to those there are."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from areca.report import markup
from areca.report.figures import Figure, around, band, figure, line, log_space, loss_axis, markers
from areca.report.figures import spread as error_bars
from areca.report.figures.frontier import LOSS_TITLE
from areca.report.figures.valleys import N_TITLE, N_TOTAL_TITLE
from areca.report.law import Law, Point
from areca.report.values import an_object, objects, pair, positive

NEIGHBOURS = ("half", "best", "double")


def members(plan: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """("half" | "best" | "double", run) of a plan, by rising size; what lacks N or D is left out."""
    near = an_object(plan, "neighbours")
    runs = [(name, plan if name == "best" else an_object(near, name)) for name in NEIGHBOURS]
    known = [(name, run) for name, run in runs if positive(run, "n_params") and positive(run, "n_tokens")]
    return sorted(known, key=lambda member: positive(member[1], "n_params") or 0.0)


def valley(law: Law | None, plan: dict[str, Any]) -> Figure | None:
    """Predicted loss against N at the plan's compute: the run to buy, half and double its size, how flat it is.

    `law` is the plan's own, whose curve is drawn through them; None for a plan of a law that is not at hand.
    """
    runs = members(plan)
    shown = [(name, run) for name, run in runs if positive(run, "predicted_loss")]
    if not shown:
        return None
    sizes = [positive(run, "n_params") or 1.0 for _, run in shown]
    losses = [positive(run, "predicted_loss") or 1.0 for _, run in shown]
    data: list[Figure] = []
    low, high = around(sizes, 1.6)
    if law is not None and law.complete:
        n = log_space(low, high)
        d = _tokens(plan, runs, n)
        counted = _counted(plan, runs, n)
        bounds = law.band(counted, d)
        if bounds:
            data += band(n, *bounds, "90% band of the law")
        words = "law at the same compute"
        data.append(line(n, law.predict(counted, d), {"color": "@ink", "width": 2}, name=words, hoverinfo="skip"))
    flat = pair(plan.get("flat_range"))
    best = positive(plan, "predicted_loss") or min(losses)
    if flat and flat[0] > 0:
        low, high = min(low, flat[0] / 1.2), max(high, flat[1] * 1.2)
        stroke = {"color": "@c0", "width": 7}
        words = "N within 0.1% of the best"
        data.append(line(flat, [best, best], stroke, opacity=0.45, name=words, hovertemplate=f"{words}<extra></extra>"))
    bounds = pair(plan.get("interval_90"))
    for (name, run), n_params, loss in zip(shown, sizes, losses, strict=True):
        chosen = name == "best"
        marker: Figure = {"color": "@paper", "symbol": "diamond" if chosen else "circle", "size": 12 if chosen else 9}
        marker["line"] = {"color": "@ink", "width": 2}
        words = f"N {markup.si(n_params)}, D {markup.si(positive(run, 'n_tokens'))}<br>predicted {loss:.4f}"
        hover = {"text": [words], "hovertemplate": "%{text}<extra></extra>"}
        bars = error_bars([loss], [bounds], "@ink") if chosen and bounds else {}
        label = "planned, 90% interval of one run" if chosen and bounds else "planned" if chosen else f"{name} the size"
        data.append(markers([n_params], [loss], label, marker, **hover, **bars))
    near = losses + [v for v in bounds or () if 0.5 * best < v < 2 * best]
    return figure(data, {"title": N_TITLE, "limits": (low, high)}, loss_axis(LOSS_TITLE, near, 0.2))


def _tokens(plan: dict[str, Any], runs: Sequence[tuple[str, dict[str, Any]]], n: np.ndarray) -> np.ndarray:
    """D at sizes `n` for the plan's compute: C / (N D) of its members, between them in ln N, carried on beyond."""
    budget = positive(plan, "flops_exact") or positive(plan, "budget_flops")
    known = [
        (np.log(positive(r, "n_params") or 1.0), (positive(r, "n_params") or 1.0) * (positive(r, "n_tokens") or 1.0))
        for _, r in runs
    ]
    if budget is None:
        budget = 6 * known[0][1]
    x = [ln_n for ln_n, _ in known]
    k = np.interp(np.log(n), x, np.log([budget / nd for _, nd in known]))
    return budget / np.exp(k) / n


def _counted(plan: dict[str, Any], runs: Sequence[tuple[str, dict[str, Any]]], n: np.ndarray) -> np.ndarray:
    """N as the plan's law counts it at sizes `n` without embeddings: that of its members, between them in ln N."""
    if an_object(plan, "law").get("n_counts") != "total":
        return n
    both = [(positive(r, "n_params") or 1.0, positive(r, "n_params_total")) for _, r in runs]
    known = [(np.log(size), np.log(total / size)) for size, total in both if total]
    return n * np.exp(np.interp(np.log(n), [x for x, _ in known], [y for _, y in known])) if known else n


def size_key(found: dict[str, Any]) -> str:
    """What a design calls N as its law counts it; an older one has N without embeddings alone."""
    total = an_object(found, "law").get("n_counts") == "total" and positive(found, "n_params_total")
    return "n_params_total" if total else "n_params"


def design(points: Sequence[Point], found: dict[str, Any]) -> Figure | None:
    """N, as the design's law counts it, against D of the runs there are, those proposed, the plain next rung, and the
    run to be predicted."""
    data: list[Figure] = []
    size = size_key(found)
    if points:
        words = [f"{markup.text(p.label)}<br>loss {p.loss:.4f}" for p in points]
        hover = {"text": words, "hovertemplate": "%{text}<extra></extra>"}
        marker: Figure = {"color": "@muted", "symbol": "circle", "size": 7}
        x, y = [p.n_params for p in points], [p.n_tokens for p in points]
        data.append(markers(x, y, "runs there are", marker, **hover))
    sets = (("next_rung", "plain next rung", "@c1", "square"), ("proposed", "proposed", "@c0", "diamond"))
    for key, name, colour, symbol in sets:
        runs = runs_of(found, key)
        if runs:
            words = [f"{name}: {markup.power(positive(r, 'flops_exact'))} exact FLOPs" for r in runs]
            hover = {"text": words, "hovertemplate": "%{text}<extra></extra>"}
            x, y = ([positive(r, k) for r in runs] for k in (size, "n_tokens"))
            data.append(markers(x, y, name, {"color": colour, "symbol": symbol, "size": 10}, **hover))
    n, d = positive(found, size), positive(found, "n_tokens")
    if n and d:
        marker = {"color": "@paper", "symbol": "star", "size": 14, "line": {"color": "@c3", "width": 2}}
        words = f"target<br>N {markup.si(n)}, D {markup.si(d)}<extra></extra>"
        data.append(markers([n], [d], "target", marker, hovertemplate=words))
    if not data:
        return None
    x, y = ([v for t in data for v in t[axis] if v] for axis in "xy")
    if not x or not y:
        return None
    title = N_TOTAL_TITLE if size == "n_params_total" else N_TITLE
    titles = ({"title": title, "limits": around(x, 1.5)}, {"title": "D: training tokens", "limits": around(y, 1.5)})
    return figure(data, *titles)


def runs_of(found: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The runs of a design's part that have a size and tokens."""
    runs = objects(an_object(found, key).get("runs"))
    return [r for r in runs if positive(r, "n_params") and positive(r, "n_tokens")]
