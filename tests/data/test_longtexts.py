"""Long texts are trained on and encoded in pieces, with the tokens of the whole."""

import json
from pathlib import Path

import pytest
import tokenizers
from made_text import sentence_text
from odd_strings import ODD
from tokenizers import models, pre_tokenizers, trainers

from areca.data import longtexts
from areca.data.build import build_store, train_on_sources
from areca.data.longtexts import Cuts, for_training, pieces
from areca.data.store import TokenStore
from areca.data.tokenizer import EOD, KINDS, Tokenizer, train_tokenizer

CODE = Path(longtexts.__file__).read_text(encoding="utf-8")


def long_text() -> str:
    """Prose, code, odd strings, escaped bytes, and a run that has no place to cut."""
    prose = sentence_text(1, 60)
    odd = "\n".join(s for s in ODD if len(s) < 1000)
    return "\n".join(
        [prose, CODE, odd, "caf\udce9 \udcff\udcfe x", "0" * 3000, "日本語のテキスト" * 200, CODE, prose * 4]
    )


@pytest.fixture
def short(monkeypatch):
    """What is long here."""
    monkeypatch.setattr(longtexts, "LONG", 2_000)
    monkeypatch.setattr(longtexts, "PIECE", 400)


def joined(tokenizer: Tokenizer, text: str) -> list[int]:
    return [i for ids in tokenizer.encode_pieces(text) for i in ids]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symbols", [(), ("ing", "\n\n")])
def test_pieces_have_the_tokens_of_the_whole(short, kind, symbols):
    if kind != "byte-bpe":
        pytest.importorskip("sentencepiece")
    text = long_text()
    tokenizer = train_tokenizer([sentence_text(i, 40) for i in range(8)] + [text], 700, kind, symbols)
    assert joined(tokenizer, text) == tokenizer.encode(text)
    cut = list(pieces(text, tokenizer._cuts))
    assert "".join(cut) == text
    assert len(cut) > 20
    assert tokenizer.decode(joined(tokenizer, text)) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(
            [{"name": f"n{i}", "values": [i, i * i], "text": "betel"} for i in range(400)], separators=(",", ":")
        ),
        "今天天气很好，我们去山里走走。石头很凉，棕榈树下有影子；你来吗？" * 200,
        "".join(f"{i * 7919:x}" for i in range(3000)),
        "x" * 6000,
        " " * 6000,
    ],
    ids=["json", "chinese", "hexadecimal", "one letter", "spaces"],
)
def test_texts_without_words_are_cut_elsewhere_or_not(short, kind, text):
    if kind != "byte-bpe":
        pytest.importorskip("sentencepiece")
    tokenizer = train_tokenizer([sentence_text(i, 40) for i in range(8)] + [text], 600, kind)
    assert joined(tokenizer, text) == tokenizer.encode(text)
    assert (len(list(pieces(text, tokenizer._cuts))) > 10) == (len(set(text)) > 1) or kind != "byte-bpe"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_trained_on_pieces_is_that_of_the_whole(monkeypatch, kind):
    if kind != "byte-bpe":
        pytest.importorskip("sentencepiece")
    texts = [sentence_text(i, 40) for i in range(8)] + [long_text()]
    whole = train_tokenizer(texts, 600, kind)
    monkeypatch.setattr(longtexts, "LONG", 2_000)
    monkeypatch.setattr(longtexts, "PIECE", 400)
    assert train_tokenizer(texts, 600, kind).sha256 == whole.sha256


@pytest.mark.parametrize("run", ["a", "e\u0301\u0301", " ", "=", "\u4eca", "\n\t"])
def test_words_without_end_are_trained_on_in_parts(run):
    """A trainer takes a time that grows with the square of a word: 1,000,000 times "a" took minutes."""
    text = f"two words {run * 100_000} and more\n"
    parts = list(for_training(text, Cuts()))
    assert "".join(parts) == text
    if "e" not in run:  # these are many words
        assert max(map(len, parts)) <= longtexts.LONGEST_WORD + len("two words  and more\n")
    assert list(for_training(text[:200], Cuts())) == [text[:200]]
    assert list(for_training("word " * 5000, Cuts())) == ["word " * 5000]
    for kind in KINDS:
        if kind != "byte-bpe":
            pytest.importorskip("sentencepiece")
        tokenizer = train_tokenizer([sentence_text(1, 40), text], 400, kind)
        assert tokenizer.decode(joined(tokenizer, text)) == text


def other(pre_tokenizer) -> Tokenizer:
    """A byte-level BPE whose pieces cross spaces or lines."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[EOD], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator([sentence_text(i, 40) for i in range(8)] + [CODE], trainer)
    return Tokenizer(inner)


def test_a_tokenizer_whose_tokens_cross_words_is_cut_at_lines_or_not_at_all(short):
    text = long_text()
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    lines = pre_tokenizers.Sequence([pre_tokenizers.Split("\n", "merged_with_previous"), whole])
    for pre_tokenizer, spaces, ends in ((whole, False, False), (lines, False, True)):
        tokenizer = other(pre_tokenizer)
        assert [kind in tokenizer._cuts.kinds for kind in longtexts.KINDS[:2]] == [spaces, ends]
        assert (len(list(pieces(text, tokenizer._cuts))) > 20) == ends
        assert joined(tokenizer, text) == tokenizer.encode(text)


def test_a_cut_whose_parts_have_other_tokens_is_not_made(short):
    # This one splits at every fourth character from the start of a text, so a cut changes what is behind it.
    chunks = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]{1,4}"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = other(pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "isolated"), chunks, bytes_]))
    text = sentence_text(3, 60)
    assert joined(tokenizer, text) == tokenizer.encode(text)


def test_a_document_of_one_row_is_never_encoded_as_one(short, tmp_path, monkeypatch):
    text = long_text().replace("\udce9", "").replace("\udcff\udcfe", "")
    rows = [text, *(sentence_text(i, 20) for i in range(8))]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in rows))
    longest = [0]
    encode = Tokenizer.encode_batch

    def watched(self, texts):
        longest.append(max((len(t) for t in texts), default=0))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_batch", watched)
    source = [str(tmp_path / "rows.jsonl")]
    build_store(tmp_path / "parts", source, vocab_size=400, heldout_fraction=0)
    train_on_sources(tmp_path / "tokenizer.json", source, vocab_size=400)
    uncut = max(map(len, ("0" * 3000 + "日本語のテキスト" * 200, text[-400:])))
    assert max(longest) < uncut + 2 * longtexts._WINDOW
    monkeypatch.setattr(longtexts, "LONG", 10**9)
    build_store(tmp_path / "whole", source, vocab_size=400, heldout_fraction=0)
    assert max(longest) >= len(text)
    a, b = (TokenStore.open(tmp_path / name).meta for name in ("parts", "whole"))
    assert a["files"] == b["files"]
    assert a["fingerprint"] == b["fingerprint"]
