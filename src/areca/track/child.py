"""The process that sends a run to one tracker while the run goes on: `python -m areca.track.child RUN NAME PROJECT`.

A process of its own, so that whatever a tracker's library does (hang, crash, take memory, print, handle signals) is not
done to the run. It reads files, tells what went wrong by lines of JSON on the standard output that it was started with,
and ends once its standard input does, which is when the run's process is done or gone.
"""

import contextlib
import json
import os
import select
import sys
import threading
import time
from pathlib import Path

from areca.errors import ArecaError, BusyError
from areca.track.follow import Follower
from areca.track.trackers import one_line

PERIOD_SECONDS = 1.0
LAST_SECONDS = 300.0  # after the run's end, for what a slow network still has to take


def main(run_dir: str, name: str, project: str, tell: int) -> int:
    """Follows the run until standard input ends; 1 if the tracker failed, which was told on `tell`."""
    try:
        with _begun(run_dir, name, project) as follower:
            _tell(tell, at=follower.place.memory.get("at") or str(Path(run_dir) / name))
            while not _ended():
                follower.poll()
            _end_by_then()
            follower.poll()
        _tell(tell, sent=follower.sent)
    except Exception as error:  # a library of others may raise anything
        why = str(error) if isinstance(error, ArecaError) else f"{type(error).__name__}: {error}"
        _tell(tell, failed=one_line(why))
        return 1
    return 0


def _begun(run_dir: str, name: str, project: str) -> Follower:
    """The follower, once the process that followed the session before has handed over the last of it."""
    until = time.monotonic() + LAST_SECONDS
    while True:
        try:
            return Follower(run_dir, name, project)
        except BusyError:
            if _ended() or time.monotonic() > until:
                raise


def _ended() -> bool:
    """Waits for the next time to look; True if standard input has ended."""
    ready, _, _ = select.select([0], [], [], PERIOD_SECONDS)
    return bool(ready) and not os.read(0, 4096)


def _end_by_then() -> None:
    """Whatever a library waits for: this process does not stay for ever."""
    timer = threading.Timer(LAST_SECONDS, os._exit, [1])
    timer.daemon = True
    timer.start()


def _tell(handle: int, **said: object) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(handle, json.dumps(said).encode() + b"\n")


def _alone() -> int:
    """Puts what libraries print out of the way, lets the run go first; returns where to tell."""
    tell = os.dup(1)
    os.set_inheritable(tell, False)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.nice(5)
    return tell


if __name__ == "__main__":
    code = main(sys.argv[1], sys.argv[2], sys.argv[3], _alone())
    os._exit(code)  # without what libraries do at exit, which may wait for a network
