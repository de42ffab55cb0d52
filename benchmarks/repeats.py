"""Does the interval hold? The quickstart again and again with other seeds; predicted against achieved, each time.

    python benchmarks/repeats.py --out DIR --minutes 5 --seeds 10

Parameters, data order and bootstrap differ between repeats; text, tokenizer and budgets do not. Interrupted, the same
command goes on. Prints a table and the count that the 90% interval held.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

from areca.study.quickstart import Settings, quickstart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--store", type=Path, help="the store/ of an earlier quickstart, so that it is not built again")
    options = parser.parse_args()
    rows = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        out = options.out / f"seed-{seed}"
        source = options.store or options.out / f"seed-{options.first_seed}" / "store"
        settings = Settings(minutes=options.minutes, seed=seed)
        report = quickstart(
            out, settings, lambda line: print(line, file=sys.stderr), store=source if source.exists() else None
        )
        rows.append((seed, report))
        _print(seed, report)
    held = sum(bool(r["covered"]) for _, r in rows)
    errors = [abs(r["relative_error"]) for _, r in rows]
    print(
        f"the 90% interval held in {held} of {len(rows)}; |error| median {statistics.median(errors):.2%}, "
        f"largest {max(errors):.2%}; of the drop below the best rung: median "
        f"{statistics.median(_share(r) for _, r in rows):.3f}, largest {max(_share(r) for _, r in rows):.3f}"
    )


def _share(report: dict) -> float:
    drop = report["naive_baseline_loss"] - report["achieved_loss"]
    return abs(report["predicted_loss"] - report["achieved_loss"]) / drop


def _print(seed: int, r: dict) -> None:
    low, high = r["predicted_interval_90"]
    print(
        json.dumps(
            {
                "seed": seed,
                "predicted": round(r["predicted_loss"], 4),
                "interval": [round(low, 4), round(high, 4)],
                "achieved": round(r["achieved_loss"], 4),
                "error": f"{r['relative_error']:+.2%}",
                "half_width": f"{r['half_width_relative']:.2%}",
                "held": r["covered"],
                "naive": round(r["naive_baseline_loss"], 4),
                "share_of_drop": round(_share(r), 3),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
