"""Kaplan's experiments on small runs of ours: data, shape, context, batch and the noise scale, as tables and plots.

    areca corpus build docs chitchat --out stores/both --vocab-size 512
    python benchmarks/kaplan.py runs --out runs/kaplan --store stores/both    the sweeps; goes on if it was stopped
    python benchmarks/kaplan.py tables --out runs/kaplan                      their results to docs/data/kaplan-*.csv
    python benchmarks/kaplan.py show                                          fits, from the tables alone
    python benchmarks/kaplan.py plot                                          docs/kaplan-*.png, from the tables alone

What came out is in docs/kaplan-on-our-runs.md.
"""

import argparse
import csv
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np

from areca.errors import DataError
from areca.files import read_json
from areca.laws.critical_batch import Tradeoff, fit_batch_law, fit_tradeoff, noise_at, steps_to
from areca.laws.data_limited import fit_data_law, fit_overfitting

DOCS = Path(__file__).resolve().parents[1] / "docs"
FRACTIONS, PASSES = (0.001, 0.003, 0.01, 0.03, 0.1), (1.0, 4.0, 16.0, 64.0)
SWEEPS: dict[str, dict[str, Any]] = {  # directory -> what it varies and how
    "data": {"vary": "data", "widths": (16, 32, 64, 96), "fractions": FRACTIONS, "epochs": PASSES},
    "data-1": {"vary": "data", "seed": 1, "widths": (16, 32), "fractions": FRACTIONS, "epochs": PASSES},
    "shape": {"vary": "shape", "tokens": 1_000_000, "heads": (1, 2, 6, 12)},
    "shape-small": {"vary": "shape", "seed": 1, "widths": (32,), "tokens": 1_000_000, "depths": (1, 2, 3, 4, 6, 8)},
    "context": {"vary": "context", "tokens": 1_000_000},
    "batch": {"vary": "batch", "tokens": 250_000, "batches": (2, 4, 8, 16, 32, 64, 128, 256)},
    "batch-1": {"vary": "batch", "seed": 1, "tokens": 500_000, "batches": (2, 4, 8, 16, 32, 64, 128, 256)},
}
RATES = {"batch": (0.25, 0.5, 1.0, 2.0), "batch-1": (0.5, 1.0, 2.0)}  # factors of the recipe's
R_STAR = 15.39  # Muennighoff et al. 2023: D_eff = U + U R* (1 - exp(-(passes - 1) / R*))
TARGETS = (4.6, 4.4, 4.2, 4.0, 3.9, 3.8, 3.7, 3.6, 3.5)  # nats a token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("runs", "tables", "show", "plot"))
    parser.add_argument("--out", type=Path, help="the directory of the sweeps")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--docs", type=Path, default=DOCS)
    options = parser.parse_args()
    if options.part == "runs":
        make(options.out, options.store)
    elif options.part == "tables":
        write_tables(options.out, options.docs / "data")
    elif options.part == "show":
        show(options.docs / "data")
    else:
        from kaplan_plots import plot

        plot(options.docs / "data", options.docs)


def make(out: Path, store: Path) -> None:
    """The sweeps, as `areca ladder --vary` makes them."""
    from areca.study.ladder import run_ladder
    from areca.study.vary import plan_family

    for name, asked in SWEEPS.items():
        options = dict(asked)
        vary, seed = options.pop("vary"), options.pop("seed", 0)
        ladder = plan_family(
            vary, out / name, store, options, seed=seed, seeds=1, learning_rates=RATES.get(name, (1.0,))
        )
        print(f"{name}: {len(ladder.jobs)} runs of {ladder.total_flops():.2g} FLOPs in all", flush=True)
        run_ladder(
            ladder, on_progress=lambda *_: None, on_result=lambda n, r: print(f"  {n} {r['loss']:.4f}", flush=True)
        )


# Tables


