"""`areca tokenizer train | show`: byte-level BPE, and SentencePiece's unigram and BPE."""

import sys
from pathlib import Path
from typing import Literal

from areca.cli.options import dispatch, print_json


def run(argv: list[str]) -> int:
    """Runs `areca tokenizer ...`."""
    return dispatch({"train": train, "show": show}, argv, "areca tokenizer") or 0


def train(
    sources: list[str],
    /,
    *,
    out: Path,
    vocab_size: int = 1024,
    kind: Literal["byte-bpe", "unigram", "bpe"] = "byte-bpe",
    user_symbols: tuple[str, ...] = (),
    text_column: str = "text",
    invalid_utf8: Literal["refuse", "keep"] = "refuse",
    json: bool = False,
) -> int:
    """Train a tokenizer: lossless, digits one by one, `[eod]` between documents.

    Example: areca tokenizer train docs books/ --vocab-size 4096 --out tokenizer.json

    Args:
        sources: as for `areca corpus build`
        out: the tokenizer.json to write
        vocab_size: tokens, 257 to 256000
        kind: byte-level BPE, or SentencePiece's unigram or BPE with byte fallback (areca[sentencepiece])
        user_symbols: strings that are one token wherever text has them, such as "<|code|>"
        text_column: of .jsonl and .parquet: one for all, or NAME=COLUMN,NAME=COLUMN for sources with names
        invalid_utf8: refuse bytes that are not UTF-8, or pass over them
        json: print the result as JSON
    """
    from areca.data.build import train_on_sources

    result = train_on_sources(
        out, sources, vocab_size=vocab_size, kind=kind, user_symbols=user_symbols, text_column=text_column,
        invalid_utf8=invalid_utf8, progress=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    if json:
        print_json(result)
    else:
        print(f"{out}: {result['vocab_size']:,} tokens, {result['bytes_per_token']:.2f} bytes each on its own text")
    return 0


def show(file: Path, /, *, text: str | None = None, json: bool = False) -> int:
    """Show a tokenizer, or how it cuts a text.

    Example: areca tokenizer show stores/mixed/tokenizer.json --text "In 2022, PaLM."

    Args:
        file: a tokenizer.json, a SentencePiece *.model, or a token store
        text: to cut into tokens
        json: print as JSON
    """
    from areca.data.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(file / "tokenizer.json" if file.is_dir() else file)
    longest = sorted(range(tokenizer.vocab_size), key=lambda i: (-len(tokenizer.token_bytes(i)), i))[:12]
    pieces = None
    if text is not None:
        pieces = [{"id": i, "text": _shown(tokenizer.token_bytes(i))} for i in tokenizer.encode(text)]
    if json:
        about = {
            "kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "eod": tokenizer.eod,
            "eod_id": tokenizer.eod_id, "special_ids": sorted(tokenizer.special_ids),
            "user_symbols": tokenizer.user_symbols, "sha256": tokenizer.sha256,
        }  # fmt: skip
        print_json(about | ({} if pieces is None else {"tokens": pieces}))
    elif pieces is not None:
        print(" ".join(f"{p['text']!r}" for p in pieces))
        print(f"{len(pieces)} tokens: {' '.join(str(p['id']) for p in pieces)}")
    else:
        kind = {"byte-bpe": "byte-level BPE", "unigram": "unigram", "bpe": "BPE"}[tokenizer.kind]
        fallback = "" if tokenizer.kind == "byte-bpe" else " with byte fallback"
        symbols = "".join(f", {symbol!r} is {i}" for symbol, i in tokenizer.user_symbols.items())
        print(
            f"{file}: {kind}{fallback}, {tokenizer.vocab_size:,} tokens, {tokenizer.eod} is {tokenizer.eod_id}{symbols}"
        )
        print("longest tokens: " + "  ".join(repr(_shown(tokenizer.token_bytes(i))) for i in longest))
    return 0


def _shown(piece: bytes) -> str:
    return piece.decode("utf-8", "backslashreplace")
