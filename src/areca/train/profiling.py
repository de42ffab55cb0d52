"""A profile of chosen steps, of XLA's own: runs/NAME/profile, which xprof, TensorBoard and Perfetto open.

Steps before the first one are over when it begins, and the last one is over when it ends, so that the profile has whole
steps and nothing else. Whether a step is profiled changes no number.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from areca.errors import ConfigError
from areca.train.tracing import Windows

DIRECTORY = "profile"


def check(windows: Windows, steps: int) -> None:
    """ConfigError for steps that a run of so many does not have."""
    if windows and windows[-1][1] > steps:
        raise ConfigError(
            f"--profile-steps goes to step {windows[-1][1]:,} and the run has {steps:,}; name earlier ones."
        )


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
        self.running = False
        self.written = 0  # windows
        self._until = 0  # the last step of the one that is open

    def turns(self, step: int) -> bool:
        """Whether a window begins with this step, or ended before it: what runs has to be waited for, then `turn`."""
        inside = any(first <= step <= last for first, last in self.windows)
        return inside != self.running or (self.running and step > self._until)

    def turn(self, step: int) -> None:
        """Ends the window that is open; begins the one that this step is in."""
        self.finish()
        for first, last in self.windows:
            if first <= step <= last:
                options = jax.profiler.ProfileOptions()
                options.python_tracer_level = 0  # it walks other threads' frames: seen to end the process (docs/log.md)
                jax.profiler.start_trace(str(self.path / f"steps-{first}-{last}"), profiler_options=options)
                self.running, self._until = True, last

    def finish(self) -> None:
        """The run ends, for whatever reason: writes the window that is open."""
        if self.running:
            self.running = False
            jax.profiler.stop_trace()
            self.written += 1

    def said(self) -> str:
        """A sentence on what was written."""
        if not self.written:
            return f"no step of --profile-steps was taken by this command, and {self.path} was not written."
        return f"{self.path} has a profile of the chosen steps of this process, for xprof, TensorBoard or Perfetto."
