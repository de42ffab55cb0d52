"""Corpora and token stores behind a URL: the same store and the same batches as from this machine's disk."""

import gzip
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from areca.cli.main import main
from areca.config import DataConfig
from areca.data.batches import Batches, heldout
from areca.data.build import build_store
from areca.data.sources import parse_sources
from areca.data.store import TokenStore
from areca.errors import DataError, LinkLost, RemoteError
from areca.remote.place import Place
from tiny import text


def send(directory: Path, url: str) -> None:
    place = Place(url)
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        place.write(path.relative_to(directory).as_posix(), path.read_bytes())


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Text, JSON lines (compressed both ways) and Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    at = tmp_path / "books"
    (at / "deep" / ".hidden").mkdir(parents=True)
    for i in range(6):
        (at / "deep" / f"{i}.txt").write_text(text(i))
    (at / "deep" / ".hidden" / "no.txt").write_text("not read")
    lines = "".join(json.dumps({"text": text(100 + i)}) + "\n" for i in range(20)).encode()
    (at / "a.jsonl.gz").write_bytes(gzip.compress(lines, mtime=0))
    (at / "b.jsonl.zst").write_bytes(zstandard.compress(lines.replace(b"areca", b"acorn")))
    pq.write_table(pa.table({"text": [text(300 + i) for i in range(20)]}), at / "c.parquet")
    return at


def build(out: Path | str, *sources: str) -> dict:
    return build_store(out, list(sources), vocab_size=300, heldout_fraction=0.2)


@pytest.mark.parametrize("url", ["s3://lab/raw", "memory://raw"])
def test_text_behind_a_url_makes_the_store_that_the_files_make(link, books, tmp_path, url):
    send(books, url)
    here, there = build(tmp_path / "here", f"books={books}"), build(tmp_path / "there", f"books={url}")
    assert here["fingerprint"] == there["fingerprint"]
    assert not list((tmp_path / "cache/remote").glob("blocks/*"))  # of the build nothing is left
    assert build(tmp_path / "there", f"books={url}") == there  # and the same inputs are known again


def test_what_has_no_tag_is_told_apart_by_its_content(link, tmp_path):
    place = Place("memory://untagged")
    for content in (text(1), text(1).replace("areca", "acorn")):  # of the same length
        place.write("1.txt", content.encode())
        (source,) = parse_sources(["memory://untagged/1.txt"])
        assert source.path.identify()["of"] == "contents"
        with source.path.files()[0].open() as f:
            assert f.read() == content.encode()
        assert not (tmp_path / "cache").exists()


def test_a_pattern_takes_the_files_that_match(link, books, tmp_path):
    send(books, "s3://lab/raw")
    meta = build(tmp_path / "store", "s3://lab/raw/*.jsonl.*:0.5", "deep=s3://lab/raw/deep/[0-3].txt:0.5")
    assert [(c["name"], c["read"]["documents"]) for c in meta["corpora"]] == [("raw", 40), ("deep", 4)]


def test_an_object_that_changes_is_another_input(link, books, tmp_path):
    send(books, "s3://lab/raw")
    build(tmp_path / "store", "s3://lab/raw/deep")
    Place("s3://lab/raw").write("deep/3.txt", text(999).encode())
    with pytest.raises(DataError, match="built from other inputs"):
        build(tmp_path / "store", "s3://lab/raw/deep")


def test_a_build_that_lost_its_link_goes_on_without_asking_again_for_what_it_had(link, tmp_path, monkeypatch):
    monkeypatch.setattr("areca.remote.sources.BLOCK", 20_000)
    files = {f"{i}.txt": text(i, 600).encode() for i in range(2)}  # 36,000 bytes each: two blocks
    for name, data in files.items():
        Place("s3://lab/raw").write(name, data)
    link.left = 50_000
    with pytest.raises(LinkLost, match=r"can't be reached .*tried for .* give the same command again"):
        build(tmp_path / "store", "s3://lab/raw")
    assert not (tmp_path / "store").exists()
    kept = sum(p.stat().st_size for p in (tmp_path / "cache/remote/blocks").rglob("*") if p.is_file())
    assert 20_000 <= kept < 50_000
    link.mend()
    link.left = sum(map(len, files.values())) - kept + 15_000  # the rest, and the heads of answers
    assert build(tmp_path / "store", "s3://lab/raw")["corpora"][0]["read"]["documents"] == 2
    assert link.cuts == 1


