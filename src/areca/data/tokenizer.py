"""The tokenizer: byte-level BPE of the `tokenizers` library, each digit on its own, one special token `[eod]`.

Lossless: every text, and with surrogate escapes every byte string, comes back from its tokens byte for byte. Text that
spells "[eod]" is ordinary text; the special id is only ever written by the store, after each document.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from areca.data.documents import from_bytes, to_bytes
from areca.errors import DataError
from areca.files import write_atomic

EOD = "[eod]"
SMALLEST = 257  # 256 bytes and [eod]
LARGEST = 256_000  # PaLM's vocabulary
_PROBE = ("word", " word  two\t\r\n", "Cafe\u0301 caf\u00e9 \ufb01 \U0001f600 2024", "a [eod] b\0")
_ESCAPED = re.compile("([\ud800-\udfff]+)")


def byte_alphabet() -> list[str]:
    """The character by which byte-level BPE writes each byte 0..255 (GPT-2's table, as in `tokenizers`)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return [chr(256 + hidden.index(b)) if b in set(hidden) else chr(b) for b in range(256)]


class Tokenizer:
    """Text to tokens and back. `vocab_size` ids in all, of which `eod_id` ends a document."""

    def __init__(self, inner: tokenizers.Tokenizer, name: str = "the tokenizer"):
        eod = inner.token_to_id(EOD)
        if eod is None:
            raise DataError(f"{name} has no {EOD} token; train one with `areca tokenizer train`.")
        inner.encode_special_tokens = True  # a user's "[eod]" is text
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self.eod_id: int = eod
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        values = {c: b for b, c in enumerate(byte_alphabet())}
        self._bytes: list[bytes] = [b""] * self.vocab_size
        for token, i in inner.get_vocab(with_added_tokens=True).items():
            if i == eod:
                continue
            if i >= self.vocab_size or any(c not in values for c in token):
                raise DataError(f"{name} is not a byte-level BPE with one special token {EOD} (its token {token!r}).")
            self._bytes[i] = bytes(values[c] for c in token)
        single = {piece: i for i, piece in enumerate(self._bytes) if len(piece) == 1}
        if len(single) != 256:
            raise DataError(f"{name} has tokens for {len(single)} of the 256 bytes, so it can't be lossless.")
        self._byte_ids = [single[bytes([b])] for b in range(256)]
        if any(self.decode(self.encode(text)) != text for text in _PROBE):
            raise DataError(f"{name} changes text (a normalizer, an added space or dropout), so it can't be used here.")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without `[eod]`. Escaped bytes become the tokens of those bytes."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, on all cores."""
        try:
            return [e.ids for e in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (UnicodeEncodeError, TypeError):
            return [self._encode_with_escapes(t) for t in texts]

    def _encode_with_escapes(self, text: str) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(_ESCAPED.split(text)):
            if i % 2:
                ids += [self._byte_ids[b] for b in to_bytes(part)]
            elif part:
                ids += self._inner.encode(part, add_special_tokens=False).ids
        return ids

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that tokens stand for; `[eod]` stands for none."""
        return b"".join(self._bytes[i] for i in ids)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens: the exact inverse of `encode`."""
        return from_bytes(self.decode_bytes(ids))

    def token_bytes(self, i: int) -> bytes:
        """The bytes of one token."""
        return self._bytes[i]

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token: a text has at least as many tokens as it has bytes for each of these."""
        return max(map(len, self._bytes))

    def to_json(self) -> str:
        """The file that `load_tokenizer`, and the `tokenizers` library, read."""
        return self._inner.to_str(pretty=True) + "\n"

    @functools.cached_property
    def sha256(self) -> str:
        """Digest of `to_json()`."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()

    def save(self, path: Path | str) -> None:
        """Writes tokenizer.json, whole or not at all."""
        write_atomic(path, self.to_json())


def check_vocab_size(vocab_size: int) -> None:
    """DataError unless a tokenizer can have so many tokens."""
    if not SMALLEST <= vocab_size <= LARGEST:
        raise DataError(
            f"a vocabulary of {vocab_size:,} tokens can't be; choose {SMALLEST} (bytes and {EOD}) to {LARGEST:,}."
        )


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains byte-level BPE on `texts`. The same texts in any order give the same vocabulary.

    A small corpus may have too few pairs that occur twice: `vocab_size` of the result is then smaller than asked.
    """
    check_vocab_size(vocab_size)
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[EOD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator((_without_escapes(t) for t in texts), trainer)
    return Tokenizer(inner)


def _without_escapes(text: str) -> str:
    return _ESCAPED.sub("\n", text)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Reads a tokenizer.json; DataError if it is missing, damaged or not lossless byte-level BPE with `[eod]`."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"the tokenizer {path} does not exist; train one with `areca tokenizer train`.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory where a tokenizer.json was expected.") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a tokenizer.json (it is not UTF-8).") from None
    try:
        inner = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path} is not a tokenizer.json ({error}).") from None
    return Tokenizer(inner, str(path))
