"""The process that copies a run to a URL while it goes on: `python -m areca.train.away.copier RUN URL`.

A process of its own, so that a link that is slow or lost, and whatever the packages behind it do, cost the run nothing.
It looks at the run's files; when a checkpoint is recorded it takes hold of it (hard links, which outlive the run's own
clearing away), and sends what is not there yet. It tells how it goes in RUN/copied.json, and ends after the last state
is sent once its standard input has ended, which is when the run's process is done or gone.
"""

import hashlib
import json
import os
import select
import shutil
import sys
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from areca.errors import ArecaError, BusyError, LinkLost, RemoteError
from areca.files import LOCK, take_lock, write_json
from areca.remote.place import Place
from areca.train.away.copies import FORMAT, MANIFEST, PART, VERSION, count_rewinds, read_manifest
from areca.train.checkpoint_files import RECORD, read_record
from areca.train.record import CHECKPOINTS, EVENTS, HELD, METRICS, RESULT, REWINDS, RUN

STATUS = "copied.json"
PERIOD_SECONDS = 1.0
TRIES_AT_END = 2  # of which each waits for the link as long as any call does
AT_ONCE = 4  # parts on their way at a time


class Copier:
    """One run and the place it is copied to."""

    def __init__(self, run_dir: Path, url: str) -> None:
        self.run_dir, self.place = run_dir, Place(url)
        self.held = run_dir / HELD
        self._lock = take_lock(self.held, "being copied")
        self._manifest: dict[str, Any] | None = None
        self._sent: dict[str, Any] | None = None  # the manifest that was sent last, with or without an answer
        self._there: dict[str, int] | None = None  # parts and their bytes

    def copy(self) -> dict[str, Any]:
        """Copies the run as it is now; returns what copied.json says. LinkLost, RemoteError as of `Place`."""
        started = time.time()
        if self._there is None:
            self._manifest = read_manifest(self.place)
            self._there = {n: i.size for n, i in self.place.names().items() if n.startswith("parts/")}
        files, rewinds, step = self._hold()
        sent = 0
        manifest: dict[str, Any] = {"format": FORMAT, "version": VERSION, "step": step, "rewinds": rewinds, "files": {}}
        for name, (path, digest) in files.items():
            known = self._manifest["files"].get(name) if self._manifest else None
            if known is not None and any(self._there.get(key) != size for key, size in known["parts"]):
                known = None  # the copy has lost some of it
            if known is not None and digest is not None and known["sha256"] == digest:
                manifest["files"][name] = known
                continue
            manifest["files"][name], new = self._send(name, path)
            sent += new
            if digest is not None and manifest["files"][name]["sha256"] != digest:
                raise RemoteError(f"{self.run_dir / name} is damaged (its digest differs), so it is not copied.")
        self._replace(manifest)
        return {"url": self.place.url, "step": step, "time": time.time(), "seconds": time.time() - started,
                "bytes": sent, "reached": f"up to step {step}", "failed": None}  # fmt: skip

    def _hold(self) -> tuple[dict[str, tuple[Path, str | None]], int, int]:
        """Files of one state of the run, held against what the run does meanwhile: name -> (path, digest if known).

        The record and the list of rewinds are read before and after; a state is one if they are the same.
        """
        while True:
            for old in self.held.iterdir():
                if old.name != LOCK:
                    old.unlink()
            before = self._marks()
            entries = read_record(self.run_dir / CHECKPOINTS / RECORD)
            wanted: dict[str, str | None] = {
                f"{CHECKPOINTS}/{e.step}/{name}": digest for e in entries for name, digest in e.files.items()
            }
            wanted |= dict.fromkeys((f"{CHECKPOINTS}/{RECORD}", RUN, METRICS, EVENTS))
            wanted |= {n: None for n in (REWINDS, RESULT) if (self.run_dir / n).exists()}
            files: dict[str, tuple[Path, str | None]] = {}
            try:
                for i, (name, digest) in enumerate(wanted.items()):
                    files[name] = self.held / f"{i}", digest
                    _take(self.run_dir / name, files[name][0], linked=digest is not None)
            except FileNotFoundError:
                lost = [e.step for e in entries if not (self.run_dir / CHECKPOINTS / str(e.step)).is_dir()]
                if lost and before == self._marks():
                    raise RemoteError(
                        f"{self.run_dir} has lost its checkpoint of step {lost[0]}, so no copy is made."
                    ) from None
                continue
            if before == self._marks():
                return files, count_rewinds(before[1]), entries[-1].step if entries else 0

    def _marks(self) -> tuple[bytes, bytes]:
        record, rewinds = (self.run_dir / n for n in (f"{CHECKPOINTS}/{RECORD}", REWINDS))
        return record.read_bytes(), rewinds.read_bytes() if rewinds.exists() else b""

    def _send(self, name: str, path: Path) -> tuple[dict[str, Any], int]:
        """Sends the parts of a file that are not there; returns its entry in the manifest, and the bytes sent."""
        assert self._there is not None
        whole, parts, sent = hashlib.sha256(), [], 0
        going: set[Future[None]] = set()
        with path.open("rb") as f, ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                while data := f.read(PART):
                    whole.update(data)
                    key = f"parts/{name}/{len(parts)}.{hashlib.sha256(data).hexdigest()[:32]}"
                    parts.append([key, len(data)])
                    if self._there.get(key) != len(data):
                        if len(going) >= AT_ONCE:
                            done, going = wait(going, return_when=FIRST_COMPLETED)
                            for one in done:
                                one.result()
                        going.add(pool.submit(self._write, key, data))
                        sent += len(data)
                for one in going:
                    one.result()
            finally:
                for one in going:
                    one.cancel()
        return {"sha256": whole.hexdigest(), "parts": parts}, sent

    def _write(self, key: str, data: bytes) -> None:
        self.place.write(key, data)
        assert self._there is not None
        self._there[key] = len(data)

    def _replace(self, manifest: dict[str, Any]) -> None:
        """Makes `manifest` the copy, then removes the parts that it does not name."""
        assert self._there is not None
        if read_manifest(self.place) not in (self._manifest, self._sent):
            raise RemoteError(
                f"{self.place} was changed by another process meanwhile, so nothing more is copied there; copy one run "
                "to a URL, from one machine."
            )
        data = json.dumps(manifest, indent=1).encode()
        self._sent = json.loads(data)
        self.place.write(MANIFEST, data)
        self._manifest = self._sent
        named = {key for f in manifest["files"].values() for key, _ in f["parts"]}
        for key in [k for k in self._there if k not in named]:
            self.place.remove([key])
            del self._there[key]

    def close(self) -> None:
        """Lets go of what is held."""
        shutil.rmtree(self.held, ignore_errors=True)
        os.close(self._lock)


