"""One place behind a URL: objects below it by name, read in ranges, written whole, listed and removed.

Every call is tried again while the link is lost, and ends: with the answer, with RemoteError for what trying again does
not mend (no such bucket, no permission, no credentials), or with LinkLost after ARECA_REMOTE_SECONDS without an answer.
Credentials and endpoints are those that the packages behind fsspec find by themselves (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN, ...).
"""

import contextlib
import functools
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from areca.errors import ConfigError, LinkLost, ObjectDamaged, ObjectMissing, RemoteError, closest
from areca.runtime import keep_memory_mapped

T = TypeVar("T")

SECONDS = 120.0  # without an answer, unless ARECA_REMOTE_SECONDS says otherwise
FIRST_SECONDS = 15.0  # the same before the first answer: then it is a wrong endpoint rather than a lost link
CALL_SECONDS = 60.0  # for the bytes of one range
SILENT_SECONDS = 5.0, 30.0  # the least and the most that one call waits for a server that says nothing
QUIET_SECONDS = 3.0  # after which it is said what is waited for
MARKER = ".areca-probe"  # of `Place.probe`; a kill may leave it
LONGEST_WAIT = 10.0  # between two tries

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hub"}
_TAGS = ("ETag", "etag", "blob_id", "md5Hash", "content_md5", "crc32c")  # what tells one content from another
_NO_CREDENTIALS = ("NoCredentials", "PartialCredentials", "CredentialRetrieval", "DefaultCredentials", "NoAuthToken")
_INVALID = ("ParamValidationError", "InvalidRegionError", "HFValidationError")
_HEARD: set[str] = set()  # protocols that have answered in this process
_SAID = [-1e9]  # when it was said last that an answer is waited for


def is_url(place: object) -> bool:
    """Whether it names a place behind a URL, and not a path."""
    return isinstance(place, str) and _URL.match(place) is not None


@dataclass(frozen=True)
class Info:
    """What a listing says of an object. `tag` changes with its content; None where the place has no such thing."""

    size: int
    tag: str | None = None


