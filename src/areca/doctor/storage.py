"""Room and speed of the disk where runs go, shared memory, and the cache of compiled programs."""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from areca import runtime
from areca.doctor.finding import Finding, size

LEAST_ROOM, LITTLE_ROOM = 200 << 20, 5 << 30
BLOCK, BLOCKS, LONGEST_SECONDS = 4 << 20, 16, 2.0  # of the file that is written and removed
SLOW = 20e6  # bytes a second
SHARED = Path("/dev/shm")
LEAST_SHARED = 1 << 30
MUCH_CACHE = 10 << 30
MOST_FILES = 50_000  # that are counted of a cache
SKEW_SECONDS = 2.0


def disk(runs: Path) -> Finding:
    """Where runs go: room, the speed of a durable write, whether directories can be locked, the file server's clock."""
    found, place = Finding(), _there(runs)
    file = next((p for p in (runs, *runs.parents) if p.exists() and not p.is_dir()), None)
    if file is not None:
        found.problem(f"{file} is a file, where the directory of runs must be; give another with --out.", stops=True)
    usage = shutil.disk_usage(place)
    seen = os.statvfs(place)
    inodes = seen.f_favail if seen.f_files else None
    found.values = {
        "directory": str(place), "total_bytes": usage.total, "free_bytes": usage.free, "free_inodes": inodes,
        "write_bytes_per_second": None, "locks": None,
    }  # fmt: skip
    found.lines.append(f"{place}: {size(usage.free)} free of {size(usage.total)}")
    _judge_room(found, place, usage.free, inodes)
    try:
        with tempfile.TemporaryDirectory(prefix=".areca-doctor-", dir=place) as own:
            _try_writing(found, Path(own), min(BLOCKS, usage.free // (4 * BLOCK)))
    except OSError as error:
        found.problem(
            f"{place} can't be written ({error.strerror}); give another with --out, or change its permissions.",
            stops=True,
        )
        return found
    speed, locks = found.values["write_bytes_per_second"], found.values["locks"]
    found.lines.append(f"a durable write has {'unknown speed' if speed is None else f'{speed / 1e6:,.0f} MB/s'}")
    if speed is not None and speed < SLOW:
        found.problem(
            f"{place} takes {speed / 1e6:.1f} MB/s, so a save of 1 GB takes {1e9 / speed / 60:.0f} minutes; put runs "
            "on a faster disk."
        )
    if locks is False:
        found.problem(
            f"{place} is on a file system without locks, and a run locks its directory; put runs on another disk.",
            stops=True,
        )
    return found


def _judge_room(found: Finding, place: Path, free: int, inodes: int | None) -> None:
    if free < LITTLE_ROOM:
        found.problem(
            f"{size(free)} are free at {place}, and a run keeps two checkpoints of 12 bytes a parameter or more; free "
            "some, or put runs on another disk.",
            stops=free < LEAST_ROOM,
        )
    if inodes is not None and inodes < 1000:
        found.problem(f"{place} has room for {inodes} more files only; remove some.", stops=inodes < 50)


def _try_writing(found: Finding, own: Path, blocks: int) -> None:
    data = os.urandom(BLOCK)  # what can't be compressed
    with (own / "blocks").open("wb", buffering=0) as f:
        started = time.perf_counter()
        written = 0
        while written < blocks * BLOCK and time.perf_counter() - started < LONGEST_SECONDS:
            written += f.write(data)
            if written % (4 * BLOCK) == 0:  # a slow disk is not waited for at the end
                os.fsync(f.fileno())
        os.fsync(f.fileno())
        if written:
            found.values["write_bytes_per_second"] = written / (time.perf_counter() - started)
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.values["locks"] = True
        except OSError:
            found.values["locks"] = False
        (own / "now").touch()
        skew = (own / "now").stat().st_mtime - time.time()
        found.values["clock_ahead_seconds"] = skew
        if abs(skew) > SKEW_SECONDS:
            found.problem(
                f"files at {own.parent} are dated {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this "
                "machine's clock; set both clocks (NTP), or times of events and files don't agree."
            )


def shared_memory(path: Path = SHARED) -> Finding:
    """/dev/shm, where Ray keeps its objects; containers give it 64 MB unless told otherwise."""
    found = Finding()
    if not path.is_dir():
        found.values = {"total_bytes": None, "free_bytes": None}
        found.lines.append(f"{path} is not there")
        return found
    usage = shutil.disk_usage(path)
    found.values = {"total_bytes": usage.total, "free_bytes": usage.free}
    found.lines.append(f"{path}: {size(usage.free)} free of {size(usage.total)}")
    if usage.total < LEAST_SHARED:
        found.problem(
            f"{path} has {size(usage.total)}, which islands on Ray are short of; start the container with "
            "--shm-size=4g (other runs don't need it)."
        )
    return found


def compile_cache(directory: Path | None = None) -> Finding:
    """Where compiled programs are kept: its size, and whether it can be written."""
    found = Finding()
    given = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    directory = directory or (Path(given) if given else runtime.cache_directory() / "compiled")
    used, files, whole = _used(directory)
    why = runtime.unusable(directory)
    found.values = {"directory": str(directory), "bytes": used, "files": files, "writable": why is None}
    least = "" if whole else " at least"
    found.lines.append(f"{directory}: {files:,} programs' files,{least} {size(used)}")
    if why is not None:
        found.problem(f"every process compiles its programs anew, as {runtime.no_cache(directory, why)}")
    if used > MUCH_CACHE:
        found.problem(
            f"{directory} has grown to {size(used)}; it may be removed at any time, programs are compiled anew."
        )
    return found


def _used(directory: Path) -> tuple[int, int, bool]:
    """(bytes, files, whether all were counted)."""
    used = files = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            if files >= MOST_FILES:
                return used, files, False
            with contextlib.suppress(OSError):
                used, files = used + os.stat(os.path.join(parent, name)).st_size, files + 1
    return used, files, True


def _there(path: Path) -> Path:
    """The path, or the nearest directory above it that is there."""
    path = path.absolute()
    while not path.is_dir():
        if path.parent == path:
            break
        path = path.parent
    return path