def test_a_store_is_sent_read_shown_and_found_again_from_anywhere(
    link, tiny_store, books, tmp_path, capsys, monkeypatch
):
    url = "s3://lab/stores/mine"
    local = build(tmp_path / "local", f"books={books}")
    assert main(["corpus", "build", f"books={books}", "--out", url, "--vocab-size", "300", "--heldout", "0.2"]) == 0
    assert set(Place(url).names()) == {*local["files"], "store.json"}
    shutil.rmtree(tmp_path / "cache")  # another machine
    opened, own = TokenStore.open(url, verify=True), TokenStore.open(tmp_path / "local")
    assert (opened.where, opened.fingerprint) == (url, own.fingerprint)
    data = DataConfig(store=url, context=32, seed=3)
    np.testing.assert_array_equal(Batches(opened, data).get(5, 20), Batches(own, data).get(5, 20))
    for mine, theirs in zip(heldout(opened, 32, 4), heldout(own, 32, 4), strict=True):
        np.testing.assert_array_equal(mine[0], theirs[0])
    assert main(["corpus", "show", url]) == 0
    assert "books" in capsys.readouterr().out
    assert build(url, f"books={books}")["fingerprint"] == local["fingerprint"]  # reused
    with pytest.raises(DataError, match=rf"{url} is a store built from other inputs \(sources: '?books'? -> '?big"):
        build(url, f"big={tiny_store.parent / 'big'}")


def test_a_half_sent_store_is_none_and_is_gone_on_with(link, books, tmp_path, monkeypatch):
    url, sent = "s3://lab/stores/mine", []
    whole = Place.write_file

    def write_file(self, name, path):
        if len(sent) == 1 and not link.cuts:
            link.cut()
        whole(self, name, path)
        sent.append(name)

    monkeypatch.setattr(Place, "write_file", write_file)
    with pytest.raises(LinkLost, match=r"s3://lab/stores/mine/books\.train\.bin can't be reached"):
        build(url, f"books={books}")
    link.mend()
    with pytest.raises(DataError, match="no token store s3://lab/stores/mine: its upload did not end"):
        TokenStore.open(url)
    monkeypatch.setattr("areca.data.build._build", None)  # what was built is not built again
    build(url, f"books={books}")
    assert sent == ["tokenizer.json", "books.train.bin", "books.heldout.bin"]  # each once
    assert TokenStore.open(url, verify=True).fingerprint


def test_a_bucket_that_is_not_there_is_found_before_the_build(link, books, monkeypatch):
    monkeypatch.setattr("areca.data.build._build", None)
    with pytest.raises(RemoteError, match=r"s3://nobucket/st can't be used .*check its bucket and its name"):
        build("s3://nobucket/st", f"books={books}")


def test_a_store_is_sent_to_another_url_without_being_built_again(link, books, monkeypatch):
    whole = Place.write_file

    def refused(self, name, path):
        raise RemoteError("no")

    monkeypatch.setattr(Place, "write_file", refused)
    with pytest.raises(RemoteError, match="no"):
        build("s3://lab/stores/a", f"books={books}")
    monkeypatch.setattr(Place, "write_file", whole)
    monkeypatch.setattr("areca.data.build._build", None)
    for url in ("s3://lab/stores/b", "s3://lab/stores/c"):
        meta = build(url, f"books={books}")
        assert set(Place(url).names()) == {*meta["files"], "store.json"}


def test_text_that_is_named_as_a_store_is_said_to_be_none(link, books):
    send(books, "s3://lab/raw")
    with pytest.raises(DataError, match=r"no token store s3://lab/raw, but other files \(a\.jsonl\.gz\); make a store"):
        TokenStore.open("s3://lab/raw")


def test_a_fetch_that_lost_its_link_or_met_a_torn_file_goes_on(link, tiny_store, tmp_path):
    url = "s3://lab/stores/tiny"
    send(tiny_store, url)
    link.left = 30_000  # in the midst of big.train.bin
    with pytest.raises(LinkLost):
        TokenStore.open(url)
    link.mend()
    (part,) = (tmp_path / "cache/remote/stores").glob("*.part")
    assert (part / "tokenizer.json").is_file()
    with (part / "big.train.bin.part").open("ab") as f:  # as a power cut may leave it
        f.write(bytes(1000))
    assert TokenStore.open(url, verify=True).fingerprint == TokenStore.open(tiny_store).fingerprint
    assert not part.exists()


