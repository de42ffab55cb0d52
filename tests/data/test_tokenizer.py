"""The tokenizer is lossless, deterministic, cuts digits one by one, and never mistakes text for `[eod]`."""

import json
import random

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from made_text import sentence_text
from odd_strings import ODD

from areca.data.documents import from_bytes, to_bytes
from areca.data.tokenizer import EOD, byte_alphabet, load_tokenizer, train_tokenizer
from areca.errors import ConfigError, DataError

TEXTS = [sentence_text(i, 30) for i in range(30)] + [
    "def f(x):\n    return x[1234]\n\t# \u00e9t\u00e9 \u4e2d\u6587\n" * 20
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 512)


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_strings_come_back_exactly(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.eod_id not in ids


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=200, deadline=None)
def test_any_text_comes_back_exactly(text):
    tokenizer = _shared()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.binary())
@settings(max_examples=200, deadline=None)
def test_any_bytes_come_back_exactly(data):
    tokenizer = _shared()
    assert tokenizer.decode_bytes(tokenizer.encode(from_bytes(data))) == data


def _shared(made: list = []):  # noqa: B006
    if not made:
        made.append(train_tokenizer(TEXTS, 512))
    return made[0]


def test_escaped_bytes_in_a_batch_leave_the_other_texts_alone(tokenizer):
    texts = ["plain text", from_bytes(b"\xff\xfe caf\xc3\xa9 \x80"), "more"]
    ids = tokenizer.encode_batch(texts)
    assert [tokenizer.decode_bytes(i) for i in ids] == [to_bytes(t) for t in texts]
    assert ids[0] == tokenizer.encode("plain text")


def test_every_digit_is_a_token_of_its_own(tokenizer):
    pieces = [tokenizer.token_bytes(i) for i in tokenizer.encode("In 1234567890")]
    assert pieces[-10:] == [bytes([c]) for c in b"1234567890"]
    longer = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size) if len(tokenizer.token_bytes(i)) > 1]
    assert not [p for p in longer if any(c in b"0123456789" for c in p)]


def test_the_byte_alphabet_is_that_of_the_library():
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    # GPT-2's table: a space is written as U+0120, a line feed as U+010A.
    assert byte_alphabet()[0x20] == "\u0120"
    assert byte_alphabet()[0x0A] == "\u010a"


def test_the_same_texts_give_the_same_vocabulary_in_any_order():
    shuffled = list(TEXTS)
    random.Random(5).shuffle(shuffled)
    first = train_tokenizer(TEXTS, 700).to_json()
    assert train_tokenizer(TEXTS, 700).to_json() == first
    assert train_tokenizer(shuffled, 700).to_json() == first


def test_the_library_alone_reads_the_file_and_decodes_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.json")
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    text = "Palm trees, 42 of them.\n"
    assert other.encode(text).ids == tokenizer.encode(text)
    assert other.decode(tokenizer.encode(text)) == text
    assert other.token_to_id(EOD) == tokenizer.eod_id


def test_a_saved_tokenizer_is_the_same_when_loaded(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "t.json")
    again = load_tokenizer(tmp_path / "t.json")
    assert (again.vocab_size, again.eod_id, again.sha256) == (tokenizer.vocab_size, tokenizer.eod_id, tokenizer.sha256)
    assert again.encode("a [eod] b") == tokenizer.encode("a [eod] b")


def test_a_repeated_merge_shortens_text():
    # The most frequent pair of "abababab..." is (a, b): with room for one merge it must be that one.
    trained = train_tokenizer(["ab" * 50] * 3, 258)
    assert [trained.token_bytes(i) for i in trained.encode("abab")] == [b"ab", b"ab"]


@pytest.mark.parametrize("size", [256, 0, -1, 300_000])
def test_an_impossible_vocabulary_is_refused(size):
    with pytest.raises(DataError, match="257"):
        train_tokenizer(TEXTS, size)


def test_a_small_text_gives_a_smaller_vocabulary_than_asked():
    trained = train_tokenizer(["abc"], 5000)
    assert trained.vocab_size == 257


def _edited(tokenizer, tmp_path, **changes):
    data = json.loads(tokenizer.to_json()) | changes
    (tmp_path / "edited.json").write_text(json.dumps(data))
    return tmp_path / "edited.json"


def test_a_tokenizer_that_changes_text_is_refused(tokenizer, tmp_path):
    with pytest.raises(DataError, match="changes text"):
        load_tokenizer(_edited(tokenizer, tmp_path, normalizer={"type": "NFC"}))
    with pytest.raises(DataError, match="changes text"):
        load_tokenizer(_edited(tokenizer, tmp_path, normalizer={"type": "Lowercase"}))


