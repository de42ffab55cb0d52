"""SentencePiece's unigram and BPE: trained by its library (`areca[sentencepiece]`), run as a tokenizer.json.

PaLM's properties: text as it is (identity normalisation, no dummy prefix, all whitespace kept), characters without a
piece as the tokens of their UTF-8 bytes, numbers cut into single digits (of any script). A line feed is always a byte,
as pieces are learned from lines.

SentencePiece writes a space as U+2581, so it can't tell the two apart. The pieces of the tokenizer.json have spaces
instead, and a U+2581 of the text becomes its three bytes. Ids are those of the SentencePiece model.
"""

import io
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from areca.data.longtexts import UNSPACED, Cuts, for_training
from areca.data.tokenizer import EOD, Tokenizer, without_escapes
from areca.errors import ConfigError, DataError, install

SPACE = "\u2581"
# In every vocabulary, so that text which spells "<0x41>", "<unk>" or "[eod]" is cut into characters.
_SPELLED = "<>0x123456789ABCDEF[]eodunk"
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = range(1, 7)  # the kinds of pieces in a model
_LONGEST_LINE = 1 << 30
# What a converted model must cut as SentencePiece does.
_SAME = (
    "The quick brown fox jumps over the lazy dog. It was 1984, or 2,022.50!\n",
    "  two  spaces\tand a tab\r\n\n ",
    "",
    "naïve café cafe\u0301 ﬁ Å",
    "日本語のテキスト。你好，世界",
    "مرحبا بالعالم",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f600",
    "def f(x):\n    return [x ** 2 for x in range(10)]\n",
    "x" * 97,
    "ab" * 51,
    "\0\x01\x7f\ufffd\u00a0\u2003",
    "\u0663\u0664 ½ ²",
)


def library() -> Any:
    """The `sentencepiece` module; ConfigError where it is not installed."""
    try:
        import sentencepiece  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(
            f"SentencePiece's tokenizers need the package sentencepiece; {install('sentencepiece')}."
        ) from None
    return sentencepiece


def train(texts: Iterable[str], vocab_size: int, kind: str, user_symbols: Sequence[str] = ()) -> bytes:
    """A SentencePiece model of kind "unigram" or "bpe", as its library writes it: the same texts give the same bytes.

    It has fewer than `vocab_size` pieces, the most that there are, where the text has no more. DataError where the
    characters of the text, the bytes and the symbols need more.
    """
    sentencepiece = library()
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts), model_writer=model, model_type=kind, vocab_size=vocab_size,
            hard_vocab_limit=False, normalization_rule_name="identity", add_dummy_prefix=False,
            remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True, byte_fallback=True,
            required_chars="".join(c for c in _SPELLED if c not in user_symbols),
            user_defined_symbols=list(user_symbols), unk_id=0, eos_id=1, bos_id=-1, pad_id=-1,
            eos_piece=EOD, max_sentence_length=_LONGEST_LINE, num_threads=1, minloglevel=2,
        )  # fmt: skip
    except (RuntimeError, OSError) as error:
        if match := re.search(r"smaller than required_chars\. (\d+) vs (\d+)", str(error)):
            raise DataError(
                f"a vocabulary of {vocab_size:,} tokens is too small for the bytes and characters of this text; choose "
                f"at least {int(match[2]) + 1:,}, or byte-bpe, which needs no characters."
            ) from None
        if "!sentences_.empty()" in str(error):
            raise DataError("the text has no line with a character to train a tokenizer on; give more text.") from None
        raise DataError(f"SentencePiece can't train on this text ({_said(error)}); try byte-bpe.") from None
    return model.getvalue()


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """What the trainer reads: lines, with what must not be part of a longer piece on lines of its own."""
    numbers = "".join(c for c in map(chr, range(0x80, sys.maxunicode + 1)) if unicodedata.category(c)[0] == "N")
    alone = re.compile(f"([{re.escape(numbers)}])")
    for text in texts:
        parts = for_training(without_escapes(text).replace(SPACE, "\n"), Cuts(()), UNSPACED)
        for line in (line for part in parts for line in part.split("\n")):
            if line.isascii():
                if line:
                    yield line
            else:
                yield from filter(None, alone.split(line))