class Place:
    """What is below one URL. Opening it asks nothing; ConfigError if no package here opens such a URL."""

    def __init__(self, url: str) -> None:
        _seconds()  # a setting that is no number is refused before anything is asked
        self.url = url.rstrip("/")
        self._fs, path = filesystem(self.url)
        self._path = path.rstrip("/")
        self._protocol = self.url.partition("://")[0]

    def __str__(self) -> str:
        return self.url

    def of(self, name: str) -> str:
        """The URL of an object below this place; of the place itself for ""."""
        return f"{self.url}/{name}" if name else self.url

    def info(self, name: str = "") -> Info | None:
        """Size and tag of an object, or None if there is no such object (a folder is none)."""

        def ask() -> Info | None:
            self._fs.invalidate_cache()
            try:
                found = self._fs.info(self._at(name))
            except FileNotFoundError:
                return None
            return _info(found) if found["type"] == "file" else None

        return self._tried(lambda: _within(ask, self.of(name)), name)

    def names(self) -> dict[str, Info]:
        """All objects below this place by their names, sorted; none if there is no such place."""

        def ask() -> dict[str, Info]:
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._path, detail=True)
            except FileNotFoundError:
                return {}
            return {self._name(path): _info(about) for path, about in sorted(found.items())}

        return self._tried(ask, "")

    def matches(self) -> dict[str, Info]:
        """The objects that this place's path matches as a pattern (*, **, ?, [..]), by their whole URL's path."""

        def ask() -> dict[str, Info]:
            self._fs.invalidate_cache()
            found = self._fs.glob(self._path, detail=True)
            return {path: _info(about) for path, about in sorted(found.items()) if about["type"] == "file"}

        return self._tried(ask, "")

    def read(self, name: str = "", start: int | None = None, end: int | None = None) -> bytes:
        """The bytes of an object, or bytes start..end-1 of it. ObjectMissing if it is not there, ObjectDamaged if it
        ends before."""
        more = {"timeout": CALL_SECONDS} if getattr(self._fs, "async_impl", False) else {}
        if self._protocol == "hf":
            more = {"cache_type": "none"}

        def ask() -> bytes:
            try:
                data = self._fs.cat_file(self._at(name), start=start, end=end, **more)
            except Exception as error:
                if "range" in str(error).lower():
                    self._check_end(name, end)
                raise
            if start is not None and end is not None and len(data) != end - start:
                self._check_end(name, end)
                raise ConnectionError(f"{len(data):,} bytes came where {end - start:,} were asked")
            return data

        return self._tried(ask, name)

    def write(self, name: str, data: bytes) -> None:
        """Makes `data` the content of an object: a reader finds the old content or the new one."""
        self._tried(lambda: self._put(name, lambda path: self._fs.pipe_file(path, data)), name)

    def write_file(self, name: str, path: str) -> None:
        """The same with the content of a local file, however large."""
        self._tried(lambda: self._put(name, lambda to: self._fs.put_file(path, to)), name)

    def probe(self) -> None:
        """Writes an object and removes it; RemoteError if that can't be done: no such bucket, no permission."""

        def put() -> None:
            self._put(MARKER, lambda path: self._fs.pipe_file(path, b"areca"))

        self._tried(lambda: _within(put, self.url), "")
        self.remove([MARKER])

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; those that are gone already are no error."""
        for name in names:
            self._tried(functools.partial(self._remove, name), name)

    # --- helpers

    def _put(self, name: str, put: Callable[[str], Any]) -> None:
        """Object stores show a content when it is whole; elsewhere it gets its name when it is."""
        path = self._at(name)
        if self._protocol in ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"):
            put(path)
            return
        head, slash, last = path.rpartition("/")
        self._fs.makedirs(head, exist_ok=True)
        hidden = f"{head}{slash}.{last}.areca-{os.getpid()}.tmp"
        put(hidden)
        if self._protocol in ("file", "local"):
            os.replace(hidden, path)
        else:
            self._fs.mv(hidden, path)

    def _check_end(self, name: str, end: int | None) -> None:
        size = self._fs.info(self._at(name))["size"]
        if end is not None and size is not None and size < end:
            raise ObjectDamaged(
                f"{self.of(name)} is damaged: it has {size:,} bytes where {end:,} were written",
                "restore it from a copy or write it again",
            )

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _name(self, path: str) -> str:
        return path[len(self._path) :].lstrip("/")

    def _tried(self, ask: Callable[[], T], name: str) -> T:
        return tried(ask, self.of(name))


def tried(ask: Callable[[], T], url: str) -> T:
    """The answer to a call, which is repeated while the link is lost. See the head of the file for how it ends."""
    protocol = url.partition("://")[0]
    started, wait = time.monotonic(), 0.25
    while True:
        try:
            answer = ask()
            _HEARD.add(protocol)
            return answer
        except (RemoteError, TypeError, AttributeError, KeyError):
            raise
        except Exception as error:  # the packages behind fsspec raise what they like
            said = _sentence(error, url)
            if said is not None:
                raise (ObjectMissing if isinstance(error, FileNotFoundError) else RemoteError)(said) from None
            if time.monotonic() - started > QUIET_SECONDS:
                _say_waiting(f"{url} ({brief(error)})")
            limit = _seconds() if protocol in _HEARD else min(FIRST_SECONDS, _seconds())
            if time.monotonic() + wait - started > limit:
                raise LinkLost(
                    f"{url} can't be reached ({brief(error)}; tried for {time.monotonic() - started:.0f} s); check the "
                    "network and the endpoint, then give the same command again."
                ) from None
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT)


def _within(ask: Callable[[], T], url: str) -> T:
    """The answer to a call that moves few bytes, from a thread that is given up if the server stays silent."""
    answers: list[T] = []
    errors: list[BaseException] = []

    def call() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)

    seconds = _silent_seconds() + 1.0  # where the package behind fsspec has a deadline too, its own error is the better
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(min(QUIET_SECONDS, seconds))
    if thread.is_alive():
        _say_waiting(url)
        thread.join(max(0.0, seconds - QUIET_SECONDS))
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError(f"no answer for {seconds:.0f} s")
    return answers[0]


def _say_waiting(what: str) -> None:
    """One line on what is waited for, and not a second one soon."""
    if time.monotonic() - _SAID[0] > SECONDS:
        _SAID[0] = time.monotonic()
        print(f"areca: waiting for an answer of {what}", file=sys.stderr, flush=True)


def filesystem(url: str) -> tuple[Any, str]:
    """fsspec's file system for a URL, and the path in it."""
    protocol = url.partition("://")[0]
    extra = _EXTRAS.get(protocol, "remote")
    keep_memory_mapped()  # before threads of these packages: with an arena of their own steps take 1.5 times as long
    try:
        import fsspec
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(f"{url} is read with fsspec, which is not installed; {_brings(extra)}.") from None
    try:
        fs, path = url_to_fs(url, **_options(protocol, fsspec))
        if protocol in ("s3", "s3a"):
            fs.retries = 1  # of s3fs, each as long as a call: the tries are `tried`'s
        return fs, path
    except ImportError as error:
        how = _brings(extra) if protocol in _EXTRAS else f"install what fsspec asks for ({brief(error)})"
        raise ConfigError(f"{url} needs a package for {protocol}:// that is not installed; {how}.") from None
    except ValueError as error:
        from fsspec.registry import known_implementations

        if protocol in known_implementations:
            raise ConfigError(f"{url} can't be used ({brief(error)}).") from None
        raise ConfigError(
            f"{url} begins with {protocol}://, which fsspec does not know{closest(protocol, known_implementations)}; "
            "use s3://, gs://, hf:// or another of fsspec's."
        ) from None
    except Exception as error:  # a package that looks for credentials when it is opened
        said = _sentence(error, url) or f"{url} can't be opened ({brief(error)})."
        raise RemoteError(said) from None