def write_tables(out: Path, directory: Path) -> None:
    """kaplan-data.csv, -shape.csv and -context.csv with a row a run, kaplan-batch.csv with a row a run and target, and
    kaplan-early-stopped.csv with a row a size and text: its D is the distinct text, its loss that of the best step.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[dict]] = defaultdict(list)
    for name, asked in SWEEPS.items():
        vary = asked["vary"]
        for run in read_json(out / name / "ladder.json")["runs"] if (out / name / "ladder.json").exists() else []:
            path = out / name / "runs" / run["name"]
            if (path / "result.json").exists():
                rows[vary] += batch_rows(path) if vary == "batch" else [run_row(path)]
    rows["early-stopped"] = [
        {"n_params": int(n), "n_tokens": int(u), "loss": round(loss, 5)}
        for (n, u), loss in best_of_passes(rows["data"]).items()
    ]
    for vary, found in rows.items():
        if not found:
            continue
        with open(directory / f"kaplan-{vary}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)
        print(f"{directory / f'kaplan-{vary}.csv'}: {len(found)} rows")


def run_row(path: Path) -> dict[str, Any]:
    """One run, with the columns that `areca fit` looks for."""
    result, config = read_json(path / "result.json"), read_json(path / "run.json")["config"]
    model, context = config["model"], config["data"]["context"]
    return {
        "n_params": result["n_params"],
        "n_tokens": result["n_tokens"],
        "flops": result["flops_exact"],
        "loss": round(result["loss"], 5),
        "loss_best": round(result["loss_best"], 5),
        "loss_best_step": result["loss_best_step"],
        "steps": result["steps"],
        "unique_tokens": result["unique_tokens"],
        "fraction": config["data"]["fraction"],
        "context": context,
        "batch_tokens": config["batch"]["ramp"][0][1] * context,
        "learning_rate": config["optimizer"]["learning_rate"],
        "n_layers": model["n_layers"],
        "d_model": model["d_model"],
        "n_heads": model["n_heads"],
        "d_ff": model["d_ff"],
        "seed": config["seed"],
    }


def batch_rows(path: Path) -> list[dict[str, Any]]:
    """Of one run the step at which it reaches each target, and the noise scale there."""
    from areca.train.record import read_evaluations, read_metrics

    row, curve = run_row(path), [(e["step"], e["loss"]) for e in read_evaluations(path)]
    metrics = read_metrics(path)
    columns = [[m[k] for m in metrics] for k in ("loss", "noise_trace", "noise_grad_sq")]
    rows = []
    for target in TARGETS:
        steps, noise = steps_to(curve, target), noise_at(*columns, target)
        if steps is not None:
            rows.append({
                "n_params": row["n_params"], "batch_tokens": row["batch_tokens"], "learning_rate": row["learning_rate"],
                "seed": row["seed"], "target_loss": target, "steps": round(steps, 2),
                "noise_scale": "" if noise is None else round(noise),
            })  # fmt: skip
    return rows


def read_table(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]


# What the tables say


def best_of_passes(rows: list[dict]) -> dict[tuple[float, float], float]:
    """{(N, distinct tokens): lowest held-out loss of any number of passes, the mean over seeds}.

    Distinct tokens are those of the fraction, so runs that did not read all of it once are left out.
    """
    whole = {f: max(r["unique_tokens"] for r in rows if r["fraction"] == f) for f in {r["fraction"] for r in rows}}
    least: dict[tuple, float] = {}
    for r in rows:
        if r["unique_tokens"] >= 0.98 * whole[r["fraction"]]:
            key = r["n_params"], whole[r["fraction"]], r["seed"]
            least[key] = min(least.get(key, math.inf), r["loss_best"])
    seeds = defaultdict(list)
    for (n, u, _), loss in least.items():
        seeds[n, u].append(loss)
    return {k: statistics.mean(v) for k, v in sorted(seeds.items())}


def tradeoffs(rows: list[dict]) -> list[Tradeoff]:
    """A trade-off for each target, over the batches and seeds, each at its fastest rate."""
    found = []
    for target in TARGETS:
        least: dict[tuple, float] = {}
        for r in rows:
            if r["target_loss"] == target:
                key = r["batch_tokens"], r["seed"]
                least[key] = min(least.get(key, math.inf), r["steps"])
        try:
            found.append(fit_tradeoff(target, [b for b, _ in least], list(least.values())))
        except DataError as error:
            print(f"  target {target}: {error}")
    return found


def noise_over_loss(rows: list[dict], least_batch: float = 0) -> dict[float, list[float]]:
    """{target: noise scales of the fastest run of each batch and seed}."""
    found: dict[float, list[float]] = {}
    for target in TARGETS:
        fastest: dict[tuple, dict] = {}
        for r in rows:
            key = r["batch_tokens"], r["seed"]
            if r["target_loss"] == target and r["steps"] < fastest.get(key, {"steps": math.inf})["steps"]:
                fastest[key] = r
        found[target] = [
            r["noise_scale"] for r in fastest.values() if r["noise_scale"] and r["batch_tokens"] >= least_batch
        ]
    return found


def show(data: Path) -> None:
    show_data(read_table(data / "kaplan-data.csv"))
    show_against(read_table(data / "kaplan-shape.csv"), "shape")
    show_against(read_table(data / "kaplan-context.csv"), "context")
    show_batch(read_table(data / "kaplan-batch.csv"))


def show_data(rows: list[dict]) -> None:
    points = best_of_passes(rows)
    sizes, texts = sorted({n for n, _ in points}), sorted({u for _, u in points})
    print("early-stopped loss, by distinct tokens\n  N       ", *(f"{u:>10,.0f}" for u in texts))
    for n in sizes:
        print(f"  {n:>8,.0f}", *(f"{points.get((n, u), math.nan):10.4f}" for u in texts))
    for n in sizes:
        d = [u for u in texts if (n, u) in points]
        law = fit_data_law(d, [points[n, u] for u in d])
        print(f"  N {n:,.0f}: L(D) exponent {law.alpha:.3f} {pair(law.alpha_interval)}, scatter {law.scatter:.1%}")
    n, u, loss = (np.array(v) for v in zip(*((n, u, x) for (n, u), x in points.items()), strict=True))
    lowest = [min(points[m, t] for m in sizes if (m, t) in points) for t in texts]
    for floor in (False, True):
        law = fit_data_law(texts, lowest, with_floor=floor)
        print(f"  best size of each: L(D) = {law.floor:.2f} + (D_c / D)^{law.alpha:.3f} {pair(law.alpha_interval)}, "
              f"D_c {law.d_c:.3g}, scatter {law.scatter:.2%}")  # fmt: skip
    fit = fit_overfitting(n, u, loss)
    print(f"  L(N, D): alpha_N {fit.alpha_n:.3f} {pair(fit.alpha_n_interval)}, alpha_D {fit.alpha_d:.3f} "
          f"{pair(fit.alpha_d_interval)}, overfitting in N^{fit.exponent:.2f} {pair(fit.exponent_interval)} / D, "
          f"scatter {fit.scatter:.2%}")  # fmt: skip
    print("repeated text: what D_eff of fresh text, over the text, would have given the loss of so many passes")
    for n, text, passes, worth, final in repeated(rows):
        muennighoff = 1 + R_STAR * (1 - math.exp(-(passes - 1) / R_STAR))
        print(f"  N {n:>8,.0f} U {text:>9,.0f} passes {passes:5.1f}: {worth:5.1f} (final loss {final:+.1%} over the "
              f"best along the run); Muennighoff et al. {muennighoff:.1f}")  # fmt: skip


def repeated(rows: list[dict]) -> list[tuple[float, float, float, float, float]]:
    """(N, U, passes, D_eff / U, final loss over the best along the run - 1) of the runs that read a text repeatedly.

    D_eff is where the runs of one pass of that size, with a line in ln L over ln D between them, have the same best
    loss; runs that beat the longest of these are left out.
    """
    cells: dict[tuple, list[dict]] = defaultdict(list)
    for r in rows:
        cells[r["n_params"], r["fraction"], r["n_tokens"]].append(r)
    mean = {k: {c: statistics.mean(r[c] for r in v) for c in ("loss", "loss_best", "unique_tokens")}
            for k, v in cells.items()}  # fmt: skip
    found = []
    for (n, _, d), m in sorted(mean.items()):
        passes = d / m["unique_tokens"]
        fresh = sorted(
            (v["loss_best"], t) for (size, _, t), v in mean.items() if size == n and t < 1.02 * v["unique_tokens"]
        )
        if passes > 1.5 and len(fresh) > 1 and fresh[0][0] <= m["loss_best"] <= fresh[-1][0]:
            loss, tokens = zip(*fresh, strict=True)
            worth = math.exp(np.interp(math.log(m["loss_best"]), np.log(loss), np.log(tokens))) / m["unique_tokens"]
            found.append((n, m["unique_tokens"], passes, worth, m["loss"] / m["loss_best"] - 1))
    return found


def show_against(rows: list[dict], what: str) -> None:
    for n in sorted({round(r["n_params"], -4) for r in rows}):
        mine = [r for r in rows if abs(r["n_params"] / n - 1) < 0.15]
        best = min(r["loss"] for r in mine)
        print(f"{what}, N about {n:,.0f}")
        for r in mine:
            print(f"  L {r['n_layers']:2.0f} D {r['d_model']:3.0f} H {r['n_heads']:2.0f} F {r['d_ff']:3.0f} T "
                  f"{r['context']:3.0f} D/L {r['d_model'] / r['n_layers']:6.1f} N {r['n_params']:,.0f} loss "
                  f"{r['loss']:.4f} {r['loss'] / best - 1:+.2%} FLOPs {r['flops']:.3g}")  # fmt: skip


def show_batch(rows: list[dict]) -> None:
    found, noise = tradeoffs(rows), noise_over_loss(rows)
    print("critical batch, tokens")
    for t in found:
        told = noise[t.loss]
        scale = f"{statistics.median(told):,.0f} ({min(told):,.0f} to {max(told):,.0f})" if told else "unknown"
        b_crit = f"{t.b_crit:,.0f} {pair(t.b_crit_interval, ',.0f')}"
        print(f"  L {t.loss}: S_min {t.s_min:.0f} {pair(t.s_min_interval, '.0f')} E_min {t.e_min:,.0f} B_crit {b_crit} "
              f"scatter {t.scatter:.1%}; noise scale {scale}")  # fmt: skip
    law = fit_batch_law(found)
    print(f"  B_crit(L) = {law.b_star:.3g} / L^(1 / {law.alpha:.3f}) {pair(law.alpha_interval)}: doubles for a fall of "
          f"{law.doubling:.1%} {pair(law.doubling_interval)}")  # fmt: skip
    x = [(math.log(t), math.log(statistics.median(v))) for t, v in noise.items() if v]
    slope = np.polyfit(*zip(*x, strict=True), 1)[0]
    print(f"  noise scale as L^{slope:.2f}: doubles for a fall of {1 - 2 ** (1 / slope):.1%}")


def pair(values: list[float], form: str = ".3f") -> str:
    return f"[{values[0]:{form}}, {values[1]:{form}}]"


if __name__ == "__main__":
    main()
