"""Directories that are whole or absent: built in a locked hidden sibling, which gets its name when all is there."""

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from areca.errors import BusyError, WorkerLost
from areca.files import sync_directory

_SUFFIX = ".building"


@contextlib.contextmanager
def building(out: Path, goes_on: Callable[[Path], bool] = lambda _: False) -> Iterator[Path]:
    """A locked hidden directory beside `out`; removed unless renamed. Sweeps those of processes that were killed.

    One for which `goes_on` holds is kept when the user interrupts or a worker is lost, and is taken again. BusyError if
    another process builds `out`. An OSError about a file of the hidden directory names `out`.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    directory, handle = None, -1
    try:
        with _open_directory(out.parent) as parent:  # one process at a time looks around and takes its place
            fcntl.flock(parent, fcntl.LOCK_EX)
            for stale in out.parent.glob(f".{glob.escape(out.name)}.*{_SUFFIX}"):
                taken = _sweep(stale, out, goes_on if directory is None else lambda _: False)
                if taken >= 0:
                    directory, handle = stale, taken
            if directory is None:
                directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=_SUFFIX, dir=out.parent))
                handle = os.open(directory, os.O_RDONLY)
                fcntl.flock(handle, fcntl.LOCK_EX)
        os.chmod(directory, 0o755)
        yield directory
    except (KeyboardInterrupt, WorkerLost):
        if directory and goes_on(directory):
            directory = None  # for the next
        raise
    except OSError as error:
        ours = error.filename is None or f".{out.name}." in str(error.filename)
        if error.errno is not None and ours:
            raise OSError(error.errno, error.strerror, str(out)) from None
        raise
    finally:
        if handle >= 0:
            os.close(handle)
        if directory:
            shutil.rmtree(directory, ignore_errors=True)


def appear(directory: Path, out: Path) -> None:
    """Gives a directory of `building` its name, for good."""
    os.rename(directory, out)
    sync_directory(out.parent)


def _sweep(directory: Path, out: Path, goes_on: Callable[[Path], bool]) -> int:
    """Removes what a killed process left, or returns a locked handle of it; BusyError if the process still runs."""
    with contextlib.suppress(FileNotFoundError, PermissionError), _open_directory(directory) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"{out} is being built by another process; wait until it ends, stop it, or choose another --out."
            ) from None
        if goes_on(directory):
            return os.dup(handle)
        shutil.rmtree(directory, ignore_errors=True)
    return -1


@contextlib.contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
