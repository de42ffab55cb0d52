"""A profile of chosen steps, of XLA's own: runs/NAME/profile, which xprof, TensorBoard and Perfetto open.

Steps before the first one are over when it begins, and the last one is over when it ends, so that the profile has whole
steps and nothing else. Whether a step is profiled changes no number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from areca.train.islands.tracing import Windows

DIRECTORY = "profile"


@contextmanager
def profiled(windows: Windows, run_dir: Path | str) -> Iterator["Profiling | None"]:
    """The profiling of a run, ended however the run ends; None where nothing is asked for."""
    made = Profiling(windows, run_dir) if windows else None
    try:
        yield made
    finally:
        if made is not None:
            made.finish()


class Profiling:
    """The windows of one run; XLA writes each to a directory of its own in `path`, steps-10-12."""

    def __init__(self, windows: Windows, run_dir: Path | str) -> None:
        self.windows, self.path = windows, Path(run_dir) / DIRECTORY
        self.open: tuple[int, int] | None = None  # the window that is being profiled
        self.written = 0  # windows

    def _window(self, step: int) -> tuple[int, int] | None:
        return next((w for w in self.windows if w[0] <= step <= w[1]), None)

    def turns(self, step: int) -> bool:
        """Whether a window begins with this step, or ended before it: what runs has to be waited for, then `turn`."""
        return self._window(step) != self.open

    def turn(self, step: int) -> None:
        """Ends the window that is open; begins the one that this step is in."""
        self.finish()
        self.open = self._window(step)
        if self.open is not None:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # it walks other threads' frames: seen to end the process (docs/log.md)
            name = "steps-{}-{}".format(*self.open)
            jax.profiler.start_trace(str(self.path / name), profiler_options=options)

    def finish(self) -> None:
        """The run ends, for whatever reason: writes the window that is open."""
        if self.open is not None:
            self.open = None
            jax.profiler.stop_trace()
            self.written += 1

    def said(self) -> str:
        """A sentence on what was written."""
        if not self.written:
            return f"no step of --profile-steps was taken by this command, and {self.path} was not written."
        return f"{self.path} has a profile of the chosen steps of this process, for xprof, TensorBoard or Perfetto."
