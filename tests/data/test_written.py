"""Text as it is made: whole characters, and nothing of a stop string."""

import pytest

from areca.data.tokenizer import train_tokenizer
from areca.data.written import Written


@pytest.fixture(scope="module")
def tokenizer():
    """Of single bytes, so that every character of more than one is cut."""
    return train_tokenizer([""], 257)


def _stretches(tokenizer, text: bytes, stops=(), cut: int = 1) -> tuple[list[str], Written]:
    ids = tokenizer.encode(text.decode("utf-8", "surrogateescape"))
    written = Written(tokenizer, stops)
    found = [written.add(ids[i : i + cut]) for i in range(0, len(ids), cut)]
    return [*found, written.finish()], written


@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_characters_come_whole(tokenizer, cut):
    text = "naïve 😀 日本 e\u0301"
    found, written = _stretches(tokenizer, text.encode(), cut=cut)
    assert "".join(found) == text == written.text
    assert not any("\ufffd" in piece for piece in found)


def test_bytes_that_are_no_text_are_shown_as_python_shows_them(tokenizer):
    data = b"a\xff\xe6\x97b\xf0\x9f"
    assert "".join(_stretches(tokenizer, data)[0]) == data.decode("utf-8", "replace")


@pytest.mark.parametrize("cut", [1, 2, 3, 7])
@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one\n\ntwo", ["\n\n"], "one"),
        ("one\ntwo", ["\n\n"], "one\ntwo"),
        ("aaab", ["aab"], "a"),
        ("ab 日本 cd", ["日本"], "ab "),
        ("ab 日曜", ["日本"], "ab 日曜"),
        ("stop", ["s"], ""),
        ("end\n", ["\n\n"], "end\n"),
    ],
)
def test_text_ends_before_a_stop_string(tokenizer, text, stops, expected, cut):
    found, written = _stretches(tokenizer, text.encode(), stops, cut)
    assert "".join(found) == expected == written.text
    assert written.stopped == (expected != text)


def test_the_first_of_several_stop_strings_counts(tokenizer):
    found, written = _stretches(tokenizer, b"abcdef", ["ef", "cde"], cut=6)
    assert "".join(found) == "ab"
    assert written.tokens == 5  # "cde" is whole before "ef" is


def test_tokens_are_counted_up_to_the_stop(tokenizer):
    assert _stretches(tokenizer, b"abcdef", ["c"], cut=6)[1].tokens == 3
