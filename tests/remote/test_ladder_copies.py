"""Ladders copied to a URL: a machine that has lost its runs fetches them and trains none again."""

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from areca.cli.main import main
from areca.config import to_dict
from areca.data.build import build_store
from areca.errors import CheckpointError, ConfigError, DataError, RemoteError
from areca.files import read_json, write_json
from areca.remote.place import Place
from areca.study import recipe
from areca.study.copier import main as copy_all
from areca.study.ladder import Ladder, plan_ladder, run_ladder
from areca.train.away.copies import local_run
from areca.train.record import metrics_without_timing, unstarted
from tiny import tiny_config

URL = "s3://lab/ladder"


def planned(store: Path, directory: Path, seed: int = 3) -> Ladder:
    shapes = [recipe.shape(300, 16), recipe.shape(300, 24)]
    return plan_ladder(directory, store, [1.5e8, 3e8], shapes=shapes, context=16, seed=seed)


def made(ladder: Ladder, said: list[str] | None = None, **options) -> list[dict]:
    quiet = {"workers": 1, "on_progress": lambda *_: None, "on_result": lambda *_: None}
    return run_ladder(ladder, say=[].append if said is None else said.append, **{**quiet, **options})


@pytest.fixture(scope="module")
def whole(tiny_store, tmp_path_factory) -> Ladder:
    """A ladder whose runs have ended."""
    ladder = planned(tiny_store, tmp_path_factory.mktemp("whole") / "ladder")
    made(ladder)
    return ladder


@pytest.fixture
def copied(link, whole, tmp_path, monkeypatch) -> Ladder:
    """The same with a copy of it, in a directory of one's own."""
    ladder = planned(Path(whole.jobs[0].config.data.store), Path(shutil.copytree(whole.directory, tmp_path / "a")))
    said: list[str] = []
    made(ladder, said, copy_to=URL)
    assert not [line for line in said if "not being copied" in line]
    return ladder


def digests(ladder: Ladder) -> list[str]:
    return [read_json(j.run_dir / "result.json")["parameters_sha256"] for j in ladder.jobs]


def test_a_lost_ladder_is_fetched_and_no_run_is_trained_again(copied, whole, tmp_path):
    names = [j.name for j in copied.jobs]
    there = Place(URL).names()
    assert {n.split("/")[1] for n in there if n.startswith("runs/")} == set(names)
    assert read_json(copied.directory / "copied.json")["reached"] == "with 4 of 4 runs there"
    assert local_run(f"{URL}/runs/{names[0]}").is_dir()  # as of any run's copy
    other = planned(Path(copied.jobs[0].config.data.store), tmp_path / "b")
    said: list[str] = []
    results = made(other, said, copy_to=URL)
    assert sum("is fetched from its copy" in line for line in said) == 4
    assert digests(other) == digests(whole)
    assert results == made(whole)
    for a, b in zip(other.jobs, copied.jobs, strict=True):
        assert (a.run_dir / "metrics.jsonl").read_bytes() == (b.run_dir / "metrics.jsonl").read_bytes()
    assert made(other, said, copy_to=URL) == results  # and nothing is fetched again
    assert sum("is fetched from its copy" in line for line in said) == 4
    disk = str(tmp_path / "disk")  # a path is as good as a URL
    made(other, copy_to=disk)
    third = planned(Path(copied.jobs[0].config.data.store), tmp_path / "c")
    assert made(third, copy_to=disk) == results


def test_a_run_without_a_copy_is_trained_the_others_are_fetched(copied, whole, tmp_path):
    lost = copied.jobs[2].name
    Place(URL).remove(n for n in Place(URL).names() if f"/{lost}/" in n)
    other = planned(Path(copied.jobs[0].config.data.store), tmp_path / "b")
    said: list[str] = []
    made(other, said, copy_to=URL)
    assert sum("is fetched from its copy" in line for line in said) == 3
    assert digests(other) == digests(whole)
    assert metrics_without_timing(other.jobs[2].run_dir) == metrics_without_timing(whole.jobs[2].run_dir)
    assert any(f"/{lost}/copy.json" in n for n in Place(URL).names())  # and is copied now


