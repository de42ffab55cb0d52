"""The view that stays: drawn anew every interval until the run is finished, `q`, Ctrl-C, or no terminal is left."""

import contextlib
import os
import select
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from areca.errors import CheckpointError, ConfigError, DataError
from areca.files import LOCK, read_json
from areca.remote.place import is_url
from areca.track.rows import EVENTS, METRICS, RUN
from areca.watch.family import COPY, LADDER, QUICKSTART, FamilyWatch, is_family
from areca.watch.run import RunState, RunWatch
from areca.watch.text import family_lines, run_lines

SHORTEST, LONGEST = 0.1, 3600.0  # seconds between two looks


class View:
    """A directory as it is at this moment: a run, or several, or nothing yet."""

    def __init__(self, directory: Path | str) -> None:
        if is_url(directory):
            raise ConfigError(f"{directory} is a URL, and files of this machine are watched; name a directory.")
        self.directory = Path(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise ConfigError(f"{directory} is a file; name a run directory, or one of several.")
        _check(self.directory)
        self._watch: RunWatch | FamilyWatch = RunWatch(self.directory)

    def look(self) -> list[RunState]:
        """One state of a run, several of a family. What was nothing may have become either."""
        if isinstance(self._watch, RunWatch):
            if is_family(self.directory):
                self._watch = FamilyWatch(self.directory)
            else:
                return [self._watch.look()]
        return self._watch.look()

    def lines(self, states: list[RunState], width: int, height: int = 0, plain: bool = False) -> list[str]:
        """What is shown of them."""
        if isinstance(self._watch, FamilyWatch):
            return family_lines(states, str(self.directory), width, height)
        return run_lines(states[0], width, plain)

    def over(self, states: list[RunState]) -> bool:
        """Whether nothing more can happen."""
        if isinstance(self._watch, FamilyWatch) and self._watch.alive():
            return False
        return all(s.phase == "finished" for s in states)


def _check(directory: Path) -> None:
    """CheckpointError for a directory that holds other things than runs, DataError for a record that is damaged.

    What is not there, is empty, or has been locked by a run that has written nothing yet may still become one.
    """
    copies = [directory / COPY, *directory.glob(f"runs/*/{COPY}")]
    if any(path.is_file() for path in copies):
        raise CheckpointError(f"{directory} is a copy (`--copy-to`); watch the directory that it is made of.")
    records = [directory / name for name in (RUN, LADDER, QUICKSTART) if (directory / name).exists()]
    for path in records:
        if not isinstance(read_json(path), dict):
            raise DataError(f"{path} is not the record of a {path.stem}; restore it from a copy.")
    begun = records or any((directory / name).exists() for name in (METRICS, EVENTS, LOCK))
    if directory.is_dir() and not begun and any(directory.iterdir()) and not is_family(directory):
        raise CheckpointError(
            f"{directory} holds no run (it has no {RUN}, nor has a directory in it); name one of `areca train`."
        )


def summary(directory: Path | str) -> dict[str, Any]:
    """The state as JSON: {"runs": [...]}, without the curves."""
    found = []
    for state in View(directory).look():
        values = {k: v for k, v in asdict(state).items() if k != "curve"}
        found.append(values | {"events": values["events"][-20:]})
    return {"directory": str(directory), "runs": found}


def once(directory: Path | str, width: int = 10_000) -> str:
    """The state as plain text."""
    view = View(directory)
    return "\n".join(view.lines(view.look(), width, plain=True))


def check_interval(interval: float) -> None:
    """ConfigError for seconds that are no interval to look at files in."""
    if not SHORTEST <= interval <= LONGEST:
        raise ConfigError(f"--interval is {interval:g}; it must be from {SHORTEST:g} to {LONGEST:,.0f} seconds.")


def watch(directory: Path | str, interval: float) -> None:
    """Draws the view until nothing more can happen, `q` or Ctrl-C. The last one stays on the terminal."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    view, console = View(directory), Console(highlight=False)
    with contextlib.suppress(KeyboardInterrupt), _keys() as pressed, Live(console=console, auto_refresh=False) as live:
        while True:
            states = view.look()
            lines = view.lines(states, console.width, console.height - 1)[: max(1, console.height - 2)]
            over = view.over(states)
            if not over:
                lines.append("q leaves; the run goes on"[: console.width])
            live.update(Text("\n".join(lines), no_wrap=True, overflow="crop"), refresh=True)
            if over or pressed(interval) in ("q", "Q", "\x03"):
                return


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits so many seconds for a key and returns it, or ""; the terminal is as before afterwards."""
    try:
        import termios
        import tty

        handle = sys.stdin.fileno()
        before = termios.tcgetattr(handle)
    except (ImportError, OSError, ValueError, termios.error):  # standard input is no terminal
        yield lambda seconds: time.sleep(seconds) or ""
        return

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([handle], [], [], seconds)
        return os.read(handle, 1).decode("latin-1") if ready else ""

    try:
        tty.setcbreak(handle)
        yield pressed
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
