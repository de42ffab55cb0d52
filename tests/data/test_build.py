"""Building a store: whole or absent, the same twice, nothing in both splits, and one sentence for every mistake."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from made_text import sentence_text

from areca.data import store as store_module
from areca.data.build import build_store, train_on_sources
from areca.data.store import TokenStore
from areca.data.tokenizer import load_tokenizer, train_tokenizer
from areca.errors import BusyError, ConfigError, DataError


def documents(store: TokenStore, corpus: str, split) -> list[bytes]:
    """The documents of a corpus, decoded."""
    tokenizer = load_tokenizer(store.tokenizer_path)
    tokens = np.asarray(store.tokens(corpus, split))
    parts = np.split(tokens, np.flatnonzero(tokens == store.eod_id) + 1)
    assert len(parts[-1]) == 0  # the last document is ended too
    return [tokenizer.decode_bytes(p[:-1].tolist()) for p in parts[:-1]]


def build(out: Path, *sources, **options):
    options = {"vocab_size": 300, "heldout_fraction": 0.1} | options
    return build_store(out, [str(s) for s in sources], **options)


def left_behind(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_store_holds_every_document_once(tmp_path, text_tree):
    build(tmp_path / "out", f"t={text_tree}")
    store = TokenStore.open(tmp_path / "out", verify=True)
    train, heldout = documents(store, "t", "train"), documents(store, "t", "heldout")
    assert train
    assert heldout
    assert sorted(train + heldout) == sorted(p.read_bytes() for p in text_tree.rglob("*.txt"))
    info = store.corpus("t")
    assert (info.train_documents, info.heldout_documents) == (len(train), len(heldout))
    assert info.bytes == sum(p.stat().st_size for p in text_tree.rglob("*.txt"))


def test_the_same_inputs_give_the_same_bytes(tmp_path, text_tree):
    build(tmp_path / "a", f"t={text_tree}")
    build(tmp_path / "b", f"t={text_tree}")
    assert left_behind(tmp_path / "a") == ["store.json", "t.heldout.bin", "t.train.bin", "tokenizer.json"]
    for name in left_behind(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_where_a_document_falls_depends_on_its_content_alone(tmp_path, text_tree):
    build(tmp_path / "a", f"t={text_tree}")
    for extra in range(10):
        (text_tree / f"0-{extra}.txt").write_text(sentence_text(900 + extra, 20))
    build(tmp_path / "b", f"t={text_tree}")
    a, b = TokenStore.open(tmp_path / "a"), TokenStore.open(tmp_path / "b")
    assert set(documents(a, "t", "heldout")) <= set(documents(b, "t", "heldout"))
    assert set(documents(a, "t", "train")) <= set(documents(b, "t", "train"))


def test_where_a_document_falls_does_not_depend_on_its_name_or_place(tmp_path, text_tree):
    build(tmp_path / "a", f"t={text_tree}")
    (tmp_path / "other").mkdir()
    for i, file in enumerate(sorted(text_tree.rglob("*.txt"), reverse=True)):
        (tmp_path / "other" / f"renamed{i:02}.md").write_bytes(file.read_bytes())
    build(tmp_path / "b", f"o={tmp_path / 'other'}")
    a, b = TokenStore.open(tmp_path / "a"), TokenStore.open(tmp_path / "b")
    for split in ("train", "heldout"):
        assert sorted(documents(a, "t", split)) == sorted(documents(b, "o", split))


def test_the_tokenizer_never_sees_held_out_text(tmp_path, text_tree):
    build(tmp_path / "a", f"t={text_tree}")
    store = TokenStore.open(tmp_path / "a")
    again = train_tokenizer([d.decode() for d in documents(store, "t", "train")], 300)
    assert again.sha256 == store.tokenizer_sha256


def test_a_build_of_the_same_inputs_is_reused(tmp_path, text_tree):
    first = build(tmp_path / "out", f"t={text_tree}")
    stamp = (tmp_path / "out" / "t.train.bin").stat().st_mtime_ns
    assert build(tmp_path / "out", f"t={text_tree}") == first
    assert (tmp_path / "out" / "t.train.bin").stat().st_mtime_ns == stamp


def test_a_store_of_other_inputs_is_not_overwritten(tmp_path, text_tree):
    build(tmp_path / "out", f"t={text_tree}")
    with pytest.raises(DataError, match="vocab_size: 300 -> 400"):
        build(tmp_path / "out", f"t={text_tree}", vocab_size=400)
    next(text_tree.rglob("*.txt")).write_text("changed")
    with pytest.raises(DataError, match=r"source\.t\.sha256"):
        build(tmp_path / "out", f"t={text_tree}")
    assert TokenStore.open(tmp_path / "out").vocab_size == 300


def test_a_directory_that_is_no_store_is_not_overwritten(tmp_path, text_tree):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(DataError, match="not a token store"):
        build(tmp_path / "out", f"t={text_tree}")
    assert left_behind(tmp_path / "out") == ["precious"]


def test_a_damaged_store_is_not_reused(tmp_path, text_tree):
    build(tmp_path / "out", f"t={text_tree}")
    with (tmp_path / "out" / "t.train.bin").open("ab") as f:
        f.write(b"\0\0")
    with pytest.raises(DataError, match="damaged"):
        build(tmp_path / "out", f"t={text_tree}")


def test_a_single_text_file_gives_both_splits_and_loses_nothing(tmp_path):
    text = "\n\n".join(sentence_text(i, 12) for i in range(60))
    (tmp_path / "book.txt").write_text(text)
    build(tmp_path / "out", tmp_path / "book.txt")
    store = TokenStore.open(tmp_path / "out")
    pieces = documents(store, "book", "train") + documents(store, "book", "heldout")
    assert documents(store, "book", "heldout")
    assert max(map(len, pieces)) <= 4096
    assert sum(map(len, pieces)) == len(text.encode())
    assert all(text.encode().count(p) == 1 for p in pieces)


def test_a_single_document_cannot_be_held_out(tmp_path):
    (tmp_path / "note.txt").write_text("One short note.\n")
    with pytest.raises(DataError, match="single document"):
        build(tmp_path / "out", tmp_path / "note.txt")
    assert left_behind(tmp_path) == ["note.txt"]
    build(tmp_path / "out", tmp_path / "note.txt", heldout_fraction=0)
    assert TokenStore.open(tmp_path / "out").corpus("note").heldout_tokens == 0


def test_two_documents_give_one_on_each_side(tmp_path):
    for i in range(2):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / f"{i}.txt").write_text(sentence_text(i, 5))
    build(tmp_path / "out", tmp_path / "d", heldout_fraction=0.001)
    info = TokenStore.open(tmp_path / "out").corpus("d")
    assert (info.train_documents, info.heldout_documents) == (1, 1)


def test_a_text_too_small_to_split_as_asked_is_refused_or_said(tmp_path):
    """Two documents of very unequal size: whichever side the hash gives the large one, the user hears of it."""
    heard = set()
    for i in range(12):
        directory = tmp_path / f"d{i}"
        directory.mkdir()
        (directory / "large.txt").write_text(sentence_text(2 * i, 60))
        (directory / "small.txt").write_text(sentence_text(2 * i + 1, 3))
        lines: list[str] = []
        try:
            meta = build(tmp_path / f"out{i}", f"t={directory}", progress=lines.append, near_duplicates=False)
        except DataError as error:
            refusal = str(error)
            assert "the corpus 't' has only 2 documents, and 95% of its text would be held out" in refusal
            assert "--split-documents" in refusal
            assert not (tmp_path / f"out{i}").exists()
            heard.add("refused")
            # The way out that the sentence names: finer pieces hold out about what was asked.
            size = int(refusal.partition("--split-documents ")[2].partition(",")[0])
            meta = build(tmp_path / f"out{i}", f"t={directory}", split_bytes=size)
            counts = meta["corpora"][0]
            held = counts["heldout_tokens"] / (counts["heldout_tokens"] + counts["train_tokens"])
            assert held < 0.25
        else:
            assert meta["corpora"][0]["heldout_documents"] == 1
            assert not any(line.startswith("note: t: ") for line in lines)  # 5% of it, as asked
            heard.add("built")
    assert heard == {"refused", "built"}


def test_a_split_far_from_what_was_asked_is_said(tmp_path):
    for i in range(4):
        (tmp_path / "d").mkdir(exist_ok=True)
        (tmp_path / "d" / f"{i}.txt").write_text(sentence_text(i, 10))
    lines: list[str] = []
    build(tmp_path / "out", f"t={tmp_path / 'd'}", progress=lines.append, heldout_fraction=0.05)
    (note,) = [line for line in lines if line.startswith("note: ")]
    assert "of the text is held out where 5% was asked" in note
    assert "it has 4 documents" in note


def test_duplicates_are_dropped_and_reported_by_kind_and_corpus(tmp_path, text_tree):
    files = sorted(text_tree.rglob("*.txt"))
    (text_tree / "copy.txt").write_bytes(files[3].read_bytes())
    near = files[5].read_text().splitlines(keepends=True)
    near[10] = "one line of another kind altogether\n"
    (text_tree / "near.txt").write_text("".join(near))
    (text_tree / "blank.txt").write_text(" \n\t\n")
    (text_tree / "nul.txt").write_bytes(b"a\0b")
    other = tmp_path / "other"
    other.mkdir()
    (other / "same.txt").write_bytes(files[7].read_bytes())
    for i in range(3):
        (other / f"{i}.txt").write_text(sentence_text(500 + i, 20))
    meta = build(tmp_path / "out", f"t={text_tree}", f"o={other}")
    removed = {c["name"]: {k: v["documents"] for k, v in c["removed"].items()} for c in meta["corpora"]}
    assert removed["t"] == {"empty": 1, "binary": 1, "exact": 1, "near": 1}
    assert removed["o"] == {"empty": 0, "binary": 0, "exact": 1, "near": 0}
    share = meta["corpora"][1]["removed"]["exact"]["share"]
    sizes = [p.stat().st_size for p in other.iterdir()]
    assert share == pytest.approx(files[7].stat().st_size / sum(sizes))
    kept = build(tmp_path / "all", f"t={text_tree}", f"o={other}", near_duplicates=False)
    assert kept["corpora"][0]["removed"]["near"]["documents"] == 0
    assert kept["corpora"][0]["removed"]["exact"]["documents"] == 1


def test_no_document_is_in_both_splits_of_any_corpora(tmp_path, text_tree):
    for file in sorted(text_tree.rglob("*.txt")):  # each text thrice, twice here and once in another corpus
        (text_tree / f"copy-{file.name}").write_bytes(file.read_bytes())
        (tmp_path / "other").mkdir(exist_ok=True)
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    for i in range(3):
        (tmp_path / "other" / f"own{i}.txt").write_text(sentence_text(700 + i, 20))
    build(tmp_path / "out", f"t={text_tree}", f"o={tmp_path / 'other'}")
    store = TokenStore.open(tmp_path / "out")
    train = [d for c in ("t", "o") for d in documents(store, c, "train")]
    heldout = [d for c in ("t", "o") for d in documents(store, c, "heldout")]
    assert not set(train) & set(heldout)
    assert len(train) + len(heldout) == len(set(train + heldout)) == 43


def test_invalid_utf8_is_refused_by_name_and_offset_or_kept_exactly(tmp_path, text_tree):
    data = b"caf\xe9 latin one\n" + sentence_text(77, 9).encode() + b"\xff\xfe\x80"
    (text_tree / "latin.txt").write_bytes(data)
    with pytest.raises(DataError, match=r"latin\.txt is not valid UTF-8 at byte 3"):
        build(tmp_path / "out", f"t={text_tree}")
    assert left_behind(tmp_path) == ["tree"]
    build(tmp_path / "out", f"t={text_tree}", invalid_utf8="keep")
    store = TokenStore.open(tmp_path / "out")
    assert data in documents(store, "t", "train") + documents(store, "t", "heldout")


def test_text_that_spells_eod_does_not_end_a_document(tmp_path, text_tree):
    (text_tree / "eod.txt").write_text("before [eod] after\n" + sentence_text(3, 3))
    build(tmp_path / "out", f"t={text_tree}")
    store = TokenStore.open(tmp_path / "out")
    found = documents(store, "t", "train") + documents(store, "t", "heldout")
    assert len(found) == 41
    assert sum(b"[eod]" in d for d in found) == 1


def test_a_large_vocabulary_is_stored_in_four_bytes(tmp_path, text_tree):
    assert store_module.token_dtype(65_536).itemsize == 2  # ids up to 65,535
    assert store_module.token_dtype(65_537).itemsize == 4
    assert build(tmp_path / "out", f"t={text_tree}", vocab_size=512)["dtype"] == "<u2"


def test_a_given_tokenizer_is_used_as_it_is(tmp_path, text_tree):
    trained = train_on_sources(tmp_path / "tok.json", [str(text_tree)], vocab_size=320)
    meta = build(tmp_path / "out", f"t={text_tree}", vocab_size=None, tokenizer=tmp_path / "tok.json")
    assert meta["vocab_size"] == trained["vocab_size"] == 320
    assert meta["tokenizer_sha256"] == trained["sha256"]
    with pytest.raises(ConfigError, match="320 tokens, not 500"):
        build(tmp_path / "out2", f"t={text_tree}", vocab_size=500, tokenizer=tmp_path / "tok.json")
    with pytest.raises(DataError, match="exists"):
        train_on_sources(tmp_path / "tok.json", [str(text_tree)], vocab_size=320)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "does not exist"),
        (lambda p: p.write_bytes(b""), "is empty"),
        (lambda p: p.write_bytes(b" \n \n"), "is empty"),
        (lambda p: p.write_bytes(b"\x89PNG\0\0\0" * 100), "binary"),
        (lambda p: p.write_text("hello", encoding="utf-16"), "binary"),
        (lambda p: p.mkdir(), "is empty"),
        (lambda p: p.write_bytes(b"ok " * 3000 + b"\xc3"), "byte 9000"),
        (lambda p: os.mkfifo(p), "neither a file nor a directory"),
    ],
)
def test_a_source_that_is_no_text_is_refused_and_leaves_nothing(tmp_path, make, message):
    source = tmp_path / "source.txt"
    make(source)
    before = left_behind(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        build(tmp_path / "out", source)
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == before


def test_a_full_disk_leaves_nothing(tmp_path, text_tree, monkeypatch):
    monkeypatch.setattr(store_module, "bin_name", lambda corpus, split: "/dev/full")  # the kernel says ENOSPC
    with pytest.raises(OSError, match="No space left") as caught:
        build(tmp_path / "out", f"t={text_tree}")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(tmp_path / "out")
    assert left_behind(tmp_path) == ["tree"]


def test_an_output_inside_its_source_is_refused(tmp_path, text_tree):
    with pytest.raises(ConfigError, match="inside the source"):
        build(text_tree / "out", f"t={text_tree}")
    assert not (text_tree / "out").exists()


@pytest.mark.parametrize("fraction", [-0.1, 0.6, float("nan")])
def test_an_impossible_held_out_share_is_refused(tmp_path, text_tree, fraction):
    with pytest.raises(ConfigError, match="heldout"):
        build(tmp_path / "out", f"t={text_tree}", heldout_fraction=fraction)


def test_a_killed_build_leaves_nothing_under_the_name_and_is_swept_by_the_next(tmp_path, text_tree):
    script = (
        "import os, signal, sys; from areca.data import build\n"
        "build._train = lambda *a: (print('spooled', flush=True), signal.pause())\n"
        f"build.build_store({str(tmp_path / 'out')!r}, ['t={text_tree}'], vocab_size=300)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"spooled\n"
        stale = [p for p in tmp_path.iterdir() if p.name.endswith(".building")]
        assert len(stale) == 1
        assert not (tmp_path / "out").exists()
        # While it runs another of the same name is refused, before it reads any text; one of another name is not.
        with pytest.raises(BusyError, match="out is being built by another process"):
            build(tmp_path / "out", f"t={text_tree}", vocab_size=301)
        build(tmp_path / "elsewhere", f"t={text_tree}")
        assert stale[0].exists()
        assert not (tmp_path / "out").exists()
        child.send_signal(signal.SIGKILL)
        child.wait()
    time.sleep(0.05)
    build(tmp_path / "out", f"t={text_tree}")
    assert left_behind(tmp_path) == ["elsewhere", "out", "tree"]


def test_provenance_is_recorded(tmp_path, text_tree):
    build(tmp_path / "out", f"t={text_tree}:2")
    meta = json.loads((tmp_path / "out" / "store.json").read_text())
    source = meta["inputs"]["sources"][0]
    assert source["files"] == 40
    assert source["path"] == str(text_tree)
    assert len(source["sha256"]) == 64
    assert meta["corpora"][0]["weight"] == 2
    assert set(meta["versions"]) == {"areca", "python", "numpy", "tokenizers", "rensa"}
    assert set(meta["files"]) == {"tokenizer.json", "t.train.bin", "t.heldout.bin"}


@pytest.mark.parametrize("name", ["tinyshakespeare.txt", "wikitext2_valid.txt", "wikitext2_test.txt"])
def test_published_corpora_build(tmp_path, shared_data, name):
    path = shared_data(f"corpora/{name}")
    meta = build_store(tmp_path / "out", [f"c={path}"], vocab_size=512)
    corpus = meta["corpora"][0]
    assert corpus["read"]["bytes"] == path.stat().st_size
    dropped = sum(r["bytes"] for r in corpus["removed"].values())
    assert corpus["bytes"] + dropped == path.stat().st_size
    assert dropped < 0.001 * path.stat().st_size
    tokens = corpus["train_tokens"] + corpus["heldout_tokens"]
    assert 0.02 < corpus["heldout_tokens"] / tokens < 0.1
    assert 1.5 < corpus["bytes"] / tokens < 4


def test_ids_beyond_two_bytes_come_back(tmp_path, text_tree):
    # Every pair of bytes as a token: 256 + 65,536 + [eod] ids, the last ones above 65,535.
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    pairs = [(a, b) for a in sorted(alphabet, key=lambda c: (c != "l", c)) for b in sorted(alphabet)]
    words = ["[eod]", *sorted(alphabet), *(a + b for a, b in reversed(pairs))]  # "la" to "lz" are the last
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({w: i for i, w in enumerate(words)}, pairs))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens(["[eod]"])
    inner.save(str(tmp_path / "tok.json"))
    (text_tree / "high.txt").write_bytes(bytes(range(0xC0, 0x100)) * 3 + b"\xff\xff plain \xc5\x85\xc5\x84")
    meta = build(tmp_path / "out", f"t={text_tree}", vocab_size=None, tokenizer=tmp_path / "tok.json",
                 invalid_utf8="keep")  # fmt: skip
    assert (meta["vocab_size"], meta["dtype"]) == (65_793, "<u4")
    store = TokenStore.open(tmp_path / "out", verify=True)
    found = documents(store, "t", "train") + documents(store, "t", "heldout")
    assert sorted(found) == sorted(p.read_bytes() for p in text_tree.rglob("*.txt"))
    assert max(store.tokens("t", "train").max(), store.tokens("t", "heldout").max()) > 65_535
