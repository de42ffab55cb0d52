"""Copies of runs behind a URL: what one is, fetching it back, and reading a run or a model there.

    URL/copy.json                      which parts make which file of the run, with their SHA-256; replaced last
    URL/parts/FILE/NUMBER.DIGEST       up to 8 MiB of a file, never changed

As a part's name has its digest, nothing that copy.json names is ever written again: whoever reads sees the run as it
was at one checkpoint or at the next, whenever the writer was killed. What the new copy.json does not name is removed
after it is there. The writer is a process of its own beside the run (`areca.train.away.copying`).
"""

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from areca.errors import BusyError, CheckpointError, ConfigError, ObjectDamaged, RemoteError
from areca.files import LOCK, not_json, sha256_file, sync_directory, take_lock
from areca.remote.fetch import Wanted, alone, fetch
from areca.remote.place import MARKER, Place, is_url
from areca.runtime import cache_directory
from areca.train.checkpoint_files import RECORD, Entry, read_record, write_record
from areca.train.record import CHECKPOINTS, RESULT, REWINDS, RUN, unstarted

Say = Callable[[str], None]
T = TypeVar("T")

MANIFEST, FORMAT, VERSION = "copy.json", "areca run copy", 1
PART = 8 << 20
_TRIES = 5  # of a reader whose parts are removed because the copy went on
_OLD = 3600.0  # seconds after which what was fetched of an earlier state may go


def read_manifest(place: Place) -> dict[str, Any] | None:
    """copy.json of a place; None if there is none. RemoteError if it is no such thing, or damaged."""
    if place.info(MANIFEST) is None:
        return None
    try:
        found = json.loads(place.read(MANIFEST))
    except ValueError as error:
        raise RemoteError(_damaged(place, not_json(error))) from None
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise RemoteError(f"{place.of(MANIFEST)} is not what this version of areca writes; choose another URL.")
    try:
        for file in found["files"].values():
            _wanted(file)
        if RUN in found["files"] and isinstance(found["step"], int) and isinstance(found["rewinds"], int):
            return found
    except (AttributeError, KeyError, TypeError, ValueError):
        pass
    raise RemoteError(_damaged(place, "not all that a copy has is in it"))


def _damaged(place: Place, how: str) -> str:
    return f"{place.of(MANIFEST)} is damaged ({how}); restore it from a copy, or choose another URL."


def progress_of(run_dir: Path) -> tuple[int, int]:
    """How far a run's files are: how often it went back from a spike, and the step of its last checkpoint."""
    rewinds, record = run_dir / REWINDS, run_dir / CHECKPOINTS / RECORD
    entries = read_record(record) if record.is_file() else ()
    return count_rewinds(rewinds.read_bytes() if rewinds.is_file() else b""), entries[-1].step if entries else 0


def count_rewinds(data: bytes) -> int:
    """How many rewinds the content of rewinds.json lists, without the packages that its own room needs."""
    return data.count(b"spike_step")


def settle(url: str, run_dir: Path, resume: str, from_step: int | None) -> Path | None:
    """Sees to it that the run in `run_dir` may be copied to `url`.

    Returns a directory with the run.json of the copy if this machine has lost the run, which `bring_back` then fetches;
    None otherwise. CheckpointError where a copy would be lost: of a run when one is started, of another run, or of a
    later state.
    """
    place = Place(url, to_write=True)
    manifest = read_manifest(place)
    if manifest is None:
        others = [name for name in place.names() if not name.startswith("parts/") and name != MARKER]
        if others:
            raise ConfigError(f"{url} is not empty and holds no copy of a run ({others[0]}); choose another --copy-to.")
        place.probe()  # a bucket that is not there, or not to be written, before anything is left here
        return None
    if resume == "never":
        raise CheckpointError(f"{url} holds the copy of a run; go on with --resume, or choose another --copy-to.")
    if not (run_dir / RUN).exists():
        if not unstarted(run_dir):
            return None
        file = manifest["files"][RUN]
        with alone(f"begun/{file['sha256'][:32]}") as directory:
            fetch(place, {RUN: _wanted(file)}, directory, lambda _: None)
        return directory
    if sha256_file(run_dir / RUN) != manifest["files"][RUN]["sha256"]:
        raise CheckpointError(f"{url} holds the copy of another run than {run_dir}; choose another --copy-to.")
    here, there = progress_of(run_dir), (manifest["rewinds"], manifest["step"])
    if here < there and from_step is None:
        raise CheckpointError(
            f"{url} has a later state (step {there[1]}) than {run_dir} (step {here[1]}), which would take its place; "
            f"remove {run_dir} to go on from the copy, or choose another --copy-to."
        )
    return None


def bring_back(url: str, run_dir: Path, from_step: int | None, say: Say) -> None:
    """Makes `run_dir` what the copy is, or was at an earlier checkpoint; whole or not at all.

    An older checkpoint that the copy has damaged is left out of the run; CheckpointError, which names an older one that
    is whole, if it is the one to go on from.
    """
    place, hidden = Place(url), _hidden(run_dir)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    handle = take_lock(hidden, "being fetched")
    try:
        step = _current(place, lambda manifest: _state(place, hidden, manifest, from_step, say))
        (hidden / LOCK).unlink()
        if run_dir.exists():  # with no more than a run that was killed before it began leaves
            os.close(take_lock(run_dir, "being trained"))
            shutil.rmtree(run_dir)
        hidden.rename(run_dir)
        sync_directory(run_dir.parent)
    except (CheckpointError, ObjectDamaged) as error:
        if not isinstance(error, _OlderIsWhole):  # which --from-step goes on with
            shutil.rmtree(hidden, ignore_errors=True)
        raise
    finally:
        os.close(handle)
    say(f"{run_dir} is fetched from its copy {place}, at step {step}.")