def from_model(data: bytes, name: str = "the SentencePiece model") -> Tokenizer:
    """The tokenizer of a SentencePiece model, with its ids.

    DataError if it is damaged, changes text, has no byte fallback or no end of sentence, or is of another kind than
    unigram and BPE; or if it would cut text otherwise than SentencePiece does.
    """
    sentencepiece = library()
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2  # pyright: ignore[reportMissingImports]

    model: Any = sentencepiece_model_pb2.ModelProto()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        model.ParseFromString(data)
        processor = sentencepiece.SentencePieceProcessor(model_proto=data)
        if not model.pieces:
            raise ValueError("no pieces")
    except (DecodeError, RuntimeError, OSError, ValueError):
        raise DataError(f"{name} is not a SentencePiece model, or it is damaged; train or fetch it again.") from None
    _check_properties(model, name)
    kind = {1: "unigram", 2: "bpe"}.get(model.trainer_spec.model_type)
    if kind is None:
        raise DataError(f"{name} is a SentencePiece model of words or characters; give one of unigram or BPE.")
    names = [p.piece.replace(SPACE, " ") if p.type == _NORMAL else p.piece for p in model.pieces]
    if len(set(names)) != len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise DataError(f"{name} has the piece {twice!r} twice; train it again.")
    inner = tokenizers.Tokenizer(_unigram(model, names, name) if kind == "unigram" else _bpe(model, names))
    before: list[Any] = []
    if kind == "unigram":
        before = [pre_tokenizers.Split(c, "isolated") for c in _never_within(model, names)]
    if not any(len(n) > 1 and _numeric(n) for n, p in zip(names, model.pieces, strict=True) if p.type == _NORMAL):
        before.append(pre_tokenizers.Digits(individual_digits=True))
    if before:
        inner.pre_tokenizer = before[0] if len(before) == 1 else pre_tokenizers.Sequence(before)  # type: ignore[assignment]
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # type: ignore[assignment]
    eos = processor.eos_id()
    if eos < 0:
        raise DataError(f"{name} has no end of sentence (eos_id), so nothing ends a document; train it with one.")
    inner.add_special_tokens([p.piece for i, p in enumerate(model.pieces) if p.type == _CONTROL or i == eos])
    inner.add_tokens([AddedToken(p.piece, normalized=False) for p in model.pieces if p.type == _USER])
    tokenizer = Tokenizer(inner, name)
    if tokenizer.eod_id != eos or tokenizer.vocab_size != len(names):
        raise DataError(f"{name} ends a sentence with {names[eos]!r}, not {tokenizer.eod!r}; train it with {EOD}.")
    for text in (*_SAME, *(f"a {symbol} b" for symbol in tokenizer.user_symbols)):
        ours, theirs = tokenizer.encode(text), processor.encode(text)
        if ours != theirs and not (kind == "unigram" and _tie(processor, ours, theirs)):
            raise DataError(
                f"{name} can't be run without SentencePiece: {text[:40]!r} has other tokens there; train a tokenizer "
                "with `areca tokenizer train`."
            )
    return tokenizer


def _tie(processor: Any, ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether two ways to cut a text are equally likely ("ab" "a", "a" "ba"): the rounding of sums decides then."""
    a, b = (sum(map(processor.get_score, ids)) for ids in (ours, theirs))
    return abs(a - b) <= 1e-5 * max(1.0, abs(a))


def _check_properties(model: Any, name: str) -> None:
    """DataError where the model does not keep text as it is."""
    spec, normal = model.trainer_spec, model.normalizer_spec
    faults = {
        "adds a space in front of text (add_dummy_prefix)": normal.add_dummy_prefix,
        "drops spaces (remove_extra_whitespaces)": normal.remove_extra_whitespaces,
        f"changes characters (normalization_rule_name {normal.name!r})": bool(normal.precompiled_charsmap),
        "writes spaces as spaces (escape_whitespaces)": not normal.escape_whitespaces,
        "puts a space at the end of a word (treat_whitespace_as_suffix)": spec.treat_whitespace_as_suffix,
        "has no byte fallback": not spec.byte_fallback,
    }
    for fault, there in faults.items():
        if there:
            raise DataError(
                f"{name} {fault}, so text would not come back from its tokens; train one with `areca tokenizer train`."
            )


def _numeric(text: str) -> bool:
    return any(unicodedata.category(c)[0] == "N" for c in text)


def _never_within(model: Any, names: list[str]) -> list[str]:
    """Characters to cut text at, so that it gives no entry that text must not give, such as "<unk>", by its spelling.

    What a low score keeps from being chosen needs each of its characters as a piece to be beaten by; of an entry with
    one that is none, this is the first. No piece has it, so cutting there changes no other token.
    """
    normal = {n for n, p in zip(names, model.pieces, strict=True) if p.type == _NORMAL}
    special = [n for n, p in zip(names, model.pieces, strict=True) if p.type not in (_NORMAL, _USER)]
    return sorted({c for n in special if (c := next((c for c in n if c not in normal), None)) is not None})


def _unigram(model: Any, names: list[str], name: str) -> models.Unigram:
    """The library looks for every entry in the text, also for "<0x41>": those that text must not give score worst.

    So low that the characters they are spelled with score better together; a character without a piece is scored
    lower still, by the same for each, and has no alternative.
    """
    normal = {n for n, p in zip(names, model.pieces, strict=True) if p.type == _NORMAL}
    if missing := next((c for piece in sorted(normal) if len(piece) > 1 for c in piece if c not in normal), None):
        raise DataError(f"{name} has pieces with {missing!r} but none of it alone, so it can't be run here.")
    lowest = min(p.score for p in model.pieces if p.type == _NORMAL)
    never = round(64.0 * min(lowest, -1.0), 2)
    # Rounded far below their own precision, as the library doesn't read every decimal of 17 digits back to the bit.
    scored = [(n, round(p.score, 8) if p.type == _NORMAL else never) for n, p in zip(names, model.pieces, strict=True)]
    unknown = next(i for i, p in enumerate(model.pieces) if p.type == _UNKNOWN)
    return models.Unigram(scored, unknown, True)


def _bpe(model: Any, names: list[str]) -> models.BPE:
    """Each piece by all pairs of pieces that it may be made of, in the order of the pieces' scores."""
    ids = {n: i for i, n in enumerate(names)}
    normal = {n: p.score for n, p in zip(names, model.pieces, strict=True) if p.type == _NORMAL}
    merges: list[tuple[str, str]] = []
    for piece, _ in sorted(normal.items(), key=lambda x: (-x[1], ids[x[0]])):
        pairs = [(piece[:k], piece[k:]) for k in range(1, len(piece))]
        merges += sorted((p for p in pairs if p[0] in normal and p[1] in normal), key=lambda p: (ids[p[0]], ids[p[1]]))
    unknown = next(p.piece for p in model.pieces if p.type == _UNKNOWN)
    return models.BPE(ids, merges, unk_token=unknown, byte_fallback=True, fuse_unk=True)
