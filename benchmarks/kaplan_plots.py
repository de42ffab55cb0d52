"""The plots of `benchmarks/kaplan.py`, from its tables alone."""

import statistics
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from areca.laws.fits.critical_batch import fit_batch_law
from areca.laws.fits.data_limited import fit_data_law, fit_overfitting
from kaplan_show import NOISE_BATCH, R_STAR, best_of_passes, exhausted, noise_over_loss, read_table, repeated, tradeoffs

DPI = 100


def plot(data: Path, out: Path) -> None:
    """kaplan-data.png, -repeated.png, -shape.png, -context.png and -batch.png."""
    rows = {name: read_table(data / f"kaplan-{name}.csv") for name in ("data", "shape", "context", "batch")}
    for name, figure in (
        ("data", _data(rows["data"])),
        ("repeated", _repeated(rows["data"])),
        ("shape", _shape(rows["shape"])),
        ("context", _context(rows["context"])),
        ("batch", _batch(rows["batch"])),
    ):
        figure.savefig(out / f"kaplan-{name}.png", dpi=DPI)
        print(out / f"kaplan-{name}.png")


def _colours(values):
    values = sorted(values)
    return {v: plt.colormaps["viridis"](i / max(1.0, len(values) - 0.4)) for i, v in enumerate(values)}


def _data(rows):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    points = best_of_passes(rows)
    sizes, texts = _colours({n for n, _ in points}), sorted({u for _, u in points})
    n, u, loss = (np.array(v) for v in zip(*((n, u, x) for (n, u), x in points.items()), strict=True))
    fit, along = fit_overfitting(n, u, loss), np.geomspace(min(texts) / 1.3, max(texts) * 1.3, 60)
    for size, colour in sizes.items():
        mine = [(t, points[size, t]) for t in texts if (size, t) in points]
        left.plot(*zip(*mine, strict=True), "o", color=colour, label=f"N {size:,.0f}")
        left.plot(along, fit.predict(size, along), color=colour, linewidth=1)
        x = np.array([t for t, _ in mine])
        excess = np.array([v for _, v in mine]) / fit.predict(size, np.inf) - 1
        right.plot(size**fit.exponent / x, excess, "o", color=colour)
    largest, used_up = max(sizes), exhausted(rows)
    short = [t for t in texts if (largest, t) in used_up]
    law = fit_data_law(short, [points[largest, t] for t in short])
    left.plot(along, law.predict(along), "k--", linewidth=1, label=f"(D_c / D)^{law.alpha:.3f}")
    left.set(xscale="log", yscale="log", xlabel="distinct tokens D", ylabel="early-stopped loss, nats a token")
    _ticks(left.yaxis, [2.5, 3, 3.5, 4, 4.5])
    left.legend(frameon=False)
    ratio = np.geomspace((n**fit.exponent / u).min() / 1.5, (n**fit.exponent / u).max() * 1.5, 60)
    middle = np.median(n)
    right.plot(ratio, fit.excess(middle, middle**fit.exponent / ratio), "k--", linewidth=1)
    right.set(
        xscale="log", xlabel=f"N^{fit.exponent:.2f} / D", ylabel="L(N, D) / L(N, infinity) - 1", title="overfitting"
    )
    left.set_title("L(N, D), with Kaplan's form")
    return figure


def _repeated(rows):
    figure, ax = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    found = repeated(rows)
    colours = _colours({n for n, *_ in found})
    for n, text, passes, worth, _ in found:
        ax.plot(passes, worth, "o", color=colours[n], markersize=3 + 2 * np.log10(text / 1e4))
    for n, colour in colours.items():
        ax.plot([], [], "o", color=colour, label=f"N {n:,.0f}")
    along = np.geomspace(1, 100, 60)
    ax.plot(along, along, "k:", linewidth=1, label="as good as new")
    ax.plot(along, 1 + R_STAR * (1 - np.exp(-(along - 1) / R_STAR)), "k--", linewidth=1, label="Muennighoff et al.")
    ax.set(xscale="log", yscale="log", xlabel="passes over the text", ylabel="fresh text worth as much, times the text")
    ax.legend(frameon=False, fontsize=8)
    return figure