def test_a_ladder_killed_without_its_disk_goes_on_from_the_copies(link, whole, tmp_path):
    store = whole.jobs[0].config.data.store
    ladder = planned(Path(store), tmp_path / "a")
    command = [sys.executable, "-c", KILLED, store, str(ladder.directory), URL]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    before, quiet = -1, time.monotonic()
    while time.monotonic() - quiet < 3:  # until the process that outlived it has ended
        if (now := len(Place(URL).names())) != before:
            before, quiet = now, time.monotonic()
        time.sleep(0.2)
    shutil.rmtree(ladder.directory)
    said: list[str] = []
    made(ladder, said, copy_to=URL)
    assert sum("is fetched from its copy" in line for line in said) >= 1
    assert digests(ladder) == digests(whole)


KILLED = """
import os, signal, sys
from pathlib import Path
from areca.study import recipe
from areca.study.ladder import plan_ladder, run_ladder
def heard(name, result):
    os.kill(os.getpid(), signal.SIGKILL)
shapes = [recipe.shape(300, 16), recipe.shape(300, 24)]
ladder = plan_ladder(Path(sys.argv[2]), sys.argv[1], [1.5e8, 3e8], shapes=shapes, context=16, seed=3)
run_ladder(ladder, workers=1, copy_to=sys.argv[3], on_progress=lambda *_: None, on_result=heard)
"""


def test_another_ladder_another_store_or_other_things_are_refused(copied, whole, tmp_path, capsys):
    store = Path(copied.jobs[0].config.data.store)
    new = tmp_path / "new"
    with pytest.raises(ConfigError, match=f"^{URL} holds another ladder \\(seed: 3 -> 4\\); choose another --copy-to"):
        made(planned(store, new, seed=4), copy_to=URL)
    Place("s3://lab/full").write("thesis.pdf", b"%PDF")
    with pytest.raises(ConfigError, match=r"s3://lab/full is not empty and holds no ladder \(thesis.pdf\)"):
        made(planned(store, new), copy_to="s3://lab/full")
    with pytest.raises(RemoteError, match=r"^s3://nobucket/ladder can't be used .*bucket does not exist"):
        made(planned(store, new), copy_to="s3://nobucket/ladder")
    assert not new.exists()
    text = tmp_path / "other.txt"
    text.write_text("".join(f"{i} other words of another text. " for i in range(20_000)))
    build_store(tmp_path / "other", [str(text)], vocab_size=300)
    with pytest.raises(CheckpointError, match=f"{URL}/runs/.* was trained on another store than"):
        made(planned(tmp_path / "other", new), copy_to=URL)
    assert not [p for p in new.rglob("*") if p.name == "run.json"]
    shutil.rmtree(new, ignore_errors=True)
    for damaged, error, says in (
        (b"[]", DataError, "is not a ladder of this version"),
        (b"[{", RemoteError, "is damaged"),
    ):
        Place(URL).write("ladder.json", damaged)
        with pytest.raises(error, match=f"{URL}/ladder.json {says}"):
            made(planned(store, new), copy_to=URL)
    assert not new.exists()
    assert main(["ladder", str(store), "--out", URL, "--budgets", "1e9"]) == 2
    assert f"--copy-to {URL}" in capsys.readouterr().err


def test_sigterm_saves_and_copies_a_ladder(link, whole, tmp_path):
    out = tmp_path / "a"
    command = [sys.executable, "-m", "areca", "ladder", str(whole.jobs[0].config.data.store), "--out", str(out),
               "--budgets", "3e9", "--sizes", "1", "--context", "16", "--epochs", "1e6", "--copy-to", URL]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while not list(out.glob("runs/*/run.json")) and time.monotonic() < until:
            time.sleep(0.05)
        process.terminate()
        said = process.communicate(timeout=60)[1]
    assert "stopped; the runs in" in said
    assert process.returncode == 130
    assert any(n.endswith("copy.json") for n in Place(URL).names())


