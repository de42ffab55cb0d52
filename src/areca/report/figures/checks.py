"""What the law was held to: the largest budget predicted from the others, each budget in turn, other choices."""

from areca.report import markup
from areca.report.checks import Checks, HeldOut, HeldRun
from areca.report.figures import Figure, around, figure, line, loss_axis, markers
from areca.report.figures import spread as error_bars

PANELS = {  # of the choices: value, title, name of the figure, whether it is counted in SI
    "n_exponent": "exponent a of N_opt ~ C^a",
    "n_opt": "best N",
    "predicted_loss": "predicted loss, nats",
}


def held_out(held: HeldOut, size_title: str) -> Figure | None:
    """Predicted loss with its interval, and the achieved one, of each run of the budget that was left out.

    `size_title` is the axis of N, as the law counts it.
    """
    points = sorted((p for p in held.points if p.n_params), key=lambda p: p.n_params or 0.0)
    if not points:
        return None
    sizes = [float(p.n_params or 0) for p in points]
    predicted = [p.predicted for p in points]
    level = f"{held.level:.0%} interval"
    hover = {"text": [_words(p) for p in points], "hovertemplate": "%{text}<extra></extra>"}
    marker: Figure = {"color": "@paper", "symbol": "diamond", "size": 9, "line": {"color": "@ink", "width": 2}}
    bars = error_bars(predicted, [p.interval for p in points], "@ink")
    data = [markers(sizes, predicted, f"predicted, {level}", marker, **hover, **bars)]
    for name, symbol, inside in (
        ("achieved", "circle", (True, None)),
        ("achieved, outside the interval", "x", (False,)),
    ):
        of = [p for p in points if p.inside in inside]
        if of:
            words = {"text": [_words(p) for p in of], "hovertemplate": "%{text}<extra></extra>"}
            x, y = [float(p.n_params or 0) for p in of], [p.loss for p in of]
            data.append(markers(x, y, name, {"color": "@c3", "symbol": symbol, "size": 9}, **words))
    losses = [p.loss for p in points] + predicted
    losses += [v for p in points for v in (p.interval or ()) if v and 0.5 * min(predicted) < v < 2 * max(predicted)]
    x = {"title": size_title, "limits": around(sizes, 1.4)}
    return figure(data, x, loss_axis("loss, nats per token", losses))


def _words(p: HeldRun) -> str:
    said = f"{markup.text(p.label)}<br>predicted {p.predicted:.4f}, achieved {p.loss:.4f} "
    return said + f"({markup.percent(p.error, 2, sign=True)})<br>interval {markup.interval(p.interval)}"


def left_out(checks: Checks) -> Figure | None:
    """The error of prediction of each run when its budget was left out, and the mean of each budget."""
    budgets = [b for b in checks.left_out if b.budget_flops and (b.points or b.mean_error is not None)]
    if not budgets:
        return None
    data: list[Figure] = []
    kinds = (
        ("inside its interval", "@c0", "circle", (True, None)),
        ("outside its interval", "@c3", "x", (False,)),
    )
    for name, colour, symbol, inside in kinds:
        of = [(b, p) for b in budgets for p in b.points if p.inside in inside]
        if of:
            words = {"text": [_words(p) for _, p in of], "hovertemplate": "%{text}<extra></extra>"}
            marker: Figure = {"color": colour, "symbol": symbol, "size": 7}
            x, y = [float(b.budget_flops or 0) for b, _ in of], [100 * p.error for _, p in of]
            data.append(markers(x, y, name, marker, **words))
    means = [b for b in budgets if b.mean_error is not None]
    x = [float(b.budget_flops or 0) for b in means]
    marker = {"color": "@paper", "symbol": "diamond", "size": 10, "line": {"color": "@ink", "width": 2}}
    hover = "%{x:.2e} FLOPs left out<br>mean error %{y:+.2f}%<extra></extra>"
    y = [100 * (b.mean_error or 0.0) for b in means]
    data.append(markers(x, y, "mean of the budget", marker, hovertemplate=hover))
    limits = around([float(b.budget_flops or 0) for b in budgets], 1.5)
    title = {"title": "budget left out, FLOPs", "limits": limits, "labels": markup.power}
    return figure(data, title, {"title": "predicted over achieved, minus 1, %", "zeroline": True})


def choices(checks: Checks, key: str) -> Figure | None:
    """One value under each choice, the first choice (as fitted) as a line to compare with."""
    rows = checks.choices
    known = [(i, row.values[key]) for i, row in enumerate(rows) if key in row.values and not row.failed]
    if len(known) < 2:
        return None
    values = [v for _, v in known]
    shown = markup.si if key == "n_opt" else lambda v: markup.significant(v, 4)
    words = [f"{markup.text(rows[i].name)}<br>{shown(v)}" for i, v in known]
    hover = {"text": words, "hovertemplate": "%{text}<extra></extra>", "showlegend": False}
    marker: Figure = {"color": ["@ink" if i == 0 else "@c0" for i, _ in known], "symbol": "circle", "size": 9}
    data: list[Figure] = []
    if known[0][0] == 0:
        dotted = {"color": "@muted", "width": 1.5, "dash": "dot"}
        ends = [-0.5, len(rows) - 0.5]
        data.append(line([values[0]] * 2, ends, dotted, hoverinfo="skip", showlegend=False))
    data.append(markers(values, [i for i, _ in known], "choices", marker, **hover))
    y = {
        "title": "",
        "tickvals": list(range(len(rows))),
        "ticktext": [markup.text(_clip(row.name)) + (" (failed)" if row.failed else "") for row in rows],
        "range": [len(rows) - 0.5, -0.5],
    }
    title = PANELS[key].replace("C^a", "C<sup>a</sup>").replace("N_opt", "N<sub>opt</sub>")
    x: Figure = {"title": title}
    if key == "n_opt" and min(values) > 0:
        x |= {"limits": around(values, 1.15)}
    return figure(data, x, y)


def _clip(words: str, most: int = 26) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
