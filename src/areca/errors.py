"""What Areca raises when a user can mend the cause.

Each message is one sentence that names the thing, the value and the way out. The command line prints that sentence
and exits with `exit_code`; a traceback is only ever shown for a fault of ours.
"""

import difflib
from collections.abc import Iterable


class ArecaError(Exception):
    """A mistake or a condition that the user can mend."""

    exit_code = 2


class ConfigError(ArecaError):
    """An option, a configuration file or a combination of settings that can't be used."""


class DataError(ArecaError):
    """A corpus, a table, a tokenizer or a token store that can't be read as what it should be."""


class CheckpointError(ArecaError):
    """A checkpoint or a run directory that is missing, damaged or belongs to another configuration."""


class RunBusyError(CheckpointError):
    """Another process trains in the run directory."""


class FitError(ArecaError):
    """A law that the data can't determine, or a fit that did not converge."""


class TrainingError(ArecaError):
    """Training that can't go on, for example because the loss is no longer finite."""


class Diverged(TrainingError):
    """A run whose loss or gradient is no number any more: an outcome of a sweep, an error of a run alone."""


class Interrupted(ArecaError):
    """The user stopped the work (Ctrl-C or SIGTERM); what was done is saved and the same command goes on."""

    exit_code = 130


def closest(word: str, known: Iterable[str]) -> str:
    """The clause `" (did you mean 'train'?)"` to append to a message, or nothing if no known word is close."""
    match = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""
