"""Copies of runs behind a URL: what one is, fetching it back, and reading a run or a model there.

    URL/copy.json                      which parts make which file of the run, with their SHA-256; replaced last
    URL/parts/FILE/NUMBER.DIGEST       up to 8 MiB of a file, never changed

As a part's name has its digest, nothing that copy.json names is ever written again: whoever reads sees the run as it
was at one checkpoint or at the next, whenever the writer was killed. What the new copy.json does not name is removed
after it is there. The writer is a process of its own beside the run (`areca.train.copying`).
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from areca.errors import CheckpointError, ConfigError, RemoteError
from areca.files import sha256_file, sync_directory, take_lock
from areca.remote.fetch import Wanted, alone, fetch
from areca.remote.place import Place, is_url
from areca.runtime import cache_directory
from areca.train.checkpoint_files import RECORD, Entry, read_record
from areca.train.record import CHECKPOINTS, RUN, unstarted

Say = Callable[[str], None]

MANIFEST, FORMAT, VERSION = "copy.json", "areca run copy", 1
PART = 8 << 20
REWINDS = "rewinds.json"
_TRIES = 5  # of a reader whose parts are removed because the copy went on
_OLD = 3600.0  # seconds after which what was fetched of an earlier state may go


def read_manifest(place: Place) -> dict[str, Any] | None:
    """copy.json of a place; None if there is none. RemoteError if it is no such thing."""
    if place.info(MANIFEST) is None:
        return None
    try:
        found = json.loads(place.read(MANIFEST))
        if (found["format"], found["version"]) == (FORMAT, VERSION) and isinstance(found["files"], dict):
            return found
    except (ValueError, KeyError, TypeError):
        pass
    raise RemoteError(f"{place.of(MANIFEST)} is not what this version of areca writes; choose another URL.")


def progress_of(run_dir: Path) -> tuple[int, int]:
    """How far a run's files are: how often it went back from a spike, and the step of its last checkpoint."""
    rewinds, record = run_dir / REWINDS, run_dir / CHECKPOINTS / RECORD
    entries = read_record(record) if record.is_file() else ()
    text = rewinds.read_text() if rewinds.is_file() else "[]"
    return text.count("spike_step"), entries[-1].step if entries else 0


def settle(url: str, run_dir: Path, resume: str, from_step: int | None, say: Say) -> None:
    """Sees to it that the run in `run_dir` may be copied to `url`: a run that this machine has lost is fetched back.

    CheckpointError where a copy would be lost: of a run when one is started, of another run, or of a later state.
    """
    place = Place(url)
    manifest = read_manifest(place)
    if manifest is None:
        others = [name for name in place.names() if not name.startswith("parts/")]
        if others:
            raise ConfigError(f"{url} is not empty and holds no copy of a run ({others[0]}); choose another --copy-to.")
        return
    if resume == "never":
        raise CheckpointError(f"{url} holds the copy of a run; go on with --resume, or choose another --copy-to.")
    if not (run_dir / RUN).exists():
        if unstarted(run_dir):
            _bring_back(place, run_dir, say)
        return
    if sha256_file(run_dir / RUN) != manifest["files"][RUN]["sha256"]:
        raise CheckpointError(f"{url} holds the copy of another run than {run_dir}; choose another --copy-to.")
    here, there = progress_of(run_dir), (manifest["rewinds"], manifest["step"])
    if here < there and from_step is None:
        raise CheckpointError(
            f"{url} has a later state (step {there[1]}) than {run_dir} (step {here[1]}), which would take its place; "
            f"remove {run_dir} to go on from the copy, or choose another --copy-to."
        )


def _bring_back(place: Place, run_dir: Path, say: Say) -> None:
    """Makes `run_dir` what the copy is, whole or not at all."""
    hidden = run_dir.with_name(f".{run_dir.name}.fetching")
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    handle = take_lock(hidden, "being fetched")
    try:
        manifest = _fetched(place, hidden, lambda name: True, say)
        (hidden / ".lock").unlink()
        if run_dir.exists():  # with no more than a run that was killed before it began leaves
            os.close(take_lock(run_dir, "being trained"))
            shutil.rmtree(run_dir)
        hidden.rename(run_dir)
        sync_directory(run_dir.parent)
    finally:
        os.close(handle)
    say(f"{run_dir} is fetched from its copy {place}, at step {manifest['step']}.")


