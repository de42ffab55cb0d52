"""A document, and text that may hold bytes that are not UTF-8.

Text is `str` everywhere. A byte that is not valid UTF-8 rides along as a surrogate escape (U+DC80..U+DCFF, PEP 383),
so that `to_bytes(text)` is what was read, byte for byte, whatever it was.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Document:
    """One text of a corpus.

    `source` says where it came from (a path, a module). Documents with the same `group` fall on the same side of the
    split into train and held-out; by default a document is its own group.
    """

    text: str
    corpus: str
    source: str
    group: bytes | None = None


def to_bytes(text: str) -> bytes:
    """The bytes of a text: UTF-8, with surrogate escapes turned back into the bytes they stand for."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def from_bytes(data: bytes) -> str:
    """The inverse of `to_bytes`: bytes that are not UTF-8 become surrogate escapes."""
    return data.decode("utf-8", "surrogateescape")


def escape_surrogates(text: str, escaped: bool = False) -> str:
    """Makes lone surrogates (JSON may spell them) into escaped bytes, so that `to_bytes` accepts every result.

    With `escaped`, U+DC80..U+DCFF already stand for bytes and stay.
    """
    if is_valid(text):
        return text
    keep = "\udc80", "\udcff"
    return "".join(
        c if not "\ud800" <= c <= "\udfff" or (escaped and keep[0] <= c <= keep[1]) else _as_bytes(c) for c in text
    )


def _as_bytes(surrogate: str) -> str:
    return from_bytes(surrogate.encode("utf-8", "surrogatepass"))


def is_valid(text: str) -> bool:
    """Whether the text is valid Unicode, that is, holds no escaped bytes."""
    try:
        text.encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False
