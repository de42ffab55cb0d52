"""The process that copies a ladder's runs to a URL while they go on: `python -m areca.study.copier DIR URL`.

One for all runs, beside whichever processes train them. A run is copied at each of its checkpoints and at its end, as
`areca.train.away.copier` does for one. How it goes is in DIR/copied.json. It ends once its standard input has, which is
when the ladder's process is done or gone, and the last states are sent.
"""

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from areca.errors import ArecaError, BusyError, LinkLost
from areca.files import read_json, write_json
from areca.remote.place import Place
from areca.study.ladderjson import LADDER
from areca.train.away.copier import PERIOD_SECONDS, STATUS, TRIES_AT_END, Copier, input_ended, state_of
from areca.train.record import RESULT


class _Run:
    """A run of the ladder, and how far its copy is."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self.run_dir, self.url = run_dir, url
        self.copied: tuple[Any, ...] | None = None  # the state that was
        self.refused = False  # for good
        self._copier: Copier | None = None

    def behind(self) -> bool:
        state = state_of(self.run_dir)
        return not self.refused and state[0] is not None and state != self.copied

    def copy(self) -> None:
        """Sends what is new. BusyError while the process of the session before still copies it."""
        state = state_of(self.run_dir)
        if self._copier is None:
            self._copier = Copier(self.run_dir, self.url)
        self._copier.copy()
        self.copied = state
        if (self.run_dir / RESULT).exists():
            self.close()

    def close(self) -> None:
        if self._copier is not None:
            self._copier.close()
            self._copier = None


class _Status:
    """DIR/copied.json."""

    def __init__(self, directory: Path, url: str, runs: list[_Run]) -> None:
        self.path, self.url, self.runs = directory / STATUS, url, runs

    def tell(self, failed: str | None) -> None:
        done = sum(r.copied is not None for r in self.runs)
        reached = f"with {done} of {len(self.runs)} runs there"
        write_json(self.path, {"url": self.url, "time": time.time(), "reached": reached, "failed": failed})


def main(directory: Path, url: str) -> int:
    """Follows the runs until standard input ends and their last states are copied; 1 if some could not be."""
    place = Place(url)
    runs = [_Run(directory / run["path"], place.of(run["path"])) for run in read_json(directory / LADDER)["runs"]]
    status, ended, tries = _Status(directory, url, runs), False, 0
    with contextlib.ExitStack() as stack:
        for run in runs:
            stack.callback(run.close)
        while True:
            busy, failed = False, ""
            for run in runs:
                if not run.behind():
                    continue
                try:
                    run.copy()
                    status.tell(None)
                except BusyError:
                    busy = True
                except LinkLost as error:  # as it will be for the others
                    failed = str(error)
                    status.tell(failed)
                    break
                except ArecaError as error:
                    run.refused = True
                    status.tell(str(error))
                except OSError as error:
                    run.refused = True
                    status.tell(f"{error.filename or run.run_dir}: {error.strerror}")
            tries += ended and bool(failed)
            if ended and (tries >= TRIES_AT_END or not (busy or failed or any(run.behind() for run in runs))):
                return int(bool(failed) or any(run.refused for run in runs))
            if ended and busy:  # the input keeps nobody waiting any more
                time.sleep(PERIOD_SECONDS)
            ended = input_ended() or ended
    raise AssertionError("unreachable")


if __name__ == "__main__":
    os.nice(5)
    code = main(Path(sys.argv[1]), sys.argv[2])
    os._exit(code)  # without what libraries do at exit, which may wait for a network
