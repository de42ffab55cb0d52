"""Equal small runs one after another, as processes side by side, and as one program: tokens/s in total, with ratios.

    make bench-ladder ARGS='--widths 32 64 --runs 4 --rounds 3'

The runs are those of `areca ladder` at one size with several seeds, saves and all. The ways take turns, in a new order
each round. `one` trains one after another with a thread for each core; `processes` has one thread a run, each on a core
of its own; `vmap` divides the runs into one program a core (on an accelerator: one in all). Three figures each: over
the whole time (processes, compiled programs from the cache and evaluations included), over the steps alone, and over
the processor time of all. The losses of all ways must agree, or nothing is printed.
"""

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areca import runtime
from areca.config import EvalConfig, RunConfig
from areca.data.build import build_store
from areca.files import read_json
from areca.model.counts import exact_flops_per_token
from areca.study import recipe
from areca.study.pool import Job, run_jobs
from areca.train.record import read_metrics

WAYS = ("one", "processes", "vmap")
NAMES = {"one": "one after another", "processes": "processes, a core each", "vmap": "one program (vmap)"}
VOCABULARY = 512
LOSS_TOLERANCE = 2e-3  # thread counts and vmap change the low bits, and training lets them grow


@dataclass(frozen=True)
class Sample:
    """One way in one round, tokens/s in total."""

    whole: float
    steps: float
    core: float  # tokens a core-second: processor time, which other load on the machine hardly changes
    losses: tuple[float, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", nargs="+", type=int, default=[32, 64])
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--tokens", type=float, default=200_000, help="of one run, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--json", type=Path, help="also write all figures here")
    options = parser.parse_args()
    cores, accelerator = runtime.available_cores(), runtime.backend() != "cpu"
    figures: dict[str, dict[str, list[Sample]]] = {}
    with tempfile.TemporaryDirectory() as work:
        store = made_up_store(Path(work))
        for width in options.widths:
            taken: dict[str, list[Sample]] = {way: [] for way in options.ways}
            for turn in range(-1, options.rounds):  # the first is not counted: it fills the cache of programs
                for way in options.ways if turn % 2 == 0 else options.ways[::-1]:
                    jobs = equal_runs(store, width, options, cores if way == "one" else 1)
                    sample = take(way, jobs, Path(work), 1 if accelerator else cores)
                    said = f"{sample.whole:,.0f} tokens/s, {sample.core:,.0f} a core-second"
                    print(f"D {width} round {turn + 1} {way}: {said}", file=sys.stderr, flush=True)
                    if turn >= 0:
                        taken[way].append(sample)
            check(taken)
            show(width, jobs[0].config, taken)
            figures[f"D{width}"] = taken
    if options.json:
        rows = {w: {way: [vars(s) for s in samples] for way, samples in t.items()} for w, t in figures.items()}
        options.json.write_text(json.dumps({"cores": cores, "runs": options.runs, "samples": rows}, indent=2) + "\n")


def made_up_store(work: Path) -> Path:
    """A token store of made-up words, of more tokens than any run here reads."""
    pick = random.Random(0)
    words = ["".join(pick.choices("abcdefghijklmnop", k=pick.randint(2, 9))) for _ in range(800)]
    (work / "text").mkdir()
    for i in range(60):
        (work / "text" / f"{i}.txt").write_text(" ".join(pick.choices(words, k=4000)))
    build_store(work / "store", [f"text={work / 'text'}"], vocab_size=VOCABULARY)
    return work / "store"


def equal_runs(store: Path, width: int, options: argparse.Namespace, threads: int) -> list[Job]:
    """Runs of one size that differ in their seed. The directory is set by `take`."""
    model = recipe.shape(VOCABULARY, width)
    flops = exact_flops_per_token(model, recipe.CONTEXT) * options.tokens
    jobs = []
    for seed in range(options.runs):
        config = recipe.run_config(model, str(store), flops, seed=seed, threads=threads, context=recipe.CONTEXT)
        config = replace(config, evaluation=EvalConfig(max_tokens=16_384, batch=64))
        jobs.append(Job(f"seed-{seed}", config, Path(), {}, flops))
    return jobs


def take(way: str, jobs: list[Job], work: Path, cores: int) -> Sample:
    """Makes all runs in a new directory and measures."""
    with tempfile.TemporaryDirectory(dir=work) as out:
        jobs = [replace(job, run_dir=Path(out) / job.name) for job in jobs]
        at_a_time = min(len(jobs), cores)
        programs = [jobs[i::at_a_time] for i in range(at_a_time)] if way == "vmap" else [[job] for job in jobs]
        workers = 1 if way == "one" else at_a_time
        started, processor = time.perf_counter(), _processor_seconds()
        results = run_jobs(
            programs,
            threads=jobs[0].config.threads,
            workers=workers,
            on_progress=lambda *_: None,
            on_result=lambda *_: None,
        )
        seconds, processor = time.perf_counter() - started, _processor_seconds() - processor
        tokens = sum(r["n_tokens"] for r in results.values())
        stepping = sum(row["seconds"] for job in jobs for row in read_metrics(job.run_dir)) / workers
        assert all("together" in read_json(j.run_dir / "result.json") for p in programs for j in p if len(p) > 1)
        return Sample(
            tokens / seconds, tokens / stepping, tokens / processor, tuple(results[j.name]["loss"] for j in jobs)
        )


def _processor_seconds() -> float:
    """Processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def check(taken: dict[str, list[Sample]]) -> None:
    """Ends unless all ways have the same losses."""
    samples = [s for way in taken.values() for s in way]
    for sample in samples:
        for a, b in zip(sample.losses, samples[0].losses, strict=True):
            if abs(a - b) > LOSS_TOLERANCE * b:
                sys.exit(f"the ways do not compute the same: {sample.losses} and {samples[0].losses}")


def show(width: int, config: RunConfig, taken: dict[str, list[Sample]]) -> None:
    """Medians, ranges and ratios to the first way."""
    batch, context = config.batch.ramp[0][1], config.data.context
    print(f"\nD {width}, {config.tokens:,} tokens a run in steps of {batch} x {context}: tokens/s in total")
    base: dict[str, Any] = {}
    for way, samples in taken.items():
        line = f"  {NAMES[way]:<24}"
        for what, label in (("whole", "whole time"), ("steps", "steps alone"), ("core", "a core-second")):
            values = [getattr(s, what) for s in samples]
            middle = statistics.median(values)
            base.setdefault(what, middle)
            line += f"  {label} {middle:>9,.0f} ({min(values):,.0f} to {max(values):,.0f}) x{middle / base[what]:.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