def brief(error: BaseException) -> str:
    """The first line of what an error says, or its kind."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".")[:200] if lines else type(error).__name__


def _brings(extra: str) -> str:
    return f"`pip install 'areca[{extra}]'` brings it"


def _seconds() -> float:
    """How long a lost link is waited for; ConfigError if the variable is no number above 0."""
    said = os.environ.get("ARECA_REMOTE_SECONDS", "")
    if not said:
        return SECONDS
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(said)) < math.inf:
            return seconds
    raise ConfigError(f"ARECA_REMOTE_SECONDS is {said!r}; it must be a number of seconds above 0, such as 120.")


def _silent_seconds() -> float:
    """How long one call waits for a server that says nothing."""
    least, most = SILENT_SECONDS
    return min(most, max(least, _seconds()))


def _options(protocol: str, fsspec: Any) -> dict[str, Any]:
    """No listing is kept, and a call that hangs ends, as there are tries of our own."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in ("s3", "s3a"):
        own = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
        silent = _silent_seconds()
        given = {"connect_timeout": min(10.0, silent), "read_timeout": silent, "retries": {"max_attempts": 0}}
        options["config_kwargs"] = given | own
        options["max_concurrency"] = 4  # parts of an object that are sent at once, of up to 50 MB each
    return options


def _info(found: dict[str, Any]) -> Info:
    lfs = found.get("lfs")
    tag = (lfs.get("sha256") if isinstance(lfs, dict) else getattr(lfs, "sha256", None)) or next(
        (str(found[name]) for name in _TAGS if found.get(name)), None
    )
    return Info(int(found["size"] or 0), tag.strip('"') if tag else None)


def _sentence(error: Exception, url: str) -> str | None:
    """What is said of an error that trying again does not mend, or None."""
    kind, status = type(error).__name__, getattr(getattr(error, "response", None), "status_code", 0)
    if isinstance(error, FileNotFoundError) or status == 404:
        said = brief(error)
        why = "there is no such object" if "://" in said or said in url else said[:1].lower() + said[1:]
        return f"{url} can't be used ({why}); check its bucket and its name."
    if isinstance(error, PermissionError) or status in (401, 403):
        return f"{url} is refused ({brief(error)}); check the keys and what they may do there."
    if any(word in kind for word in _NO_CREDENTIALS):
        hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" if url.startswith("s3") else "log in"
        return f"there are no credentials for {url} ({brief(error)}); {hint}."
    if isinstance(error, ValueError | NotImplementedError) or kind in (
        "ParamValidationError",
        "InvalidRegionError",
        "HFValidationError",
    ):
        return f"{url} can't be used ({brief(error)}); check how it is written."
    if isinstance(error, IsADirectoryError | NotADirectoryError) or getattr(error, "errno", None) == 28:
        return f"{url} can't be used ({brief(error)})."
    return None
