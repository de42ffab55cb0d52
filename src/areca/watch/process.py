"""Whether the process of a run is alive, and its memory, without touching the lock that it holds.

To try the lock would be to hold it for a moment, and a run that starts in that moment would be refused. The lock's file
has the holder's pid; that the process still has that file open tells it from another with the same pid.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from areca.files import LOCK

Alive = Literal["yes", "no", "unknown"]  # unknown: no process of this machine, or one that can't be looked at


@dataclass(frozen=True)
class Process:
    """Who holds a directory's lock. Memory in bytes, where the system says."""

    alive: Alive
    pid: int | None = None
    memory: int | None = None
    memory_peak: int | None = None


def holder(directory: Path, proc: Path = Path("/proc")) -> Process:
    """The process at work in a directory that `areca.files.take_lock` locks."""
    try:
        pid = int((directory / LOCK).read_text("ascii").strip() or 0)
    except (OSError, ValueError):
        return Process("no")
    if pid <= 0 or not _exists(pid):
        return Process("no", pid or None)
    if not proc.is_dir():
        return Process("unknown", pid)
    try:
        held = any(_same(entry, directory / LOCK) for entry in (proc / str(pid) / "fd").iterdir())
    except PermissionError:  # of another user
        return Process("unknown", pid)
    except OSError:  # it ended just now
        return Process("no", pid)
    if not held:
        return Process("no", pid)
    return Process("yes", pid, _status(proc / str(pid), "VmRSS"), _status(proc / str(pid), "VmHWM"))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _same(entry: Path, path: Path) -> bool:
    try:
        return os.path.samefile(entry, path)
    except OSError:
        return False


def _status(process: Path, field: str) -> int | None:
    """Bytes that a line "VmRSS:  1234 kB" of /proc/PID/status says."""
    try:
        for line in (process / "status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None
