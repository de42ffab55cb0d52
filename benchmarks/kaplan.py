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
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from areca.files import read_json
from areca.laws.fits.critical_batch import noise_at, steps_to
from kaplan_show import best_of_passes, show

DOCS = Path(__file__).resolve().parents[1] / "docs"
FRACTIONS, PASSES = (0.001, 0.003, 0.01, 0.03, 0.1), (1.0, 4.0, 16.0, 64.0)
SWEEPS: dict[str, dict[str, Any]] = {  # directory -> what it varies and how
    "data": {"vary": "data", "widths": (16, 32, 64), "fractions": FRACTIONS, "epochs": PASSES},
    "shape": {"vary": "shape", "tokens": 1_000_000, "heads": (1, 2, 6, 12)},
    "shape-small": {"vary": "shape", "seed": 1, "widths": (32,), "tokens": 1_000_000, "depths": (1, 2, 3, 4, 6, 8)},
    "context": {"vary": "context", "tokens": 1_000_000},
    "batch": {"vary": "batch", "tokens": 250_000, "batches": (2, 4, 8, 16, 32, 64, 128, 256)},
    "batch-1": {"vary": "batch", "seed": 1, "tokens": 250_000, "batches": (2, 4, 8, 16, 32, 64, 128, 256)},
}
RATES = {"batch": (0.25, 0.5, 1.0, 2.0), "batch-1": (0.5, 1.0, 2.0, 4.0)}  # factors of the recipe's
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


if __name__ == "__main__":
    main()
