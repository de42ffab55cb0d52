"""One place behind a URL: objects below it by name, read in ranges, written whole, listed and removed.

How calls are tried again and end is in `areca.remote.tries`.
Credentials and endpoints are those that the packages behind fsspec find by themselves (AWS_ACCESS_KEY_ID,
AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS, HF_TOKEN, ...).
"""

import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from areca.errors import ConfigError, ObjectDamaged, RemoteError, closest, install
from areca.remote.tries import brief, seconds_to_wait, sentence, silent_seconds, tried, within
from areca.runtime import keep_memory_mapped

T = TypeVar("T")

CALL_SECONDS = 60.0  # for the bytes of one range
MARKER = ".areca-probe"  # of `Place.probe`; a kill may leave it

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_S3 = ("s3", "s3a")
_READ_ONLY = ("http", "https")
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "hf": "hub"}
_TAGS = ("ETag", "etag", "blob_id", "md5Hash", "content_md5", "crc32c")  # what tells one content from another


def is_url(place: object) -> bool:
    """Whether it names a place behind a URL, and not a path."""
    return isinstance(place, str) and _URL.match(place) is not None


@dataclass(frozen=True)
class Info:
    """What a listing says of an object. `tag` changes with its content; None where the place has no such thing."""

    size: int
    tag: str | None = None


class Place:
    """What is below one URL. Opening it asks nothing; ConfigError if no package here opens such a URL.

    `to_write`: something is to be written there, which not every kind of URL takes.
    """

    def __init__(self, url: str, to_write: bool = False) -> None:
        if is_url(url) and not url.partition("://")[2].strip("/"):
            raise ConfigError(f"{url} names no bucket and no place in it; is a variable of the shell not set?")
        seconds_to_wait()  # a setting that is no number is refused before anything is asked
        self.url = url.rstrip("/")
        self._fs, path = filesystem(self.url)
        self._path = path.rstrip("/")
        self._protocol = self.url.partition("://")[0]
        if to_write and self._protocol in _READ_ONLY:
            raise ConfigError(f"{url} can only be read; name a place that can be written, such as s3://bucket/name.")

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

        return self._tried(lambda: within(ask, self.of(name)), name)

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
        once = getattr(self._fs, "retries", None)
        try:
            if self._protocol in _S3:  # a part of a large object is tried again by itself, else all of it would be
                self._fs.retries = 5
            self._tried(lambda: self._put(name, lambda to: self._fs.put_file(path, to)), name)
        finally:
            if self._protocol in _S3:
                self._fs.retries = once

    def probe(self) -> None:
        """Writes an object and removes it; RemoteError if that can't be done: no such bucket, no permission."""

        def put() -> None:
            self._put(MARKER, lambda path: self._fs.pipe_file(path, b"areca"))

        self._tried(lambda: within(put, self.url), "")
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
            raise ObjectDamaged(f"{self.of(name)} is damaged: it has {size:,} bytes where {end:,} were written")

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._at(name))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}" if name else self._path

    def _name(self, path: str) -> str:
        return path[len(self._path) :].lstrip("/")

    def _tried(self, ask: Callable[[], T], name: str) -> T:
        return tried(ask, self.of(name))


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
        if protocol in _S3:
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
        said = sentence(error, url) or f"{url} can't be opened ({brief(error)})."
        raise RemoteError(said) from None


def _brings(extra: str) -> str:
    return f"{install(extra)} brings it"


def _options(protocol: str, fsspec: Any) -> dict[str, Any]:
    """No listing is kept, and a call that hangs ends, as there are tries of our own."""
    options: dict[str, Any] = {"use_listings_cache": False}
    if protocol in _S3:
        own = fsspec.config.conf.get(protocol, {}).get("config_kwargs", {})
        silent = silent_seconds()
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
