"""`areca corpus` and `areca tokenizer` from the command line: results on stdout, progress on stderr, one sentence."""

import json
import os
import subprocess
import sys

import pytest

from areca.cli.main import main


def run(capsys, *argv) -> tuple[int, str, str]:
    code = main([str(a) for a in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_build_and_show(capsys, tmp_path, text_tree):
    out = tmp_path / "out"
    build = ["corpus", "build", f"a={text_tree / 'part0'}:3", f"b={text_tree / 'part1'}:1", "--out", out]
    code, printed, said = run(capsys, *build, "--vocab-size", 300, "--heldout", "0.1", "--json")
    assert code == 0
    meta = json.loads(printed)
    assert [c["name"] for c in meta["corpora"]] == ["a", "b"]
    assert "removed" in said
    assert "tokenizer: 300 tokens" in said
    code, printed, _ = run(capsys, "corpus", "show", out, "--sample", 1, "--mixture", 5120, "--verify", "--json")
    shown = json.loads(printed)
    assert shown["fingerprint"] == meta["fingerprint"]
    assert {s["corpus"] for s in shown["samples"]} == {"a", "b"}
    assert [m["share"] for m in shown["mixture"]] == pytest.approx([0.75, 0.25], abs=0.02)
    train = {c["name"]: c["train_tokens"] for c in meta["corpora"]}
    assert shown["mixture"][0]["epochs"] == pytest.approx(0.75 * 5120 / train["a"], rel=0.1)
    code, printed, _ = run(capsys, "corpus", "show", out, "--sample", 1, "--mixture", 5120)
    assert code == 0
    assert "verified" not in printed
    assert "held-out document" in printed
    assert "75.0% of 5,120 tokens" in printed
    code, _, said = run(capsys, *build, "--vocab-size", 300, "--heldout", "0.1")
    assert code == 0
    assert "reused" in said
    code, printed, _ = run(capsys, "corpus", "show", out, "--verify")
    assert code == 0
    assert (
        "verified: all 5 files have the digests they were built with" in printed
    )  # two of each corpus, tokenizer.json
    assert json.loads(run(capsys, "corpus", "show", out, "--verify", "--json")[1])["verified"] is True


def test_list_names_every_builtin_corpus(capsys):
    code, printed, _ = run(capsys, "corpus", "list", "--json")
    rows = json.loads(printed)
    assert code == 0
    assert [r["name"] for r in rows] == ["docs", "chitchat", "code"]
    assert rows[1]["licence"] == "MIT"
    assert "chitchat" in run(capsys, "corpus", "list")[1]


def test_tokenizer_train_and_show(capsys, tmp_path, text_tree):
    file = tmp_path / "tok.json"
    code, printed, _ = run(capsys, "tokenizer", "train", text_tree, "--vocab-size", 300, "--out", file, "--json")
    assert code == 0
    assert json.loads(printed)["vocab_size"] == 300
    assert json.loads(printed)["bytes_per_token"] > 1
    code, printed, _ = run(capsys, "tokenizer", "show", file, "--text", "12 [eod]", "--json")
    about = json.loads(printed)
    assert "".join(t["text"] for t in about["tokens"]) == "12 [eod]"
    assert about["eod_id"] not in [t["id"] for t in about["tokens"]]
    assert run(capsys, "tokenizer", "show", file)[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tok.json", "tree"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["corpus", "build", "--out", "o"], "name at least one source"),
        (["corpus", "build", "none.txt", "--out", "o"], "none.txt does not exist"),
        (["corpus", "build", "empty.txt", "--out", "o"], "is empty"),
        (["corpus", "build", "binary.txt", "--out", "o"], "binary"),
        (["corpus", "build", "latin.txt", "--out", "o"], "latin.txt is not valid UTF-8 at byte 1"),
        (["corpus", "build", "good.txt", "--out", "o", "--vocab-size", "100"], "257"),
        (["corpus", "build", "good.txt", "--out", "o", "--split-documents", "3"], "--split-documents"),
        (["corpus", "build", "good.txt", "--out", "o", "--tokenizer", "good.txt"], "not a tokenizer.json"),
        (["corpus", "build", "good.txt", "--out", "o", "--invalid-utf8", "maybe"], "invalid-utf8"),
        (["corpus", "build", "good.txt", "--out", "o", "--vocabsize", "300"], "did you mean '--vocab-size'"),
        (["corpus", "build", "good.txt", "--out", "good.txt"], "not a token store"),
        (["corpus", "show", "none"], "no token store"),
        (["corpus", "biuld"], "did you mean 'build'"),
        (["tokenizer", "show", "none.json"], "does not exist"),
        (["tokenizer", "train", "good.txt", "--out", "good.txt"], "exists"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(capsys, tmp_path, monkeypatch, argv, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\0\1\2")
    (tmp_path / "latin.txt").write_bytes(b"\x61\xe9")
    (tmp_path / "good.txt").write_text("good text\n\n" * 500)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    code, printed, said = run(capsys, *argv)
    assert code == 2
    assert printed == ""
    assert message in said
    assert said.count("\n") == 1
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_full_disk_is_one_sentence(capsys, tmp_path, text_tree, monkeypatch):
    from areca.data import store

    monkeypatch.setattr(store, "bin_name", lambda corpus, split: "/dev/full")
    code, _, said = run(capsys, "corpus", "build", text_tree, "--out", tmp_path / "out", "--vocab-size", 300)
    assert code == 2
    assert f"the disk is full while writing {tmp_path / 'out'}" in said
    assert [p.name for p in tmp_path.iterdir()] == ["tree"]


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from areca.cli.main import main\n"
        "for argv in (['corpus', '--help'], ['corpus', 'build', '--help'], ['tokenizer', 'train', '--help']):\n"
        "    try: main(argv)\n"
        "    except SystemExit: pass\n"
        "print(sorted({'jax', 'numpy', 'grain', 'pyarrow', 'tokenizers', 'rensa'} & set(sys.modules)), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ))
    assert result.stderr == "[]\n"
    assert "Example: areca corpus build" in result.stdout


def test_each_corpus_may_have_a_column_of_its_own(capsys, tmp_path):
    for name, column in (("news", "body"), ("books", "content"), ("rest", "text")):
        rows = [json.dumps({column: f"{name} tells of day {i}: " + "rain and sun and wind. " * 9}) for i in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    build = ["corpus", "build", *(tmp_path / f"{n}.jsonl" for n in ("news", "books", "rest"))]
    build += ["--out", tmp_path / "out", "--vocab-size", 300, "--no-near-duplicates", "--json"]
    code, printed, said = run(capsys, *build, "--text-column", "news=body,books=content")
    assert code == 0, said
    assert [c["read"]["documents"] for c in json.loads(printed)["corpora"]] == [60, 60, 60]
    code, _, said = run(capsys, *build, "--text-column", "new=body,books=content")
    assert code == 2
    assert "'new' (did you mean 'news'?)" in said
    code, _, said = run(capsys, *build, "--text-column", "news=,books=content")
    assert code == 2
    assert "NAME=COLUMN" in said
