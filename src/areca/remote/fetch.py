"""Files from behind a URL onto this machine's disk, proven by digest; what a kill leaves is gone on with.

A file is asked for in ranges, several at a time, and appended to `NAME.part`; at its end the digest of the whole
decides whether it gets its name. So a partial file may come from anywhere and may be torn: it costs one more fetch.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from areca.errors import DataError, ObjectDamaged, ObjectMissing
from areca.remote.place import Place
from areca.runtime import cache_directory

RANGE = 8 << 20
AT_ONCE = 4  # ranges asked for at a time; memory holds about twice as many


@dataclass(frozen=True)
class Wanted:
    """A file to fetch: the objects whose bytes, joined, are its content, and what that is."""

    parts: tuple[tuple[str, int], ...]  # name below the place, bytes
    sha256: str

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return sum(size for _, size in self.parts)


def fetch(place: Place, files: Mapping[str, Wanted], directory: Path, say: Callable[[str], None]) -> None:
    """Brings `files` (name -> Wanted) into a directory, those that are there already and whole left alone.

    Raises ObjectDamaged, in one sentence, for an object that is missing or whose bytes differ from the digest, and
    DataError if the disk has no room; LinkLost as any call. What was fetched by then stays, for the next time.
    """
    directory.mkdir(parents=True, exist_ok=True)
    missing = {name: w for name, w in files.items() if not (directory / name).is_file()}
    if not missing:
        return
    need = sum(w.size for w in missing.values())
    free = shutil.disk_usage(directory).free
    have = sum(p.stat().st_size for n in missing if (p := directory / f"{n}.part").is_file())
    if need - have > free:
        raise DataError(
            f"{place} needs {need / 1e9:.1f} GB in {directory}, where {free / 1e9:.1f} GB are free; free some, or set "
            "ARECA_CACHE to a directory on a larger disk."
        )
    if need > 64e6:
        say(f"fetching {need / 1e6:,.0f} MB of {place} into {directory}")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for name, wanted in missing.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for again in (False, True):
                try:
                    if _fetch_one(place, wanted, path, pool):
                        break
                except ObjectMissing as error:
                    parts = [key for key, _ in wanted.parts]
                    part = next((key for key in parts if place.of(key) in str(error)), parts[0])
                    what = f"{place} lacks {part}" + (f", a part of {name}" if part != name else "")
                    raise ObjectDamaged(what) from None
                if again:
                    raise ObjectDamaged(
                        f"{place.of(name)} is damaged: its bytes have not the SHA-256 {wanted.sha256[:12]} that was "
                        "written with it"
                    )


def _fetch_one(place: Place, wanted: Wanted, path: Path, pool: ThreadPoolExecutor) -> bool:
    """Fetches one file from where a partial one ends; False, and nothing left, if its digest is another."""
    part, digest = path.with_name(f"{path.name}.part"), hashlib.sha256()
    with part.open("a+b") as f:
        f.seek(0)
        done = 0
        while data := f.read(RANGE):
            digest.update(data)
            done += len(data)
        if done > wanted.size:
            f.truncate(0)
            digest, done = hashlib.sha256(), 0
        for data in _ahead(place, _ranges(wanted, done), pool):
            f.write(data)
            digest.update(data)
        f.flush()
        os.fsync(f.fileno())
    if digest.hexdigest() != wanted.sha256:
        part.unlink()
        return False
    part.replace(path)
    return True


def _ranges(wanted: Wanted, done: int) -> Iterator[tuple[str, int, int]]:
    """(object, first byte, end) of what is missing after so many bytes, in order."""
    for name, size in wanted.parts:
        for start in range(min(done, size), size, RANGE):
            yield name, start, min(start + RANGE, size)
        done = max(0, done - size)


def _ahead(place: Place, ranges: Iterator[tuple[str, int, int]], pool: ThreadPoolExecutor) -> Iterator[bytes]:
    """The bytes of the ranges in order, some of them asked for before they are wanted."""
    waiting: deque = deque()
    try:
        for one in ranges:
            waiting.append(pool.submit(place.read, *one))
            if len(waiting) > AT_ONCE:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for left in waiting:
            left.cancel()


@contextlib.contextmanager
def alone(name: str, say: Callable[[str], None] = lambda _: None) -> Iterator[Path]:
    """A directory of the cache that one process at a time works in; others wait, which is said."""
    directory = cache_directory() / "remote" / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory.with_name(f"{directory.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that works in {directory}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield directory
    finally:
        os.close(handle)