def local_run(run: Path | str, step: int | None = None, say: Say = lambda _: None) -> Path:
    """The directory of a run or model: itself, or, of one behind a URL, where it is fetched to.

    Of a run's copy that is all but its checkpoints, and the latest of them or that of `step`. A directory that was
    brought there by other means is read as well; only its checkpoint is proven by digest.
    """
    if not is_url(run):
        return Path(run)
    place = Place(str(run))
    manifest = read_manifest(place)
    state = manifest if manifest is not None else _plain(place)
    url, seen = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (place.url, json.dumps(state)))
    directory = cache_directory() / "remote" / "runs" / f"{url}-{seen}-{'latest' if step is None else step}"
    if not directory.is_dir():
        with alone(f"runs/{directory.name}.part", say) as part:
            if not directory.is_dir():
                _fetch_run(place, part, step, manifest, say)
                part.rename(directory)
        _drop_old(directory, f"{url}-")
    return directory


def _fetch_run(place: Place, part: Path, step: int | None, manifest: dict[str, Any] | None, say: Say) -> None:
    record = f"{CHECKPOINTS}/{RECORD}"
    for apart in (lambda name: name == record or not name.startswith(f"{CHECKPOINTS}/"), None):
        if apart is None:
            entries = read_record(part / record) if (part / record).is_file() else ()
            chosen = entries[-1:] if step is None else [e for e in entries if e.step == step]
            if not chosen:
                return  # whoever reads it says which there are
            apart = _of_checkpoint(chosen[0])
        if manifest is not None:
            _fetched(place, part, apart, say)
        else:
            _fetched_plain(place, part, apart)


def _of_checkpoint(entry: Entry) -> Callable[[str], bool]:
    return lambda name: name.startswith(f"{CHECKPOINTS}/{entry.step}/")


def _fetched(place: Place, directory: Path, wanted: Callable[[str], bool], say: Say) -> dict[str, Any]:
    """Fetches the files of a copy that are wanted; returns its manifest. Begins again if the copy goes on meanwhile."""
    for left in range(_TRIES, 0, -1):
        manifest = read_manifest(place)
        if manifest is None:
            raise RemoteError(f"{place} holds no copy of a run any more.")
        files = {n: f for n, f in manifest["files"].items() if wanted(n)}
        for name, file in files.items():  # of an earlier state
            if (directory / name).is_file() and sha256_file(directory / name) != file["sha256"]:
                (directory / name).unlink()
        try:
            fetch(
                place, {n: Wanted(tuple(map(tuple, f["parts"])), f["sha256"]) for n, f in files.items()}, directory, say
            )
            return manifest
        except RemoteError:
            if left == 1 or read_manifest(place) == manifest:
                raise
    raise AssertionError("unreachable")


def _plain(place: Place) -> dict[str, Any]:
    """What a directory behind a URL has; CheckpointError if it is neither a run nor a model."""
    names = place.names()
    if not {RUN, "model.json"} & names.keys():
        raise CheckpointError(f"{place} is neither a run, nor the copy of one, nor a model (it has no {RUN}).")
    return {name: [info.size, info.tag] for name, info in names.items()}


def _fetched_plain(place: Place, directory: Path, wanted: Callable[[str], bool]) -> None:
    for name, info in place.names().items():
        path = directory / name
        if wanted(name) and not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_name(f"{path.name}.part").open("wb") as f:
                for start in range(0, info.size, PART):
                    f.write(place.read(name, start, min(start + PART, info.size)))
            path.with_name(f"{path.name}.part").replace(path)


def _drop_old(directory: Path, prefix: str) -> None:
    """Removes what was fetched of earlier states of the same run, unless somebody may still be reading it."""
    for other in directory.parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if other.is_dir() and other != directory and time.time() - other.stat().st_mtime > _OLD:
                shutil.rmtree(other, ignore_errors=True)


def summary(files: Mapping[str, Any]) -> int:
    """Bytes of the files of a manifest."""
    return sum(size for f in files.values() for _, size in f["parts"])
