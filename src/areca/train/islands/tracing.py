"""Recording chosen steps of a run over islands: runs/NAME/trace.json, which Perfetto opens and `areca trace` reads.

The controller has a timeline while the chosen steps are submitted and none otherwise, so that the others cost nothing.
The file is written when the last step of a window was read, again with each further window, and when the run ends.
"""

import itertools
import re
from pathlib import Path
from typing import Any

from areca.errors import ConfigError
from areca.pathways.seeing.timeline import Timeline
from areca.pathways.seeing.trace import NAME

Windows = tuple[tuple[int, int], ...]  # (first step, last step), apart and in order


def parse_steps(text: str, option: str = "--trace-steps") -> Windows:
    """`10:12` are the steps 10 to 12, `10` is one; several are apart by commas. ConfigError for anything else."""
    windows: list[tuple[int, int]] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?::(\d+))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise ConfigError(
                f"{option} is {text!r}; write the first and the last step, such as 10:12, several with commas."
            )
        windows.append((first, last))
    windows.sort()
    for (_, last), (first, end) in itertools.pairwise(windows):
        if first <= last:
            raise ConfigError(f"{option} is {text!r}: {first}:{end} begins before step {last} has ended; join them.")
    return tuple(windows)


def check(windows: Windows, shards: int, steps: int) -> None:
    """ConfigError for steps that a run of so many can't record; a run of one program (no `shards`) has no islands."""
    if windows and not shards:
        raise ConfigError(
            "--trace-steps records what islands do, not one program or a pipeline; give --islands 2, or islands.shards "
            "for one island, or profile the steps with --profile-steps."
        )
    check_within(windows, steps, "--trace-steps")


def check_within(windows: Windows, steps: int, option: str) -> None:
    """ConfigError for steps that a run of so many does not have."""
    if windows and windows[-1][1] > steps:
        raise ConfigError(f"{option} goes to step {windows[-1][1]:,} and the run has {steps:,}; name earlier ones.")


class Tracing:
    """The windows of one run. `run` has `over` (OverIslands), `pending` and `run_dir`."""

    def __init__(self, windows: Windows, run: Any) -> None:
        self.windows, self.run, self.timeline = windows, run, Timeline()
        self.path = Path(run.run_dir) / NAME
        self.recorded: list[int] = []
        self._until = 0  # the last step of the window that is open

    def before(self, step: int) -> None:
        """This step is submitted next."""
        window = next(((a, b) for a, b in self.windows if a <= step <= b), None)
        controller = self.run.over.controller
        if window is None:
            if controller.timeline is not None:
                controller.timeline = None
            return
        if controller.timeline is None:
            if self._until:  # a window that was not read to its end, before the run went back
                self._write()
            controller.timeline, self._until = self.timeline, window[1]
            if self.run.pending:  # what still runs, the update of the step before, is over before the first event
                values = self.run.pending[-1][2].values
                for island in (i for i in values.islands if not i.remote):  # others measure themselves
                    self.timeline.after(island.name, values.arrays(island)[0])
        self.timeline.step(step)
        self.recorded.append(step)

    def read(self, step: int) -> None:
        """The metrics of this step were read: all that it enqueued is computed, or nearly."""
        if self._until and step >= self._until:
            self._write()

    def finish(self) -> None:
        """The run ends, for whatever reason: writes what is recorded and not written."""
        if self._until:
            self._write()

    def said(self) -> str:
        """A sentence on what was recorded."""
        if not self.recorded:
            return f"no step of --trace-steps was taken by this command, and {self.path} was not written."
        return f"{self.path} has the timeline of {len(set(self.recorded))} steps; look at it with `areca trace`."

    def _write(self) -> None:
        self.run.over.controller.timeline, self._until = None, 0
        self.timeline.close()
        self.timeline.write(self.path)
