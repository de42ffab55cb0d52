"""What a checkpoint is on disk: its entry in the record, the digests of its files, and what may be wrong with them.

No jax here: `areca` verbs that only look at a run can use it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.errors import CheckpointError, DataError
from areca.files import read_json, sha256_file, sha256_json, write_json

RECORD = "record.json"


@dataclass(frozen=True)
class Entry:
    """One checkpoint, as the record lists it."""

    step: int
    files: Mapping[str, str]  # path relative to the step directory -> SHA-256
    host: Mapping[str, Any]  # the small state outside the arrays: tokens seen, index of the next example, ...
    digest: str  # SHA-256 over step, files and host

    @classmethod
    def of(cls, step: int, files: Mapping[str, str], host: Mapping[str, Any]) -> "Entry":
        """The entry for these contents."""
        return cls(step, files, host, sha256_json({"step": step, "files": dict(files), "host": dict(host)}))

    @property
    def intact(self) -> bool:
        """Whether it is as it was written."""
        return self.digest == Entry.of(self.step, self.files, self.host).digest


def read_record(path: Path) -> tuple[Entry, ...]:
    """The checkpoints in record.json, in the order of training; CheckpointError if it is not such a record."""
    try:
        rows = read_json(path)["checkpoints"]
        return tuple(Entry(int(r["step"]), dict(r["files"]), dict(r["host"]), str(r["digest"])) for r in rows)
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} can't be read as the record of checkpoints ({str(error).rstrip('.')}); restore it from a copy,"
            f" or remove {path.parent} to start over."
        ) from None


def write_record(path: Path, entries: tuple[Entry, ...]) -> None:
    """Makes `entries` the record, atomically."""
    rows = [{"step": e.step, "digest": e.digest, "files": dict(e.files), "host": dict(e.host)} for e in entries]
    write_json(path, {"checkpoints": rows})


def digests(directory: Path) -> dict[str, str]:
    """SHA-256 of every file under `directory`, each made durable first."""
    found: dict[str, str] = {}
    for name in _names(directory):
        handle = os.open(directory / name, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        found[name] = sha256_file(directory / name)
    if not found:
        raise CheckpointError(f"{directory} is empty after its save.")
    return found


def fault(directory: Path, entry: Entry) -> str | None:
    """What is wrong with the files of a checkpoint, as the rest of a sentence that begins with its name, or None."""
    if not entry.intact:
        return f"is damaged: its entry in {RECORD} differs from the digest {entry.digest[:12]} written with it"
    if not directory.is_dir():
        return "is in the record but its directory is missing"
    present = set(_names(directory))
    for name in sorted(entry.files.keys() - present):
        return f"is damaged: its file {name} is missing"
    for name in sorted(present - entry.files.keys()):
        return f"is damaged: its file {name} is not one that was saved"
    for name, digest in entry.files.items():
        if sha256_file(directory / name) != digest:
            return f"is damaged: the SHA-256 of its file {name} is not the {digest[:12]} recorded when it was saved"
    return None


def _names(directory: Path) -> list[str]:
    return sorted(p.relative_to(directory).as_posix() for p in directory.rglob("*") if not p.is_dir())