def _shape(rows):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for base in sorted({round(r["n_params"], -4) for r in rows}):
        mine = [r for r in rows if abs(r["n_params"] / base - 1) < 0.15]
        like = {(r["n_layers"], r["d_model"]) for r in mine}
        usual = max(like, key=lambda k: sum((r["n_layers"], r["d_model"]) == k for r in mine))
        depths, seen = [], set()
        for r in mine:
            if (r["n_layers"], r["d_model"]) not in seen:  # the first of a depth has the usual heads
                seen.add((r["n_layers"], r["d_model"]))
                depths.append(r)
        best = min(r["loss"] for r in depths)
        depths.sort(key=lambda r: r["d_model"] / r["n_layers"])
        x = [r["d_model"] / r["n_layers"] for r in depths]
        left.plot(x, [100 * (r["loss"] / best - 1) for r in depths], "o-", label=f"N about {base:,.0f}")
        heads = sorted((r for r in mine if (r["n_layers"], r["d_model"]) == usual), key=lambda r: r["n_heads"])
        if len(heads) > 2:
            best = min(r["loss"] for r in heads)
            right.plot(
                [r["d_model"] / r["n_heads"] for r in heads], [100 * (r["loss"] / best - 1) for r in heads], "o-"
            )
    left.set(xscale="log", xlabel="width over depth", ylabel="loss over the best, %", title="depth against width")
    right.set(xscale="log", xlabel="width of a head (one key and value head for all)", title="heads at D 48, L 3")
    _ticks(left.xaxis, [2, 5, 10, 20, 40, 80])
    _ticks(right.xaxis, [4, 8, 16, 24, 48])
    left.legend(frameon=False)
    return figure


def _ticks(axis, values):
    """Plain numbers at these places of a logarithmic axis and nowhere else."""
    axis.set_ticks(values, [f"{v:g}" for v in values])
    axis.set_ticks([], minor=True)


def _context(rows):
    figure, ax = plt.subplots(figsize=(5.4, 3.6), layout="constrained")
    ax.plot([r["context"] for r in rows], [r["loss"] for r in rows], "o-")
    ax.set(xscale="log", xlabel="context, tokens", ylabel="held-out loss, nats a token")
    _ticks(ax.xaxis, [r["context"] for r in rows])
    return figure


def _batch(rows):
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    found, noise = tradeoffs(rows), noise_over_loss(rows, NOISE_BATCH)
    colours = _colours({-t.loss for t in found})
    for t in found:
        tokens, along = np.array(t.batch) * t.steps, np.geomspace(64, 64_000, 60)
        left.plot(t.steps, tokens, "o", color=colours[-t.loss], markersize=4, label=f"{t.loss:g}")
        s = t.s_min * (1 + t.b_crit / along)
        left.plot(s, s * along, color=colours[-t.loss], linewidth=1)
    left.set(xscale="log", yscale="log", xlabel="steps S", ylabel="tokens E", title="to reach a loss")
    left.legend(frameon=False, fontsize=7, title="nats a token", title_fontsize=7)
    loss = np.array([t.loss for t in found])
    low, high = (np.array([t.b_crit_interval[i] for t in found]) for i in (0, 1))
    b = np.array([t.b_crit for t in found])
    right.errorbar(loss, b, [b - low, high - b], fmt="o", color="k", label="B_crit, 90% interval")
    law, along = fit_batch_law(found), np.linspace(loss.min() * 0.97, loss.max() * 1.03, 60)
    right.plot(along, law.predict(along), "k--", linewidth=1, label=f"doubles for a fall of {law.doubling:.0%}")
    by_loss: dict[float, list[float]] = defaultdict(list)
    for target, values in noise.items():
        by_loss[target] += values
    x = [t for t in sorted(by_loss) if by_loss[t]]
    right.plot(x, [statistics.median(by_loss[t]) for t in x], "s-", color="tab:orange", label="noise scale, median")
    right.fill_between(x, [min(by_loss[t]) for t in x], [max(by_loss[t]) for t in x], color="tab:orange", alpha=0.2)
    right.set(yscale="log", xlabel="loss, nats a token", ylabel="tokens", title="critical batch")
    right.invert_xaxis()
    right.legend(frameon=False, fontsize=8)
    return figure