def state_of(run_dir: Path) -> tuple[Any, ...]:
    """Changes when there is something new to copy; its first is None while there is nothing at all."""
    return tuple(_stamp(run_dir / name) for name in (f"{CHECKPOINTS}/{RECORD}", REWINDS, RESULT))


def main(run_dir: Path, url: str) -> int:
    """Follows the run until standard input ends and its last state is copied; 1 if it could not be."""
    ended, tries, failed = False, 0, ""
    copier = None
    while copier is None:
        try:
            copier = Copier(run_dir, url)
        except BusyError:  # the process that copied for the session before has not ended yet
            ended = ended or input_ended()
            if ended:
                return 1
        except ArecaError as error:
            return _tell(run_dir, url, str(error))
    try:
        done: tuple[Any, ...] | None = None
        while True:
            state = state_of(run_dir)
            if state != done and state[0] is not None:
                try:
                    status = copier.copy()
                    write_json(run_dir / STATUS, status)
                    done, failed = state, ""
                    continue
                except LinkLost as error:
                    failed = str(error)
                    _tell(run_dir, url, failed)
                    tries += ended
                except ArecaError as error:
                    return _tell(run_dir, url, str(error))
                except OSError as error:
                    return _tell(run_dir, url, f"{error.filename or run_dir}: {error.strerror}")
            if ended and (not failed or tries >= TRIES_AT_END):
                return 1 if failed else 0
            ended = ended or input_ended()
    finally:
        copier.close()


def _take(path: Path, to: Path, *, linked: bool) -> None:
    """A second name for a file that is never changed (or a copy where there are no such names), a copy of others."""
    if linked:
        try:
            os.link(path, to)
            return
        except FileNotFoundError:
            raise
        except OSError:
            pass
    shutil.copyfile(path, to)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def input_ended() -> bool:
    """Waits for the next time to look; True if standard input has ended."""
    ready, _, _ = select.select([0], [], [], PERIOD_SECONDS)
    return bool(ready) and not os.read(0, 4096)


def _tell(run_dir: Path, url: str, failed: str) -> int:
    write_json(run_dir / STATUS, {"url": url, "time": time.time(), "failed": failed})
    return 1


if __name__ == "__main__":
    os.nice(5)
    code = main(Path(sys.argv[1]), sys.argv[2])
    os._exit(code)  # without what libraries do at exit, which may wait for a network
