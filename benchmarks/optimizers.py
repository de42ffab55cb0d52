"""Muon beside AdamW: the held-out loss of the same small model, each at its best of the same number of learning rates.

    python benchmarks/optimizers.py --out DIR --store STORE

Everything but the optimizer is the same: decoder, first parameters, batches, schedule (a tenth of warm-up, cosine to a
tenth), clipping, weight decay 0.1, beta2 0.95. Momentum is 0.9 for AdamW and 0.95 for Muon, their usual ones. Runs that
are finished are not made again. Losses, not times: other work on the machine does no harm.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from areca.config import ModelConfig, OptimizerConfig
from areca.data.store import TokenStore
from areca.study.pool import Job
from small_runs import job_of, losses_of
from transfer import BATCH, CONTEXT, HEAD_DIM, best

OPTIMIZERS = {
    "adamw": OptimizerConfig("adam", momentum=0.9, beta2=0.95, weight_decay=0.1),
    "muon spectral": OptimizerConfig("muon", momentum=0.95, beta2=0.95, weight_decay=0.1),
    "muon rms": OptimizerConfig("muon", momentum=0.95, beta2=0.95, weight_decay=0.1, muon_scale="rms"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True, help="a token store, such as a quickstart's")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.02, 0.04, 0.08, 0.16])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--optimizers", nargs="+", default=list(OPTIMIZERS), choices=list(OPTIMIZERS))
    options = parser.parse_args()
    jobs = {
        (name, rate, seed): _job(options, name, rate, seed)
        for name in options.optimizers for rate in options.rates for seed in range(options.seeds)
    }  # fmt: skip
    losses = losses_of(list(jobs.values()))
    rows = []
    for name in options.optimizers:
        of = {rate: [losses[jobs[name, rate, s].name] for s in range(options.seeds)] for rate in options.rates}
        mean = {rate: sum(found) / len(found) for rate, found in of.items()}
        least = min(mean, key=lambda rate: mean[rate])
        print(f"{name:14}", *(f"{rate:g}: {mean[rate]:.4f}" for rate in options.rates), sep="  ")
        print(f"{'':14}  best at {least:g} ({best(mean):.4f} by a parabola), seeds", *(f"{x:.4f}" for x in of[least]))
        rows += [{"optimizer": name, "rate": rate, "losses": found} for rate, found in of.items()]
    (options.out / "optimizers.json").write_text(json.dumps(rows, indent=1) + "\n")


def _job(options: argparse.Namespace, name: str, rate: float, seed: int) -> Job:
    vocabulary = TokenStore.open(options.store).vocab_size
    model = ModelConfig(vocabulary, options.width, options.layers, options.width // HEAD_DIM).resolved()
    run = f"{name.replace(' ', '-')}-lr{rate:g}-s{seed}"
    job = job_of(
        run, model, options.out, options.store, rate=rate, steps=options.steps, batch=BATCH, context=CONTEXT, seed=seed
    )
    return replace(job, config=replace(job.config, optimizer=replace(OPTIMIZERS[name], learning_rate=rate)))


if __name__ == "__main__":
    main()
