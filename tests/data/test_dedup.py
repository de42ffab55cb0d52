"""Near duplicates are found by word 5-grams: checked against exact Jaccard similarity of planted pairs."""

from itertools import pairwise

from made_text import sentence_text

from areca.data import dedup
from areca.data.dedup import Deduplicator, shingles
from areca.data.documents import Document


def docs(*texts: str) -> list[Document]:
    return [Document(t, "c", "s") for t in texts]


def jaccard(a: str, b: str) -> float:
    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.lower().replace(".", " .").split()
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    x, y = grams(a), grams(b)
    return len(x & y) / len(x | y)


def changed(text: str, lines: int) -> str:
    """The text with so many of its lines, evenly spread, replaced."""
    rows = text.splitlines()
    for k in range(lines):
        rows[k * len(rows) // max(lines, 1)] = f"something entirely different number{k} stands in this place now"
    return "\n".join(rows)


def test_pairs_well_above_the_threshold_are_dropped_and_well_below_are_kept():
    for seed in range(30):
        text = sentence_text(seed, 60)
        close, far = changed(text, 2), changed(text, 20)
        assert jaccard(text, close) > 0.9
        assert jaccard(text, far) < 0.6
        assert Deduplicator().judge(docs(text, close, far)) == ["kept", "near", "kept"]


def test_the_verdict_does_not_depend_on_how_documents_come():
    texts = [sentence_text(i, 30) for i in range(20)]
    texts += [changed(t, 1) for t in texts[::2]] + texts[::3]
    at_once = Deduplicator().judge(docs(*texts))
    one, parts = Deduplicator(), Deduplicator()
    assert [one.judge(docs(t))[0] for t in texts] == at_once
    cuts = [0, 3, 4, 17, 30, len(texts)]
    assert [v for a, b in pairwise(cuts) for v in parts.judge(docs(*texts[a:b]))] == at_once
    assert at_once.count("near") == 10
    assert at_once.count("exact") == 7


def test_short_texts_are_compared_exactly_only():
    assert Deduplicator().judge(docs("a b c d", "a b c e", "a b c d")) == ["kept", "kept", "exact"]


def test_near_duplicates_can_be_left_in():
    text = sentence_text(1, 60)
    assert Deduplicator(near=False).judge(docs(text, changed(text, 1), text)) == ["kept", "kept", "exact"]


def test_shingles_are_five_words_or_marks():
    assert shingles("To be, or not to be") == ["to be , or not", "be , or not to", ", or not to be"]
    assert shingles("one two three four") == []
    assert shingles("x \udcff y z w v") == shingles("x \ufffd y z w v")


def test_a_long_text_is_hashed_in_parts_with_the_same_verdicts(monkeypatch):
    texts = [sentence_text(i, 60) for i in range(6)] + ["x" * 3000, "a b c d" + " " * 2000]
    texts += [changed(t, 2) for t in texts[:3]] + [changed(t, 20) for t in texts[3:6]] + [f"{texts[0]}\udcff one more"]
    whole = Deduplicator().judge(docs(*texts))
    assert whole == ["kept"] * 8 + ["near"] * 3 + ["kept"] * 3 + ["near"]
    grams = [shingles(t) for t in texts]
    for part in (1, 50, 777):
        monkeypatch.setattr(dedup, "PART", part)
        assert Deduplicator().judge(docs(*texts)) == whole
        assert [shingles(t) for t in texts] == grams
