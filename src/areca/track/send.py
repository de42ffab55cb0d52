"""Sends runs to trackers afterwards: a run, or every run below a directory."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areca.errors import ArecaError, CheckpointError, ConfigError
from areca.track.follow import Follower
from areca.track.rows import METRICS, RUN
from areca.track.trackers import TrackerError, check, one_line

DEEP = 4  # levels of directories in which runs are looked for: quickstart/ladder/runs/NAME


def runs_below(directory: Path) -> list[Path]:
    """The run that a directory is, or those below it; CheckpointError where there is none."""
    if (directory / RUN).is_file():
        return [directory]
    if not directory.is_dir():
        what = "is a file" if directory.exists() else "does not exist"
        raise CheckpointError(f"{directory} {what}; name a run directory or one of several.")
    found: list[Path] = []
    level = [directory]
    for _ in range(DEEP):
        level = [p for d in level for p in sorted(d.iterdir()) if p.is_dir() and not p.name.startswith(".")]
        found += [p for p in level if (p / RUN).is_file() and (p / METRICS).exists()]
        level = [p for p in level if p not in found]
    if not found:
        raise CheckpointError(f"{directory} holds no run (no directory with a {RUN}); name one of `areca train`.")
    return sorted(found)


def send(directory: Path | str, names: Sequence[str], project: str = "areca") -> list[dict[str, Any]]:
    """Sends what the trackers do not have of the runs; {"run", "tracker", "rows", "step", "at"} of each.

    Raises:
        ConfigError: a tracker that is none or not installed, before anything is written.
        CheckpointError: no run. BusyError: it is being sent to that tracker by another process.
        TrackerError: the tracker does not take it.
    """
    if not check(names):
        raise ConfigError("--to names no tracker; give tensorboard, wandb or trackio.")
    if not project.strip():
        raise ConfigError("--project is empty text; leave it out or give a name.")
    found = []
    for run in runs_below(Path(directory)):
        for name in check(names):
            try:
                with Follower(run, name, project) as follower:
                    rows = follower.poll()
            except (ArecaError, KeyboardInterrupt):
                raise
            except Exception as error:  # a library of others may raise anything
                raise TrackerError(
                    f"{name} does not take {run} ({type(error).__name__}: {one_line(error)}); the run has lost "
                    "nothing, so give the command again once that is mended."
                ) from error
            at = follower.place.memory.get("at") or str(run / name)
            found.append({"run": str(run), "tracker": name, "rows": rows, "step": follower.sent, "at": at})
    return found
