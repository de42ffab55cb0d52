"""SentencePiece's unigram and BPE: the library's own ids, PaLM's properties, and one sentence for what can't be."""

import json
import random
import re
import sys

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from made_text import sentence_text
from odd_strings import ODD

from areca.cli.main import main
from areca.data.build import build_store
from areca.data.documents import from_bytes
from areca.data.samples import samples
from areca.data.store import TokenStore
from areca.data.tokenizer import load_tokenizer, train_tokenizer
from areca.data.written import Written
from areca.errors import ConfigError, DataError

spm = pytest.importorskip("sentencepiece", reason="the extra `sentencepiece` is not installed")

from areca.data import sentencepieces  # noqa: E402

TEXTS = [sentence_text(i, 30) for i in range(30)] + [
    "def f(x):\n    return [1234, x]\n\t# \u00e9t\u00e9 \u4e2d\u6587 \u0663\u0664\u0665 <b> \u2581\n" * 20
]
SYMBOLS = ("<|code|>", "\n\n")
KINDS = ["unigram", "bpe"]


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return sentencepieces.train(TEXTS, 480, request.param, SYMBOLS)


@pytest.fixture(scope="module")
def tokenizer(model):
    return sentencepieces.from_model(model)


@pytest.fixture(scope="module")
def theirs(model):
    return spm.SentencePieceProcessor(model_proto=model)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_strings_come_back_exactly(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.special_ids.isdisjoint(ids)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=100, deadline=None)
def test_any_text_comes_back_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(data=st.binary())
@settings(max_examples=100, deadline=None)
def test_any_bytes_come_back_exactly(tokenizer, data):
    assert tokenizer.decode_bytes(tokenizer.encode(from_bytes(data))) == data


def _score(theirs, ids):
    return sum(map(theirs.get_score, ids))


def test_ids_are_those_of_sentencepiece(tokenizer, theirs):
    """All but a literal U+2581, which it takes for a space; a unigram's equally likely ones may be any of them."""
    draw = random.Random(7)
    parts = [
        "areca",
        "palm",
        " ",
        "  ",
        "st",
        "r",
        "7",
        "\n",
        "\n\n",
        "\u00e9",
        "\u65e5",
        "<|code|>",
        "<",
        "a",
        "b",
        "\t",
    ]
    texts = [t for t in [*TEXTS, *ODD] if "\u2581" not in t and len(t) < 5000]
    texts += ["".join(draw.choices(parts, k=draw.randrange(40))) for _ in range(300)]
    different = [t for t in texts if tokenizer.encode(t) != theirs.encode(t)]
    if tokenizer.kind == "bpe":
        assert different == []
    for text in different:
        assert _score(theirs, tokenizer.encode(text)) == pytest.approx(_score(theirs, theirs.encode(text)), rel=1e-5)
    assert len(different) < 0.1 * len(texts)


def test_palms_properties_hold(tokenizer):
    def cut(text):
        return [tokenizer.token_bytes(i) for i in tokenizer.encode(text)]

    assert cut("2022") == [b"2", b"0", b"2", b"2"]
    assert b"|".join(cut("\u0663\u0664\u0665")).decode() == "\u0663|\u0664|\u0665"
    assert cut("\U0001f600") == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert cut("palm")[0][:1] == b"p"  # no space in front
    assert cut("\u2581") == [b"\xe2", b"\x96", b"\x81"]


def test_special_tokens_have_the_models_ids(tokenizer, theirs):
    assert (tokenizer.eod, tokenizer.eod_id) == ("[eod]", theirs.eos_id())
    assert tokenizer.user_symbols == {s: theirs.piece_to_id(s) for s in SYMBOLS}
    assert tokenizer.special_ids == {theirs.unk_id(), theirs.eos_id()}
    assert tokenizer.vocab_size == theirs.get_piece_size()
    code = tokenizer.user_symbols["<|code|>"]
    assert tokenizer.encode("a<|code|>b") == [*tokenizer.encode("a"), code, *tokenizer.encode("b")]


@pytest.mark.parametrize("kind", KINDS)
def test_symbols_of_one_character_are_tokens(kind):
    symbols = ["7", "<", "\u00e9", "\u0663", "\u4e2d", "\t", ","]
    made = train_tokenizer(TEXTS, 480, kind, symbols)
    assert [made.encode(s) for s in symbols] == [[made.user_symbols[s]] for s in symbols]
    for text in (*ODD, "<0x77> [eod] <unk> \u00e97,"):
        assert made.decode(made.encode(text)) == text


