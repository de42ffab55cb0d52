"""Checkpoints of a run: written in the background, whole or absent, and proven by digest before they are loaded.

    checkpoints/
      record.json     the ordered list of checkpoints that count, with the SHA-256 of each of their files
      STEP/           one checkpoint, written by orbax

orbax makes a step directory appear by a rename, but it loads flipped bytes without a word, and a directory that lost
its data still looks like a step to it. So the record is the authority: a checkpoint exists when the record lists it,
the latest is the last one listed (not the highest number), and its files are compared with their digests before orbax
sees them. The order of a save is: commit by orbax, digests, record; of a deletion: record, directory. A process killed
between any two of these leaves directories that the record does not list, and the next writer sweeps them away.

The state is a pytree of jax arrays (numpy arrays and Python numbers too); it is stored flat, by the dotted path of each
leaf, so that what is on disk does not depend on the classes that the code uses today.
"""

import errno
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from areca.errors import CheckpointError, DataError
from areca.files import read_json, sha256_file, sha256_json, sync_directory, write_json

State = TypeVar("State")

RECORD = "record.json"
_OURS = re.compile(r"\d+|.*\.orbax-checkpoint-tmp.*|\.record\.json\..*\.tmp")  # what a writer may sweep away


@dataclass(frozen=True)
class Entry:
    """One checkpoint, as the record lists it."""

    step: int
    files: Mapping[str, str]  # path relative to the step directory -> SHA-256
    host: Mapping[str, Any]  # the small state outside the arrays: tokens seen, index of the next example, ...
    digest: str  # SHA-256 over step, files and host

    @classmethod
    def of(cls, step: int, files: dict[str, str], host: dict[str, Any]) -> "Entry":
        """The entry for these contents."""
        return cls(step, files, host, sha256_json({"step": step, "files": files, "host": host}))

    def to_dict(self) -> dict[str, Any]:
        """The entry as it stands in record.json."""
        return {"step": self.step, "digest": self.digest, "files": dict(self.files), "host": dict(self.host)}


