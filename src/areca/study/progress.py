"""Progress of a family of runs: which run, its loss, tokens/s and MFU, and the time left over all."""

import sys
import time
from collections.abc import Callable
from typing import Any

QUIET_SECONDS = 10.0  # between lines where standard error is not a terminal


class FamilyProgress:
    """Hears of runs in progress and finished ones; prints one live line in a terminal, a line now and then in a log.

    The time left is the FLOPs left over the rate so far, over all runs, whichever was made before this call.
    """

    def __init__(self, costs: dict[str, float], title: str, write: Callable[[str], None] | None = None) -> None:
        self.costs, self.title = costs, title
        self.done: dict[str, float] = dict.fromkeys(costs, 0.0)  # share of each run
        self.finished = 0
        self.first: float | None = None
        self.at_first = 0.0
        self.last_line = 0.0
        self.live = sys.stderr.isatty() and write is None
        self.write = write or (lambda line: print(line, file=sys.stderr, flush=True))

    def progress(self, name: str, p: dict[str, Any]) -> None:
        """A step of a run."""
        self.done[name] = p["step"] / p["steps"]
        now = time.monotonic()
        if self.first is None:
            self.first, self.at_first = now, self._flops()
        if now - self.last_line < (0.2 if self.live else QUIET_SECONDS):
            return
        self.last_line = now
        mfu = "unknown" if p["mfu"] is None else f"{p['mfu']:.0%}"
        line = (
            f"{self.title} {self.finished + 1}/{len(self.costs)}  {name}  step {p['step']}/{p['steps']}  "
            f"loss {p['loss']:.3f}  {p['tokens_per_second']:,.0f} tokens/s  MFU {mfu}  {self._left(now)} left over all"
        )
        if self.live:
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
        else:
            self.write(line)

    def result(self, name: str, r: dict[str, Any]) -> None:
        """A run that has ended."""
        self.finished += 1
        self.done[name] = 1.0
        clear = "\r\033[K" if self.live else ""
        self.write(
            f"{clear}{self.title} {self.finished}/{len(self.costs)}  {name}  held-out loss {r['loss']:.4f}  "
            f"N {r['n_params']:,}  D {r['n_tokens']:,}  {r['seconds']:.0f} s"
            + (f"  (one of {r['together']['runs']} in one program)" if "together" in r else "")
        )

    def say(self, sentence: str) -> None:
        """A sentence for the user, on a line of its own."""
        clear = "\r\033[K" if self.live else ""
        self.write(f"{clear}{sentence}")

    def _flops(self) -> float:
        return sum(self.done[n] * c for n, c in self.costs.items())

    def _left(self, now: float) -> str:
        made = self._flops() - self.at_first
        if self.first is None or made <= 0:
            return "?:??"
        seconds = (sum(self.costs.values()) - self._flops()) * (now - self.first) / made
        return f"{int(seconds // 60)}:{int(seconds % 60):02}"
