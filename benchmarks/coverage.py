"""How often intervals hold the truth: simulated tables of twenty known laws, refitted as a user would.

    .venv/bin/python benchmarks/coverage.py --out coverage.json          # the default; goes on where it stopped
    .venv/bin/python benchmarks/coverage.py --out coverage.json --objective huber --method pairs --replicates 200
    .venv/bin/python benchmarks/coverage.py --out coverage.json --show     # tables of all that is there

Each replicate draws 0.5% normal noise on ln L, fits by `fit_parametric` from its own starts and bootstraps by
`bootstrap`. Counted is whether the 90% interval holds the true parameters, the exponent of N_opt, the best N at the
largest budget and at four times it (D = C / 6 N is held exactly when N is), the law's loss at the best (N, D) of four
times the budget, and the loss of a new run there.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from areca.errors import FitError
from areca.files import write_json
from areca.laws import (
    Observations,
    bootstrap,
    delta_intervals,
    fit_isoflop,
    fit_parametric,
    predict_interval,
    profile,
)  # fmt: skip
from coverage_settings import NOISE, Setting, settings

LEVEL = 0.90
PARAMETERS = ("A", "B", "E", "alpha", "beta")
QUANTITIES = (*PARAMETERS, "n_exponent", "N_opt", "N_opt 4x", "loss 4x", "new run 4x")
CROSS_CHECKS = ("profile", "delta")
VALLEYS = "valleys"  # approach 2: the best N of the largest budget's valley, and the exponent


def replicate(setting: Setting, number: int, objective: str, method: str, samples: int) -> dict[str, Any]:
    """One simulated table -> which quantities were held, and N_opt's relative error."""
    generator = np.random.default_rng([number, *setting.name.encode()])
    noise = NOISE * generator.standard_normal(len(setting.n))
    loss = np.exp(setting.log_loss(setting.n, setting.d) + noise)
    rows = Observations(setting.n, setting.d, setting.flops, loss, budget=setting.budget)
    truth = true_values(setting)
    if method == VALLEYS:
        return valleys(rows, truth, samples, number)
    fit = fit_parametric(rows, objective=objective)  # type: ignore[arg-type]
    error = float(fit.frontier(setting.top)[0]) / truth["N_opt"] - 1
    if method in CROSS_CHECKS:
        generic = fit.generic()
        found = delta_intervals(generic, rows, LEVEL) if method == "delta" else {
            name: profile(generic, rows, name, level=LEVEL).interval for name in PARAMETERS
        }  # fmt: skip
    else:
        drawn = bootstrap(rows, fit, samples=samples, seed=number, method=method)  # type: ignore[arg-type]
        n = truth["N_opt 4x"]
        d = 4 * setting.top / 6 / n
        found = drawn.parameter_intervals(LEVEL)
        found["N_opt"] = drawn.frontier_intervals(setting.top, LEVEL)["n"]
        found["N_opt 4x"] = drawn.frontier_intervals(4 * setting.top, LEVEL)["n"]
        found["loss 4x"] = list(np.exp(np.quantile(drawn.predict_log(n, d)[:, 0], [0.05, 0.95])))
        found["new run 4x"] = list(predict_interval(drawn, n, d, LEVEL))
        truth["new run 4x"] = truth["loss 4x"] * np.exp(NOISE * generator.standard_normal())
    held = {q: bool(found[q][0] <= truth[q] <= found[q][1]) for q in QUANTITIES if q in found}
    width = {q: float(np.log(found[q][1] / found[q][0])) for q in ("N_opt", "new run 4x") if q in found}
    return {"held": held, "error": error, "width": width}


def valleys(rows: Observations, truth: dict[str, float], samples: int, seed: int) -> dict[str, Any]:
    """The same of `fit_isoflop`: FitError, so that it counts as refused, where there is no valley at the top."""
    found = fit_isoflop(rows, samples=samples, seed=seed, level=LEVEL)
    top = found.valleys[-1] if found else None
    if found is None or top is None or not (top.interior and top.curved) or found.n_exponent_interval is None:
        raise FitError("no valley at the largest budget")
    ends = {"N_opt": top.n_opt_interval, "n_exponent": found.n_exponent_interval}
    return {
        "held": {q: bool(low <= truth[q] <= high) for q, (low, high) in ends.items()},
        "error": top.n_opt / truth["N_opt"] - 1,
        "width": {"N_opt": float(np.log(ends["N_opt"][1] / ends["N_opt"][0]))},
    }