def test_a_damaged_or_missing_object_of_a_store_is_named(link, tiny_store):
    url = "s3://lab/stores/tiny"
    send(tiny_store, url)
    place = Place(url)
    data = bytearray(place.read("big.train.bin"))
    data[100] ^= 1
    place.write("big.train.bin", bytes(data))
    with pytest.raises(RemoteError, match=r"s3://lab/stores/tiny/big\.train\.bin is damaged"):
        TokenStore.open(url)
    place.remove(["small.train.bin"])
    with pytest.raises(RemoteError, match=r"small\.train\.bin is missing"):
        TokenStore.open(url)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("s3://nowhere/raw", "s3://nowhere/raw has no files"),
        ("s3://lab/none.txt", "s3://lab/none.txt has no files; check its bucket and its name, or the pattern"),
        ("s3://Not A Bucket/x", "s3://Not A Bucket/x can't be used"),
        ("s4://lab/raw", "s4://lab/raw begins with s4://, which fsspec does not know; use s3://, gs://"),
    ],
)
def test_a_wrong_name_gets_one_sentence(link, tmp_path, capsys, word, says):
    import re

    assert main(["corpus", "build", word, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert re.search(says, said)
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_server_that_accepts_and_says_nothing_is_given_up(link, capsys, monkeypatch):
    """The waiting is said, and it is a lost link once each call's own deadline is over."""
    import socket

    from areca.remote import tries

    monkeypatch.setattr(tries, "SILENT_SECONDS", (0.3, 0.4))
    monkeypatch.setattr(tries, "QUIET_SECONDS", 0.1)
    monkeypatch.setattr(tries, "_SAID", [-1e9])
    monkeypatch.setenv("ARECA_REMOTE_SECONDS", "0.2")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for ask in (Place("s3://lab/raw").info, Place("s3://lab/raw").names, lambda: Place("s3://lab/raw").read("x")):
            with pytest.raises(LinkLost, match="can't be reached"):
                ask()
    said = capsys.readouterr().err
    assert said.startswith("areca: waiting for an answer of s3://lab/raw")
    assert said.count("\n") == 1
    hung = threading.Event()
    with pytest.raises(TimeoutError, match="no answer"):  # and so behind packages that have no deadlines
        tries.within(hung.wait, "x://y")
    hung.set()


@pytest.mark.parametrize("value", ["abc", "-1", "0", "nan", "inf"])
def test_a_time_that_is_none_is_refused(link, tmp_path, capsys, monkeypatch, value):
    monkeypatch.setenv("ARECA_REMOTE_SECONDS", value)
    assert main(["corpus", "build", "s3://lab/raw", "--out", str(tmp_path / "out")]) == 2
    assert f"ARECA_REMOTE_SECONDS is '{value}'; it must be a number of seconds above 0" in capsys.readouterr().err


def test_keys_that_are_refused_or_missing_get_one_sentence(link, s3_port, tmp_path, capsys, monkeypatch):
    import urllib.request

    import s3fs

    def enforce(after: str) -> None:
        url, head = f"http://127.0.0.1:{s3_port}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, after.encode(), head, method="POST")).close()

    command = ["corpus", "build", "s3://lab/raw", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(
        "areca.remote.place.filesystem", lambda url: (s3fs.S3FileSystem(skip_instance_cache=True), url[5:])
    )
    enforce("0")
    try:
        assert main(command) == 2
        assert "s3://lab/raw is refused (" in capsys.readouterr().err
    finally:
        enforce("inf")
    for name in list(os.environ):
        if name.startswith("AWS_") and "KEY" in name:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "there are no credentials for s3://lab/raw" in said
    assert "AWS_ACCESS_KEY_ID" in said
    assert said.count("\n") == 1


def test_without_the_package_the_extra_is_named(tmp_path, capsys, monkeypatch):
    import fsspec.core

    def missing(*_, **__):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    assert main(["corpus", "build", "s3://lab/raw", "--out", str(tmp_path / "out")]) == 2
    assert "`pip install -e '.[s3]'` in Areca's directory brings it" in capsys.readouterr().err