class Checkpoints:
    """The checkpoints under one directory; one writer at a time (the run's lock sees to that), any number of readers.

    Opened for writing, it creates the directory and sweeps away what a killed process left; opened with
    `writable=False` it changes nothing. `missing` has the steps that the record lists but the disk lost.

    Raises CheckpointError for a record that can't be trusted and for every failure to save or restore. A save that
    fails in the background raises at the next `save`, `check`, `wait` or `close`.
    """

    def __init__(
        self, directory: Path | str, keep_last: int = 2, keep_every_steps: int = 0, *, writable: bool = True
    ) -> None:
        self.directory = Path(directory).absolute()
        self.keep_last = max(1, keep_last)
        self.keep_every_steps = keep_every_steps
        self.writable = writable
        self._entries: tuple[Entry, ...] = ()
        self._thread: threading.Thread | None = None
        self._failure: tuple[int, BaseException] | None = None
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
        fault = self._fault(entry)
        if fault:
            raise CheckpointError(f"checkpoint step {entry.step} in {self.directory} {fault}; {self._way_out(entry)}.")
        return entry

    def restore(self, entry: Entry | int, example: State) -> tuple[State, dict[str, Any]]:
        """Loads a checkpoint whose files are proven intact.

        Args:
            entry: which checkpoint, or its step.
            example: a pytree of arrays or jax.ShapeDtypeStruct (their shardings are used) with the state's structure.

        Returns:
            The state, equal to the saved one to the bit, and the host state given to `save`.

        Raises:
            CheckpointError: a file is damaged, missing or extra, or the state has other leaves, shapes or dtypes.
        """
        import jax
        import orbax.checkpoint as ocp

        self._finish()
        entry = self.verify(entry)
        paths, structure = jax.tree_util.tree_flatten_with_path(example)
        wanted = {_name(path): leaf for path, leaf in paths}
        path = self._path(entry.step)
        try:
            with jax.transfer_guard("allow"):
                stored = self._checkpointer().metadata(path).item_metadata.tree
                abstract = {name: _abstract(leaf) for name, leaf in wanted.items()}
                abstract = {name: leaf for name, leaf in abstract.items() if leaf.size}
                self._compare(entry.step, stored, abstract)
                arguments = ocp.args.PyTreeRestore(
                    item=abstract, restore_args=ocp.checkpoint_utils.construct_restore_args(abstract)
                )
                loaded = self._checkpointer().restore(path, args=arguments)
                leaves = [_thaw(loaded.get(name), leaf) for name, leaf in wanted.items()]
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"checkpoint step {entry.step} in {self.directory} is intact but can't be loaded"
                f" ({_brief(error)}); {self._way_out(entry)}."
            ) from error
        return jax.tree_util.tree_unflatten(structure, leaves), json.loads(json.dumps(dict(entry.host)))

    # --- writing

    def save(self, step: int, state: Any, host: Mapping[str, Any]) -> None:
        """Starts saving `state` and returns once it is copied off the devices; the rest happens in the background.

        The state may be donated to the next step right away. A save waits for the one before it.

        Args:
            step: steps done, more than any recorded; after going back, `rewind` first.
            state: pytree of arrays.
            host: JSON values that belong to the state.

        Raises:
            CheckpointError: the step is not past the latest, or this or the previous save failed.
        """
        import jax
        import orbax.checkpoint as ocp

        self._finish()
        self._must_write()
        latest = self.latest()
        if latest is not None and step <= latest.step:
            raise CheckpointError(
                f"step {step} can't be saved in {self.directory} because step {latest.step} is recorded already;"
                " rewind to an earlier step first."
            )
        host = json.loads(json.dumps(dict(host), allow_nan=False))
        leaves = {_name(path): _freeze(leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]}
        leaves = {name: leaf for name, leaf in leaves.items() if leaf.size}  # orbax refuses arrays without elements
        try:
            with jax.transfer_guard("allow"):
                self._checkpointer().save(self._path(step), args=ocp.args.PyTreeSave(leaves))
        except Exception as error:
            self._sweep()
            raise self._explain(step, error) from error
        self._thread = threading.Thread(target=self._commit, args=(step, host), name=f"checkpoint-{step}")
        self._thread.start()

    def check(self) -> None:
        """Raises the error of a background save that has ended, without waiting for one that has not."""
        if self._thread is None or not self._thread.is_alive():
            self._finish()

    def wait(self) -> None:
        """Returns when the save in progress, if any, is recorded; raises its error."""
        self._finish()

    def rewind(self, step: int) -> Entry:
        """Forgets every checkpoint after `step`, which must be one; training can then be resumed from it."""
        self._finish()
        self._must_write()
        entry = self.entry(step)
        self._replace(self._entries[: self._entries.index(entry) + 1])
        return entry

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
            self._entries = _read_record(record)
        elif self.directory.is_dir() and any(p.name.isdigit() for p in self.directory.iterdir()):
            raise CheckpointError(
                f"{record} is missing although there are checkpoints beside it; restore it, or remove {self.directory}"
                " to start over."
            )
        elif self.writable:
            write_json(record, {"checkpoints": []})
        if self.writable:
            self._sweep()

    def _replace(self, entries: tuple[Entry, ...]) -> None:
        """Makes `entries` the record, then deletes the directories that it no longer lists."""
        write_json(self.directory / RECORD, {"checkpoints": [e.to_dict() for e in entries]})
        self._entries = entries
        self._sweep()

    def _sweep(self) -> None:
        listed = {str(e.step) for e in self._entries}
        for path in list(self.directory.iterdir()):
            if path.name in listed or not _OURS.fullmatch(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def _kept(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        recent = entries[-self.keep_last :]
        every = self.keep_every_steps
        return tuple(e for e in entries if e in recent or (every > 0 and e.step % every == 0))

    # --- the background

    def _commit(self, step: int, host: dict[str, Any]) -> None:
        """Waits for orbax' commit, digests the files, records them, drops what retention lets go."""
        try:
            self._checkpointer().wait_until_finished()
            entry = Entry.of(step, _digests(self._path(step)), host)
            sync_directory(self.directory)
            self._replace(self._kept((*self._entries, entry)))
        except BaseException as error:
            self._failure = (step, error)

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
            self._orbax = _orbax_checkpointer()
        return self._orbax

    def _path(self, step: int) -> Path:
        return self.directory / str(step)

    def _must_write(self) -> None:
        if not self.writable:
            raise CheckpointError(f"{self.directory} is open for reading only; open it with writable=True to save.")

    def _fault(self, entry: Entry) -> str | None:
        """What is wrong with a checkpoint's files, as the rest of a sentence, or None."""
        directory = self._path(entry.step)
        if not directory.is_dir():
            return "is in the record but its directory is missing"
        if entry.digest != Entry.of(entry.step, dict(entry.files), dict(entry.host)).digest:
            return f"is damaged: its entry in {RECORD} does not have the digest {entry.digest[:12]} written with it"
        present = set(_files(directory))
        for name in sorted(entry.files.keys() - present):
            return f"is damaged: its file {name} is missing"
        for name in sorted(present - entry.files.keys()):
            return f"is damaged: its file {name} is not one that was saved"
        for name, digest in entry.files.items():
            if sha256_file(directory / name) != digest:
                return f"is damaged: its file {name} does not have the SHA-256 {digest[:12]}... recorded at the save"
        return None

    def _way_out(self, entry: Entry) -> str:
        for older in reversed(self._entries):
            if older.step < entry.step and self._fault(older) is None:
                return (
                    f"the older checkpoint of step {older.step} is intact: go on from it with --from-step {older.step}"
                )
        return (
            "no older checkpoint is intact, so restore the files from a copy or start the run again in a new directory"
        )

    def _compare(self, step: int, stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Raises CheckpointError if the stored leaves are not those that the caller's state has."""
        head = f"checkpoint step {step} in {self.directory} is of another model or optimizer"
        for name in sorted(wanted.keys() - stored.keys()):
            raise CheckpointError(f"{head}: it has no {name}; use the configuration that it was saved with.")
        for name in sorted(stored.keys() - wanted.keys()):
            raise CheckpointError(
                f"{head}: it has {name}, which this one lacks; use the configuration it was saved with."
            )
        for name, ours in wanted.items():
            theirs = stored[name]
            if tuple(ours.shape) != tuple(theirs.shape) or str(ours.dtype) != str(theirs.dtype):
                raise CheckpointError(
                    f"{head}: its {name} is {theirs.dtype}{list(theirs.shape)} and this one's"
                    f" {ours.dtype}{list(ours.shape)}; use the configuration it was saved with."
                )


def _read_record(path: Path) -> tuple[Entry, ...]:
    try:
        rows = read_json(path)["checkpoints"]
        return tuple(Entry(int(r["step"]), dict(r["files"]), dict(r["host"]), str(r["digest"])) for r in rows)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} can't be read as the record of checkpoints ({_brief(error)}); restore it from a copy, or remove"
            f" {path.parent} to start over."
        ) from None


def _files(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if not p.is_dir())


def _digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file under `directory`, each made durable first."""
    found: dict[str, str] = {}
    for name in _files(directory):
        handle = os.open(directory / name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        found[name] = sha256_file(directory / name)
    if not found:
        raise CheckpointError(f"{directory} is empty after its save.")
    return found


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


def _name(path: tuple[Any, ...]) -> str:
    import jax

    return jax.tree_util.keystr(path, simple=True, separator=".") or "state"


def _is_key(leaf: Any) -> bool:
    """True for an array of typed random keys, which are stored as their uint32 words."""
    import jax

    return isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _freeze(leaf: Any) -> Any:
    """A leaf as orbax stores it; what the caller could still change is copied."""
    import jax
    import numpy as np

    if _is_key(leaf):
        return jax.random.key_data(leaf)
    return leaf if isinstance(leaf, jax.Array) else np.array(leaf)


def _abstract(leaf: Any) -> Any:
    """Shape, dtype and sharding that a leaf is to be restored with."""
    import jax
    import numpy as np

    if isinstance(leaf, jax.ShapeDtypeStruct):
        if leaf.sharding is None:
            here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here)
        return leaf
    leaf = _freeze(leaf)
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return np.empty(leaf.shape, leaf.dtype)


def _thaw(value: Any, example: Any) -> Any:
    """A restored leaf as the kind that the example has."""
    import jax

    if value is None:  # an array without elements, which is not stored
        return jax.numpy.zeros(example.shape, example.dtype)
    if _is_key(example):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(example))
    return type(example)(value.item()) if isinstance(example, bool | int | float) else value


def _orbax_checkpointer() -> Any:
    """orbax for one process: one database of files, uncompressed (weights hardly compress), silent but for errors."""
    import orbax.checkpoint as ocp

    _hush_orbax()
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True, use_compression=False)
    return ocp.AsyncCheckpointer(handler)


def _hush_orbax() -> None:
    """Drops what orbax logs through absl: every error also raises, and one sentence of ours says what failed."""
    logger = logging.getLogger("absl")
    if not any(f is _not_orbax for f in logger.filters):
        logger.addFilter(_not_orbax)


def _not_orbax(record: logging.LogRecord) -> bool:
    return f"{os.sep}orbax{os.sep}" not in record.pathname
