"""Checkpoints of a run: written in the background, whole or absent, and proven by digest before they are loaded.

    checkpoints/
      record.json     the ordered list of checkpoints that count, with the SHA-256 of each of their files
      STEP/           one checkpoint, written by orbax

orbax makes a step directory appear by a rename, but it loads flipped bytes without a word, and a directory that lost
its data still looks like a step to it. So the record is the authority: a checkpoint exists when the record lists it,
the latest is the last one listed (not the highest number), and its files are compared with their digests before orbax
sees them. The order of a save is: commit by orbax, digests, record; of a deletion: record, directory. A process killed
between any two of these leaves directories that the record does not list, and the next writer sweeps them away.
"""

import errno
import json
import math
import re
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from areca.errors import CheckpointError, ConfigError
from areca.files import sync_directory
from areca.train.checkpoint_files import RECORD, Entry, digests, fault, read_record, write_record

State = TypeVar("State")

_OURS = re.compile(r"\d+|.*\.orbax-checkpoint-tmp.*|\.record\.json\..*\.tmp")  # what a writer may sweep away


class Checkpoints:
    """The checkpoints under one directory; one writer at a time (the run's lock sees to that), any number of readers.

    Opened for writing, it creates the directory and sweeps away what a killed process left; opened with
    `writable=False` it changes nothing. `missing` has the steps that the record lists but the disk lost.

    Retention keeps the last `keep_last`, every `keep_every_steps`, and, while `reach` is not 0, a place to go back to
    from the latest by that many steps: the newest that lies so far back, and the one after it, which will once training
    has gone on. So two more suffice, and going back by `reach` never repeats many more steps than that.

    Raises CheckpointError for a record that can't be trusted and for every failure to save or restore. A save that
    fails in the background raises at the next `save`, `check`, `wait` or `close`.
    """

    def __init__(
        self,
        directory: Path | str,
        keep_last: int = 2,
        keep_every_steps: int = 0,
        *,
        reach: int = 0,
        writable: bool = True,
    ) -> None:
        if keep_last < 1 or keep_every_steps < 0:
            raise ConfigError(
                f"checkpoint.keep_last is {keep_last} and checkpoint.keep_every_steps {keep_every_steps}; they must be"
                " at least 1 and 0 (none)."
            )
        self.directory = Path(directory).absolute()
        self.keep_last = keep_last
        self.keep_every_steps = keep_every_steps
        self.reach = reach
        self.writable = writable
        self._entries: tuple[Entry, ...] = ()
        self._thread: threading.Thread | None = None
        self._failure: tuple[int, BaseException] | None = None
        self._written: tuple[int, float] | None = None  # the last save's step, when its writing ended
        self._orbax: Any = None
        self._open()

    # --- reading

    def entries(self) -> tuple[Entry, ...]:
        """All checkpoints of the record, in the order of training."""
        return self._entries

    def latest(self) -> Entry | None:
        """The checkpoint to resume from, or None if there is none yet."""
        return self._entries[-1] if self._entries else None

    @property
    def missing(self) -> tuple[int, ...]:
        """Steps that the record lists and whose directories are gone."""
        return tuple(e.step for e in self._entries if not self._path(e.step).is_dir())

    def entry(self, step: int) -> Entry:
        """The checkpoint of `step`; CheckpointError says which steps there are."""
        for entry in self._entries:
            if entry.step == step:
                return entry
        steps = ", ".join(str(e.step) for e in self._entries) or "none"
        raise CheckpointError(f"{self.directory} has no checkpoint of step {step}; the record lists {steps}.")

    def verify(self, entry: Entry | int) -> Entry:
        """Compares a checkpoint's files with their recorded digests; CheckpointError names the first that differs."""
        entry = self.entry(entry) if isinstance(entry, int) else entry
        wrong = fault(self._path(entry.step), entry)
        if wrong:
            raise CheckpointError(f"checkpoint step {entry.step} in {self.directory} {wrong}; {self._way_out(entry)}.")
        return entry

    def restore(self, entry: Entry | int, example: State, *, part: bool = False) -> tuple[State, dict[str, Any]]:
        """Loads a checkpoint whose files are proven intact, leaf by leaf.

        Args:
            entry: which checkpoint, or its step.
            example: a pytree of arrays or jax.ShapeDtypeStruct (their shardings are used) with the state's structure.
            part: `example` may lack leaves of the state (None in their place), which are then not read.

        Returns:
            The state, equal to the saved one to the bit, and the host state given to `save`.

        Raises:
            CheckpointError: a file is damaged, missing or extra, or the state has other leaves, shapes or dtypes.
        """
        from areca.train import checkpoint_leaves as leaves

        self._finish()
        entry = self.verify(entry)
        wanted = leaves.abstract(example)
        try:
            loaded = self._load(self._path(entry.step), wanted, part)
        except Exception as error:
            raise CheckpointError(
                f"checkpoint step {entry.step} in {self.directory} is intact but can't be loaded ({_brief(error)});"
                f" {self._way_out(entry)}."
            ) from error
        if isinstance(loaded, str):
            raise CheckpointError(
                f"checkpoint step {entry.step} in {self.directory} is of another model or optimizer: {loaded};"
                " use the configuration that it was saved with."
            )
        return leaves.unflatten(loaded, example), json.loads(json.dumps(dict(entry.host)))

    # --- writing

    def save(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
        """Starts saving `state` and returns once it is copied off the devices; the rest happens in the background.

        The state may be donated to the next step right away; memory then holds the saved state, on the host, beside the
        new one until the files are written. A save waits for the one before it.

        Args:
            step: steps done, more than any recorded; after going back, `rewind` first.
            state: pytree of arrays.
            host: JSON values that belong to the state.

        Raises:
            CheckpointError: the step is not past the latest, or this or the previous save failed.
        """
        import jax
        import orbax.checkpoint as ocp

        from areca.train import checkpoint_leaves as leaves

        self._finish()
        self._must_write()
        latest = self.latest()
        if latest is not None and step <= latest.step:
            raise CheckpointError(
                f"step {step} can't be saved in {self.directory} because step {latest.step} is recorded already;"
                " rewind to an earlier step first."
            )
        host = json.loads(json.dumps(dict(host), allow_nan=False))
        try:
            with jax.transfer_guard("allow"):
                self._checkpointer().save(self._path(step), args=ocp.args.PyTreeSave(leaves.flatten(state)))
        except Exception as error:
            self._sweep()
            raise self._explain(step, error) from error
        self._written = (step, math.inf)
        self._thread = threading.Thread(target=self._commit, args=(step, host), name=f"checkpoint-{step}")
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a background save that has ended, without waiting for one that has not."""
        if self._thread is None or not self._thread.is_alive():
            self._finish()

    def writing(self, since: float) -> int | None:
        """The step whose save was still being written at that time of `time.perf_counter` or after it, or None."""
        return self._written[0] if self._written is not None and self._written[1] > since else None

    def wait(self) -> None:
        """Returns when the save in progress, if any, is recorded; raises its error."""
        self._finish()

    def rewind(self, step: int) -> Entry:
        """Forgets every checkpoint after `step`, which must be one; training can then be resumed from it."""
        self._finish()
        entry = self.entry(step)
        self.forget(step)
        return entry

    def forget(self, after: int) -> None:
        """Forgets every checkpoint after a step, be it one or not."""
        self._finish()
        self._must_write()
        self._replace(tuple(e for e in self._entries if e.step <= after))

    def close(self) -> None:
        """Waits for the save in progress and lets go of orbax."""
        try:
            self._finish()
        finally:
            if self._orbax is not None:
                orbax, self._orbax = self._orbax, None
                orbax.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the record

    def _open(self) -> None:
        record = self.directory / RECORD
        if record.exists():
            self._entries = read_record(record)
        elif self.directory.is_dir() and any(p.name.isdigit() for p in self.directory.iterdir()):
            raise CheckpointError(
                f"{record} is missing although there are checkpoints beside it; restore it, or remove {self.directory}"
                " to start over."
            )
        elif self.writable:
            write_record(record, ())
        if self.writable:
            self._sweep()

    def _replace(self, entries: tuple[Entry, ...]) -> None:
        """Makes `entries` the record, then deletes the directories that it no longer lists."""
        write_record(self.directory / RECORD, entries)
        self._entries = entries
        self._sweep()

    def _sweep(self) -> None:
        listed = {str(e.step) for e in self._entries}
        doubtful = not all(e.intact for e in self._entries)  # whose directory is the one that no entry names?
        for path in list(self.directory.iterdir()):
            if path.name in listed or not _OURS.fullmatch(path.name) or (doubtful and path.name.isdigit()):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _kept(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        recent = entries[-self.keep_last :]
        every = self.keep_every_steps
        back: tuple[Entry, ...] = ()
        if self.reach:
            far = sum(e.step <= entries[-1].step - self.reach for e in entries)
            back = entries[max(0, far - 1) : far + 1]
        return tuple(e for e in entries if e in recent or e in back or (every > 0 and e.step % every == 0))

    # --- the background

    def _commit(self, step: int, host: dict[str, Any]) -> None:
        """Waits for orbax' commit, digests the files, records them, drops what retention lets go."""
        try:
            self._checkpointer().wait_until_finished()
            entry = Entry.of(step, digests(self._path(step)), host)
            sync_directory(self.directory)
            self._replace(self._kept((*self._entries, entry)))
        except BaseException as error:
            self._failure = (step, error)
        finally:
            self._written = (step, time.perf_counter())

    def _finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            step, error = failure
            self._sweep()
            if not isinstance(error, Exception):
                raise error
            raise self._explain(step, error) from error

    def _explain(self, step: int, error: Exception) -> CheckpointError:
        latest = self.latest()
        back = f"step {latest.step} is the latest that is whole" if latest else "there is no earlier checkpoint"
        if isinstance(error, CheckpointError):
            return error
        if _disk_is_full(error):
            return CheckpointError(
                f"the disk is full: checkpoint step {step} could not be saved in {self.directory} ({back});"
                " free space and go on with --resume."
            )
        return CheckpointError(
            f"checkpoint step {step} could not be saved in {self.directory} ({back}): {_brief(error)}."
        )

    # --- helpers

    def _checkpointer(self) -> Any:
        if self._orbax is None:
            from areca.train.checkpoint_orbax import checkpointer

            self._orbax = checkpointer()
        return self._orbax

    def _load(self, path: Path, wanted: Mapping[str, Any], part: bool) -> Mapping[str, Any] | str:
        """The stored leaves as `wanted` has them, or how they differ from it."""
        from areca.train.checkpoint_orbax import load

        return load(self._checkpointer(), path, wanted, part=part)

    def _path(self, step: int) -> Path:
        return self.directory / str(step)

    def _must_write(self) -> None:
        if not self.writable:
            raise CheckpointError(f"{self.directory} is open for reading only; open it with writable=True to save.")

    def _way_out(self, entry: Entry) -> str:
        for older in reversed(self._entries):
            if older.step < entry.step and fault(self._path(older.step), older) is None:
                resume = f"go on from it with --resume --from-step {older.step}"
                how = resume if self.writable else f"use --step {older.step}"
                return f"the older checkpoint of step {older.step} is intact: {how}"
        return (
            "no older checkpoint is intact, so restore the files from a copy or start the run again in a new directory"
        )


def _disk_is_full(error: BaseException | None) -> bool:
    """True if the error, or one that it stems from, is the file system's 'no space' (tensorstore says it in words)."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if re.search(r"no space left|disk quota exceeded|ENOSPC", str(error), re.IGNORECASE):
            return True
        error = error.__cause__ or error.__context__
    return False


def _brief(error: BaseException) -> str:
    """The first line of an error's message, without the full stop."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__).strip().rstrip(".")[:300]
