"""The run's side of its copy: starts the process that makes it (`areca.train.away.copier`), and passes on how it goes.

A link that is lost does not touch the run: it is told of once, in events.jsonl and to the user, and the copy is made up
for when the link is back.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from areca.train.away.copier import STATUS

LOOK_SECONDS = 1.0
QUIET_SECONDS = 2.0  # of waiting at the end before it is said


class Copying:
    """The copy of a run in progress. `record` appends an event (its name, its fields), `say` tells the user.

    `module` is what makes it, and `goes_on` and `sends` the words for what goes on without it and what sends the rest;
    a ladder has its own (`areca.study.copies`).
    """

    def __init__(
        self,
        url: str,
        run_dir: Path,
        record: Callable[..., None],
        say: Callable[[str], None],
        *,
        module: str = "areca.train.away.copier",
        goes_on: str = "The run goes on",
        sends: str = "--resume with --copy-to",
    ) -> None:
        self.url, self.run_dir, self._record, self._say = url, run_dir, record, say
        self._goes_on, self._sends = goes_on, sends
        self._looked, self._status, self._out, self._dead = 0.0, _status(run_dir), False, False
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(run_dir), url],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the run; this one ends after it
        )  # fmt: skip

    def look(self) -> None:
        """Hears how it goes. Costs microseconds, and nothing more than once a second."""
        if (now := time.monotonic()) - self._looked >= LOOK_SECONDS:
            self._looked = now
            self._hear()

    def end(self) -> None:
        """Waits until the last state is copied, or can't be; a signal meanwhile leaves that to the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        started, said = time.monotonic(), False
        while self.process.poll() is None:
            time.sleep(0.05)
            self.look()
            if not said and time.monotonic() - started > QUIET_SECONDS:
                said = True
                self._say(f"the last state of {self.run_dir} is being copied to {self.url} (pid {self.process.pid}).")
        self._hear()

    def _hear(self) -> None:
        code, status = self.process.poll(), _status(self.run_dir)
        if status is not None and status != self._status:
            self._status = status
            if status["failed"] is None:
                self._record("copied", **{k: status.get(k) for k in ("step", "seconds", "bytes")})
                if self._out:
                    self._say(f"{self.run_dir} is copied to {self.url} again, {status['reached']}.")
                self._out = False
            elif not self._out:
                self._failed(status["failed"])
        if code and not self._dead:
            self._dead = True
            if not self._out:
                self._failed(f"its process ended with code {code}; {self._sends} sends what is left.")
            else:
                self._say(f"{self.url} lacks the last state of {self.run_dir}; {self._sends} sends it.")

    def _failed(self, why: str) -> None:
        self._out = True
        self._record("copy_failed", why=why)
        self._say(f"{self.run_dir} is not being copied to {self.url}: {why} {self._goes_on}, on this machine's disk.")


@contextlib.contextmanager
def copying(
    url: str, run_dir: Path, record: Callable[..., None], say: Callable[[str], None]
) -> Iterator[Copying | None]:
    """Copies the run while the block lasts, and its last state at the end; does nothing without a URL."""
    if not url:
        yield None
        return
    copy = Copying(url, run_dir, record, say)
    try:
        yield copy
    finally:
        copy.end()


def _status(run_dir: Path) -> dict[str, Any] | None:
    try:
        return json.loads((run_dir / STATUS).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
