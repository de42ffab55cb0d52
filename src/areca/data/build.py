"""From sources of text to a token store: gather, clean, drop duplicates, split, tokenize, write.

Pass one streams every document through the cleaning into a spool beside the store; pass two trains the tokenizer on
training documents of the spool and writes the tokens. Memory is bounded by the largest document and by a kilobyte for
each document kept. All is built in a hidden sibling directory that is renamed at the end, so a store is whole or absent.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.metadata
import os
import platform
import shutil
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import areca
from areca.config import differences
from areca.data import corpora, readers, store
from areca.data.dedup import Deduplicator
from areca.data.documents import Document, from_bytes, to_bytes
from areca.data.readers import InvalidUtf8, ReadOptions
from areca.data.sources import Source, identify, parse_sources
from areca.data.tokenizer import Tokenizer, check_vocab_size, load_tokenizer, train_tokenizer
from areca.errors import ConfigError, DataError
from areca.files import read_json, sha256_file, sha256_json, sync_directory, write_json

BUILD = 1  # raise when the same inputs would give another store
VOCAB_SIZE = 1024
SAMPLE_BYTES = 64_000_000  # a tokenizer is trained on no more text than this
_BATCH_BYTES = 4_000_000
_RECORD = struct.Struct("<QI")
_SUFFIX = ".building"

Progress = Callable[[str], None]


def build_store(
    out: Path | str,
    sources: Sequence[str | Source],
    *,
    vocab_size: int | None = None,
    tokenizer: Path | str | None = None,
    heldout_fraction: float = 0.05,
    near_duplicates: bool = True,
    invalid_utf8: InvalidUtf8 = "refuse",
    text_column: str = "text",
    split_bytes: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Builds the token store `out` and returns the content of its store.json.

    sources           built-in names, paths, NAME=PATH, each with :WEIGHT (`areca.data.sources`), or Source objects
    vocab_size        of the tokenizer to train (1024 if neither this nor `tokenizer` is given)
    tokenizer         a tokenizer.json to use instead of training one
    heldout_fraction  share of the documents, chosen by a hash of their content, that training never sees
    split_bytes       text files are cut into documents of so many bytes; None: single files only; 0: never

    If `out` is a store that was built from the same inputs it is left as it is and its store.json is returned; if it is
    anything else, DataError. Every mistake raises DataError or ConfigError and leaves nothing behind.
    """
    out = Path(out)
    say = progress or (lambda line: None)
    parsed = [s if isinstance(s, Source) else parse_sources([s])[0] for s in sources]
    parsed = parse_sources(sources) if all(isinstance(s, str) for s in sources) else parsed  # type: ignore[arg-type]
    options = ReadOptions(text_column, invalid_utf8, split_bytes)
    readers.check_options(options)
    if not 0 <= heldout_fraction <= 0.5:
        raise ConfigError(f"--heldout is {heldout_fraction}; it must be a share between 0 and 0.5.")
    given = load_tokenizer(tokenizer) if tokenizer is not None else None
    if given is not None and vocab_size not in (None, given.vocab_size):
        raise ConfigError(f"{tokenizer} has {given.vocab_size} tokens, not {vocab_size}; leave --vocab-size out.")
    vocab_size = given.vocab_size if given else (vocab_size or VOCAB_SIZE)
    check_vocab_size(vocab_size)
    inputs = {
        "build": BUILD, "sources": [a | {"weight": s.weight} for s, a in zip(parsed, identify(parsed), strict=True)],
        "vocab_size": vocab_size, "tokenizer": given.sha256 if given else None, "heldout_fraction": heldout_fraction,
        "near_duplicates": near_duplicates, "invalid_utf8": invalid_utf8, "text_column": text_column,
        "split_bytes": split_bytes,
    }  # fmt: skip
    if (existing := _existing(out, inputs)) is not None:
        say(f"{out} was built from the same inputs: reused")
        return existing
    with _building(out) as directory:
        meta = _build(directory, parsed, inputs, options, given, say)
        _check_place(out)
        os.rename(directory, out)
        sync_directory(out.parent)
    return meta


