"""From sources of text to a token store: gather, clean, drop duplicates, split, tokenize, write.

Pass one streams every document through the cleaning into a spool beside the store; pass two trains the tokenizer on
training documents of the spool and writes the tokens. Memory is bounded by a few times the largest document and by
three kilobytes for each document kept. All is built in a hidden sibling directory, renamed at the end: a store is whole
or absent. A build that is killed after pass one goes on where it was (`areca.data.resume`).
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.config import differences
from areca.data import sentencepieces, store
from areca.data.away import deliver
from areca.data.documents import to_bytes
from areca.data.encode import COUNTS, Job, write_tokens
from areca.data.readers import InvalidUtf8, ReadOptions, check_options
from areca.data.resume import Ledger, versions
from areca.data.sources import Source, identify, parse_columns, parse_sources
from areca.data.spool import BATCH_CHARACTERS, Progress, Spool, Ticker, gather
from areca.data.tokenizer import EOD, Tokenizer, check_vocab_size, load_tokenizer, train_tokenizer
from areca.errors import ConfigError, DataError
from areca.files import sha256_file, sha256_json, write_json
from areca.folders import appear, building
from areca.remote.place import is_url
from areca.remote.sources import forget
from areca.runtime import available_cores

BUILD = 1  # raise when the same inputs would give another store
VOCAB_SIZE = 1024
PARALLEL_BYTES = 16_000_000  # of a corpus from which on it is tokenized by several processes
SAMPLE_BYTES = 64_000_000  # a tokenizer is trained on no more text than this


@dataclass(frozen=True)
class Recipe:
    """The tokenizer to train."""

    vocab_size: int
    kind: str = "byte-bpe"
    user_symbols: tuple[str, ...] = ()

    def check(self) -> None:
        """DataError or ConfigError for what can't be, or for a package that is missing, before any text is read."""
        check_vocab_size(self.vocab_size, self.kind, self.user_symbols)
        if self.kind != "byte-bpe":
            sentencepieces.library()

    def unusual(self) -> dict[str, Any]:
        """What is not the default, for a store's inputs."""
        kind = {} if self.kind == "byte-bpe" else {"tokenizer_kind": self.kind}
        return kind | ({"user_symbols": list(self.user_symbols)} if self.user_symbols else {})


