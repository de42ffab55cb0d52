"""The token store: a directory with the tokens of each corpus, memory-mapped, and what they were made from.

    store.json            format, vocabulary, corpora with their counts, provenance, SHA-256 of every other file
    tokenizer.json
    NAME.train.bin        token ids, little-endian uint16 (vocabulary up to 65,536) or uint32; documents one after
    NAME.heldout.bin      the other, each ended by `eod_id`

A store is built beside its place and renamed, so it is whole or absent. See `areca.data.build`.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from areca.errors import DataError, closest
from areca.files import read_json, sha256_file, sha256_json
from areca.remote.place import is_url

FORMAT = "areca token store"
VERSION = 1
Split = Literal["train", "heldout"]


@dataclass(frozen=True)
class CorpusInfo:
    """Sizes of one corpus after cleaning; `weight` is its share of a mixture by tokens, or None for by size."""

    name: str
    train_tokens: int
    heldout_tokens: int
    train_documents: int
    heldout_documents: int
    bytes: int  # of text kept, both sides
    weight: float | None = None

    @property
    def documents(self) -> int:
        """Documents kept, both sides."""
        return self.train_documents + self.heldout_documents


def token_dtype(vocab_size: int) -> np.dtype:
    """uint16 where every id fits, else uint32; little-endian."""
    return np.dtype("<u2") if vocab_size <= 65_536 else np.dtype("<u4")


def bin_name(corpus: str, split: Split) -> str:
    """The file of a corpus' tokens."""
    return f"{corpus}.{split}.bin"


def content_fingerprint(meta: dict[str, Any]) -> str:
    """SHA-256 that identifies what a store holds (tokens, tokenizer, weights), wherever and whenever it was built."""
    return sha256_json(
        {
            "version": meta["version"],
            "vocab_size": meta["vocab_size"],
            "eod_id": meta["eod_id"],
            "dtype": meta["dtype"],
            "files": meta["files"],
            "corpora": [[c["name"], c.get("weight")] for c in meta["corpora"]],
        }
    )


class TokenStore:
    """A store that is open for reading. Use `TokenStore.open`."""

    def __init__(self, path: Path, meta: dict[str, Any]):
        self.path = path
        self.where = str(path.absolute())  # what run.json says; the URL of one that was fetched
        self.meta = meta
        self.vocab_size: int = meta["vocab_size"]
        self.eod_id: int = meta["eod_id"]
        self.dtype = np.dtype(meta["dtype"])
        self.fingerprint: str = meta["fingerprint"]
        self.tokenizer_path = path / "tokenizer.json"
        self.tokenizer_sha256: str = meta["files"]["tokenizer.json"]
        fields = CorpusInfo.__dataclass_fields__
        self.corpora = [CorpusInfo(**{k: v for k, v in c.items() if k in fields}) for c in meta["corpora"]]
        self._maps: dict[tuple[str, str], np.ndarray] = {}

    @staticmethod
    def open(path: Path | str, verify: bool = False) -> "TokenStore":
        """Opens a store. Sizes are always checked; `verify` also recomputes every digest (reads all bytes).

        One behind a URL is fetched first (`areca.data.away`).
        Raises DataError, in one sentence, for a store that is missing, damaged or of another version.
        """
        if is_url(path):
            from areca.data.away import local_store

            opened = TokenStore.open(local_store(str(path), lambda line: print(line, file=sys.stderr)), verify)
            opened.where = str(path)
            return opened
        path = Path(path)
        if not path.exists():
            raise DataError(f"there is no token store {path}; make one with `areca corpus build SOURCE --out {path}`.")
        if not (path / "store.json").is_file():
            raise DataError(f"{path} is not a token store (it has no store.json).")
        meta = read_json(path / "store.json")
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise DataError(f"{path / 'store.json'} does not describe an {FORMAT}; build the store again.")
        if meta.get("version") != VERSION:
            raise DataError(
                f"{path} is a store of version {meta.get('version')}, this areca reads {VERSION}; rebuild it."
            )
        try:
            store = TokenStore(path, meta)
            computed = content_fingerprint(meta)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path / 'store.json'} is damaged ({error!r}); build the store again.") from None
        if computed != store.fingerprint:
            raise DataError(f"{path / 'store.json'} was changed after it was built; build the store again.")
        store._check_sizes()
        if verify:
            store.verify()
        return store

    def _check_sizes(self) -> None:
        for c in self.corpora:
            counts: dict[Split, int] = {"train": c.train_tokens, "heldout": c.heldout_tokens}
            for split, count in counts.items():
                file = self.path / bin_name(c.name, split)
                want = count * self.dtype.itemsize
                have = file.stat().st_size if file.is_file() else None
                if have != want:
                    what = "is missing" if have is None else f"has {have:,} bytes instead of {want:,}"
                    raise DataError(f"{file} {what}: the store is damaged; build it again.")
        if not self.tokenizer_path.is_file():
            raise DataError(f"{self.tokenizer_path} is missing: the store is damaged; build it again.")

    def verify(self) -> None:
        """Recomputes the digest of every file; DataError names the first that differs."""
        for name, digest in self.meta["files"].items():
            if sha256_file(self.path / name) != digest:
                raise DataError(f"{self.path / name} is damaged (its digest differs); build the store again.")

    def corpus(self, name: str) -> CorpusInfo:
        """The corpus of that name; DataError if the store has none."""
        for c in self.corpora:
            if c.name == name:
                return c
        names = [c.name for c in self.corpora]
        raise DataError(f"{self.path} has no corpus {name!r}{closest(name, names)}; it has {', '.join(names)}.")

    def check_ids(self, tokens: np.ndarray, corpus: str, split: Split = "train") -> None:
        """DataError where tokens that were read from a corpus can't be: digests are not recomputed at each start."""
        if tokens.size and (largest := int(tokens.max())) >= self.vocab_size:
            raise DataError(
                f"{self.path / bin_name(corpus, split)} is damaged: it has a token {largest:,}, beyond the vocabulary "
                f"of {self.vocab_size:,}; see what else is with `areca corpus show {self.where} --verify`, and build "
                "the store again."
            )

    def tokens(self, corpus: str, split: Split = "train") -> np.ndarray:
        """The tokens of a corpus, `[n]` uint16 or uint32, memory-mapped and read-only."""
        self.corpus(corpus)
        key = (corpus, split)
        if key not in self._maps:
            file = self.path / bin_name(corpus, split)
            if file.stat().st_size == 0:
                self._maps[key] = np.zeros(0, self.dtype)
            else:
                self._maps[key] = np.memmap(file, dtype=self.dtype, mode="r")
        return self._maps[key]
