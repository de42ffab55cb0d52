"""Files of text behind a URL, read as a build reads local ones: a file, a pattern of files, or all files below it.

A file is read in blocks, each asked for when it is needed and kept on this machine's disk until the build has ended
(`forget`): a build that is killed, or loses the link for good, does not ask for them again. Memory holds one block.
What identifies a source is the tag that the place gives each object (S3's ETag, a hub's blob id); without tags every
object is read once more to take its digest, and none of it is kept. A data set of a hub is read at one commit, which
the source's URL then names.
"""

import functools
import hashlib
import io
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from areca.errors import DataError, RemoteError
from areca.files import write_atomic
from areca.remote.place import Info, Place, filesystem
from areca.remote.tries import tried
from areca.runtime import cache_directory

BLOCK = 4 << 20
_PATTERN = frozenset("*?[")


class RemoteSource:
    """The files behind a URL. DataError if there are none."""

    def __init__(self, url: str) -> None:
        self.given = url.rstrip("/")
        self.url = _pinned(self.given)

    def __str__(self) -> str:
        return self.given

    @property
    def name(self) -> str:
        """What the corpus is called: `s3://lab/raw/books/*.jsonl.gz` -> `books`, `s3://lab/wiki.parquet` -> `wiki`."""
        parts = self.url.partition("://")[2].split("@")[0].split("/") if "@" in self.url else self.url.split("/")
        plain = [p for p in parts if p and not _PATTERN & set(p)]
        return plain[-1].split(".")[0] if plain else "text"

    def is_dir(self) -> bool:
        """Whether it is more than one object that has the very URL."""
        return not (len(self._found) == 1 and "" in self._found)

    def files(self) -> list["RemoteFile"]:
        """Its files, in the order of their names; hidden ones are left out."""
        return [self._file(name, info) for name, info in self._found.items()]

    def _file(self, name: str, info: Info) -> "RemoteFile":
        return RemoteFile(f"{self._below}{name}" if name else self.url, info)

    def identify(self) -> dict[str, Any]:
        """What determines its text, JSON-ready, as `areca.data.sources.identify` says of local files."""
        digest = hashlib.sha256()
        for name, info in self._found.items():
            content = info.tag or self._file(name, info).sha256()
            digest.update(f"{name or '-'}\0{info.size}\0{content}\n".encode("utf-8", "surrogateescape"))
        return {
            "files": len(self._found), "path": self.url,
            "bytes": sum(i.size for i in self._found.values()), "sha256": digest.hexdigest(),
            "of": "tags" if all(i.tag for i in self._found.values()) else "contents",
        }  # fmt: skip

    @functools.cached_property
    def _below(self) -> str:
        """What stands before a file's name."""
        if not _PATTERN & set(self.url):
            return f"{self.url}/"
        plain = []
        for part in self.url.split("/"):
            if _PATTERN & set(part):
                break
            plain.append(part)
        return "/".join(plain) + "/"

    @functools.cached_property
    def _found(self) -> dict[str, Info]:
        place = Place(self.url)
        if _PATTERN & set(self.url):
            top = filesystem(self._below)[1].rstrip("/")
            found = {path[len(top) :].lstrip("/"): info for path, info in place.matches().items()}
        elif (one := place.info()) is not None:
            found = {"": one}
        else:
            found = place.names()
        shown = {n: i for n, i in found.items() if not any(part.startswith(".") for part in n.split("/"))}
        if not shown:
            raise DataError(f"{self.given} has no files; check its bucket and its name, or the pattern.")
        return shown


class RemoteFile:
    """One file behind a URL, with as much of a Path as readers use."""

    def __init__(self, url: str, info: Info) -> None:
        self.url, self.known = url, info
        path = PurePosixPath(url.partition("://")[2])
        self.suffix, self.suffixes = path.suffix, path.suffixes

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> BinaryIO:
        """Its bytes, seekable. RemoteError while reading if it is not what was listed any more."""
        assert mode == "rb"
        return io.BufferedReader(_Blocks(self.url, self.known), 1 << 17)

    def sha256(self) -> str:
        """The digest of its bytes."""
        with self.open() as f:
            return hashlib.file_digest(f, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]


class _Blocks(io.RawIOBase):
    """A file behind a URL by blocks, which are kept on disk."""

    def __init__(self, url: str, info: Info) -> None:
        self.url, self.info, self._at = url, info, 0
        self._place: Place | None = None
        self._kept = kept_at(url, info)
        self._held: tuple[int, bytes] = -1, b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.info.size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self.info.size:
            return 0
        number, offset = divmod(self._at, BLOCK)
        piece = memoryview(self._block(number))[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, number: int) -> bytes:
        if self._held[0] != number:
            start = number * BLOCK
            size = min(BLOCK, self.info.size - start)
            path = self._kept / str(number)
            data = path.read_bytes() if self.info.tag and path.is_file() else b""
            if len(data) != size:
                data = self._asked(start, start + size)
                if self.info.tag:  # without one, what is kept might be of an earlier content
                    write_atomic(path, data)
            self._held = number, data
        return self._held[1]

    def _asked(self, start: int, end: int) -> bytes:
        if self._place is None:
            self._place = Place(self.url)
        data = self._place.read("", start, end)
        may_change = not self.url.startswith("hf://")  # which is read at a commit
        if end == self.info.size and may_change and self._place.info() != self.info:  # another's from some block on
            raise RemoteError(f"{self.url} was changed while it was read; give the same command again.")
        return data


def kept_at(url: str, info: Info) -> Path:
    """Where the blocks of a file are kept while they are needed."""
    key = hashlib.sha256(f"{url}\0{info.size}\0{info.tag}".encode()).hexdigest()[:32]
    return cache_directory() / "remote" / "blocks" / key


def forget(sources: Iterable[object]) -> None:
    """Removes what was kept on disk of the remote ones of these sources."""
    for source in sources:
        if isinstance(source, RemoteSource):
            for file in source.files():
                shutil.rmtree(kept_at(file.url, file.known), ignore_errors=True)


def _pinned(url: str) -> str:
    """The URL with the commit that its branch or tag, or the main branch, has now; only hubs have such things."""
    if not url.startswith("hf://"):
        return url
    fs, path = filesystem(url)
    asked = tried(lambda: fs.resolve_path(path), url)
    if not hasattr(asked, "repo_id"):  # a bucket, which has no commits
        return url
    from huggingface_hub import HfApi

    api = HfApi(endpoint=fs.endpoint, token=fs.token)
    about = tried(lambda: api.repo_info(asked.repo_id, repo_type=asked.repo_type, revision=asked.revision), url)
    kind = {"dataset": "datasets/", "space": "spaces/"}.get(asked.repo_type, "")
    return f"hf://{kind}{asked.repo_id}@{about.sha}/{asked.path_in_repo}".rstrip("/")
