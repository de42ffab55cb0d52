"""Pass one of a build: documents of all sources, cleaned and without duplicates, spooled to disk with their counts.

The text of a document is never changed: it is kept whole or left out (empty, binary, an exact or a near duplicate).
"""

import contextlib
import hashlib
import os
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from areca.data import corpora, readers
from areca.data.dedup import Deduplicator
from areca.data.documents import Document, from_bytes, to_bytes
from areca.data.readers import ReadOptions
from areca.data.sources import Source
from areca.errors import DataError

BATCH_CHARACTERS = 4_000_000  # worked on at once
CHUNK_BYTES = 1_000_000  # of a spool that is encoded at once, a document more at most
_RECORD = struct.Struct("<QQ")
_QUIET_SECONDS = 10.0  # between lines of progress within a stage

Progress = Callable[[str], None]


class Ticker:
    """Says a line no more often than every ten seconds."""

    def __init__(self, say: Progress):
        self._say = say
        self.started = self._last = time.monotonic()

    def tick(self, line: Callable[[], str]) -> None:
        """Says `line()` if the last line was long ago."""
        now = time.monotonic()
        if now - self._last > _QUIET_SECONDS:
            self._last = now
            self._say(line())

    def elapsed(self) -> str:
        """`[1.2 s]`."""
        return f"[{time.monotonic() - self.started:.1f} s]"


