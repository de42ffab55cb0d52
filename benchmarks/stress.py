"""Storms on the controller, one after another (`storms.py` has one): no wrong value, no stray error, no hang.

    python benchmarks/stress.py --minutes 60 --seed 1
    python benchmarks/stress.py --seed 4711 --storms 1     the storm of that seed again

Seeds count up from --seed, and a seed is written down before its storm begins. A storm that takes longer than --bound
seconds is a hang: its seed is said, the stacks of all threads are dumped, and the exit code is 1; so it is, after all
storms, where something was wrong. Every minute a line says how much was done, how many arrays are alive, which should
not grow, and the memory of the process.
"""

import argparse
import faulthandler
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax

from storms import Storm

NAP = 0.01  # seconds
STARVED = 5  # times the bound that a storm may take on a machine that gives this process no time


def watched(seed: int, bound: float, body: Callable[[], list[str]]) -> list[str]:
    """What `body` gives. After `bound` seconds: the seed, all stacks, exit 1.

    Seconds are counted by naps of 10 ms, so that a thread that is given no time on a busy machine is not taken for one
    that hangs; after five times as many seconds of the clock it is, also where no Python can run any more.
    """
    ended = threading.Event()

    def watch() -> None:
        for _ in range(int(bound / NAP)):
            if ended.wait(NAP):
                return
        print(f"\nseed {seed}: a storm that has not ended after {bound:g} s hangs", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)

    faulthandler.dump_traceback_later(STARVED * bound, exit=True)
    threading.Thread(target=watch, daemon=True).start()
    try:
        return body()
    finally:
        ended.set()
        faulthandler.cancel_dump_traceback_later()


def _memory() -> float:
    """Resident memory of this process, MiB."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def main() -> int:
    """All storms; 1 where something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0, help="no storm begins later than that")
    parser.add_argument("--storms", type=int, default=10**9, help="at most so many")
    parser.add_argument("--seed", type=int, default=1, help="of the first storm")
    parser.add_argument("--bound", type=float, default=120.0, help="seconds that a storm may take")
    options = parser.parse_args()
    started = said = time.perf_counter()
    counts: Counter[str] = Counter()
    problems: list[str] = []
    longest, seed = 0.0, options.seed
    while seed < options.seed + options.storms and time.perf_counter() - started < 60 * options.minutes:
        print(seed, end=" ", flush=True)
        began = time.perf_counter()
        storm = Storm(seed, deadline=STARVED * options.bound)
        found = watched(seed, options.bound, storm.run)
        if found:
            print(*["", *found], sep="\n", flush=True)
        problems += found
        counts += storm.counts
        now = time.perf_counter()
        longest, seed = max(longest, now - began), seed + 1
        if now - said > 60:
            gc.collect()
            print(f"\n{_said(counts, problems, longest, now - started)}; {len(jax.live_arrays())} arrays alive, "
                  f"{_memory():.0f} MiB", flush=True)  # fmt: skip
            said = now
    print(f"\n{_said(counts, problems, longest, time.perf_counter() - started)}; seeds {options.seed} to {seed - 1}")
    return 1 if problems else 0


def _said(counts: Counter[str], problems: list[str], longest: float, seconds: float) -> str:
    c = {name: f"{counts[name]:,}" for name in ("storms", "graphs", "values", "errors", "taken", "closed")}
    return (
        f"{seconds / 60:.1f} min: {c['storms']} storms, {c['graphs']} graphs, {c['values']} outcomes ({c['errors']} "
        f"errors), {c['taken']} memories taken, {c['closed']} clients closed in the middle; the longest storm "
        f"{longest:.1f} s; {len(problems)} problems"
    )


if __name__ == "__main__":
    sys.exit(main())
