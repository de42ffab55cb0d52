"""Does a learning rate chosen at a small width serve a large one? PaLM's parametrization against muP's.

Trains the same decoder at growing widths, over a grid of peak rates, under both parametrizations, and prints where the
lowest held-out loss lies: the drift of the optimum, and what it costs to use the smallest width's optimum at the
largest. Depth, head width, batch, tokens and schedule are the same everywhere; only D (and F, H with it) grows.

    python benchmarks/transfer.py --out DIR --store STORE

Runs that are finished are not made again. Losses, not times: other work on the machine does no harm.
"""

import argparse
import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from areca.config import ModelConfig
from areca.data.store import TokenStore
from areca.study.pool import Job
from small_runs import job_of, losses_of

PARAMETRIZATIONS = ("palm", "mup")
HEAD_DIM, LAYERS, CONTEXT, BATCH = 16, 2, 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True, help="a token store, such as a quickstart's")
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.02, 0.04, 0.08, 0.16, 0.32])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="an image to draw the curves to")
    options = parser.parse_args()
    rows = []
    for width in sorted(options.widths):
        jobs = [
            job(options, width, p, rate, seed)
            for p in PARAMETRIZATIONS
            for rate in options.rates
            for seed in range(options.seeds)
            if not (p == "mup" and width == min(options.widths))  # the same runs as PaLM's
        ]
        losses = losses_of(jobs)
        for p in PARAMETRIZATIONS:
            for rate in options.rates:
                names = [
                    name(width, p if width > min(options.widths) else "palm", rate, s) for s in range(options.seeds)
                ]
                mean = sum(losses[n] for n in names) / len(names)
                rows.append({"width": width, "parametrization": p, "rate": rate, "loss": mean})
        show(rows, width, options.rates)
    (options.out / "transfer.json").write_text(json.dumps(rows, indent=1) + "\n")
    summarise(rows, options.widths)
    if options.plot:
        draw(rows, options.widths, options.plot)


def name(width: int, parametrization: str, rate: float, seed: int) -> str:
    return f"{parametrization}-d{width}-lr{rate:g}-s{seed}"


def job(options: argparse.Namespace, width: int, parametrization: str, rate: float, seed: int) -> Job:
    vocabulary = TokenStore.open(options.store).vocab_size
    base = min(options.widths) if parametrization == "mup" else 0
    model = ModelConfig(vocabulary, width, LAYERS, width // HEAD_DIM, base_width=base).resolved()
    run = name(width, parametrization, rate, seed)
    return job_of(
        run, model, options.out, options.store, rate=rate, steps=options.steps, batch=BATCH, context=CONTEXT, seed=seed
    )


def show(rows: list[dict], width: int, rates: list[float]) -> None:
    for p in PARAMETRIZATIONS:
        at = {r["rate"]: r["loss"] for r in rows if r["width"] == width and r["parametrization"] == p}
        print(f"D {width:4} {p:5}", *(f"{at[rate]:.4f}" for rate in rates), f" best {best(at):.3f}", flush=True)


def best(losses: dict[float, float]) -> float:
    """The rate of the lowest loss: the vertex of a parabola in log rate through the lowest point and its neighbours."""
    rates = sorted(losses)
    i = min(range(len(rates)), key=lambda i: losses[rates[i]])
    if not 0 < i < len(rates) - 1 or not all(math.isfinite(losses[r]) for r in rates[i - 1 : i + 2]):
        return rates[i]
    x = [math.log(r) for r in rates[i - 1 : i + 2]]
    y = [losses[r] for r in rates[i - 1 : i + 2]]
    left, right = (y[1] - y[0]) / (x[1] - x[0]), (y[2] - y[1]) / (x[2] - x[1])
    curvature = (right - left) / (x[2] - x[0])
    return math.exp((x[0] + x[1]) / 2 - left / (2 * curvature)) if curvature > 0 else rates[i]


def summarise(rows: list[dict], widths: list[int]) -> None:
    small, large = min(widths), max(widths)
    for p in PARAMETRIZATIONS:
        by = {w: {r["rate"]: r["loss"] for r in rows if r["width"] == w and r["parametrization"] == p} for w in widths}
        optima = {w: best(by[w]) for w in sorted(widths)}
        slope = math.log(optima[large] / optima[small]) / math.log(large / small)
        nearest = min(by[large], key=lambda rate: abs(math.log(rate / optima[small])))
        print(
            f"{p}: best rate", ", ".join(f"{rate:.3f} at {w}" for w, rate in optima.items()),
            f"(as D^{slope:+.2f}); the rate {nearest:g}, nearest the best of {small}, at {large}: loss "
            f"{by[large][nearest]:.4f}, {by[large][nearest] / min(by[large].values()) - 1:+.2%} over its best",
        )  # fmt: skip


def draw(rows: list[dict], widths: list[int], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    titles = {"palm": "PaLM's parametrization", "mup": f"muP, base width {min(widths)}"}
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, p in zip(axes, PARAMETRIZATIONS, strict=True):
        for i, width in enumerate(sorted(widths)):
            at = {r["rate"]: r["loss"] for r in rows if r["width"] == width and r["parametrization"] == p}
            finite = [(rate, loss) for rate, loss in sorted(at.items()) if math.isfinite(loss)]
            colour = plt.cm.viridis(i / max(1, len(widths) - 0.5))
            ax.plot(*zip(*finite, strict=True), "o-", color=colour, label=f"D {width}", markersize=4)
            ax.axvline(best(at), color=colour, linewidth=1, linestyle=":")
        ax.set(xscale="log", title=titles[p], xlabel="peak learning rate (of each matrix' root mean square)")
    axes[0].set_ylabel("held-out loss, nats a token")
    lowest = min(r["loss"] for r in rows)
    axes[0].set_ylim(lowest * 0.98, lowest * 1.35)
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
