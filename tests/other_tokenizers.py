"""Small tokenizers of other kinds than the default, made without training: pieces of tests/tiny.py's words."""

from pathlib import Path

import tokenizers
from tokenizers import AddedToken, decoders, models

from tiny import WORDS

SYMBOL = "<|code|>"


def write_tokenizer(path: Path, kind: str) -> Path:
    """A "unigram" or "bpe" tokenizer.json with byte fallback, `[eod]` as 1 and the symbol `<|code|>` as 2."""
    special = ["<unk>", "[eod]", SYMBOL, *(f"<0x{b:02X}>" for b in range(256))]
    characters = sorted({c for word in WORDS for c in word} | set("<>0x123456789ABCDEF[]eodunk .\u00e9"))
    starts = sorted({word[:n] for word in WORDS for n in range(2, len(word) + 1)}, key=lambda w: (len(w), w))
    pieces = [*special, *characters, *starts, *(f" {s}" for s in [c for c in characters if c.isalpha()] + starts)]
    if kind == "unigram":
        scores = [-500.0] * len(special) + [-7.0 + 0.25 * min(len(p), 8) for p in pieces[len(special) :]]
        inner = tokenizers.Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), 0, True))
    else:
        known = set(pieces)
        pairs = [(p[:-1], p[-1]) for p in pieces[len(special) :] if len(p) > 1 and p[:-1] in known]
        vocabulary = {p: i for i, p in enumerate(pieces)}
        inner = tokenizers.Tokenizer(
            models.BPE(vocabulary, pairs, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(["[eod]"])
    inner.add_tokens([AddedToken(SYMBOL, normalized=False)])
    inner.save(str(path))
    return path
