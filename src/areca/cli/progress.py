"""Progress on standard error: a live line in a terminal, a line now and then in a log."""

import contextlib
import sys
import time
from collections.abc import Iterator

from areca.train.loop import Listener, Progress

QUIET_SECONDS = 10.0  # between lines where standard error is not a terminal


def say(sentence: str) -> None:
    """A sentence for the user, apart from results on standard output."""
    print(f"areca: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def run_progress() -> Iterator[Listener]:
    """A listener for one run that shows step, loss, tokens/s, MFU and the time left."""
    live = sys.stderr.isatty()
    last = 0.0

    def listen(p: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if p.step < p.steps and now - last < (0.2 if live else QUIET_SECONDS):
            return
        last = now
        end = "\n" if not live or p.step == p.steps else "\r"
        print(f"{describe(p)}\033[K" if live else describe(p), end=end, file=sys.stderr, flush=True)

    try:
        yield listen
    finally:
        if live:
            print(file=sys.stderr)


def describe(p: Progress) -> str:
    """One line about where a run is."""
    mfu = "unknown" if p.mfu is None else f"{p.mfu:.1%}"
    return (
        f"{p.run}  step {p.step}/{p.steps}  loss {p.loss:.3f}  {p.tokens_per_second:,.0f} tokens/s  MFU {mfu}  "
        f"{clock(p.seconds_left)} left"
    )


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, s = divmod(round(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02}:{s:02}" if hours else f"{m}:{s:02}"
