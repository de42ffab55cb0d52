"""Long texts in pieces, so that what trains a tokenizer or encodes with one holds a piece of a text and not all of it.

A cut is made where no token can cross: before a space between two letters, or after a line feed between two characters
that are no whitespace. Every kind of tokenizer here begins a word with its space and a line with its first character;
of a tokenizer from elsewhere that is looked at (`Cuts`), and a text that can't be cut is encoded whole.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

LONG = 4_000_000  # characters from which on a text is cut
PIECE = 500_000  # characters of a piece, or fewer
_WINDOW = 1_000  # characters on each side of a cut whose tokens are compared
_GOES_ON = re.compile(rb"\n\S")  # a line feed and the line after it
_TRIES = 20  # cuts looked at for each piece


@dataclass(frozen=True)
class Cuts:
    """Where a tokenizer's texts may be cut. `same`, if given, says whether two parts have the tokens of their whole."""

    spaces: bool = True
    lines: bool = True
    same: Callable[[str, str], bool] | None = None

    @staticmethod
    def of(tokens: Iterable[bytes], same: Callable[[str, str], bool] | None = None) -> "Cuts":
        """For a vocabulary: no cut of a kind that one of its tokens crosses."""
        tokens = tuple(tokens)
        spaces = not any(b" " in token.lstrip() for token in tokens)
        lines = not any(_GOES_ON.search(token) for token in tokens)
        return Cuts(spaces, lines, same)


def is_long(text: str) -> bool:
    """Whether it is cut."""
    return len(text) > LONG


def pieces(text: str, cuts: Cuts) -> Iterator[str]:
    """The text, or if it is long its pieces, of which the tokens joined are those of the text."""
    start = 0
    if is_long(text) and (cuts.spaces or cuts.lines):
        while len(text) - start > PIECE and (end := _cut(text, start, cuts)):
            yield text[start:end]
            start = end
    yield text[start:] if start else text


def _cut(text: str, start: int, cuts: Cuts) -> int:
    """Where the piece from `start` ends; 0 if nowhere: the rest is not cut."""
    for at in itertools.islice(_places(text, start, start + PIECE, cuts), _TRIES):
        if cuts.same is None or cuts.same(text[max(start, at - _WINDOW) : at], text[at : at + _WINDOW]):
            return at
    return 0


def _places(text: str, start: int, stop: int, cuts: Cuts) -> Iterator[int]:
    """Places to cut: spaces before `stop`, the last first, then line ends before it, then the first of either after."""
    for wanted, mark in ((cuts.spaces, " "), (cuts.lines, "\n")):
        at = stop
        while wanted and (at := text.rfind(mark, start + 1, at)) > 0:
            if _parts(text, at):
                yield at + (mark == "\n")
    marks = (" " if cuts.spaces else "") + ("\n" if cuts.lines else "")
    for found in re.compile(f"[{marks}]").finditer(text, stop, len(text) - 1):
        if _parts(text, found.start()):
            yield found.start() + (found.group() == "\n")


def _parts(text: str, at: int) -> bool:
    """Whether the space at `at` is between letters, or the line feed between characters that are no whitespace."""
    before, after = text[at - 1], text[at + 1]
    return (before.isalpha() and after.isalpha()) if text[at] == " " else not (before.isspace() or after.isspace())
