"""One training step beside PyTorch's, in one run: same model, weights, batches, loss, clipping, Adam, threads, float32.

Sides: Areca's compiled step, a plain PyTorch model eager and under torch.compile, and transformers'
CohereForCausalLM. Each has a process of its own; they take turns, a few steps each round, while the others sleep. Each
is measured with the system's allocator and with Areca's setting of it (areca.runtime.keep_memory_mapped), which helps
all of them. The first losses of all sides must agree, or nothing is printed. Areca's step also computes the norms of
the update and of the parameters, which the others don't.

    make bench-train-step ARGS='--problems ladder --rounds 10'
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from peers.problem import PROBLEMS
from peers.side import Side

SIDES = ("areca", "eager", "compile", "cohere")
NAMES = {
    "areca": "areca",
    "eager": "PyTorch, eager",
    "compile": "PyTorch, torch.compile",
    "cohere": "transformers CohereForCausalLM",
}
ALLOCATORS = ("default", "kept")
WARMUP_STEPS = 3
LOSS_TOLERANCE = 2e-4
SETTLE_SECONDS = 0.3  # for the thread pool of the side that has just run to stop spinning


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--allocators", nargs="+", choices=ALLOCATORS, default=list(ALLOCATORS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0, help="of steps for each side and round, about")
    parser.add_argument("--json", type=Path, help="also write all times here")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], options.worker[1], options.problems[0], options.threads)
        return
    results = {}
    for problem in options.problems:
        for allocator in options.allocators:
            times = compare(problem, allocator, options)
            results[f"{problem}/{allocator}"] = times
            show(problem, allocator, times)
    if options.json:
        options.json.write_text(json.dumps({"milliseconds": results, "threads": options.threads}, indent=2) + "\n")


def compare(problem: str, allocator: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of every step of every side, taken in turns."""
    workers = {side: Worker(side, allocator, problem, options.threads) for side in options.sides}
    try:
        losses = {side: worker.ask(WARMUP_STEPS)["loss"] for side, worker in workers.items()}
        reference = losses[options.sides[0]]
        for side, values in losses.items():
            if max(abs(a - b) for a, b in zip(values, reference, strict=True)) > LOSS_TOLERANCE * reference[0]:
                sys.exit(f"{problem}: the sides do not compute the same: {losses} (of which {side} differs)")
        speed = {side: worker.ask(1)["seconds"][0] for side, worker in workers.items()}
        steps = {side: max(2, round(options.seconds / seconds)) for side, seconds in speed.items()}
        times: dict[str, list[float]] = {side: [] for side in workers}
        for turn in range(options.rounds):
            order = list(workers) if turn % 2 == 0 else list(reversed(workers))
            for side in order:
                time.sleep(SETTLE_SECONDS)
                times[side] += [1e3 * s for s in workers[side].ask(steps[side])["seconds"][1:]]
        return times
    finally:
        for worker in workers.values():
            worker.close()


class Worker(Side):
    """One side in its own process; `ask(n)` has it take n steps and returns their times and losses."""

    def __init__(self, side: str, allocator: str, problem: str, threads: int) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "ARECA_ALLOCATOR": allocator,
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [sys.executable, __file__, "--problems", problem, "--threads", str(threads)]
        super().__init__([*command, "--worker", side, allocator], environment)


def work(side: str, allocator: str, problem: str, threads: int) -> None:
    """The loop of a worker: a line with a number of steps in, a line of JSON out."""
    from areca import runtime

    if allocator == "kept" and not runtime.keep_memory_mapped():
        sys.exit("the allocator can't be set here: this system has no glibc; use --allocators default")
    p = PROBLEMS[problem]
    if side == "areca":
        from peers import areca_side

        step = areca_side.make(p, threads)
    else:
        from peers import torch_side

        step = torch_side.make(side, p, threads)
    index = 0
    for line in sys.stdin:
        seconds, losses = [], []
        for _ in range(int(line)):
            started = time.perf_counter()
            losses.append(step(index))
            seconds.append(time.perf_counter() - started)
            index += 1
        print(json.dumps({"seconds": seconds, "loss": losses}), flush=True)


def show(problem: str, allocator: str, times: dict[str, list[float]]) -> None:
    """Median and quartiles of each side, and the ratio of its median to Areca's."""
    ours = statistics.median(times["areca"]) if "areca" in times else None
    print(f"\n{problem}, allocator {allocator}: ms a step")
    for side, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        ratio = f"  areca is {statistics.median(values) / ours:.2f} times as fast" if ours and side != "areca" else ""
        print(f"  {NAMES[side]:<32} {middle:8.1f}  ({low:.1f} to {high:.1f}, {len(values)} steps){ratio}", flush=True)


if __name__ == "__main__":
    main()
