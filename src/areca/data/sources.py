"""What a user may name as a source of text, parsed: `docs`, `PATH`, `NAME=PATH`, each with `:WEIGHT` at the end.

A path is a text file, .jsonl or .parquet (also .gz and .zst), or a directory tree of such files. Reading them is the
work of `areca.data.readers`. Behind a URL it may also be a pattern of files (`areca.remote.sources`).
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.data import corpora
from areca.errors import ConfigError, DataError, closest
from areca.files import sha256_file
from areca.remote.place import is_url
from areca.remote.sources import RemoteFile, RemoteSource

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Source:
    """One source of a corpus: a built-in one (`path` is None) or files; `weight` is the corpus' share, if given."""

    name: str
    path: Path | RemoteSource | None = None
    weight: float | None = None


def parse_sources(words: Iterable[str | Source]) -> list[Source]:
    """`["docs:0.5", "mine=/data/books:0.5"]` to sources; DataError or ConfigError names the word that is wrong.

    Weights are shares of the training tokens, of any sum; either every corpus has one or none has (then each weighs
    its size). Sources of the same name make one corpus.
    """
    sources = [word if isinstance(word, Source) else _parse(word) for word in words]
    if not sources:
        raise ConfigError(f"name at least one source of text: a path, or one of {', '.join(corpora.BUILTIN)}.")
    weights: dict[str, float | None] = {}
    for s in sources:
        if s.name in weights and weights[s.name] != s.weight:
            raise ConfigError(f"the corpus {s.name!r} is given two weights; give all of its sources the same.")
        weights[s.name] = s.weight
    without = [name for name, w in weights.items() if w is None]
    if without and len(without) < len(weights):
        raise ConfigError(
            f"{without[0]!r} has no weight but others have; weigh every corpus (NAME=PATH:WEIGHT) or none."
        )
    return sources


def _parse(word: str) -> Source:
    rest, weight = word, None
    head, colon, tail = word.rpartition(":")
    if colon and not Path(word.partition("=")[2] or word).exists():
        try:
            weight = float(tail)
            rest = head
        except ValueError:
            pass
    if weight is not None and not (weight > 0 and math.isfinite(weight)):
        raise ConfigError(
            f"the weight in {word!r} is {tail}; it must be a positive number (leave a corpus out to skip it)."
        )
    name, equals, path = rest.partition("=")
    if equals and _NAME.fullmatch(name):
        if path in corpora.BUILTIN and not Path(path).exists():
            raise ConfigError(f"the built-in corpus {path!r} keeps its name; write {path!r} instead of {rest!r}.")
    elif rest in corpora.BUILTIN:
        return Source(rest, None, weight)
    else:
        name, path = "", rest
    if not path:
        raise ConfigError(f"{word!r} names no path; write NAME=PATH, PATH or one of {', '.join(corpora.BUILTIN)}.")
    if is_url(path):
        remote = RemoteSource(path)
        return Source(name or _cleaned(remote.name), remote, weight)
    if not Path(path).exists():
        hint = closest(path, corpora.BUILTIN) if "/" not in path else ""
        raise DataError(
            f"{path} does not exist{hint}; name a file, a directory or one of {', '.join(corpora.BUILTIN)}."
        )
    if not (Path(path).is_file() or Path(path).is_dir()):
        raise DataError(
            f"{path} is neither a file nor a directory, so it can't be read twice; write it to a file first."
        )
    return Source(name or _name_of(Path(path)), Path(path), weight)


def parse_columns(text: str, sources: Iterable[Source]) -> tuple[str, dict[str, str]]:
    """`"body"` to ("body", {}), `"news=body,books=content"` to ("text", {...}); ConfigError for a corpus not there.

    A column without a name before it is that of all other corpora.
    """
    if "=" not in text:
        return text, {}
    names = {s.name for s in sources}
    default, columns = "text", {}
    for word in text.split(","):
        name, equals, column = word.partition("=")
        if not equals:
            default = word
        elif name not in names:
            raise ConfigError(
                f"--text-column names the corpus {name!r}{closest(name, names)}, which is none of "
                f"{', '.join(sorted(names))}; write NAME=COLUMN with the name of a source."
            )
        else:
            columns[name] = column
    if "" in (default, *columns.values()):
        raise ConfigError(f"--text-column is {text!r}; write COLUMN, or NAME=COLUMN,NAME=COLUMN.")
    return default, columns


def _name_of(path: Path) -> str:
    """`/data/My books.txt.gz` -> `My-books`."""
    name = path.resolve().name
    return _cleaned(name.split(".")[0] if not path.is_dir() else name)


def _cleaned(stem: str) -> str:
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-.")
    return cleaned or "text"


def files_of(path: Path | RemoteSource) -> list[Path] | list[RemoteFile]:
    """The regular files of a source, sorted; hidden files and directories of a tree are left out."""
    if isinstance(path, RemoteSource):
        return path.files()
    if not path.is_dir():
        return [path]
    return sorted(
        p
        for p in path.rglob("*")
        if p.is_file() and not any(part.startswith(".") for part in p.relative_to(path).parts)
    )


def identify(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """What determines the text of each source, JSON-ready: versions of packages, or a digest of the files' bytes."""
    found: list[dict[str, Any]] = []
    for s in sources:
        if s.path is None:
            about: dict[str, Any] = {"corpus": s.name, "builtin": True, "versions": corpora.versions(s.name)}
            about["licence"] = corpora.BUILTIN[s.name].licence
        elif isinstance(s.path, RemoteSource):
            about = {"corpus": s.name, "builtin": False, **s.path.identify()}
        else:
            digest = hashlib.sha256()
            files = [f for f in files_of(s.path) if isinstance(f, Path)]
            for file in files:
                relative = file.relative_to(s.path).as_posix() if s.path.is_dir() else "-"
                digest.update(f"{relative}\0{sha256_file(file)}\n".encode("utf-8", "surrogateescape"))
            about = {
                "corpus": s.name, "builtin": False, "files": len(files),
                "path": os.fsencode(s.path.resolve()).decode("utf-8", "replace"),
                "bytes": sum(f.stat().st_size for f in files), "sha256": digest.hexdigest(),
            }  # fmt: skip
        found.append(about)
    return found