def _existing(out: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The store.json of a store at `out` that was built from `inputs`; None if the place is free."""
    if _check_place(out):
        return None
    found = store.TokenStore.open(out).meta
    if found["build_fingerprint"] != _fingerprint(inputs):
        changes = differences(_comparable(found["inputs"]), _comparable(inputs))
        shown = "; ".join(changes[:3]) or "another version of areca"
        raise DataError(f"{out} is a store built from other inputs ({shown}); choose another --out or remove it.")
    return found


def _check_place(out: Path) -> bool:
    """Whether a store may be put at `out`; DataError if something that is no store is there."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / "store.json").is_file():
        raise DataError(f"{out} exists and is not a token store; choose another --out or remove it.")
    return False


def _comparable(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs without where files lie: the same bytes elsewhere give the same store."""
    rows = [{k: v for k, v in s.items() if k != "path"} for s in inputs["sources"]]
    return inputs | {"sources": {f"{i}": row for i, row in enumerate(rows)}}


def _fingerprint(inputs: dict[str, Any]) -> str:
    return sha256_json(_comparable(inputs))


@contextlib.contextmanager
def _building(out: Path) -> Iterator[Path]:
    """A locked hidden directory beside `out`; removed unless renamed. Sweeps those of builds that were killed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    for stale in out.parent.glob(f".{out.name}.*{_SUFFIX}"):
        with contextlib.suppress(OSError), (stale / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by a build that still runs
            shutil.rmtree(stale, ignore_errors=True)
    directory = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=_SUFFIX, dir=out.parent))
    try:
        os.chmod(directory, 0o755)
        with (directory / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield directory
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            raise OSError(error.errno, os.strerror(error.errno), str(out)) from None
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _Spool:
    """Kept documents of one corpus on disk, each with the 64-bit hash that splits them, and the counts."""

    def __init__(self, path: Path):
        self.path = path
        self.file = path.open("wb")
        self.read: Counter = Counter()  # documents, bytes
        self.removed: dict[str, Counter] = {k: Counter() for k in ("empty", "binary", "exact", "near")}
        self.kept: Counter = Counter()
        self.lowest, self.highest = 2**64, -1

    def add(self, document: Document, verdict: str) -> None:
        data = to_bytes(document.text)
        self.read.update(documents=1, bytes=len(data))
        if verdict != "kept":
            self.removed[verdict].update(documents=1, bytes=len(data))
            return
        group = document.group or hashlib.sha256(data).digest()
        key = int.from_bytes(hashlib.sha256(b"split" + group).digest()[:8], "little")
        self.lowest, self.highest = min(self.lowest, key), max(self.highest, key)
        self.kept.update(documents=1, bytes=len(data))
        self.file.write(_RECORD.pack(key, len(data)))
        self.file.write(data)

    def threshold(self, fraction: float, name: str) -> int:
        """Documents with a hash below it are held out: the fraction, but at least one group on each side."""
        if fraction == 0:
            return 0
        if self.lowest == self.highest:
            raise DataError(
                f"the corpus {name!r} is a single document, so none can be held out; cut it with --split-documents 1024 or "
                "so, or hold out nothing with --heldout 0."
            )
        return min(max(int(fraction * 2**64), self.lowest + 1), self.highest)

    def documents(self) -> Iterator[tuple[int, str]]:
        """(hash, text) of each document, in order."""
        with self.path.open("rb") as f:
            while head := f.read(_RECORD.size):
                key, length = _RECORD.unpack(head)
                yield key, from_bytes(f.read(length))


def _build(
    directory: Path, sources: Sequence[Source], inputs: dict[str, Any], options: ReadOptions, given: Tokenizer | None,
    say: Progress,
) -> dict[str, Any]:  # fmt: skip
    spools = _gather(directory, sources, options, inputs["near_duplicates"], say)
    thresholds = {name: s.threshold(inputs["heldout_fraction"], name) for name, s in spools.items()}
    sample: dict[str, Any] | None = None
    if given is None:
        given, sample = _train(spools, thresholds, inputs["vocab_size"], say)
    given.save(directory / "tokenizer.json")
    files = {"tokenizer.json": sha256_file(directory / "tokenizer.json")}
    rows = []
    weights = {s.name: s.weight for s in sources}
    dtype = store.token_dtype(given.vocab_size)
    for name, spool in spools.items():
        started = time.monotonic()
        counts = _write(directory, name, spool, thresholds[name], given, dtype, files)
        spool.path.unlink()
        tokens = counts["train_tokens"] + counts["heldout_tokens"]
        say(f"{name}: {tokens:,} tokens ({spool.kept['bytes'] / tokens:.2f} bytes each), {counts['heldout_tokens']:,} of "
            f"them held out [{time.monotonic() - started:.1f} s]")  # fmt: skip
        rows.append(
            {"name": name, **counts, "bytes": spool.kept["bytes"], "weight": weights[name], "read": dict(spool.read)}
            | {"removed": {kind: {"documents": c["documents"], "bytes": c["bytes"],
                                  "share": c["bytes"] / max(spool.read["bytes"], 1)} for kind, c in spool.removed.items()}}
        )  # fmt: skip
    meta = {
        "format": store.FORMAT, "version": store.VERSION, "vocab_size": given.vocab_size, "dtype": dtype.str,
        "eod_id": given.eod_id, "tokenizer_sha256": files["tokenizer.json"], "tokenizer_sample": sample,
        "corpora": rows, "inputs": inputs, "build_fingerprint": _fingerprint(inputs), "files": files,
        "versions": {"areca": areca.__version__, "python": platform.python_version()}
        | {p: importlib.metadata.version(p) for p in ("numpy", "tokenizers", "rensa")},
    }  # fmt: skip
    meta["fingerprint"] = store.content_fingerprint(meta)
    (directory / "lock").unlink()
    write_json(directory / "store.json", meta)
    return meta


def _gather(
    directory: Path, sources: Sequence[Source], options: ReadOptions, near: bool, say: Progress
) -> dict[str, _Spool]:
    """Cleans the documents of all sources into one spool a corpus."""
    seen = Deduplicator(near)
    spools: dict[str, _Spool] = {}
    for source in sources:
        started = time.monotonic()
        spool = spools.setdefault(source.name, _Spool(directory / f"{source.name}.spool"))
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
            if size > _BATCH_BYTES:
                _judge(seen, batch, spool)
                batch, size = [], 0
        _judge(seen, batch, spool)
        spool.removed["binary"]["documents"] += options.skipped["binary"]
        say(f"{source.name}: {spool.kept['documents']:,} documents, {spool.kept['bytes'] / 1e6:.1f} MB kept; removed "
            f"{_share(spool, 'exact')} as exact and {_share(spool, 'near')} as near duplicates "
            f"[{time.monotonic() - started:.1f} s]")  # fmt: skip
    for name, spool in spools.items():
        spool.file.close()
        if not spool.kept["documents"]:
            what = ", ".join(f"{c['documents']} {kind}" for kind, c in spool.removed.items() if c["documents"])
            where = next(s.path or "the built-in corpus" for s in sources if s.name == name)
            raise DataError(f"the corpus {name!r} is empty: {where} holds no text to train on ({what or 'no documents'}).")
    return spools


def _judge(seen: Deduplicator, batch: list[Document], spool: _Spool) -> None:
    for document, verdict in zip(batch, seen.judge(batch), strict=True):
        spool.add(document, verdict)


def _share(spool: _Spool, kind: str) -> str:
    return f"{spool.removed[kind]['bytes'] / max(spool.read['bytes'], 1):.1%}"


def _train(
    spools: dict[str, _Spool], thresholds: dict[str, int], vocab_size: int, say: Progress
) -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer from the training documents, or from a sample of them by their hash where they are many."""
    started = time.monotonic()
    total = sum(s.kept["bytes"] for s in spools.values())
    keep = min(1.0, SAMPLE_BYTES / total)
    count: Counter = Counter()

    def texts() -> Iterator[str]:
        for name, spool in spools.items():
            for key, text in spool.documents():
                if key >= thresholds[name] and (keep == 1.0 or _second(key) < keep):
                    count.update(documents=1, bytes=len(text))
                    yield text

    trained = train_tokenizer(texts(), vocab_size)
    sampled = f"a sample of {keep:.1%} of the text" if keep < 1 else "all training text"
    less = "" if trained.vocab_size == vocab_size else f" (not {vocab_size:,}: the text has no more pairs to merge)"
    say(f"tokenizer: {trained.vocab_size:,} tokens{less} from {sampled} [{time.monotonic() - started:.1f} s]")
    return trained, {"share": keep, "documents": count["documents"], "characters": count["bytes"]}


def _second(key: int) -> float:
    return int.from_bytes(hashlib.sha256(b"sample" + key.to_bytes(8, "little")).digest()[:8], "little") / 2**64


def _write(
    directory: Path, name: str, spool: _Spool, threshold: int, tokenizer: Tokenizer, dtype: np.dtype,
    files: dict[str, str],
) -> dict[str, int]:  # fmt: skip
    """Writes the two .bin files of a corpus, adds their digests to `files` and returns the counts."""
    counts = {f"{split}_{what}": 0 for split in ("train", "heldout") for what in ("tokens", "documents")}
    with contextlib.ExitStack() as stack:
        outputs, digests = {}, {}
        for split in ("train", "heldout"):
            outputs[split] = stack.enter_context((directory / store.bin_name(name, split)).open("wb"))
            digests[split] = hashlib.sha256()

        def flush(batch: list[tuple[str, str]]) -> None:
            for (split, _), ids in zip(batch, tokenizer.encode_batch([t for _, t in batch]), strict=True):
                data = np.array([*ids, tokenizer.eod_id], dtype).tobytes()
                outputs[split].write(data)
                digests[split].update(data)
                counts[f"{split}_tokens"] += len(ids) + 1
                counts[f"{split}_documents"] += 1

        batch: list[tuple[str, str]] = []
        size = 0
        for key, text in spool.documents():
            batch.append(("heldout" if key < threshold else "train", text))
            size += len(text)
            if size > _BATCH_BYTES:
                flush(batch)
                batch, size = [], 0
        flush(batch)
        for split, file in outputs.items():
            file.flush()
            os.fsync(file.fileno())
            files[store.bin_name(name, split)] = digests[split].hexdigest()
    return counts


__all__ = ["BUILD", "SAMPLE_BYTES", "VOCAB_SIZE", "build_store", "read_json"]
