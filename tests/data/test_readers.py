"""Every kind of input gives its texts unchanged, in order, and says in one sentence what is wrong with it."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from areca.data.documents import escape_surrogates, from_bytes, to_bytes
from areca.data.readers import ReadOptions, _pieces, read_source
from areca.data.sources import Source, identify, parse_sources
from areca.errors import ConfigError, DataError

TEXTS = ["first\r\ntext\t", "", "second \U0001f600 \u4e2d\u6587", "nul \0 inside", "e\u0301 [eod]"]


def read(path, **options) -> list[str]:
    return [d.text for d in read_source(Source("c", path), ReadOptions(**options))]


def jsonl(texts, column="text") -> bytes:
    return b"".join(json.dumps({"id": i, column: t}).encode() + b"\n" for i, t in enumerate(texts))


def test_json_lines_plain_and_compressed(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(jsonl(TEXTS)))
    halves = zstandard.compress(jsonl(TEXTS)[:50]) + zstandard.compress(jsonl(TEXTS)[50:])  # two frames
    (tmp_path / "c.jsonl.zst").write_bytes(halves)
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        assert read(tmp_path / name) == TEXTS


def test_parquet_text_large_text_dictionary_and_null(tmp_path):
    for i, kind in enumerate([pa.string(), pa.large_string(), pa.binary()]):
        values = [*TEXTS, None]
        column = pa.array([v.encode() if v and pa.types.is_binary(kind) else v or None for v in values], kind)
        pq.write_table(pa.table({"n": range(6), "body": column}), tmp_path / f"{i}.parquet")
        assert read(tmp_path / f"{i}.parquet", text_column="body") == [*TEXTS, ""]
    coded = pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()})
    pq.write_table(coded, tmp_path / "d.parquet")
    assert read(tmp_path / "d.parquet") == ["a", "b", "a"]


def test_a_tree_is_read_in_order_of_paths_with_all_kinds_in_it(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("hidden")
    (tmp_path / "b" / "x.md").write_text("three")
    (tmp_path / "a.txt").write_bytes(b"one\r\n")
    (tmp_path / "b" / "w.jsonl").write_bytes(jsonl(["two"]))
    (tmp_path / "c.bin").write_bytes(b"\0\1")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"four"))
    options = ReadOptions()
    found = list(read_source(Source("c", tmp_path), options))
    assert [d.text for d in found] == ["one\r\n", "two", "three", "four"]
    assert options.skipped["binary"] == 1
    assert found[1].source == f"{tmp_path / 'b' / 'w.jsonl'}:1"


@given(st.binary(max_size=3000), st.integers(64, 300), st.booleans())
@settings(max_examples=200, deadline=None)
def test_pieces_joined_are_the_file(data, size, lines):
    import io

    data = data.replace(b"\x80", b"\n\n") if lines else data
    pieces = list(_pieces(io.BytesIO(data), size))
    assert b"".join(p for _, p in pieces) == data
    assert all(0 < len(p) <= size for _, p in pieces)
    assert [o for o, _ in pieces] == [sum(len(p) for _, p in pieces[:i]) for i in range(len(pieces))]


@given(st.text("a\u00e9\u4e2d\U0001f600 \n", min_size=1, max_size=2000))
@settings(max_examples=100, deadline=None)
def test_a_piece_never_ends_inside_a_character(text):
    import io

    for _, piece in _pieces(io.BytesIO(text.encode()), 64):
        piece.decode("utf-8")


def test_pieces_end_at_blank_lines_where_there_are_any():
    import io

    text = b"\n\n".join(b"line %d\nof a paragraph" % i for i in range(100))
    pieces = [p for _, p in _pieces(io.BytesIO(text), 256)]
    assert all(p.endswith(b"paragraph\n\n") for p in pieces[:-1])


@given(st.binary())
def test_bytes_survive_as_text(data):
    assert to_bytes(from_bytes(data)) == data


def test_lone_surrogates_of_json_are_refused_or_kept(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "bad \\ud800 end"}\n')
    with pytest.raises(DataError, match="line 1: 'text' holds a lone surrogate"):
        read(tmp_path / "a.jsonl")
    (kept,) = read(tmp_path / "a.jsonl", invalid_utf8="keep")
    assert to_bytes(kept) == b"bad \xed\xa0\x80 end"  # the generalised UTF-8 of U+D800
    assert escape_surrogates("plain") == "plain"
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "\xff \\ud800"}\n')
    assert to_bytes(read(tmp_path / "b.jsonl", invalid_utf8="keep")[0]) == b"\xff \xed\xa0\x80"


def test_invalid_utf8_in_rows_is_refused_by_place_or_kept(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n{"text": "caf\xe9"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl is not valid UTF-8 at byte 28"):  # 15 + 13
        read(tmp_path / "a.jsonl")
    assert to_bytes(read(tmp_path / "a.jsonl", invalid_utf8="keep")[1]) == b"caf\xe9"
    pq.write_table(pa.table({"text": pa.array([b"ok", b"caf\xe9"], pa.binary())}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="row 2 is not valid UTF-8 at byte 3"):
        read(tmp_path / "a.parquet")
    assert to_bytes(read(tmp_path / "a.parquet", invalid_utf8="keep")[1]) == b"caf\xe9"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2 is not valid JSON"),
        ("a.jsonl", b'{"tex": "x", "id": 1}\n', r"no column 'text' \(did you mean 'tex'\?\)"),
        ("a.jsonl", b'["x"]\n', "line 1 is not a JSON object"),
        ("a.jsonl", b'{"text": 5}\n', "'text' is int, not text"),
        ("a.jsonl.gz", b"plain", "can't be decompressed"),
        ("a.jsonl.gz", gzip.compress(jsonl(TEXTS * 50))[:-20], "can't be decompressed"),
        ("a.jsonl.zst", b"plain text here", "can't be decompressed"),
        ("a.txt.zst", zstandard.compress(b"some text\n" * 9999)[:-1], "can't be decompressed .*ends within a frame"),
        (
            "a.txt.zst",
            zstandard.compress(b"one frame") + zstandard.compress(b"and half of another")[:9],
            "within a frame",
        ),
        ("a.txt.zst", zstandard.compress(b"one frame") + b"more", "can't be decompressed"),
        ("a.jsonl", b'{"text": "x", "n": ' + b"9" * 5000 + b"}\n", "line 1 is not valid JSON .*more than 4,300 digits"),
        ("a.parquet", b"PAR1 not really", "can't be read as Parquet"),
        ("a.txt", b"\x7fELF\0\0", "binary"),
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_it(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.999])
def test_a_zst_file_cut_anywhere_is_never_taken_for_the_whole(tmp_path, share):
    """One cut on a line's end, too, as the text before it is whole lines."""
    texts = [f"{i} {'ab' * (i % 97)}" for i in range(20_000)]
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(jsonl(texts))
    (tmp_path / "a.jsonl.zst").write_bytes(whole)
    assert read(tmp_path / "a.jsonl.zst") == texts
    (tmp_path / "a.jsonl.zst").write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=r"a\.jsonl\.zst (can't be decompressed|line \d+ is not valid JSON)"):
        read(tmp_path / "a.jsonl.zst")
    lines = jsonl(texts[:5000])
    cut = zstandard.ZstdCompressor().compressobj()
    (tmp_path / "a.jsonl.zst").write_bytes(cut.compress(lines) + cut.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    with pytest.raises(DataError, match="ends within a frame"):
        read(tmp_path / "a.jsonl.zst")


def test_frames_that_hold_nothing_are_passed_over(tmp_path):
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    frames = [skipped, zstandard.compress(b"one "), zstandard.compress(b""), skipped, zstandard.compress(b"two")]
    (tmp_path / "a.txt.zst").write_bytes(b"".join(frames))
    assert read(tmp_path / "a.txt.zst") == ["one two"]


def test_a_byte_order_mark_before_json_lines_is_no_part_of_them(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(TEXTS))
    assert read(tmp_path / "a.jsonl") == TEXTS


def test_a_damaged_page_of_a_parquet_file_is_one_sentence(tmp_path):
    texts = [f"{i} {'ab' * (i % 97)}" for i in range(20_000)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", compression="snappy", use_dictionary=False)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    refused = 0
    for place in range(1000, len(data) // 2, len(data) // 40):
        damaged = bytearray(data)
        damaged[place : place + 8] = bytes(b ^ 0xFF for b in damaged[place : place + 8])
        (tmp_path / "a.parquet").write_bytes(damaged)
        try:
            read(tmp_path / "a.parquet")
        except DataError as error:
            refused += "can't be read as Parquet" in str(error) and "\n" not in str(error)
    assert refused


def test_a_parquet_column_that_is_absent_or_no_text_is_named(tmp_path):
    pq.write_table(pa.table({"n": [1], "content": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column 'text'.*'n', 'content'"):
        read(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="'n' is int64, not text"):
        read(tmp_path / "a.parquet", text_column="n")


def test_sources_are_names_paths_and_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("My books.txt.gz", "a:3", "b.txt"):
        (tmp_path / name).write_text("x")
    parsed = parse_sources(["docs:0.5", "My books.txt.gz:2", "mine=b.txt:1e-1", "a:3:4"])
    assert [(s.name, s.path and str(s.path), s.weight) for s in parsed] == [
        ("docs", None, 0.5), ("My-books", "My books.txt.gz", 2.0), ("mine", "b.txt", 0.1), ("a-3", "a:3", 4.0),
    ]  # fmt: skip
    assert parse_sources(["a:3"])[0].path is not None  # the file of that name, not the weight


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ([], ConfigError, "at least one source"),
        (["dcos"], DataError, "did you mean 'docs'"),
        (["docs:1", "code"], ConfigError, "'code' has no weight"),
        (["docs:0"], ConfigError, "must be a positive number"),
        (["docs:-1"], ConfigError, "must be a positive number"),
        (["docs:nan"], ConfigError, "must be a positive number"),
        (["docs:1", "docs:2"], ConfigError, "two weights"),
        (["name="], ConfigError, "names no path"),
        (["mine=docs"], ConfigError, "write 'docs'"),
        (["missing.txt"], DataError, "missing.txt does not exist"),
    ],
)
def test_a_source_that_makes_no_sense_is_refused(tmp_path, monkeypatch, words, error, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        parse_sources(words)


def test_the_identity_of_a_source_is_its_bytes_and_names(tmp_path):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.txt").write_text("same" if folder != "c" else "sama")
    a, b, c = (identify([Source("s", tmp_path / f)])[0]["sha256"] for f in "abc")
    assert a == b != c
    (tmp_path / "b" / "x.txt").rename(tmp_path / "b" / "y.txt")
    assert identify([Source("s", tmp_path / "b")])[0]["sha256"] != a
