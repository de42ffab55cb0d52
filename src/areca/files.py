"""Files that are whole or absent: atomic writes, JSON, JSON lines, TOML, digests; directories held by one process.

Readers raise DataError (ConfigError for a TOML file) with one sentence; writers never leave half a file under the
final name.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from areca.errors import BusyError, ConfigError, DataError

LOCK = ".lock"
STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/null")  # what is no regular file and is written all the same, directly
_OURS, _TEMPORARY = "areca-", re.compile(r"\..+\.areca-\w{8}\.tmp")  # a file that is being written
_YOUNG = 10.0  # seconds in which an empty one may be a writer's that has not locked it yet

# Files of runs, ladders, quickstarts and stores: what a directory that is read can't do without.
RECORDS = {
    "run.json", "result.json", "metrics.jsonl", "events.jsonl", "ladder.json", "quickstart.json", "store.json",
    "tokenizer.json", "samples.json",
}  # fmt: skip

# The JSON files of the verbs: kind -> (what it is, sets of keys of which one is there whole). The first that fits.
KINDS: dict[str, tuple[str, tuple[set[str], ...]]] = {
    "report": ("the summary of a page (`areca report`)", ({"kind", "areca"},)),
    "law": ("a law (`areca fit`)", ({"parametric"}, {"forms"}, {"isoflop"})),
    "design": ("a design of further runs (`areca design`)", ({"proposed"},)),
    "plan": ("a plan (`areca plan`)", ({"best"}, {"sure"}, {"predicted_loss"})),
    "run": ("the record of a run (run.json)", ({"config", "fingerprint"},)),
    "result": ("the result of a run (`areca train`)", ({"n_params", "loss"}, {"flops_exact", "loss"})),
    "quickstart": ("the record of a quickstart", ({"stages"},)),
    "ladder": ("the list of a ladder's runs (`areca ladder`)", ({"runs"},)),
    "trace": ("a timeline (`areca train --trace-steps`)", ({"traceEvents"},)),
    "store": ("the description of a token store (`areca corpus`)", ({"vocab_size", "fingerprint"},)),
}


def write_atomic(path: Path | str, content: bytes | str) -> None:
    """Writes `content` under `path` so that a reader sees the old file or the new one, also after a power cut.

    An OSError names `path`, whichever file of ours the system refused.
    """
    path = Path(path)
    data = content.encode("utf-8") if isinstance(content, str) else content
    if str(path) in STREAMS:
        sys.stdout.flush()
        with path.open("ab") as f:
            f.write(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = ""
    try:
        if path.is_dir():  # said before anything is written; the rename would refuse it too
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _refuse_special(path, str(path))
        _sweep(path.parent)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.{_OURS}", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as f:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _sweep(directory: Path) -> None:
    """Removes what atomic writes left in `directory` whose process was killed: nobody holds their lock any more."""
    for name in os.listdir(directory):
        if not _TEMPORARY.fullmatch(name):
            continue
        with contextlib.suppress(OSError):  # gone in the meantime, not ours to remove, or held by its writer
            handle = os.open(directory / name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                seen = os.fstat(handle)
                young = seen.st_size == 0 and time.time() - seen.st_mtime < _YOUNG
                if stat.S_ISREG(seen.st_mode) and not young:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(directory / name)
            finally:
                os.close(handle)


def leftovers(directory: Path, name: str) -> set[str]:
    """Names of what killed atomic writes of `name` left in `directory`."""
    return {p.name for p in directory.glob(f".{name}.*.tmp")}


def take_lock(directory: Path, doing: str = "in use") -> int:
    """Locks a directory for this process, made if it is not there, until the handle is closed or the process ends.

    Raises BusyError, with the holder's pid, if another process has it: "DIR is `doing` by another process".
    """
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            holder = os.read(handle, 32).decode("ascii", "replace").strip()
            raise BusyError(
                f"{directory} is {doing} by another process{f' (pid {holder})' if holder else ''}; wait until it ends,"
                " stop it, or choose another --out."
            ) from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Keeps every other process out of a directory that locks it too; BusyError if one is in it already."""
    handle = take_lock(directory)
    try:
        yield
    finally:
        os.close(handle)


