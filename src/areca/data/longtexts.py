"""Long texts in pieces, so that what trains a tokenizer or encodes with one holds a piece of a text and not all of it.

A cut is made where no token goes across: before the space between two words, between two lines, or else between a
letter and punctuation or a digit. Byte-level BPE begins pieces there, and so do most tokenizers; it is looked at twice:
a kind of cut is left out if a token of the vocabulary goes across such a place, and a cut is only made where the text
around it has the tokens of its two parts. A text without a place is not cut.

(A unigram has equally likely tokenizations; that of a long text may be another of them than that of the whole.)
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

LONG = 4_000_000  # characters from which on a text is cut
PIECE = 500_000  # characters of a piece, or fewer
_NEAR = 20_000  # characters before the end of a piece that are searched first
_WINDOW = 1_000  # characters on each side of a cut whose tokens are compared
_TRIES = 20  # places looked at for each piece

LONGEST_WORD = 1_000  # characters: trainers take a time that grows with the square of a word's
_LETTER = r"[^\W\d_]"
_BROKEN = "\ufffd"  # part of a character, in a token of bytes
_ASCII = re.escape('!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~')  # without the apostrophe, which goes with letters: 's
_WIDE = "\u3001\u3002\uff01\uff08\uff09\uff0c\uff1a\uff1b\uff1f\u300c\u300d"

_SPACES = re.compile(rf"\s{{{LONGEST_WORD},}}")
# Long words: to byte-level BPE, of letters, of marks, or of whitespace; to SentencePiece, whatever is between spaces.
WORDS = re.compile(rf"{_LETTER}{{{LONGEST_WORD},}}|(?:[^\w\s]|_){{{LONGEST_WORD},}}|\s{{{LONGEST_WORD},}}")
UNSPACED = re.compile(rf"\S{{{LONGEST_WORD},}}|\s{{{LONGEST_WORD},}}")


@dataclass(frozen=True)
class Kind:
    """A kind of cut: where texts have a place for one, and the tokens that go across it."""

    place: re.Pattern[str]
    across: re.Pattern[str]


KINDS = (
    Kind(re.compile(f"(?<={_LETTER}) (?={_LETTER})"), re.compile(f"(?:{_LETTER}|{_BROKEN}) ")),
    Kind(re.compile(r"(?<=\S\n)(?=\S)"), re.compile(r"\n\S")),
    *(
        Kind(re.compile(f"(?<={_LETTER})[{marks}]"), re.compile(f"(?:{_LETTER}|{_BROKEN})[{marks}]"))
        for marks in (_ASCII, _WIDE, "0-9")
    ),
)


@dataclass(frozen=True)
class Cuts:
    """Where a tokenizer's texts may be cut. `same`, if given, says whether two parts have the tokens of their whole."""

    kinds: tuple[Kind, ...] = KINDS
    same: Callable[[str, str], bool] | None = None

    @staticmethod
    def of(tokens: Iterable[bytes], same: Callable[[str, str], bool] | None = None) -> "Cuts":
        """For a vocabulary."""
        texts = [token.decode("utf-8", "replace") for token in tokens]
        return Cuts(tuple(k for k in KINDS if not any(k.across.search(t) for t in texts)), same)


def is_long(text: str) -> bool:
    """Whether it is cut."""
    return len(text) > LONG


def pieces(text: str, cuts: Cuts) -> Iterator[str]:
    """The text, or if it is long its pieces, of which the tokens joined are those of the text."""
    start = 0
    if is_long(text):
        while len(text) - start > PIECE and (end := _cut(text, start, cuts)):
            yield text[start:end]
            start = end
    yield text[start:] if start else text


def for_training(text: str, cuts: Cuts, words: re.Pattern[str] = WORDS) -> Iterator[str]:
    """The text in pieces, and long words in parts of LONGEST_WORD characters."""
    for piece in pieces(text, cuts):
        if max(map(len, piece.split()), default=0) <= LONGEST_WORD and not _SPACES.search(piece):
            yield piece
            continue
        start = 0
        for word in words.finditer(piece):
            for at in range(word.start() + LONGEST_WORD, word.end(), LONGEST_WORD):
                yield piece[start:at]
                start = at
        yield piece[start:]


def _cut(text: str, start: int, cuts: Cuts) -> int:
    """Where the piece from `start` ends; 0 if nowhere: the rest is not cut."""
    for at in itertools.islice(_places(text, start, start + PIECE, cuts), _TRIES):
        if cuts.same is None or cuts.same(text[max(start, at - _WINDOW) : at], text[at : at + _WINDOW]):
            return at
    return 0


def _places(text: str, start: int, stop: int, cuts: Cuts) -> Iterator[int]:
    """Places to cut: the last ones of each kind before `stop`, near it and then anywhere; then those after it."""
    for since in (max(start + 1, stop - _NEAR), start + 1):
        for kind in cuts.kinds:
            found = [m.start() for m in kind.place.finditer(text, since, stop)]
            yield from found[: -_TRIES // len(cuts.kinds) : -1]
    if cuts.kinds:
        any_kind = re.compile("|".join(kind.place.pattern for kind in cuts.kinds))
        yield from (m.start() for m in any_kind.finditer(text, stop))
