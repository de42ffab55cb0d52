"""Exact and near duplicates: which documents to keep.

Exact duplicates share the SHA-256 of their bytes. Near duplicates share most of their word 5-grams: MinHash with 128
seeded permutations and locality-sensitive hashing of the `rensa` package, candidates checked by their signatures'
estimated Jaccard similarity. Of a family of near duplicates the first in order is kept. Memory grows with the number
of documents (about three kilobytes each), not with their length: the 5-grams of a long one are hashed part by part.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from areca.data.documents import Document, is_valid, to_bytes

NGRAM = 5  # words
PERMUTATIONS = 128
BANDS = 16  # of 8 rows: pairs of similarity 0.8 are candidates with probability 0.95, of 0.9 with 0.9999
THRESHOLD = 0.8  # Jaccard similarity, as Lee et al. 2022 used
SEED = 42
PART = 1_000_000  # characters of which the 5-grams are held at once
_WORD = re.compile(r"\w+|[^\w\s]+")
_SPACE = re.compile(r"\s")


class Deduplicator:
    """Remembers the documents it kept; `judge` says of each new one "kept", "exact" or "near"."""

    def __init__(self, near: bool = True):
        self._seen: set[bytes] = set()
        self._near = None
        self._count = 0
        if near:
            import rensa

            self._near = rensa.RMinHashDeduplicator(  # type: ignore[attr-defined]
                THRESHOLD, PERMUTATIONS, True, BANDS, SEED
            )

    def judge(self, documents: Sequence[Document]) -> list[str]:
        """One verdict a document, in order. The result doesn't depend on how documents are cut into calls."""
        verdicts = ["kept"] * len(documents)
        pairs: list[tuple[str, Any]] = []
        places: list[int] = []
        for i, document in enumerate(documents):
            digest = hashlib.sha256(to_bytes(document.text)).digest()[:16]
            if digest in self._seen:
                verdicts[i] = "exact"
                continue
            self._seen.add(digest)
            grams = _hashed(document.text) if self._near is not None else None
            if grams:
                pairs.append((str(self._count), grams))
                places.append(i)
                self._count += 1
        if self._near is not None and pairs:
            for i, fresh in zip(places, self._near.add_pairs(pairs), strict=True):
                if not fresh:
                    verdicts[i] = "near"
        return verdicts


def _hashed(text: str) -> Any:
    """What the deduplicator takes of a text: its 5-grams, or of a long one their MinHash; None if it has none."""
    if len(text) <= PART:
        return shingles(text)
    import rensa

    found = rensa.RMinHash(num_perm=PERMUTATIONS, seed=SEED)  # type: ignore[attr-defined]
    some = False
    for grams in _shingles(text):
        found.update(grams)
        some = some or bool(grams)
    return found if some else None


def shingles(text: str) -> list[str]:
    """The distinct word 5-grams of a text, lower case, in order; [] if it has fewer than five words."""
    return list(dict.fromkeys(gram for grams in _shingles(text) for gram in grams))


def _shingles(text: str) -> Iterator[list[str]]:
    """The 5-grams of a text, those of one part of it after another, each distinct within its part."""
    if not is_valid(text):
        text = to_bytes(text).decode("utf-8", "replace")
    words: list[str] = []
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + PART) if len(text) - start > PART else None  # words have none within
        end = space.start() if space else len(text)
        words = words[max(0, len(words) - NGRAM + 1) :] + _WORD.findall(text[start:end].lower())
        yield list(dict.fromkeys(" ".join(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1)))
        start = end
