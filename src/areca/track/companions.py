"""The run's side of tracking: a process for each tracker (`areca.track.child`), looked after now and then.

The run writes its files and goes on. A tracker that fails is told of once, in the record and to the user, and is not
tried again before the run is resumed: what it lacks, `areca track` sends.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from areca.track.trackers import check

LOOK_SECONDS = 1.0
GRACE_SECONDS = 10.0  # at the end of a run, for what was just written
_LEFT: list[subprocess.Popen[bytes]] = []  # processes that outlive their run; they end by themselves


class _Companion:
    """One process and what it has told."""

    def __init__(self, name: str, run_dir: Path, project: str) -> None:
        self.name = name
        self.told: dict[str, Any] = {}
        self.done = False
        self._rest = b""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "areca.track.child", str(run_dir), name, project],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run; this one ends after it
        )
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def listen(self) -> None:
        """Takes in what it has told since."""
        assert self.process.stdout is not None
        try:
            self._rest += os.read(self.process.stdout.fileno(), 65536)
        except BlockingIOError:
            return
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):
                self.told |= json.loads(line)

    def release(self) -> None:
        """Tells it that the run has ended."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def leave(self) -> None:
        """Listens no more."""
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self.process.poll() is None:
            _LEFT.append(self.process)


class Companions:
    """The trackers of a run in progress.

    `record` appends an event (its name and fields), `say` tells the user a sentence. Raises ConfigError for a tracker
    that is none or not installed, before anything is started.
    """

    def __init__(
        self,
        names: Sequence[str],
        run_dir: Path,
        project: str,
        record: Callable[..., None],
        say: Callable[[str], None],
    ) -> None:
        self.run_dir, self._record, self._say = run_dir, record, say
        self._looked = 0.0
        self._all: list[_Companion] = []
        for name in check(names):
            try:
                self._all.append(_Companion(name, run_dir, project))
            except OSError as error:
                self._failed(name, f"its process can't be started ({error.strerror})")

    def look(self) -> None:
        """Hears what they have to tell. Costs microseconds, and nothing more than once a second."""
        if not self._all or (now := time.monotonic()) - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        for companion in self._all:
            self._hear(companion)

    def end(self) -> None:
        """Tells all that the run has ended, and waits GRACE_SECONDS for them, together."""
        for companion in self._all:
            companion.release()
        until = time.monotonic() + GRACE_SECONDS
        for companion in self._all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                companion.process.wait(max(0.0, until - time.monotonic()))
            self._hear(companion)
            if not companion.done:
                self._say(
                    f"{companion.name} still takes the last numbers of {self.run_dir} in a process of its own (pid "
                    f"{companion.process.pid}, for at most five minutes); `areca track {self.run_dir} --to "
                    f"{companion.name}` sends what it did not take."
                )
            companion.leave()
        self._all = []

    def release(self) -> None:
        """Tells all that the run has ended, and neither waits nor records anything: the run is being given up."""
        for companion in self._all:
            companion.release()
            companion.leave()
        self._all = []

    def _hear(self, companion: _Companion) -> None:
        if companion.done:
            return
        code = companion.process.poll()
        before = dict(companion.told)
        companion.listen()
        if "at" in companion.told and "at" not in before:
            self._record("tracking", tracker=companion.name, at=companion.told["at"])
        if code is not None:
            companion.done = True
            if code or "failed" in companion.told:
                self._failed(companion.name, companion.told.get("failed", f"its process ended with code {code}"))

    def _failed(self, name: str, why: str) -> None:
        self._record("tracker_failed", tracker=name, why=why)
        self._say(
            f"{name} takes no more numbers of {self.run_dir} ({why}); the run goes on, metrics.jsonl has "
            f"all, and `areca track {self.run_dir} --to {name}` sends them later."
        )