def sweep(run_dir: Path) -> None:
    """Removes what a fetch of a run left that is not gone on with, as the run is there or is begun anew."""
    hidden = _hidden(run_dir)
    if hidden.is_dir():
        with contextlib.suppress(BusyError):
            handle = take_lock(hidden, "being fetched")
            shutil.rmtree(hidden, ignore_errors=True)
            os.close(handle)


class _OlderIsWhole(CheckpointError):
    """A damaged checkpoint, while an older one was fetched whole."""


def _hidden(run_dir: Path) -> Path:
    return run_dir.with_name(f".{run_dir.name}.fetching")


def _state(place: Place, hidden: Path, manifest: dict[str, Any], from_step: int | None, say: Say) -> int:
    """Fetches a state of a copy: what lies beside the checkpoints, and those up to the one to go on from; its step."""
    record = f"{CHECKPOINTS}/{RECORD}"

    def get(wanted: Callable[[str], bool]) -> None:
        _take(place, hidden, manifest, wanted, say)

    get(lambda name: _beside(name) and (name != RESULT or from_step is None))
    entries = read_record(hidden / record) if record in manifest["files"] else ()
    if from_step is not None and from_step not in [e.step for e in entries]:
        steps = ", ".join(str(e.step) for e in entries) or "none"
        raise CheckpointError(f"{place} has no checkpoint of step {from_step}; it has {steps}.")
    entries = tuple(e for e in entries if from_step is None or e.step <= from_step)
    whole = []
    for entry in reversed(entries):
        try:
            get(_of_checkpoint(entry))
        except ObjectDamaged as error:
            if read_manifest(place) != manifest:
                raise  # the copy went on
            if entry is entries[-1]:
                raise _way_out(place, entries, entry, error, get, "go on from it with --resume --from-step") from None
            say(f"the checkpoint of step {entry.step} is left out: {error.fault}.")
            continue
        whole.append(entry)
    if (hidden / record).is_file() and len(whole) < len(read_record(hidden / record)):
        write_record(hidden / record, tuple(reversed(whole)))
    kept = {f"{CHECKPOINTS}/{e.step}" for e in whole}
    for path in (hidden / CHECKPOINTS).glob("*/"):
        if path.relative_to(hidden).as_posix() not in kept:
            shutil.rmtree(path)
    wanted = manifest["files"].keys() - ({RESULT} if from_step is not None else set())
    for path in [p for p in hidden.rglob("*") if p.is_file() and p.name != LOCK]:  # of an earlier state
        if path.relative_to(hidden).as_posix() not in wanted:
            path.unlink()
    return entries[-1].step if entries else 0


def _way_out(
    place: Place, entries: tuple[Entry, ...], entry: Entry, error: ObjectDamaged,
    get: Callable[[Callable[[str], bool]], Any], how: str,
) -> CheckpointError:  # fmt: skip
    """What is said of a damaged checkpoint of a copy, once the newest older one that is whole has been fetched."""
    said = f"the checkpoint of step {entry.step} in {place} can't be used ({error.fault})"
    for older in reversed([e for e in entries if e.step < entry.step]):
        with contextlib.suppress(ObjectDamaged):
            get(_of_checkpoint(older))
            return _OlderIsWhole(f"{said}; the older checkpoint of step {older.step} is intact: {how} {older.step}.")
    return CheckpointError(
        f"{said}; no older checkpoint there is intact, so restore the object from a copy or start the run again at "
        "another --copy-to."
    )


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
    def get(wanted: Callable[[str], bool]) -> None:
        if manifest is not None:
            _current(place, lambda now: _take(place, part, now, wanted, say))
        else:
            _fetched_plain(place, part, wanted)

    get(_beside)
    record = part / CHECKPOINTS / RECORD
    entries = read_record(record) if record.is_file() else ()
    chosen = entries[-1:] if step is None else [e for e in entries if e.step == step]
    if not chosen:
        return  # whoever reads it says which there are
    try:
        get(_of_checkpoint(chosen[0]))
    except ObjectDamaged as error:
        raise _way_out(place, entries, chosen[0], error, get, "use --step") from None


def _beside(name: str) -> bool:
    """Whether a file is none of a checkpoint's."""
    return name == f"{CHECKPOINTS}/{RECORD}" or not name.startswith(f"{CHECKPOINTS}/")


def _of_checkpoint(entry: Entry) -> Callable[[str], bool]:
    return lambda name: name.startswith(f"{CHECKPOINTS}/{entry.step}/")


def _current(place: Place, take: Callable[[dict[str, Any]], T]) -> T:
    """What `take` makes of the copy's manifest. Begins again if the copy went on meanwhile, so that parts are gone."""
    for left in range(_TRIES, 0, -1):
        manifest = read_manifest(place)
        if manifest is None:
            raise RemoteError(f"{place} holds no copy of a run any more.")
        try:
            return take(manifest)
        except ObjectDamaged:
            if left == 1 or read_manifest(place) == manifest:
                raise
    raise AssertionError("unreachable")


def _take(place: Place, directory: Path, manifest: dict[str, Any], wanted: Callable[[str], bool], say: Say) -> None:
    """Fetches the files of a manifest that are wanted."""
    files = {n: f for n, f in manifest["files"].items() if wanted(n)}
    for name, file in files.items():  # of an earlier state
        if (directory / name).is_file() and sha256_file(directory / name) != file["sha256"]:
            (directory / name).unlink()
    fetch(place, {n: _wanted(f) for n, f in files.items()}, directory, say)


def _wanted(file: dict[str, Any]) -> Wanted:
    return Wanted(tuple((name, size) for name, size in file["parts"]), file["sha256"])


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