def test_a_document_ends_as_a_tokenizer_of_others_says(tokenizer, tmp_path):
    """A tokenizer.json as GPT-2's: no digits cut, one special token, the last."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(TEXTS, trainer)
    inner.add_special_tokens(["<|endoftext|>"])
    inner.save(str(tmp_path / "gpt2.json"))
    loaded = load_tokenizer(tmp_path / "gpt2.json")
    assert (loaded.kind, loaded.eod, loaded.eod_id, loaded.vocab_size) == ("byte-bpe", "<|endoftext|>", 400, 401)
    text = "a <|endoftext|> b 2024"
    assert loaded.decode(loaded.encode(text)) == text
    assert loaded.special_ids == {400}
    assert 400 not in loaded.encode(text)


def test_user_symbols_are_one_token_wherever_text_has_them():
    symbols = ["<|code|>", "<|code|>s", "\n\n", "\u4e2d\u6587"]
    trained = train_tokenizer(TEXTS, 512, user_symbols=symbols)
    assert trained.user_symbols == {s: trained.vocab_size - 4 + i for i, s in enumerate(symbols)}  # the last
    for text in ("a<|code|>b", "<|code|>\n\n\n", "x <|code|>s \u4e2d\u6587", "<|code|", "\r\n\r\n"):
        assert trained.decode(trained.encode(text)) == text
    assert trained.encode("a<|code|>s b") == [
        *trained.encode("a"), trained.user_symbols["<|code|>s"], *trained.encode(" b"),
    ]  # fmt: skip
    assert trained.special_ids == {trained.eod_id}


@pytest.mark.parametrize(
    ("symbols", "says"),
    [
        ([""], "is empty"), (["a", "a"], "given twice"), (["[eod]"], "of the tokenizer's own"), (["\udcff"], "Unicode"),
        (["<0x41>"], "of the tokenizer's own"), (["a b"], "holds a space"), (["\u2581"], "U.2581"),
    ],
)  # fmt: skip
def test_user_symbols_that_cannot_be_are_refused(symbols, says):
    with pytest.raises(ConfigError, match=says):
        train_tokenizer(TEXTS, 512, user_symbols=symbols)


@pytest.mark.parametrize("symbol", ["\u00c3\u00a9", "\u0120the", "\u0120", "\u00e9", "\u00e4\u00b8"])
def test_a_symbol_that_is_the_spelling_of_other_bytes_is_refused_before_the_text_is_read(symbol):
    def unread():
        raise AssertionError("the text was read")
        yield ""

    with pytest.raises(ConfigError, match=f"user symbol '{symbol}' is how byte-bpe spells the bytes"):
        train_tokenizer(unread(), 512, user_symbols=[symbol])


def test_a_symbol_of_one_character_is_a_token(tmp_path):
    """A printable one of ASCII is its byte's; the library decodes all of them as we do."""
    symbols = ["e", "7", "[", "\n", "\u4e2d", "the"]
    trained = train_tokenizer([*TEXTS, "the palm \u4e2d[7]\n"], 400, user_symbols=symbols)
    assert {s: trained.token_bytes(i).decode() for s, i in trained.user_symbols.items()} == {s: s for s in symbols}
    library = tokenizers.Tokenizer.from_str(trained.to_json())
    for text in (*ODD[:20], "".join(symbols), "\n\nthe [eod] \u4e2d\u6587 77"):
        assert trained.decode(trained.encode(text)) == text
        assert library.decode(trained.encode("the \u4e2d\n7")) == "the \u4e2d\n7"
    trained.save(tmp_path / "t.json")
    assert load_tokenizer(tmp_path / "t.json").user_symbols == trained.user_symbols


def test_an_added_token_that_shares_its_id_with_other_text_is_refused(tmp_path):
    """The library gives an added token the id of a piece that is spelled so."""
    for special in (False, True):
        inner = tokenizers.Tokenizer.from_str(train_tokenizer(["caf\u00e9 the "] * 9, 300).to_json())
        spelling = "\u0120the" if special else "\u00c3\u00a9"
        assert inner.token_to_id(spelling) is not None
        inner.add_tokens([tokenizers.AddedToken(spelling, normalized=False, special=special)])
        inner.save(str(tmp_path / "t.json"))
        with pytest.raises(DataError, match=f"one id, [0-9]+, for its added token '{spelling}' and for "):
            load_tokenizer(tmp_path / "t.json")


def test_two_tokens_on_one_id_are_refused(tokenizer, tmp_path):
    model = json.loads(tokenizer.to_json())["model"]
    last, other = max(model["vocab"], key=model["vocab"].get), byte_alphabet()[ord("n")]
    model["vocab"][last] = model["vocab"][other]
    with pytest.raises(DataError, match=f"two tokens on one id .*{model['vocab'][other]}") as refused:
        load_tokenizer(_edited(tokenizer, tmp_path, model=model))
    assert repr(last) in str(refused.value)
    assert repr(other) in str(refused.value)


def test_ids_with_a_gap_or_that_an_added_token_cannot_have_are_refused(tokenizer, tmp_path):
    data = json.loads(tokenizer.to_json())
    model = data["model"]
    model["vocab"][max(model["vocab"], key=model["vocab"].get)] = 600
    with pytest.raises(DataError, match=r"gaps in its ids .*600"):
        load_tokenizer(_edited(tokenizer, tmp_path, model=model))
    added = [*data["added_tokens"], data["added_tokens"][0] | {"id": 900, "content": "<x>", "special": False}]
    with pytest.raises(DataError, match=f"'<x>' 900 where only {tokenizer.vocab_size} can be"):
        load_tokenizer(_edited(tokenizer, tmp_path, added_tokens=added))


def test_dropout_is_refused_as_the_same_text_would_have_other_tokens_each_time(tokenizer, tmp_path):
    facts = json.loads(tokenizer.to_json())
    facts["model"]["dropout"] = 0.1
    (tmp_path / "t.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"t\.json has a dropout of 0\.1: .* set dropout to null"):
        load_tokenizer(tmp_path / "t.json")


def test_a_tokenizer_without_eod_is_refused(tokenizer, tmp_path):
    model = json.loads(tokenizer.to_json())["model"]
    model["vocab"] = {("[end]" if t == EOD else t): i for t, i in model["vocab"].items()}
    with pytest.raises(DataError, match=r"no \[eod\]"):
        load_tokenizer(_edited(tokenizer, tmp_path, added_tokens=[], model=model))


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b"\xff\xfe", b'{"version": "1.0"}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(DataError, match=r"t\.json"):
        load_tokenizer(tmp_path / "t.json")


def test_a_missing_tokenizer_is_refused(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        load_tokenizer(tmp_path / "none.json")