def true_values(setting: Setting) -> dict[str, float]:
    """The truth of each quantity but a new run's."""
    a, b, e, alpha, beta = setting.theta
    n = setting.best_n(4 * setting.top)
    values = dict(zip(PARAMETERS, (np.exp(a), np.exp(b), np.exp(e), alpha, beta), strict=True))
    values |= {"n_exponent": beta / (alpha + beta), "N_opt": setting.best_n(setting.top), "N_opt 4x": n}
    values["loss 4x"] = float(np.exp(setting.log_loss(np.array(n), np.array(4 * setting.top / 6 / n))))
    return {k: float(v) for k, v in values.items()}


def measure(job: tuple[int, str, str, int, int]) -> tuple[str, dict[str, Any]]:
    """A setting's share of each quantity held over all replicates, and what was not fitted."""
    index, objective, method, replicates, samples = job
    setting = settings()[index]
    started, done, refused = time.process_time(), [], 0
    for number in range(replicates):
        try:
            done.append(replicate(setting, number, objective, method, samples))
        except FitError:
            refused += 1
    errors = np.abs([r["error"] for r in done])
    return setting.name, {
        "runs": len(setting.n),
        "replicates": len(done),
        "refused": refused,
        "held": {q: float(np.mean([r["held"][q] for r in done])) for q in done[0]["held"]},
        "median_error_of_n": float(np.median(errors)),
        "least_median_error_of_n": 0.6745 * setting.least_error(setting.top),
        "median_log_width": {q: float(np.median([r["width"][q] for r in done])) for q in done[0]["width"]},
        "cpu_seconds": time.process_time() - started,
    }


def run(out: Path, objective: str, method: str, replicates: int, samples: int, jobs: int, only: list[int]) -> None:
    """Every setting that is not in the file yet, each written as it is done."""
    table = json.loads(out.read_text()) if out.exists() else {}
    key = f"{objective} {method} {replicates} x {samples}"
    have = table.setdefault(key, {})
    all_of_them = settings()
    wanted = [i for i in only or range(len(all_of_them)) if all_of_them[i].name not in have]
    if method in ("cluster", VALLEYS):
        least = 5 if method == "cluster" else 2
        budgets = {i: all_of_them[i].budget for i in wanted}
        wanted = [i for i, b in budgets.items() if b is not None and len(np.unique(b)) >= least]
    work = [(i, objective, method, replicates, samples) for i in wanted]
    for name, found in _each(work, jobs):
        have[name] = found
        write_json(out, table)
        held = " ".join(f"{100 * v:.0f}" for v in found["held"].values())
        print(f"{key} | {name} | {held} | N {100 * found['median_error_of_n']:.1f}%", flush=True)


def _each(work: list[Any], jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    if jobs == 1:
        yield from map(measure, work)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(measure, work)


def show(out: Path) -> None:
    """Markdown: for each method the least, middle and largest coverage over the settings; then the settings of each."""
    table = json.loads(out.read_text())
    print("| objective, intervals | settings | " + " | ".join(QUANTITIES) + " |")
    print("|---" * (len(QUANTITIES) + 2) + "|")
    for key, have in table.items():
        cells = []
        for q in QUANTITIES:
            held = [100 * s["held"][q] for s in have.values() if q in s["held"]]
            cells.append(f"{min(held):.0f} {np.median(held):.1f} {max(held):.0f}" if held else "")
        print(f"| {key} | {len(have)} | " + " | ".join(cells) + " |")
    for key, have in table.items():
        shares = np.array([v for s in have.values() for v in s["held"].values()])
        print(f"\n{key}: {np.mean((shares >= 0.85) & (shares <= 0.95)):.0%} of {shares.size} shares from 85 to 95%; "
              f"{sum(s['refused'] for s in have.values())} tables refused")  # fmt: skip
        print("| setting | runs | " + " | ".join(QUANTITIES) + " | median error of N | least possible |")
        print("|---" * (len(QUANTITIES) + 4) + "|")
        for name, s in have.items():
            cells = " | ".join(f"{100 * s['held'][q]:.0f}" if q in s["held"] else "" for q in QUANTITIES)
            error, least = s["median_error_of_n"], s["least_median_error_of_n"]
            print(f"| {name} | {s['runs']} | {cells} | {error:.1%} | {least:.1%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--objective", default="huber", choices=["huber", "l2", "lad"])
    methods = ["auto", "parametric", "residual", "pairs", "cluster", *CROSS_CHECKS, VALLEYS]
    parser.add_argument("--method", default="auto", choices=methods)
    parser.add_argument("--replicates", type=int, default=400)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--jobs", type=int, default=1, help="processes; two when the machine is quiet")
    parser.add_argument("--settings", type=int, nargs="*", default=[], help="numbers of settings; all if not given")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    if options.show:
        show(options.out)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    run(options.out, options.objective, options.method, options.replicates, options.samples, options.jobs,
        options.settings)  # fmt: skip


if __name__ == "__main__":
    main()
