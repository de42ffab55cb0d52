"""The interface that trackers are reached by, which there are, and what each needs to be installed.

A tracker's library is imported when it is opened and not before. Adapters keep what they have to know the next time
(a run's id there) in `memory`, which the follower writes beside what was sent.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from areca.errors import ArecaError, ConfigError, closest, install

# name -> (module and class of its adapter, the library it needs, the extra of areca that has it)
TRACKERS: dict[str, tuple[str, str, str]] = {
    "tensorboard": ("areca.track.tensorboard:TensorBoard", "tensorboard", "track"),
    "wandb": ("areca.track.wandb:Wandb", "wandb", "wandb"),
    "trackio": ("areca.track.trackio:Trackio", "trackio", "trackio"),
}


class TrackerError(ArecaError):
    """A tracker that does not take a run's numbers, or not all of them. The run itself has lost nothing."""


@dataclass
class Place:
    """Where a run is to be found: its directory, the tracker's project, what the adapter kept, the last step sent."""

    run_dir: Path
    project: str = "areca"
    memory: dict[str, Any] = field(default_factory=dict)
    sent: int = 0


class Tracker(Protocol):
    """A tracker, made from a Place. Whatever it raises ends the tracking and not the run.

    Steps come in rising order, but for `rewind`.
    """

    def begin(self, name: str, config: Mapping[str, Any]) -> int | None:
        """Opens the run, or goes on in it; `config` is flat. Returns the last step that it has; None: as remembered."""
        ...

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Takes finite numbers of a step. It may be called twice for one step, with other names."""
        ...

    def rewind(self, step: int) -> int:
        """What was logged after `step` does not hold any more; returns the step after which all comes once more."""
        ...

    def end(self) -> None:
        """Hands over what is still held back and closes the run."""
        ...


def check(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; ConfigError for one that is none, and for one that is not installed. Imports nothing."""
    names = tuple(dict.fromkeys(names))
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f"there is no tracker {name!r}{closest(name, TRACKERS)}; use {', '.join(TRACKERS)}.")
        _, library, extra = TRACKERS[name]
        if importlib.util.find_spec(library) is None:
            raise ConfigError(
                f"{name} is not installed; {install(extra)} has it, or leave {name} out: metrics.jsonl "
                "has all numbers, and `areca track` sends them later."
            )
    return names


def one_line(said: object) -> str:
    """What a library of others said, in one line without its full stop, and not too much of it."""
    return " ".join(str(said).split())[:500].rstrip(".")


def open_tracker(name: str, place: Place) -> Tracker:
    """The adapter of a tracker that `check` has found."""
    module, _, made = TRACKERS[name][0].partition(":")
    return getattr(importlib.import_module(module), made)(place)
