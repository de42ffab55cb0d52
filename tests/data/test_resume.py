"""A build that was killed goes on to the bytes of one that was not, and the number of processes changes none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_text import sentence_text

from areca.data import build as build_module
from areca.data import encode, resume, spool
from areca.data.build import build_store
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError, WorkerLost

OPTIONS = {"vocab_size": 300, "heldout_fraction": 0.1}


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of a few documents, each recorded."""
    monkeypatch.setattr(spool, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(resume, "SECONDS", 0.0)


@pytest.fixture
def sources(tmp_path):
    for name, count in (("one", 40), ("two", 12)):
        for i in range(count):
            file = tmp_path / name / f"{i:02}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(sentence_text(100 * count + i, 12) + "\u65e5\u672c " * i)
    (tmp_path / "one" / "bytes.txt").write_bytes(b"not \xff\xfe UTF-8 " * 9)
    return [f"one={tmp_path / 'one'}", f"two={tmp_path / 'two'}"]


def _files(store: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in store.iterdir()}


def _build(out: Path, sources: list[str], **options):
    return build_store(out, sources, invalid_utf8="keep", **(OPTIONS | options))


# Where the child ends: at which record, before or after it is written, with how many bytes beyond what it says.
@pytest.mark.parametrize(("at", "when"), [(1, "before"), (2, "after"), (7, "before"), (15, "after")])
def test_a_killed_build_goes_on_to_the_same_bytes(tmp_path, sources, small_chunks, at, when):
    _build(tmp_path / "whole", sources)
    script = f"""
import os, signal
from areca.data import build, resume, spool
spool.CHUNK_BYTES, resume.SECONDS = 3000, 0.0
write, calls = resume.Ledger.write_tokens, []
def dying(self):
    calls.append(0)
    if len(calls) == {at} and {when!r} == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    write(self)
    if len(calls) == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
resume.Ledger.write_tokens = dying
build.build_store({str(tmp_path / "out")!r}, {sources!r}, invalid_utf8="keep", **{OPTIONS!r})
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    left = next(tmp_path.glob(".out.*.building"))
    state = json.loads((left / "tokens.json").read_text()) if (left / "tokens.json").exists() else {"corpora": {}}
    done = [name for name, corpus in state["corpora"].items() if corpus["files"]]
    for path in left.glob("*.bin"):
        if path.name.split(".")[0] not in done:
            with path.open("ab") as f:
                f.write(b"\xff" * 77)  # what was written after the last record
    said = []
    meta = _build(tmp_path / "out", sources, progress=said.append)
    assert said[0].startswith("going on with what an earlier build left")
    assert not any("documents" in line for line in said)  # no text is read again
    assert any("all training text" in line for line in said) == (at == 1)  # nor a tokenizer trained
    assert _files(tmp_path / "out") == _files(tmp_path / "whole")
    assert not left.exists()
    documents = sum(c["train_documents"] + c["heldout_documents"] for c in meta["corpora"])
    assert documents == 53


def test_processes_change_no_byte(tmp_path, sources, small_chunks):
    _build(tmp_path / "one-process", sources, processes=1)
    _build(tmp_path / "three", sources, processes=3)
    assert _files(tmp_path / "three") == _files(tmp_path / "one-process")


def test_other_inputs_do_not_go_on_with_what_is_left(tmp_path, sources, small_chunks, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    said = []
    with monkeypatch.context() as patch:
        patch.setattr(build_module, "write_tokens", interrupted)
        with pytest.raises(KeyboardInterrupt):
            _build(tmp_path / "out", sources, progress=said.append)
    left = next(tmp_path.glob(".out.*.building"))
    assert "interrupted: the same command goes on" in said[-1]
    assert str(left) in said[-1]
    said.clear()
    _build(tmp_path / "out", sources, vocab_size=310, progress=said.append)
    assert not any("going on" in line for line in said)
    assert TokenStore.open(tmp_path / "out", verify=True).vocab_size == 310
    assert not left.exists()


def test_a_mistake_leaves_nothing_to_go_on_with(tmp_path, sources, small_chunks, monkeypatch):
    def damaged(*_):
        raise DataError("no.")

    monkeypatch.setattr(build_module, "write_tokens", damaged)
    with pytest.raises(DataError, match="no"):
        _build(tmp_path / "out", sources)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]


def test_a_lost_process_is_said_and_the_build_goes_on(tmp_path, sources, small_chunks, monkeypatch):
    _build(tmp_path / "whole", sources)
    asked, ask = [], encode._Worker.ask

    def killing(self, start, end):
        asked.append(start)
        if len(asked) == 9:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()
        ask(self, start, end)

    with monkeypatch.context() as patch:
        patch.setattr(encode._Worker, "ask", killing)
        with pytest.raises(WorkerLost, match=r"ended unexpectedly \(killed by signal 9"):
            _build(tmp_path / "out", sources, processes=2)
    _build(tmp_path / "out", sources, processes=2)
    assert _files(tmp_path / "out") == _files(tmp_path / "whole")


def test_an_impossible_number_of_processes_is_refused(tmp_path, sources):
    with pytest.raises(ConfigError, match="--processes is -1"):
        _build(tmp_path / "out", sources, processes=-1)