@pytest.mark.parametrize("symbol", ["e", "[", "a\0b"])
def test_symbols_that_sentencepiece_cannot_keep_are_refused_before_the_text_is_read(symbol):
    with pytest.raises(ConfigError, match=r"which SentencePiece can't keep apart; .* byte-bpe") as refused:
        train_tokenizer(iter([]), 480, "unigram", [symbol])
    assert repr(symbol) in str(refused.value)


def test_the_same_texts_give_the_same_bytes(model, tokenizer):
    assert sentencepieces.train(iter(TEXTS), 480, tokenizer.kind, SYMBOLS) == model


def test_the_file_runs_without_sentencepiece(tokenizer, tmp_path, monkeypatch):
    tokenizer.save(tmp_path / "t.json")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    again = load_tokenizer(tmp_path / "t.json")
    assert [again.encode(t) for t in ODD] == [tokenizer.encode(t) for t in ODD]
    facts = ("kind", "vocab_size", "eod_id", "special_ids", "user_symbols", "sha256")
    assert [getattr(again, f) for f in facts] == [getattr(tokenizer, f) for f in facts]
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    text = "areca  palm 1234\n\tna\u00efve \u65e5\u672c"
    assert library.encode(text).ids == tokenizer.encode(text)
    assert library.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("cut", [1, 3])
def test_text_is_streamed_by_whole_characters_up_to_a_stop(tokenizer, cut):
    text = "areca \u65e5\u672c \U0001f600 palm <|code|>\nSTOP here"
    ids = tokenizer.encode(text)
    written = Written(tokenizer, ["\nSTOP"])
    found = [written.add(ids[i : i + cut]) for i in range(0, len(ids), cut)] + [written.finish()]
    assert "".join(found) == text.partition("\nSTOP")[0]
    assert not any("\ufffd" in piece for piece in found)


def test_a_model_file_gives_the_store_that_training_gives(tmp_path, text_tree):
    pytest.importorskip("sentencepiece")
    build_store(tmp_path / "a", [f"t={text_tree}"], vocab_size=400, tokenizer_kind="unigram", heldout_fraction=0.1)
    a = TokenStore.open(tmp_path / "a", verify=True)
    assert a.meta["inputs"]["tokenizer_kind"] == "unigram"
    assert "sentencepiece" in a.meta["versions"]
    tokenizer = load_tokenizer(a.tokenizer_path)
    texts = [s["text"] for s in samples(a, 2)]
    assert all("palm" in t or "areca" in t or "grove" in t for t in texts)
    documents = [p.read_text() for p in text_tree.rglob("*.txt")]
    trained = [d for d in documents if tokenizer.encode(d) != []]
    (tmp_path / "t.model").write_bytes(sentencepieces.train(trained, 400, "unigram"))
    meta = build_store(tmp_path / "b", [f"t={text_tree}"], tokenizer=tmp_path / "t.model", heldout_fraction=0.1)
    b = TokenStore.open(tmp_path / "b", verify=True)
    theirs = spm.SentencePieceProcessor(model_file=str(tmp_path / "t.model"))
    kept = b.tokens("t", "train")
    first = kept[: kept.tolist().index(meta["eod_id"])].tolist()
    assert any(theirs.encode(d) == first for d in documents)
    assert a.tokenizer_sha256 != b.tokenizer_sha256  # of all the text, held out or not


def test_a_vocabulary_that_the_text_does_not_fill_is_the_largest_it_has(tmp_path):
    text = sentence_text(0, 5)
    for kind in KINDS:
        got = train_tokenizer([text], 5000, kind)
        with pytest.raises(RuntimeError, match=f"<= {got.vocab_size}"):  # SentencePiece's own figure
            spm.SentencePieceTrainer.train(
                sentence_iterator=iter(text.splitlines()), model_writer=tmp_path.open, model_type=kind, vocab_size=5000,
                normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
                allow_whitespace_only_pieces=True, split_digits=True, byte_fallback=True, bos_id=-1, minloglevel=2,
                required_chars="<>0x123456789ABCDEF[]eodunk",
            )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_too_small_for_the_characters_is_refused_with_the_least(kind):
    with pytest.raises(DataError, match=r"260 tokens is too small .* at least (\d+)") as caught:
        train_tokenizer(TEXTS, 260, kind)
    least = int(str(caught.value).split("at least ")[1].split(",")[0])
    assert train_tokenizer(TEXTS, least, kind).vocab_size == least
    with pytest.raises(DataError, match="too small"):
        train_tokenizer(TEXTS, least - 2, kind)