@pytest.mark.parametrize("command", ["ladder", "train"])
def test_a_copy_without_a_place_is_refused(command, tmp_path, capsys):
    given = {"ladder": ["store", "--budgets", "1e9"], "train": ["run.toml"]}[command]
    for option, says in ((["--copy-to", ""], "is empty text"), (["--copy-to="], "is empty text")):
        assert main([command, *given, "--out", str(tmp_path / "out"), *option]) == 2
        assert f"--copy-to {says}, so nothing would be copied" in capsys.readouterr().err
    for url in ("s3://", "s3:///"):
        with pytest.raises(ConfigError, match=f"{url} names no bucket and no place"):
            Place(url)


@pytest.mark.parametrize("verb", ["corpus build", "ladder", "train"])
def test_a_place_that_can_only_be_read_is_refused_at_once(verb, tiny_store, tmp_path, capsys):
    url, text = "http://127.0.0.1:9/lab", tmp_path / "a.txt"
    text.write_text("one text. " * 100)
    write_json(tmp_path / "run.json", to_dict(tiny_config(tiny_store)))
    given = {
        "corpus build": [str(text), "--out", url],
        "ladder": [str(tiny_store), "--budgets", "1e9", "--out", str(tmp_path / "out"), "--copy-to", url],
        "train": [str(tmp_path / "run.json"), "--out", str(tmp_path / "out"), "--copy-to", url],
    }[verb]
    assert main([*verb.split(), *given]) == 2
    assert f"{url} can only be read; name a place that can be written" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_what_a_copy_in_progress_holds_is_no_run(tmp_path):
    (tmp_path / "run" / ".copying").mkdir(parents=True)
    assert unstarted(tmp_path / "run")


@pytest.mark.parametrize("damaged", ["copy.json", "metrics.jsonl"])
def test_a_damaged_copy_of_a_run_is_named_with_the_way_to_go_on(copied, whole, tmp_path, damaged):
    lost = f"runs/{copied.jobs[1].name}"
    part = next(n for n in Place(URL).names() if n.startswith(lost) and damaged in n)
    Place(URL).write(part, b'{"half":')
    other = planned(Path(copied.jobs[0].config.data.store), tmp_path / "b")
    says = (
        f"the copy of run {copied.jobs[1].name} can't be used: .*Or remove all of {URL}/{lost}: the same command then"
    )
    with pytest.raises(CheckpointError, match=says):
        made(other, copy_to=URL)
    Place(URL).remove(n for n in Place(URL).names() if n.startswith(f"{lost}/"))
    made(other, copy_to=URL)
    assert digests(other) == digests(whole)


def test_what_can_not_be_copied_is_told_of_and_holds_up_no_other_run(link, whole, tmp_path, monkeypatch):
    ladder = replace(whole, directory=Path(shutil.copytree(whole.directory, tmp_path / "a")))
    damaged = ladder.directory / "runs" / ladder.jobs[1].name
    part = max((damaged / "checkpoints").rglob("d/*"), key=lambda p: p.stat().st_size)
    part.write_bytes(b"\0" * part.stat().st_size)
    monkeypatch.setattr("areca.study.copier.input_ended", lambda: True)
    assert copy_all(ladder.directory, URL) == 1
    there = {n.split("/")[1] for n in Place(URL).names() if n.endswith("copy.json")}
    assert there == {j.name for j in ladder.jobs} - {ladder.jobs[1].name}
    link.cut()
    shutil.rmtree(tmp_path / "a" / "runs" / ladder.jobs[1].name)
    assert copy_all(ladder.directory, URL) == 1
    assert "can't be reached" in read_json(ladder.directory / "copied.json")["failed"]
    link.mend()
    assert copy_all(ladder.directory, URL) == 0