def check_place(path: Path | str) -> None:
    """Raises the OSError that writing the file `path` would end in, as far as it can be seen, before work is done."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    parent = path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(parent))
    if str(path) not in STREAMS and not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(parent))


def check_output(option: str, path: Path | str, inputs: Iterable[Path | str] = ()) -> None:
    """`check_place` of the file that `option` names, and ConfigError where writing it would destroy what is read.

    That is one of `inputs` by whatever name (a directory among them: a file of its records), or something that is no
    regular file, a pipe or a device; `STREAMS` may be written.
    """
    path = Path(path)
    if str(path) in STREAMS:
        return
    check_place(path)
    _refuse_special(path, f"{option} {path}")
    for given in map(Path, inputs):
        if given.exists() and same_file(path, given):
            raise ConfigError(f"{option} {path} is what is read and would be overwritten; name another file.")
        if path.name in RECORDS and given.is_dir() and path.exists() and given.resolve() in path.resolve().parents:
            raise ConfigError(f"{option} {path} is a record in {given}, which is read; name another file.")


def same_file(a: Path | str, b: Path | str) -> bool:
    """True for two names of one file, through links too, also where it is not there yet."""
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return os.path.realpath(a) == os.path.realpath(b)


def _refuse_special(path: Path, named: str) -> None:
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(f"{named} is no regular file but a pipe, a socket or a device; name a file.")


def sync_directory(path: Path) -> None:
    """Makes the names in `path` durable (a rename alone is not, on a power cut)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path | str, value: Any) -> None:
    """Writes `value` as indented JSON, atomically. NaN and infinities are refused: JSON has none."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_table(path: Path | str, value: dict[str, Any]) -> None:
    """Writes a table for `read_table`, atomically: TOML if the name ends in .toml, else JSON."""
    if Path(path).suffix == ".toml":
        import tomli_w

        write_atomic(path, tomli_w.dumps(value))
    else:
        write_json(path, value)


def read_json(path: Path | str) -> Any:
    """Reads a JSON file; DataError names the file when it is missing or is not JSON."""
    path = Path(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory where a JSON file was expected.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not text in UTF-8, so it is not JSON; restore it or remove it.") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({not_json(error)}); restore it or remove it.") from None


def not_json(error: Exception) -> str:
    """Why text is no JSON, without the advice to programmers that Python gives beside some reasons."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if "set_int_max_str_digits" in str(error):
        return "it has a whole number of more than 4,300 digits"
    return str(error)


def json_kind(value: Any) -> str | None:
    """Which of `KINDS` a JSON value is, by its keys; None for anything else."""
    if not isinstance(value, dict):
        return None
    return next((kind for kind, (_, sets) in KINDS.items() if any(keys <= value.keys() for keys in sets)), None)


def json_words(value: Any) -> str:
    """What a JSON value is, for a sentence to someone who took its file for another: "a law (`areca fit`)"."""
    if kind := json_kind(value):
        return KINDS[kind][0]
    if isinstance(value, dict):
        keys = f" with {', '.join(list(value)[:4])}{', ...' if len(value) > 4 else ''}"
        return f"a JSON object{keys}" if value else "an empty JSON object"
    names = {list: "a JSON list", str: "a JSON text", bool: "a JSON true or false", type(None): "a JSON null"}
    return names.get(type(value), "a JSON number")


def read_table(path: str | Path) -> Any:
    """The values in a TOML or JSON file, not checked; ConfigError or DataError when there are none."""
    path = Path(path)
    if path.is_dir():
        inside = path / "run.json"
        raise ConfigError(f"{path} is a directory; name a .toml or .json file{f', as {inside}' * inside.is_file()}.")
    if path.suffix == ".json":
        return read_json(path)
    if path.suffix != ".toml":
        raise ConfigError(f"{path} is neither a .toml nor a .json file.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8, so it is not TOML.") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML ({error}).") from None


def read_jsonl(path: Path | str) -> Iterator[Any]:
    """Yields the values of a JSON-lines file; an unfinished last line (a killed writer) is left out."""
    path = Path(path)
    try:
        with path.open("rb") as f:
            for number, line in enumerate(f, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DataError(f"{path} line {number} is not valid JSON ({not_json(error)}).") from None
    except FileNotFoundError:
        raise DataError(f"{path} does not exist.") from None


def sha256_file(path: Path | str) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with Path(path).open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """The SHA-256 of a value's canonical JSON (sorted keys, no spaces): a fingerprint of a configuration."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
