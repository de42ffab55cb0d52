"""Tokenizers: byte-level BPE, and SentencePiece's unigram and BPE with byte fallback, behind one class.

All are a tokenizer.json of the `tokenizers` library. Lossless: every text, and with surrogate escapes every byte
string, comes back from its tokens byte for byte. Text that spells "[eod]" is ordinary text; the special id is only ever
written by the store, after each document. A symbol that the user defined is one token wherever text spells it.

    byte-bpe      pieces of bytes, in the alphabet of GPT-2; the default
    unigram, bpe  pieces of characters, and a token "<0x41>" for each byte of what no piece has
                  (trained and converted by `areca.data.sentencepieces`)
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from areca.data.documents import from_bytes, to_bytes
from areca.data.longtexts import Cuts, for_training, pieces
from areca.errors import ConfigError, DataError, closest
from areca.files import write_atomic

Kind = Literal["byte-bpe", "unigram", "bpe"]
KINDS: tuple[str, ...] = get_args(Kind)
EOD = "[eod]"
# What ends a document, in the words of other tokenizers; the first that a file has as a special token.
EODS = (EOD, "<|endoftext|>", "<|end_of_text|>", "</s>", "<|eos|>", "<eos>")
SMALLEST = 257  # 256 bytes and [eod]
LARGEST = 256_000  # PaLM's vocabulary
_PROBE = (
    "word",
    " word  two\t\r\n",
    "Cafe\u0301 caf\u00e9 \ufb01 \U0001f600 2024",
    "a [eod] b\0",
    "\u2581a \u2581",
    " \u0120\u010a",
)
_PIECES_AT_ONCE = 8  # of a long text
_ESCAPED = re.compile("([\ud800-\udfff]+)")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def byte_alphabet() -> list[str]:
    """The character by which byte-level BPE writes each byte 0..255 (GPT-2's table, as in `tokenizers`)."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return [chr(256 + hidden.index(b)) if b in set(hidden) else chr(b) for b in range(256)]


@functools.cache
def _values() -> dict[str, int]:
    return {c: b for b, c in enumerate(byte_alphabet())}


class Tokenizer:
    """Text to tokens and back.

    vocab_size    ids in all
    eod, eod_id   the special token that ends a document, which no text gives; `eod` is how the file calls it
    special_ids   it and all other ids that stand for no text
    user_symbols  what text spells is one token: spelling -> id
    """

    def __init__(self, inner: tokenizers.Tokenizer, name: str = "the tokenizer"):
        inner.encode_special_tokens = True  # a user's "[eod]" is text
        inner.no_truncation()
        inner.no_padding()
        if dropout := getattr(inner.model, "dropout", None):
            raise DataError(
                f"{name} has a dropout of {dropout:g}: the same text would have other tokens each time; set dropout to "
                "null in its model."
            )
        self._inner = inner
        self.vocab_size: int = inner.get_vocab_size(with_added_tokens=True)
        added = inner.get_added_tokens_decoder()
        special = {token.content: i for i, token in added.items() if token.special}
        eod = next((e for e in EODS if e in special), None)
        if eod is None:
            raise DataError(
                f"{name} has no {EOD} token (nor {', '.join(EODS[1:])}), so nothing ends a document; train one with "
                "`areca tokenizer train`."
            )
        self.eod, self.eod_id = eod, special[eod]
        self.user_symbols: dict[str, int] = {t.content: i for i, t in added.items() if not t.special}
        self.kind, unknown = _kind(inner)
        _check_ids(inner, name)
        if self.kind == "byte-bpe":
            _check_spellings(inner, [t.content for t in added.values()], name)
        left_out = {*special.values(), unknown, *(i for s, i in self.user_symbols.items() if not _shared(s))}
        table, byte_ids = (_byte_level_table if self.kind == "byte-bpe" else _fallback_table)(inner, left_out, name)
        for symbol, i in self.user_symbols.items():
            table[i] = to_bytes(symbol)
        self._bytes: list[bytes] = [table.get(i, b"") for i in range(self.vocab_size)]
        self.special_ids = frozenset(i for i, piece in enumerate(self._bytes) if not piece)
        self._byte_ids = byte_ids
        self._check(name)

    def _check(self, name: str) -> None:
        """DataError where a text that could give anything away does not come back, or gives a special token."""
        special = [self._inner.id_to_token(i) or "" for i in sorted(self.special_ids)[:64]]
        spelled = [f"<0x{b:02X}>" for b in range(256)] if self.kind != "byte-bpe" else []
        texts = [*_PROBE, *special, *spelled, *self.user_symbols]
        if self.kind == "byte-bpe":  # what the spelling of an added token is the bytes of, and some text around it
            added = (*special, *self.user_symbols)
            texts += [
                t for piece in map(_spelled, added) if piece for t in (from_bytes(piece), from_bytes(b"x" + piece))
            ]
        for text in texts:
            ids = self.encode(text)
            if self.decode(ids) != text or not self.special_ids.isdisjoint(ids):
                raise DataError(
                    f"{name} changes text (a normalizer, an added space or dropout): {text!r} comes back as "
                    f"{self.decode(ids)!r}, so it can't be used here."
                )
        for symbol, i in self.user_symbols.items():
            if self.encode(f"a{symbol}b") != [*self.encode("a"), i, *self.encode("b")]:
                raise DataError(f"{name} has a symbol {symbol!r} that is not one token within text; leave it out.")

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without `[eod]`. Escaped bytes become the tokens of those bytes."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of many texts, on all cores."""
        try:
            return [e.ids for e in self._inner.encode_batch_fast(list(texts), add_special_tokens=False)]
        except (UnicodeEncodeError, TypeError):
            return [self._encode_with_escapes(t) for t in texts]

    def encode_pieces(self, text: str) -> Iterator[list[int]]:
        """`encode`, a piece of a long text after another."""
        group: list[str] = []
        for piece in pieces(text, self._cuts):
            group.append(piece)
            if len(group) == _PIECES_AT_ONCE:
                yield from self.encode_batch(group)
                group = []
        yield from self.encode_batch(group)

    @functools.cached_property
    def _cuts(self) -> Cuts:
        def same(left: str, right: str) -> bool:
            parts = self.encode_batch([left, right, left + right])
            return parts[0] + parts[1] == parts[2]

        return Cuts.of(self._bytes, same)

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


def _kind(inner: tokenizers.Tokenizer) -> tuple[str, int | None]:
    """The kind of a tokenizer, and the id of its unknown token, which a model with byte fallback has to have."""
    model = inner.model
    if isinstance(model, models.BPE):
        return "bpe" if model.byte_fallback else "byte-bpe", inner.token_to_id(model.unk_token or "")
    if isinstance(model, models.Unigram):
        facts = json.loads(inner.to_str())["model"]
        return "unigram" if facts.get("byte_fallback") else "byte-bpe", facts.get("unk_id")
    return "byte-bpe", None  # its pieces will say that it is none


def _check_ids(inner: tokenizers.Tokenizer, name: str) -> None:
    """DataError unless the tokens, the added ones too, have the ids 0 .. V-1, each one of its own."""
    size, found = inner.get_vocab_size(with_added_tokens=True), {}
    for token, i in sorted(inner.get_vocab(with_added_tokens=True).items()):
        if i in found:
            raise DataError(
                f"{name} has two tokens on one id ({found[i]!r} and {token!r} are both {i}), so text would not come "
                "back; it is damaged: fetch it or train it again."
            )
        found[i] = token
        if not 0 <= i < size:
            raise DataError(f"{name} has gaps in its ids (its token {token!r} is {i}), so it can't be used here.")
    if len(found) != size:
        missing = next(i for i in range(size) if i not in found)
        raise DataError(f"{name} has a token twice (nothing else has the id {missing}), so it can't be used here.")


def _spelled(token: str) -> bytes | None:
    """The bytes that byte-level BPE would mean by this string; None for one that spells none."""
    values = _values()
    return bytes(values[c] for c in token) if all(c in values for c in token) else None


def _shared(symbol: str) -> bool:
    """Whether a symbol is a byte, which it then shares the id of: a printable character of ASCII."""
    return len(symbol) == 1 and "!" <= symbol <= "~"


def _check_spellings(inner: tokenizers.Tokenizer, added: Sequence[str], name: str) -> None:
    """DataError where a string is an added token and, in the alphabet of bytes, a piece for another text.

    The library gives both one id.
    """
    own = inner.get_vocab(with_added_tokens=False)
    for token in added:
        piece = _spelled(token)
        if token in own and piece is not None and piece != to_bytes(token):
            raise DataError(
                f"{name} has one id, {own[token]}, for its added token {token!r} and for {from_bytes(piece)!r}, which "
                "byte-level BPE spells the same, so one would come back as the other; train it without that token."
            )


def _own_pieces(inner: tokenizers.Tokenizer, left_out: set[int | None]) -> dict[str, int]:
    """The pieces of the model itself, without what is left out."""
    return {token: i for token, i in inner.get_vocab(with_added_tokens=True).items() if i not in left_out}


def _byte_level_table(
    inner: tokenizers.Tokenizer, left_out: set[int | None], name: str
) -> tuple[dict[int, bytes], list[int]]:
    """id -> bytes of the model's own pieces, and the id of each byte."""
    table: dict[int, bytes] = {}
    for token, i in _own_pieces(inner, left_out).items():
        if (piece := _spelled(token)) is None:
            raise DataError(f"{name} is neither a byte-level BPE nor one with byte fallback (its token {token!r}).")
        table[i] = piece
    return table, _all_bytes({piece: i for i, piece in table.items() if len(piece) == 1}, name)


def _fallback_table(
    inner: tokenizers.Tokenizer, left_out: set[int | None], name: str
) -> tuple[dict[int, bytes], list[int]]:
    """The same of pieces of characters with byte fallback."""
    table: dict[int, bytes] = {}
    single: dict[bytes, int] = {}
    for token, i in _own_pieces(inner, left_out).items():
        if match := _BYTE.fullmatch(token):
            table[i] = bytes.fromhex(match[1])
            single[table[i]] = i
        else:
            table[i] = token.encode("utf-8")
    return table, _all_bytes(single, name)


def _all_bytes(single: dict[bytes, int], name: str) -> list[int]:
    if len(single) != 256:
        raise DataError(f"{name} has tokens for {len(single)} of the 256 bytes, so it can't be lossless.")
    return [single[bytes([b])] for b in range(256)]


def check_vocab_size(vocab_size: int, kind: str = "byte-bpe", user_symbols: Sequence[str] = ()) -> None:
    """DataError unless a tokenizer of that kind can have so many tokens; ConfigError for another kind, or a bad symbol.

    How many characters of the text a vocabulary of pieces must hold besides is only known once it is read.
    """
    if kind not in KINDS:
        raise ConfigError(f"the kind of tokenizer is {kind!r}{closest(kind, KINDS)}; choose one of {', '.join(KINDS)}.")
    # SentencePiece keeps an unknown token, unused.
    smallest = SMALLEST + (_ids_of(user_symbols) if kind == "byte-bpe" else len(user_symbols) + 1)
    if not smallest <= vocab_size <= LARGEST:
        what = f"bytes{', your symbols' if user_symbols else ''} and {EOD}"
        raise DataError(f"a vocabulary of {vocab_size:,} tokens can't be; choose {smallest} ({what}) to {LARGEST:,}.")
    for symbol in user_symbols:
        fault = (
            "is empty" if not symbol
            else "is given twice" if list(user_symbols).count(symbol) > 1
            else "is not valid Unicode" if _ESCAPED.search(symbol)
            else "is a token of the tokenizer's own" if symbol in (*EODS, "<unk>", "<s>") or _BYTE.fullmatch(symbol)
            else "holds a space or a U+2581, which SentencePiece writes it as" if {" ", "\u2581"} & set(symbol)
            else ""
        )  # fmt: skip
        if fault:
            raise ConfigError(f"the user symbol {symbol!r} {fault}; leave it out or choose another.")
        if kind != "byte-bpe" and ("\0" in symbol or (symbol in EOD and len(symbol) == 1)):
            what = f"a character of {EOD}" if symbol in EOD else "text with a null character"
            raise ConfigError(
                f"the user symbol {symbol!r} is {what}, which SentencePiece can't keep apart; leave it out, "
                "choose another, or train the kind byte-bpe."
            )
        if kind == "byte-bpe" and (piece := _spelled(symbol)) not in (None, to_bytes(symbol)):
            # They would share an id, and tools that read the file decode the symbol as those bytes even if not.
            raise ConfigError(
                f"the user symbol {symbol!r} is how byte-bpe spells the bytes {piece.hex(' ')} of other text; leave it "
                "out, choose another, or train the kind unigram or bpe."
            )


def _ids_of(user_symbols: Sequence[str]) -> int:
    """How many ids symbols have beside those of the bytes."""
    return sum(not _shared(s) for s in user_symbols)


def train_tokenizer(
    texts: Iterable[str], vocab_size: int, kind: str = "byte-bpe", user_symbols: Sequence[str] = ()
) -> Tokenizer:
    """Trains a tokenizer on `texts`. For "byte-bpe" the order of the texts makes no difference.

    A small corpus may have too few pieces that occur twice: `vocab_size` of the result is then smaller than asked, and
    the largest that this text has.
    """
    check_vocab_size(vocab_size, kind, user_symbols)
    if kind != "byte-bpe":
        from areca.data import sentencepieces

        return sentencepieces.from_model(sentencepieces.train(texts, vocab_size, kind, user_symbols))
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.Sequence(  # type: ignore[assignment]
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    inner.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - _ids_of(user_symbols),
        min_frequency=2,
        special_tokens=[EOD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    cut = re.compile("|".join(map(re.escape, sorted(user_symbols, key=len, reverse=True)))) if user_symbols else None
    cuts = Cuts.of(map(to_bytes, user_symbols))
    parts = (
        part for text in texts for piece in for_training(text, cuts) for part in (cut.split(piece) if cut else (piece,))
    )
    inner.train_from_iterator(map(without_escapes, parts), trainer)
    inner.add_tokens([AddedToken(s, normalized=False, special=False) for s in user_symbols])
    return Tokenizer(inner)


def without_escapes(text: str) -> str:
    """Text for a trainer: escaped bytes, which are no characters, end a line."""
    return _ESCAPED.sub("\n", text)


def load_tokenizer(path: Path | str) -> Tokenizer:
    """Reads a tokenizer.json or, named *.model, a SentencePiece model.

    DataError if it is missing, damaged, not lossless, or without a token that ends a document.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"the tokenizer {path} does not exist; train one with `areca tokenizer train`.") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a directory where a tokenizer.json was expected.") from None
    if path.suffix == ".model":
        from areca.data import sentencepieces

        return sentencepieces.from_model(data, str(path))
    try:
        inner = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise DataError(
            f"{path} is not a tokenizer.json (it is not UTF-8; a SentencePiece model has to be named *.model)."
        ) from None
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"{path} is not a tokenizer.json ({error}).") from None
    for token in json.loads(data).get("added_tokens") or ():
        if (i := inner.token_to_id(token["content"])) != token["id"]:
            raise DataError(
                f"{path} calls its added token {token['content']!r} {token['id']} where only {i} can be, so its ids "
                "would not be those it was trained with; it can't be used here."
            )
    return Tokenizer(inner, str(path))
