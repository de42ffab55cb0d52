"""What the tables of `benchmarks/kaplan.py` say: fits and figures, from the tables alone."""

import csv
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from areca.errors import DataError
from areca.laws.fits.critical_batch import Tradeoff, fit_batch_law, fit_tradeoff
from areca.laws.fits.data_limited import fit_data_law, fit_overfitting

NOISE_BATCH = 1024  # tokens: smaller batches, in two parts, scatter by factors of ten
R_STAR = 15.39  # Muennighoff et al. 2023: D_eff = U + U R* (1 - exp(-(passes - 1) / R*))


def show(data: Path) -> None:
    show_data(read_table(data / "kaplan-data.csv"))
    show_against(read_table(data / "kaplan-shape.csv"), "shape")
    show_against(read_table(data / "kaplan-context.csv"), "context")
    show_batch(read_table(data / "kaplan-batch.csv"))


def read_table(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(file)]


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


def exhausted(rows: list[dict]) -> set[tuple[float, float]]:
    """The (N, distinct tokens) at which more passes than the longest run's would not have helped.

    The lowest loss of any number of passes is not the last one of the longest run.
    """
    longest = max(r["n_tokens"] for r in rows)
    whole = {f: max(r["unique_tokens"] for r in rows if r["fraction"] == f) for f in {r["fraction"] for r in rows}}
    best: dict[tuple, dict] = {}
    for r in rows:
        key = r["n_params"], whole[r["fraction"]]
        if key not in best or r["loss_best"] < best[key]["loss_best"]:
            best[key] = r
    return {k for k, r in best.items() if r["n_tokens"] < longest or r["loss_best_step"] < r["steps"]}


def tradeoffs(rows: list[dict]) -> list[Tradeoff]:
    """A trade-off for each target, over the batches and seeds, each at its fastest rate."""
    found = []
    for target in sorted({r["target_loss"] for r in rows}, reverse=True):
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
    for target in sorted({r["target_loss"] for r in rows}, reverse=True):
        fastest: dict[tuple, dict] = {}
        for r in rows:
            key = r["batch_tokens"], r["seed"]
            if r["target_loss"] == target and r["steps"] < fastest.get(key, {"steps": math.inf})["steps"]:
                fastest[key] = r
        found[target] = [
            r["noise_scale"] for r in fastest.values() if r["noise_scale"] and r["batch_tokens"] >= least_batch
        ]
    return found


def show_data(rows: list[dict]) -> None:
    points = best_of_passes(rows)
    sizes, texts = sorted({n for n, _ in points}), sorted({u for _, u in points})
    print("early-stopped loss, by distinct tokens\n  N       ", *(f"{u:>10,.0f}" for u in texts))
    for n in sizes:
        print(f"  {n:>8,.0f}", *(f"{points.get((n, u), math.nan):10.4f}" for u in texts))
    used_up = exhausted(rows)
    print("  texts that training used up: their best loss came before the end of the longest run")
    for n in sizes:
        d = [u for u in texts if (n, u) in used_up]
        if len(d) > 2:
            law = fit_data_law(d, [points[n, u] for u in d])
            print(f"  N {n:,.0f}, {len(d)} texts: L(D) = (D_c / D)^{law.alpha:.3f} {pair(law.alpha_interval)}, "
                  f"D_c {law.d_c:.2g}, scatter {law.scatter:.2%}")  # fmt: skip
    n, u, loss = (np.array(v) for v in zip(*((n, u, x) for (n, u), x in points.items()), strict=True))
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
    found, noise = tradeoffs(rows), noise_over_loss(rows, NOISE_BATCH)
    print(f"critical batch, tokens; noise scale of the runs with batches of {NOISE_BATCH:,} and more")
    for t in found:
        told = noise[t.loss]
        scale = f"{statistics.median(told):,.0f} ({min(told):,.0f} to {max(told):,.0f})" if told else "unknown"
        b_crit = f"{t.b_crit:,.0f} {pair(t.b_crit_interval, ',.0f')}"
        print(f"  L {t.loss}: S_min {t.s_min:.0f} {pair(t.s_min_interval, '.0f')} E_min {t.e_min:,.0f} B_crit {b_crit} "
              f"scatter {t.scatter:.1%}; noise scale {scale}")  # fmt: skip
    law = fit_batch_law(found)
    print(f"  B_crit(L) = {law.b_star:.3g} / L^(1 / {law.alpha:.3f}) {pair(law.alpha_interval)}: doubles for a fall of "
          f"{law.doubling:.1%} {pair(law.doubling_interval)}")  # fmt: skip
    targets = {t.loss for t in found}
    x = [(math.log(t), math.log(statistics.median(v))) for t, v in noise.items() if v and t in targets]
    slope = np.polyfit(*zip(*x, strict=True), 1)[0]
    print(f"  noise scale as L^{slope:.2f}: doubles for a fall of {1 - 2 ** (1 / slope):.1%}")


def pair(values: list[float], form: str = ".3f") -> str:
    return f"[{values[0]:{form}}, {values[1]:{form}}]"
