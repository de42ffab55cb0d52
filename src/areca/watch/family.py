"""A ladder, a quickstart or any directory of runs at this moment: each run, begun or not."""

import contextlib
from pathlib import Path
from typing import Any

from areca.errors import ArecaError
from areca.files import read_json
from areca.track.rows import EVENTS, METRICS, RUN
from areca.watch.process import holder
from areca.watch.run import RunState, RunWatch

LADDER, QUICKSTART, COPY = "ladder.json", "quickstart.json", "copy.json"


class FamilyWatch:
    """Reads the runs of a directory again and again; runs that begin meanwhile are taken in."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)
        self._watches: dict[Path, RunWatch] = {}

    def look(self) -> list[RunState]:
        """The state of every run now, in the ladder's order, others by name."""
        for path, name in members(self.directory).items():
            self._watches.setdefault(path, RunWatch(path, name))
        return [watch.look() for watch in self._watches.values()]

    def alive(self) -> bool:
        """Whether a process holds the directory itself or one between it and a run, as a ladder does."""
        between = {d for path in self._watches for d in path.parents if d.is_relative_to(self.directory)}
        return any(holder(d).alive == "yes" for d in (self.directory, self.directory / "ladder", *between))


def is_family(directory: Path) -> bool:
    """Whether a directory holds runs and is none itself."""
    if any((directory / name).is_file() for name in (RUN, METRICS, EVENTS)):
        return False
    return bool(members(directory))


def members(directory: Path) -> dict[Path, str]:
    """{run directory: name}: those of a ladder or a quickstart, or the runs, ladders and quickstarts directly below or
    in `runs`."""
    if (own := _of_study(directory)) is not None:
        return own
    found = {}
    for parent in (directory, directory / "runs"):
        with contextlib.suppress(OSError):
            for child in sorted(parent.iterdir()):
                if (child / RUN).is_file():
                    found[child] = child.name
                else:
                    found |= {path: f"{child.name}/{name}" for path, name in (_of_study(child) or {}).items()}
    return found


def _of_study(directory: Path) -> dict[Path, str] | None:
    """The runs of a quickstart or of a ladder; None if the directory is neither."""
    if (directory / QUICKSTART).is_file() or (directory / "ladder" / LADDER).is_file():
        found = {p: f"ladder/{n}" for p, n in _of_ladder(directory / "ladder").items()}
        verify = directory / "verify"
        return found | ({verify: "verify"} if (verify / RUN).is_file() else {})
    return _of_ladder(directory) if (directory / LADDER).is_file() else None


def _of_ladder(directory: Path) -> dict[Path, str]:
    ladder: Any = {}
    with contextlib.suppress(ArecaError, OSError):
        ladder = read_json(directory / LADDER)
    runs = ladder.get("runs") if isinstance(ladder, dict) else None
    found = {}
    for run in runs if isinstance(runs, list) else []:
        if isinstance(run, dict) and isinstance(run.get("name"), str):
            path = directory / str(run.get("path") or f"runs/{run['name']}")
            if not (path / COPY).exists():  # of a copy (`--copy-to`)
                found[path] = run["name"]
    return found
