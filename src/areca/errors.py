"""What Areca raises when a user can mend the cause.

Each message is one sentence that names the thing, the value and the way out. The command line prints that sentence
and exits with `exit_code`; a traceback is only ever shown for a fault of ours.
"""

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

# What is wrong with a path that a user gave: a file where a directory must be, and the like.
_NAMING = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT, errno.ENOTEMPTY}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EROFS, errno.EPERM}


class ArecaError(Exception):
    """A mistake or a condition that the user can mend."""

    exit_code = 2


class ConfigError(ArecaError):
    """An option, a configuration file or a combination of settings that can't be used."""


class DataError(ArecaError):
    """A corpus, a table, a tokenizer or a token store that can't be read as what it should be."""


class CheckpointError(ArecaError):
    """A checkpoint or a run directory that is missing, damaged or belongs to another configuration."""


class BusyError(ArecaError):
    """Another process works in the directory."""


class RunBusyError(CheckpointError, BusyError):
    """Another process trains in the run directory."""


class RemoteError(ArecaError):
    """A place behind a URL that can't be used as it should be."""


class ObjectMissing(RemoteError):
    """There is no such object behind a URL."""


class ObjectDamaged(RemoteError):
    """An object that is not there, or not as it was written: `fault` says so without the way out."""

    def __init__(self, fault: str) -> None:
        super().__init__(f"{fault}; restore it from a copy or write it again.")
        self.fault = fault


class LinkLost(RemoteError):
    """A place behind a URL that gave no answer for as long as one is waited for."""


class WorkerLost(ArecaError):
    """A process that worked for this one ended unexpectedly; what is done is kept and the same command goes on."""


class FitError(ArecaError):
    """A law that the data can't determine, or a fit that did not converge."""


class TrainingError(ArecaError):
    """Training that can't go on, for example because the loss is no longer finite."""


class Diverged(TrainingError):
    """A run whose loss or gradient is no number any more: an outcome of a sweep, an error of a run alone."""


class ProgramError(ArecaError):
    """A program, transfer or host function that failed, or that depends on one that did."""


class IslandError(ArecaError):
    """An island that is lost, or that does not answer in time."""


class Interrupted(ArecaError):
    """The user stopped the work (Ctrl-C or SIGTERM); what was done is saved and the same command goes on."""

    exit_code = 130


def install(extra: str) -> str:
    """The command that brings an extra. Areca is on no index yet, so it is given where its clone is."""
    return f"`pip install -e '.[{extra}]'` in Areca's directory"


def closest(word: str, known: Iterable[str]) -> str:
    """The clause `" (did you mean 'train'?)"` to append to a message, or nothing if no known word is close."""
    match = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def check_positive(what: str, value: float | None, example: str, *, most: float = 1e40) -> None:
    """ConfigError unless `value` is above 0 and below `most`; it says which of the two it is not. None: not given."""
    if value is None or 0 < value < most:
        return
    limit = f"below {most:g}" if value >= most else "a positive number"
    raise ConfigError(f"{what} is {value:g}; it must be {limit}, such as {example}.")


def check_at_least_one(what: str, value: int | None) -> None:
    """ConfigError unless `value` is 1 or more. None: not given."""
    if value is not None and value < 1:
        raise ConfigError(f"{what} is {value}; it must be at least 1.")


def of_the_system(error: OSError, again: str = "run it again", place: str = "") -> str | None:
    """A sentence for what the system refused and a user can mend (a full disk, a path, a permission); None otherwise.

    `again` is how the work goes on once the disk has room, `place` what is named where the error names no file.
    """
    where = error.filename or place
    if error.errno in _FULL:
        target = where or "the output directory"
        if error.errno == errno.EFBIG:
            return f"{target} may not grow as large as it has to (`ulimit -f`); raise the limit and {again}."
        return f"the disk is full while writing {target}; free some and {again}."
    if where and error.errno in _FORBIDDEN:
        return f"no permission to use {where} ({error.strerror}); change its permissions or give another path."
    if where and error.errno in _NAMING and (file := _file_on_the_way(str(where), error.errno)):
        named = "" if file == str(where) else f"{where} can't be used: "
        return f"{named}{file} is a file, where a directory must be; give another path."
    if where and error.errno in _NAMING:
        return f"{where} can't be used ({error.strerror}); give another path."
    return None


def _file_on_the_way(where: str, number: int | None) -> str | None:
    """The file that stands where `where` needs a directory, if that is what is wrong."""
    if number not in (errno.ENOTDIR, errno.EEXIST):
        return None
    path = Path(where)
    return next((str(p) for p in (path, *path.parents) if p.is_file()), None)