def build_store(
    out: Path | str,
    sources: Sequence[str | Source],
    *,
    vocab_size: int | None = None,
    tokenizer: Path | str | None = None,
    tokenizer_kind: str = "byte-bpe",
    user_symbols: Sequence[str] = (),
    heldout_fraction: float = 0.05,
    near_duplicates: bool = True,
    invalid_utf8: InvalidUtf8 = "refuse",
    text_column: str = "text",
    split_bytes: int | None = None,
    processes: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Builds the token store `out` and returns the content of its store.json.

    out               a directory, or a URL: then it is built in the cache and sent (`areca.data.away`)
    sources           built-in names, paths or URLs, NAME=PATH, each with :WEIGHT (`areca.data.sources`), or Sources
    vocab_size        of the tokenizer to train (1024 if neither this nor `tokenizer` is given)
    tokenizer         a tokenizer.json or SentencePiece *.model to use instead of training one
    tokenizer_kind    "byte-bpe", or SentencePiece's "unigram" or "bpe" (`areca.data.tokenizer`)
    user_symbols      strings that are one token wherever text has them
    text_column       of .jsonl and .parquet: one for all, or NAME=COLUMN,NAME=COLUMN (`areca.data.sources`)
    heldout_fraction  share of the documents, chosen by a hash of their content, that training never sees
    split_bytes       text files are cut into documents of so many bytes; None: single files only; 0: never
    processes         that tokenize, which changes no byte of the store; 0: one for each core

    If `out` is a store that was built from the same inputs it is left as it is and its store.json is returned; if it is
    anything else, DataError. Every mistake raises DataError or ConfigError and leaves nothing behind; BusyError if
    another process is building `out`. A build that was killed or interrupted goes on where it was, to the same bytes.
    """
    out = str(out) if is_url(out) else Path(out)
    say = progress or (lambda line: None)
    parsed = parse_sources(sources)
    for s in parsed:
        if (
            isinstance(out, Path)
            and isinstance(s.path, Path)
            and s.path.is_dir()
            and out.resolve().is_relative_to(s.path.resolve())
        ):
            raise ConfigError(f"{out} lies inside the source {s.path}; choose an --out outside of it.")
    options = ReadOptions(*parse_columns(text_column, parsed), invalid_utf8, split_bytes)
    check_options(options)
    if not 0 <= processes <= 1024:
        raise ConfigError(f"--processes is {processes}; give a number up to 1024, or 0 for one for each core.")
    if not 0 <= heldout_fraction <= 0.5:
        raise ConfigError(f"--heldout is {heldout_fraction}; it must be a share between 0 and 0.5.")
    given = load_tokenizer(tokenizer) if tokenizer is not None else None
    if given is not None and vocab_size not in (None, given.vocab_size):
        raise ConfigError(f"{tokenizer} has {given.vocab_size} tokens, not {vocab_size}; leave --vocab-size out.")
    if given is not None and (tokenizer_kind != "byte-bpe" or user_symbols):
        raise ConfigError(
            f"{tokenizer} is of one kind and has its symbols; leave --tokenizer-kind and --user-symbols out."
        )
    vocab_size = given.vocab_size if given else VOCAB_SIZE if vocab_size is None else vocab_size
    recipe = Recipe(vocab_size, tokenizer_kind, tuple(user_symbols))
    if given is None:
        recipe.check()
    elif given.eod != EOD:
        say(f"documents end with the {given.eod} of {tokenizer}, token {given.eod_id}")
    inputs = {
        "build": BUILD, "sources": [a | {"weight": s.weight} for s, a in zip(parsed, identify(parsed), strict=True)],
        "vocab_size": vocab_size, "tokenizer": given.sha256 if given else None, "heldout_fraction": heldout_fraction,
        "near_duplicates": near_duplicates, "invalid_utf8": invalid_utf8, "text_column": text_column,
        "split_bytes": split_bytes,
    } | recipe.unusual()  # fmt: skip
    fingerprint = _fingerprint(inputs)

    def goes_on(directory: Path) -> bool:
        return Ledger(directory, fingerprint).goes_on()

    def make(out: Path) -> dict[str, Any]:
        if (existing := _existing(out, inputs)) is not None:
            say(f"{out} was built from the same inputs: reused")
            return existing
        with building(out, goes_on) as directory:
            try:
                meta = _build(directory, parsed, inputs, options, given or recipe, processes, say)
            except KeyboardInterrupt:
                if goes_on(directory):
                    say(
                        f"interrupted: the same command goes on where it was; until then {directory} keeps what is done"
                    )
                raise
            if (existing := _existing(out, inputs)) is not None:  # another build was faster
                return existing
            appear(directory, out)
        return meta

    if isinstance(out, Path):
        meta = make(out)
    else:
        meta = deliver(out, fingerprint, make, lambda found: _other(out, found, inputs), say)
    forget(s.path for s in parsed)
    return meta


def _existing(out: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The store.json of a store at `out` that was built from `inputs`; None if the place is free."""
    if _check_place(out):
        return None
    found = store.TokenStore.open(out).meta
    if found["build_fingerprint"] != _fingerprint(inputs):
        raise _other(out, found, inputs)
    return found


def _other(out: Path | str, found: dict[str, Any], inputs: dict[str, Any]) -> DataError:
    shown = "; ".join(_changes(found["inputs"], inputs)[:3]) or "another version of areca"
    return DataError(f"{out} is a store built from other inputs ({shown}); choose another --out or remove it.")


def _check_place(out: Path) -> bool:
    """Whether a store may be put at `out`; DataError if something that is no store is there."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return True
    if not (out / "store.json").is_file():
        raise DataError(f"{out} exists and is not a token store; choose another --out or remove it.")
    return False


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What differs between the inputs of two builds, for a reader."""

    def by_corpus(inputs: dict[str, Any]) -> dict[str, Any]:
        hidden = ("path", "files", "bytes", "corpus")
        return {s["corpus"]: {k: v for k, v in s.items() if k not in hidden} for s in inputs["sources"]}

    a, b = by_corpus(old), by_corpus(new)
    both = sorted(a.keys() & b.keys())
    return differences(
        old | {"sources": ", ".join(a)} | {"source": {k: a[k] for k in both}},
        new | {"sources": ", ".join(b)} | {"source": {k: b[k] for k in both}},
    )


def _comparable(inputs: dict[str, Any]) -> dict[str, Any]:
    """Inputs without where files lie: the same bytes elsewhere give the same store."""
    rows = [{k: v for k, v in s.items() if k != "path"} for s in inputs["sources"]]
    return inputs | {"sources": {f"{i}": row for i, row in enumerate(rows)}}


def _fingerprint(inputs: dict[str, Any]) -> str:
    return sha256_json(_comparable(inputs))


def _build(
    directory: Path, sources: Sequence[Source], inputs: dict[str, Any], options: ReadOptions,
    wanted: Tokenizer | Recipe, processes: int, say: Progress,
) -> dict[str, Any]:  # fmt: skip
    ledger = Ledger(directory, _fingerprint(inputs))
    if ledger.goes_on():
        spools, thresholds = ledger.spools()
        say(f"going on with what an earlier build left in {directory}")
    else:
        spools = gather(directory, sources, options, inputs["near_duplicates"], say)
        thresholds = {name: s.threshold(inputs["heldout_fraction"], name, say) for name, s in spools.items()}
        ledger.gathered(spools, thresholds)
    tokenizer_path = directory / "tokenizer.json"
    if ledger.read_tokens():
        given = load_tokenizer(tokenizer_path)
    else:
        if isinstance(wanted, Recipe):
            given, ledger.sample = _train(spools, thresholds, wanted, say)
        else:
            given = wanted
        given.save(tokenizer_path)
        ledger.write_tokens()
    sample = ledger.sample
    files = {"tokenizer.json": sha256_file(tokenizer_path)}
    rows = []
    weights = {s.name: s.weight for s in sources}
    dtype = store.token_dtype(given.vocab_size)
    for name, spool in spools.items():
        ticker = Ticker(say)
        job = Job(spool.path, spool.cuts, thresholds[name], tokenizer_path, dtype)
        counts = _write(directory, name, job, given, ledger, processes or _processes(spool), ticker)
        files |= ledger.corpora[name]["files"]
        spool.path.unlink(missing_ok=True)
        tokens = counts["train_tokens"] + counts["heldout_tokens"]
        say(f"{name}: {tokens:,} tokens ({spool.kept['bytes'] / tokens:.2f} bytes each), "
            f"{counts['heldout_tokens']:,} of them held out {ticker.elapsed()}")  # fmt: skip
        rows.append(
            {
                "name": name,
                **counts,
                "bytes": spool.kept["bytes"],
                "text_sha256": spool.sha256,
                "weight": weights[name],
                "read": {k: spool.read[k] for k in ("documents", "bytes")},
                "removed": {
                    kind: {k: c[k] for k in ("documents", "bytes")} | {"share": spool.share(kind)}
                    for kind, c in spool.removed.items()
                },
            }
        )
    trained_by = ("sentencepiece",) if sample and given.kind != "byte-bpe" else ()
    meta = {
        "format": store.FORMAT, "version": store.VERSION, "vocab_size": given.vocab_size, "dtype": dtype.str,
        "eod_id": given.eod_id, "tokenizer_sha256": files["tokenizer.json"], "tokenizer_sample": sample,
        "corpora": rows, "inputs": inputs, "build_fingerprint": _fingerprint(inputs), "files": files,
        "versions": versions("numpy", "tokenizers", "rensa", *trained_by),
    }  # fmt: skip
    meta["fingerprint"] = store.content_fingerprint(meta)
    write_json(directory / "store.json", meta)
    ledger.finish()
    return meta


def train_on_sources(
    out: Path | str,
    sources: Sequence[str | Source],
    *,
    vocab_size: int = VOCAB_SIZE,
    kind: str = "byte-bpe",
    user_symbols: Sequence[str] = (),
    text_column: str = "text",
    invalid_utf8: InvalidUtf8 = "refuse",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Trains a tokenizer on all text of the sources, duplicates left out, and writes it to the file `out`.

    Returns `{"vocab_size", "kind", "sha256", "sample", "bytes_per_token"}`, the last measured on up to 4 MB of the
    same text.
    """
    out = Path(out)
    if out.exists():
        raise DataError(f"{out} exists; choose another --out or remove it.")
    if out.suffix == ".model":
        raise ConfigError(f"--out is {out}, and a tokenizer is written as JSON; name a .json file.")
    recipe = Recipe(vocab_size, kind, tuple(user_symbols))
    recipe.check()
    parsed = parse_sources(sources)
    options = ReadOptions(*parse_columns(text_column, parsed), invalid_utf8)
    check_options(options)
    with building(out) as directory:
        spools = gather(directory, parsed, options, True, progress or (lambda line: None))
        trained, sample = _train(spools, dict.fromkeys(spools, 0), recipe, progress or (lambda line: None))
        trained.save(out)
        forget(s.path for s in parsed)
        read = tokens = 0
        for _, text in itertools.chain.from_iterable(s.documents() for s in spools.values()):
            if read > BATCH_CHARACTERS:
                break
            read += len(to_bytes(text))
            tokens += sum(map(len, trained.encode_pieces(text)))
    return {
        "vocab_size": trained.vocab_size,
        "kind": trained.kind,
        "sha256": trained.sha256,
        "sample": sample,
        "bytes_per_token": read / tokens,
    }


def _train(
    spools: dict[str, Spool], thresholds: dict[str, int], recipe: Recipe, say: Progress
) -> tuple[Tokenizer, dict[str, Any]]:
    """A tokenizer from the training documents, or from a sample of them by their hash where they are many."""
    ticker = Ticker(say)
    total = sum(s.kept["bytes"] for s in spools.values())
    keep = min(1.0, SAMPLE_BYTES / total)
    count: Counter = Counter()

    def texts() -> Iterator[str]:
        for name, spool in spools.items():
            for key, text in spool.documents():
                if key >= thresholds[name] and (keep == 1.0 or _second(key) < keep):
                    count.update(documents=1, bytes=len(text))
                    yield text

    trained = train_tokenizer(texts(), recipe.vocab_size, recipe.kind, recipe.user_symbols)
    sampled = f"a sample of {keep:.1%} of the text" if keep < 1 else "all training text"
    less = (
        "" if trained.vocab_size == recipe.vocab_size
        else f" (not {recipe.vocab_size:,}: the text has no more pieces, so this is the largest vocabulary it gives)"
    )  # fmt: skip
    say(f"tokenizer: {trained.vocab_size:,} tokens{less} from {sampled} {ticker.elapsed()}")
    return trained, {"share": keep, "documents": count["documents"], "characters": count["bytes"]}


def _second(key: int) -> float:
    return int.from_bytes(hashlib.sha256(b"sample" + key.to_bytes(8, "little")).digest()[:8], "little") / 2**64


def _processes(spool: Spool) -> int:
    """One for each core where there is work for them; a process takes about a second to start."""
    return available_cores() if spool.kept["bytes"] > PARALLEL_BYTES else 1


def _write(
    directory: Path, name: str, job: Job, tokenizer: Tokenizer, ledger: Ledger, processes: int, ticker: Ticker
) -> dict[str, int]:
    """Writes the two .bin files of a corpus, or what is not written of them, and returns the counts."""
    begun = ledger.corpora.get(name, {"chunks": 0, "counts": dict.fromkeys(COUNTS, 0), "files": None})
    counts = dict(begun["counts"])
    if begun["files"] is None:

        def record(chunks: int, sync: Callable[[], None]) -> None:
            ledger.wrote(name, chunks, counts, sync)
            ticker.tick(lambda: f"{name}: {counts['train_tokens']:,} tokens written {ticker.elapsed()}")

        files = write_tokens(directory, name, job, tokenizer, counts, begun["chunks"], processes, record)
        ledger.corpora[name] = {"chunks": len(job.cuts), "counts": counts, "files": files}
        ledger.write_tokens()
    return counts
