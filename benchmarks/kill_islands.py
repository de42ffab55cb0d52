"""Islands' processes killed at random instants of a run, again and again: no step may be lost and no bit may change.

A run over islands in processes is trained once undisturbed, then again while a thread sends SIGKILL (some SIGSTOP, with
--stop) to an island at random instants, as soon as that many islands are up. Both must end with the same parameters
and the same metrics. Run: python benchmarks/kill_islands.py --kills 50 [--islands 2] [--seed 0]
"""

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from areca import runtime
from areca.config import IslandsConfig, RunConfig
from areca.train.loop import Progress, train
from areca.train.record import read_events, read_metrics
from tiny import build_tiny_store, tiny_config

NUMBERS = ("step", "tokens", "loss", "z_loss", "grad_norm", "update_norm", "param_norm")


def pids() -> list[int]:
    """The processes of islands that this process has started."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            pid = int(entry.name)
            parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            words = entry.joinpath("cmdline").read_bytes()
            if parent == os.getpid() and b"areca.pathways.elsewhere.processes" in words:
                found.append(pid)
    return sorted(found)


class Killer(threading.Thread):
    """Kills an island when `islands` of them are up, after a random pause."""

    def __init__(
        self, islands: int, kills: int, rng: random.Random, number: int = signal.SIGKILL, longest: float = 2.0
    ) -> None:
        super().__init__(daemon=True)
        self.islands, self.left, self.rng, self.number, self.longest = islands, kills, rng, number, longest
        self.killed, self.ended, self.joined = 0, False, threading.Event()

    def run(self) -> None:
        while self.left and not self.ended:
            self.joined.wait()
            self.joined.clear()
            time.sleep(self.rng.uniform(0, self.longest))
            if self.ended or not (up := pids()):
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.rng.choice(up), self.number)
                self.left, self.killed = self.left - 1, self.killed + 1


def numbers(run_dir: Path) -> list[list[float]]:
    """What of a run's metrics may not change."""
    return [[row[k] for k in NUMBERS] for row in read_metrics(run_dir)]


def disturbed(config: RunConfig, place: Path, killer: Killer) -> dict:
    """A run during which islands are killed: after the first step, then when the last one's island has joined."""

    def said(sentence: str) -> None:
        print(f"  {sentence}", flush=True)
        if " joined " in sentence:
            killer.joined.set()

    def step(progress: Progress) -> None:
        if progress.step == 1:
            killer.joined.set()

    killer.start()
    try:
        return train(config, place, listener=step, say=said)
    finally:
        killer.ended = True
        killer.joined.set()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--islands", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    runtime.prepare(1, devices=8)
    root = Path(tempfile.mkdtemp(prefix="areca-kill-"))
    store = build_tiny_store(root / "store")
    islands = IslandsConfig(asked.islands, 4 if asked.islands > 2 else 2, on="processes", deadline=60)
    config = tiny_config(store, islands=islands, tokens=asked.steps * 4 * 16, threads=1)
    whole = train(config, root / "whole")
    rng, kills, number, bad = random.Random(asked.seed), 0, 0, 0
    while kills < asked.kills:
        number += 1
        killer = Killer(asked.islands, asked.kills - kills, rng)
        place = root / f"killed {number}"
        started = time.perf_counter()
        result = disturbed(config, place, killer)
        same = result["parameters_sha256"] == whole["parameters_sha256"] and numbers(place) == numbers(root / "whole")
        bad += not same
        kills += killer.killed
        events = [e for e in read_events(place) if e["event"].startswith("island_")]
        lost = [e for e in events if e["event"] == "island_lost"]
        joined = [e["seconds"] for e in events if e["event"] == "island_joined"]
        print(
            f"run {number}: {killer.killed} kills, {len(lost)} losses seen, {len(joined)} came back, "
            f"{sum(e['discarded'] for e in lost)} steps discarded; {'same bits' if same else 'OTHER BITS'}; "
            f"{time.perf_counter() - started:.0f} s; {kills} kills in all",
            flush=True,
        )
    shutil.rmtree(root)
    print(
        f"{kills} kills in {number} runs: {f'{bad} runs differ' if bad else 'all have the bits of the undisturbed one'}"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