def test_a_mistake_at_training_leaves_nothing(tmp_path, text_tree, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for argv in (
        ["tokenizer", "train", "tree", "--kind", "bpe", "--vocab-size", "260", "--out", "t.json"],
        ["tokenizer", "train", "tree", "--kind", "bpe", "--vocab-size", "400", "--out", "t.model"],
        ["corpus", "build", "tree", "--tokenizer-kind", "unigram", "--vocab-size", "260", "--out", "out"],
        ["corpus", "build", "tree", "--user-symbols", "a b", "--out", "out"],
    ):
        assert main(argv) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"areca {argv[0]}: ")
        assert [p.name for p in tmp_path.iterdir()] == ["tree"]


CHANGED = {
    "adds a space in front": {"add_dummy_prefix": True},
    "drops spaces": {"remove_extra_whitespaces": True},
    "changes characters": {"normalization_rule_name": "nmt_nfkc"},
    "no byte fallback": {"byte_fallback": False},
    "end of a word": {"treat_whitespace_as_suffix": True},
    "no end of sentence": {"eos_id": -1},
    "words or characters": {"model_type": "char"},
    "nothing ends a document": {"eos_piece": "<stop>"},
}


@pytest.mark.parametrize("says", CHANGED)
def test_a_model_without_the_properties_is_refused(tmp_path, says):
    import io

    out = io.BytesIO()
    options = {
        "model_type": "bpe", "vocab_size": 330, "normalization_rule_name": "identity", "add_dummy_prefix": False,
        "remove_extra_whitespaces": False, "byte_fallback": True, "minloglevel": 2, "hard_vocab_limit": False,
    }  # fmt: skip
    lines = [line for t in TEXTS for line in t.split("\n") if line]
    spm.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=out, **(options | CHANGED[says]))
    (tmp_path / "t.model").write_bytes(out.getvalue())
    with pytest.raises(DataError, match=says) as caught:
        load_tokenizer(tmp_path / "t.model")
    assert str(tmp_path / "t.model") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("symbols", [(), ("[x]", "<sep>")])
def test_a_unigram_model_of_text_without_some_characters_is_run_as_sentencepiece_does(tmp_path, symbols):
    """Books have no "<": "<unk>" and "<0x41>" are text all the same."""
    import io

    out = io.BytesIO()
    lines = [re.sub(r"[<>\[\]]", "", line) for i in range(20) for line in sentence_text(i, 20).split("\n") if line]
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, model_type="unigram", vocab_size=400, byte_fallback=True,
        normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False, minloglevel=2,
        hard_vocab_limit=False, control_symbols=["[pad]"], user_defined_symbols=list(symbols),
    )  # fmt: skip
    (tmp_path / "t.model").write_bytes(out.getvalue())
    ours, theirs = load_tokenizer(tmp_path / "t.model"), spm.SentencePieceProcessor(model_proto=out.getvalue())
    for text in ("<unk>", "a <0x41> b", "</s> <s>", "[pad]", "x<<unk>>y", "\u4e2d<0xFF>\u4e2d", *lines[:20], *symbols):
        assert ours.decode(ours.encode(text)) == text
        assert ours.encode(text) == theirs.encode(text), text


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"{}", lambda b: b"\xff" * 99])
def test_a_damaged_model_is_refused(tmp_path, model, damage):
    (tmp_path / "t.model").write_bytes(damage(model))
    with pytest.raises(DataError, match=r"t\.model") as caught:
        load_tokenizer(tmp_path / "t.model")
    assert "\n" not in str(caught.value)


def test_a_model_under_another_name_is_refused_with_the_name_it_needs(tmp_path, model):
    (tmp_path / "t.json").write_bytes(model)
    with pytest.raises(DataError, match=r"named \*\.model"):
        load_tokenizer(tmp_path / "t.json")
    (tmp_path / "t.model").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(DataError, match="not a SentencePiece model"):
        load_tokenizer(tmp_path / "t.model")


def test_without_the_extra_nothing_is_read_or_written(tmp_path, text_tree, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.model").write_bytes(b"x")
    for argv in (
        ["tokenizer", "train", "tree", "--kind", "unigram", "--out", "t.json"],
        ["corpus", "build", "tree", "--tokenizer-kind", "bpe", "--out", "out"],
        ["corpus", "build", "tree", "--tokenizer", "t.model", "--out", "out"],
    ):
        assert main(argv) == 2
        assert "'.[sentencepiece]'" in capsys.readouterr().err
        assert sorted(p.name for p in tmp_path.iterdir()) == ["t.model", "tree"]


def test_an_unknown_kind_is_refused(capsys):
    with pytest.raises(ConfigError, match=r"'unigramm' .did you mean 'unigram'"):
        train_tokenizer(TEXTS, 400, "unigramm")
    assert main(["tokenizer", "train", "x", "--kind", "wordpiece", "--out", "t.json"]) == 2
    assert "wordpiece" in capsys.readouterr().err