class Spool:
    """Kept documents of one corpus on disk, each with the 64-bit hash that splits them, and the counts."""

    def __init__(self, path: Path):
        self.path = path
        self.file: BinaryIO | None = path.open("wb")
        self.read: Counter = Counter()  # documents, bytes
        self.removed: dict[str, Counter] = {k: Counter() for k in ("empty", "binary", "exact", "near")}
        self.kept: Counter = Counter()
        self.groups: dict[int, int] = {}  # hash -> bytes, of what is split together
        self.cuts: list[int] = []  # offsets in the file where its chunks of whole documents end
        self._size = 0
        self._digest = hashlib.sha256()
        self.sha256 = ""  # of the text kept, in order; once it is closed

    def add(self, document: Document, verdict: str) -> None:
        data = to_bytes(document.text)
        self.read.update(documents=1, bytes=len(data))
        if verdict != "kept":
            self.removed[verdict].update(documents=1, bytes=len(data))
            return
        group = document.group or hashlib.sha256(data).digest()
        key = int.from_bytes(hashlib.sha256(b"split" + group).digest()[:8], "little")
        self.groups[key] = self.groups.get(key, 0) + len(data)
        self.kept.update(documents=1, bytes=len(data))
        record = _RECORD.pack(key, len(data))
        self._digest.update(record)
        self._digest.update(data)
        assert self.file is not None
        self.file.write(record)
        self.file.write(data)
        self._size += len(record) + len(data)
        if self._size - (self.cuts[-1] if self.cuts else 0) >= CHUNK_BYTES:
            self.cuts.append(self._size)

    def close(self) -> None:
        """All is added, and on disk."""
        if self.file is not None:
            if self._size > (self.cuts[-1] if self.cuts else 0):
                self.cuts.append(self._size)
            self.sha256 = self._digest.hexdigest()
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self.file = None

    def facts(self) -> dict[str, Any]:
        """What `of_facts` needs."""
        counts = {"read": self.read, "kept": self.kept, **{f"removed {k}": c for k, c in self.removed.items()}}
        return {"counts": counts, "cuts": self.cuts, "sha256": self.sha256}

    @staticmethod
    def of_facts(directory: Path, name: str, facts: dict[str, Any]) -> "Spool":
        """A closed spool again; its groups are gone."""
        spool = Spool.__new__(Spool)
        spool.path, spool.file, spool.groups = _place(directory, name), None, {}
        counts = {what: Counter(c) for what, c in facts["counts"].items()}
        spool.read, spool.kept = counts.pop("read"), counts.pop("kept")
        spool.removed = {what.removeprefix("removed "): c for what, c in counts.items()}
        spool.cuts, spool.sha256 = facts["cuts"], facts["sha256"]
        return spool

    def share(self, kind: str) -> float:
        """The share of the bytes read that was left out as "empty", "binary", "exact" or "near"."""
        return self.removed[kind]["bytes"] / max(self.read["bytes"], 1)

    def threshold(self, fraction: float, name: str, say: Progress) -> int:
        """Documents with a hash below it are held out: the fraction, but at least one group on each side.

        Whole documents are split, so a few large ones can't be split as asked. It is said where the text held out is
        more than twice or less than a quarter of what was asked, and refused, as DataError, where more than two thirds
        would be.
        """
        if fraction == 0:
            return 0
        number = f"{self.kept['documents']:,} document{'s' if self.kept['documents'] != 1 else ''}"
        pieces = min(max(64, self.kept["bytes"] // 40), 1024)
        mend = f"cut it finer with, for example, --split-documents {pieces}, give more documents, or hold out nothing"
        if len(self.groups) == 1:
            what = "is a single document" if self.kept["documents"] == 1 else f"has {number} that belong together"
            raise DataError(f"the corpus {name!r} {what}, so none can be held out; {mend} with --heldout 0.")
        threshold = min(max(int(fraction * 2**64), min(self.groups) + 1), max(self.groups))
        share = sum(size for key, size in self.groups.items() if key < threshold) / self.kept["bytes"]
        if share > max(2 / 3, 2 * fraction):
            raise DataError(
                f"the corpus {name!r} has only {number}, and {share:.0%} of its text would be held out where "
                f"{100 * fraction:.3g}% was asked; {mend} with --heldout 0."
            )
        if not fraction / 4 <= share <= 2 * fraction:
            say(
                f"note: {name}: {share:.1%} of the text is held out where {100 * fraction:.3g}% was asked, as whole "
                f"documents are split and it has {number}"
            )
        return threshold

    def documents(self) -> Iterator[tuple[int, str]]:
        """(hash, text) of each document, in order."""
        with self.path.open("rb") as f:
            yield from documents(f, 0, self.cuts[-1])


def documents(spool: BinaryIO, start: int, end: int) -> Iterator[tuple[int, str]]:
    """(hash, text) of each document of a part of a spool's file."""
    spool.seek(start)
    while start < end:
        key, length = _RECORD.unpack(spool.read(_RECORD.size))
        start += _RECORD.size + length
        yield key, from_bytes(spool.read(length))


def _place(directory: Path, name: str) -> Path:
    return directory / f"{name}.spool"


def gather(
    directory: Path, sources: Sequence[Source], options: ReadOptions, near: bool, say: Progress
) -> dict[str, Spool]:
    """Spools the documents of all sources under `directory`, one spool a corpus. DataError if a corpus is empty."""
    seen = Deduplicator(near)
    spools: dict[str, Spool] = {}
    with contextlib.ExitStack() as files:
        for source in sources:
            if source.name not in spools:
                spools[source.name] = Spool(_place(directory, source.name))
                files.callback(spools[source.name].close)
            _gather_source(source, spools[source.name], seen, options, say)
    for name, spool in spools.items():
        if not spool.kept["documents"]:
            what = ", ".join(f"{c['documents']} {kind}" for kind, c in spool.removed.items() if c["documents"])
            where = next(s.path or "the built-in corpus" for s in sources if s.name == name)
            raise DataError(
                f"the corpus {name!r} is empty: {where} holds no text to train on ({what or 'no documents'})."
            )
    return spools


def _gather_source(source: Source, spool: Spool, seen: Deduplicator, options: ReadOptions, say: Progress) -> None:
    ticker = Ticker(say)
    options.skipped.clear()
    documents = corpora.gather(source.name) if source.path is None else readers.read_source(source, options)
    batch: list[Document] = []
    size = 0
    for document in documents:
        if not document.text.strip("\0 \t\r\n"):
            spool.add(document, "empty")
            continue
        batch.append(document)
        size += len(document.text)
        if size > BATCH_CHARACTERS:
            _judge(seen, batch, spool)
            batch, size = [], 0
            ticker.tick(lambda: f"{source.name}: read {spool.read['documents']:,} documents, "
                                f"{spool.read['bytes'] / 1e6:,.0f} MB {ticker.elapsed()}")  # fmt: skip
    _judge(seen, batch, spool)
    spool.removed["binary"]["documents"] += options.skipped["binary"]
    if not spool.kept["documents"]:
        return  # an error, or more sources of this corpus follow
    say(f"{source.name}: {spool.kept['documents']:,} documents, {spool.kept['bytes'] / 1e6:.1f} MB kept; removed "
        f"{spool.share('exact'):.1%} as exact and {spool.share('near'):.1%} as near duplicates{_others(spool)} "
        f"{ticker.elapsed()}")  # fmt: skip


def _judge(seen: Deduplicator, batch: list[Document], spool: Spool) -> None:
    for document, verdict in zip(batch, seen.judge(batch), strict=True):
        spool.add(document, verdict)


def _others(spool: Spool) -> str:
    counts = [(kind, spool.removed[kind]["documents"]) for kind in ("empty", "binary")]
    return "".join(f", {n:,} {kind}" for kind, n in counts if n)
