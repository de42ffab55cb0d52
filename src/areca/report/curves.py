"""Figures along training as plain plotly JSON: loss of all runs; rates, norms, batch and MFU of some."""

from collections.abc import Sequence

import numpy as np

from areca.report import markup, spikes
from areca.report.figures import COLOURS, Budgets, Figure, around, axis, figure, rounded
from areca.report.rundirs import Run
from areca.report.values import positive

POINTS = 300  # at most, of one curve
PANELS = (  # of what is seen inside a run: column of metrics.jsonl, title, whether on a logarithmic axis
    ("learning_rate", "learning rate", False),
    ("batch", "batch, sequences", False),
    ("grad_norm", "gradient norm", True),
    ("update_norm", "update norm", True),
    ("param_norm", "parameter norm", False),
    ("mfu", "MFU", False),
)


def downsample(
    tokens: Sequence[float | None], values: Sequence[float | None], count: int = POINTS, logarithmic: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """At most `count` points: means over bins that are even in tokens or in their logarithm.

    All points, if all have the same tokens. Steps whose value is missing or not finite are left out.
    """
    rows = [(t, v) for t, v in zip(tokens, values, strict=True) if t is not None and v is not None and t > 0]
    x, y = np.asarray([r[0] for r in rows]), np.asarray([r[1] for r in rows])
    if len(x) <= count or x.min() == x.max():
        return x, y
    place = np.log(x / x.min()) if logarithmic else x - x.min()
    bins = np.minimum((place / place.max() * count).astype(int), count - 1)
    held = np.bincount(bins, minlength=count)
    kept = held > 0
    return (np.bincount(bins, x, count)[kept] / held[kept], np.bincount(bins, y, count)[kept] / held[kept])


def training(runs: Sequence[Run], verify: Run | None, budgets: Budgets) -> Figure | None:
    """Training loss against tokens of every run, with held-out losses, spikes and where training went back to."""
    data: list[Figure] = []
    spans: list[float] = []
    named: set[str] = set()
    everything: list[Run] = [*runs, *([verify] if verify else [])]
    by_run = not budgets.values  # without budgets each run has a colour
    for i, run in enumerate(everything):
        x, y = downsample(run.metrics["tokens"], run.metrics["loss"])
        if not len(x):
            continue
        spans += [float(x.min()), float(x.max())]
        if run is verify:
            colour, label, width = "@ink", "verifying run", 2.5
        elif by_run:
            colour, label, width = f"@c{i % COLOURS}", markup.text(run.name), 1.8
        else:
            colour, label, width = budgets.style(run.budget_flops)[0], budgets.label(run.budget_flops), 1.4
        shared = {"legendgroup": label, "type": "scatter"}
        name = markup.text(run.name)
        data.append(
            shared
            | {
                "mode": "lines",
                "name": label,
                "showlegend": label not in named,
                "legendrank": 999 if run is verify else i if by_run else budgets.rank(run.budget_flops),
                "x": rounded(x, 5),
                "y": rounded(y, 5),
                "line": {"color": colour, "width": width},
                "text": name,
                "hovertemplate": "%{text}<br>%{x:.3s} tokens, training loss %{y:.3f}<extra></extra>",
            }
        )
        named.add(label)
        data += spikes.traces(run, named)
        held = heldout(run)
        if held:
            data.append(
                shared
                | {
                    "mode": "markers",
                    "name": "held-out",
                    "showlegend": False,
                    "x": rounded(t for t, _ in held),
                    "y": rounded(loss for _, loss in held),
                    "text": [f"{name}<br>held-out loss {loss:.4f} at {markup.si(t)} tokens" for t, loss in held],
                    "hovertemplate": "%{text}<extra></extra>",
                    "marker": {"color": colour, "size": 7, "symbol": "circle", "line": {"color": "@paper", "width": 1}},
                }
            )
    if not data:
        return None
    return figure(data, {"title": "tokens seen", "limits": around(spans, 1.15)}, {"title": "loss, nats per token"})


def heldout(run: Run) -> list[tuple[float, float]]:
    """(tokens, held-out loss) of each evaluation, the final one from result.json."""
    steps = run.metrics["tokens"]
    found: dict[float, float] = {}
    for event in run.events:
        loss, step, tokens = (positive(event, key) for key in ("loss", "step", "tokens"))
        if event.get("event") != "evaluate" or loss is None:
            continue
        if tokens is None and step is not None and 1 <= step <= len(steps):
            tokens = steps[int(step) - 1]
        if tokens:
            found[tokens] = loss
    tokens, loss = positive(run.result, "n_tokens"), positive(run.result, "loss")
    if tokens and loss:
        found[tokens] = loss
    return sorted(found.items())


def internals(runs: Sequence[Run]) -> Figure | None:
    """The panels of PANELS, one under the other, against tokens; for one run or a few."""
    shown = [p for p in PANELS if any(len(downsample(r.metrics["tokens"], r.metrics[p[0]])[0]) for r in runs)]
    if not shown:
        return None
    data: list[Figure] = []
    axes: dict[str, Figure] = {}
    for row, (column, title, logarithmic) in enumerate(shown):
        number = "" if row == 0 else str(row + 1)
        drawn: list[float] = []
        for i, run in enumerate(runs):
            x, y = downsample(run.metrics["tokens"], run.metrics[column], logarithmic=False)
            if not len(x):
                continue
            name = markup.text(run.name)
            drawn += [float(v) for v in y if v > 0]
            colour = f"@c{(row if len(runs) == 1 else i) % COLOURS}"
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": name,
                    "legendgroup": name,
                    "showlegend": len(runs) > 1 and row == 0,
                    "x": rounded(x, 5),
                    "y": rounded(y, 4),
                    "yaxis": f"y{number}",
                    "line": {"color": colour, "width": 1.8},
                    "hovertemplate": f"%{{x:.3s}} tokens<br>{title} %{{y:.3g}}<extra></extra>",
                }
            )
        low = 1 - (row + 1) / len(shown)
        options: Figure = {"domain": [max(0.0, low + 0.03), 1 - row / len(shown) - 0.01]}
        if logarithmic and drawn:
            options |= {"limits": around(drawn, 1.1), "labels": "{:g}".format}
        axes[f"yaxis{number}"] = {"title": title} | options
    x_axis = {"title": "tokens seen", "tickformat": "~s", "anchor": f"y{len(shown)}" if len(shown) > 1 else "y"}
    lower = {name: axis(**options) for name, options in axes.items() if name != "yaxis"}
    return figure(data, x_axis, axes["yaxis"], **lower)
