"""Runs copied to a URL: a lost disk, a lost link and a kill cost no step and no bit."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from areca.cli.main import main
from areca.config import DataConfig, to_dict
from areca.data.store import TokenStore
from areca.errors import CheckpointError, ConfigError, LinkLost, RemoteError
from areca.files import read_json, write_json
from areca.remote.place import MARKER, Place
from areca.train.away.copier import Copier
from areca.train.away.copies import PART, bring_back, local_run, read_manifest, settle
from areca.train.away.copying import Copying
from areca.train.identity import layout_of, parameters_sha256
from areca.train.loop import train
from areca.train.models import config_table, first_state, start_of
from areca.train.record import metrics_without_timing, read_events
from areca.train.restore import load_model
from tiny import tiny_config

URL = "s3://lab/runs/first"


def copied(run: Path, url: str = URL) -> dict:
    """Copies a run that is not going on, as the process beside it does."""
    copier = Copier(run, url)
    try:
        return copier.copy()
    finally:
        copier.close()


def back(run_dir: Path, from_step: int | None = None) -> list[str]:
    """Fetches a run that this machine has lost, as `train` does; what was said."""
    said: list[str] = []
    assert settle(URL, run_dir, "must", from_step) is not None
    bring_back(URL, run_dir, from_step, said.append)
    return said


def spoil(part: str, how: str = "flipped") -> None:
    """Damages the copy's first object whose name has `part`."""
    name = next(n for n in Place(URL).names() if part in n)
    data = bytearray(Place(URL).read(name))
    data[0] ^= 1
    if how == "missing":
        Place(URL).remove([name])
    else:
        Place(URL).write(name, bytes(data[: len(data) // 2] if how == "short" else data))


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A finished run of one's own."""
    return Path(shutil.copytree(tiny_run, tmp_path / "run"))


def files(run: Path) -> dict[str, bytes]:
    apart = (".lock", "copied.json", "events.jsonl")
    return {
        p.relative_to(run).as_posix(): p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name not in apart
    }


def test_a_run_killed_without_its_disk_goes_on_from_the_copy_with_the_same_bits(link, tiny_run, tiny_store, tmp_path):
    store = "s3://lab/stores/tiny"
    for path in tiny_store.iterdir():
        Place(store).write(path.name, path.read_bytes())
    config = replace(tiny_config(tiny_store), data=DataConfig(store=store, context=16))
    write_json(tmp_path / "run.json", to_dict(config))
    out = tmp_path / "machine-a" / "run"
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run.json"), str(out), URL]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    manifest = wait_for_copy()
    assert manifest["step"] < 12
    shutil.rmtree(tmp_path / "machine-a")
    said: list[str] = []
    result = train(config, tmp_path / "machine-b" / "run", resume="must", copy_to=URL, say=said.append)
    assert f"is fetched from its copy {URL}, at step {manifest['step']}." in said[0]
    assert result["parameters_sha256"] == read_json(tiny_run / "result.json")["parameters_sha256"]
    assert metrics_without_timing(tmp_path / "machine-b" / "run") == metrics_without_timing(tiny_run)
    assert read_manifest(Place(URL))["step"] == 12
    events = [e for e in read_events(tmp_path / "machine-b" / "run") if e["event"].startswith("cop")]
    assert [e["event"] for e in events] == ["copied"] * len(events)
    assert events[-1]["step"] == 12


KILLED = """
import os, signal, sys, time
from areca.config import load
from areca.train.loop import train
from areca.train.run import Run
read_one = Run._read_one
def killing(self, listener):
    read_one(self, listener)
    if self.checkpoints.entries() and self.step >= 6:
        while not (self.run_dir / "copied.json").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
Run._read_one = killing
train(load(sys.argv[1]), sys.argv[2], copy_to=sys.argv[3], say=lambda line: print(line, file=sys.stderr))
"""


def wait_for_copy() -> dict:
    """The manifest, once the process that outlived the run has ended."""
    before, quiet = None, time.monotonic()
    while time.monotonic() - quiet < 2:
        if (now := read_manifest(Place(URL))) != before:
            before, quiet = now, time.monotonic()
        time.sleep(0.2)
    assert before is not None
    return before


def test_a_copy_has_every_file_and_is_made_of_what_is_new_only(link, run, tmp_path):
    total = copied(run)["bytes"]
    assert total == sum(len(data) for data in files(run).values()) + (run / "events.jsonl").stat().st_size
    back(tmp_path / "back")
    assert files(tmp_path / "back") == files(run)
    with (run / "metrics.jsonl").open("a") as f:
        f.write("{}\n")
    assert copied(run)["bytes"] == (run / "metrics.jsonl").stat().st_size < PART
    named = {key for f in read_manifest(Place(URL))["files"].values() for key, _ in f["parts"]}
    assert {n for n in Place(URL).names() if n != "copy.json"} == named  # nothing of the earlier state is left


@pytest.mark.parametrize("last", ["first part", "copy.json", "removal"])
def test_a_copy_that_ends_anywhere_leaves_the_earlier_state_or_the_new(link, run, tmp_path, monkeypatch, last):
    (run / "result.json").rename(tmp_path / "result.json")
    copied(run)
    before = files(run)
    (tmp_path / "result.json").rename(run / "result.json")
    record = read_json(run / "checkpoints/record.json")["checkpoints"]
    write_json(run / "checkpoints/record.json", {"checkpoints": record[1:]})
    shutil.rmtree(run / "checkpoints" / str(record[0]["step"]))

    def dies(self, *_):
        raise KeyboardInterrupt

    write = Place.write
    with monkeypatch.context() as patch:
        if last == "removal":
            patch.setattr(Place, "remove", dies)
        elif last == "first part":
            patch.setattr(Place, "write", dies)
        else:
            patch.setattr(Place, "write", lambda s, n, d: dies(s) if n == "copy.json" else write(s, n, d))
        with pytest.raises(KeyboardInterrupt):
            copied(run)
    back(tmp_path / "back")
    assert files(tmp_path / "back") == (files(run) if last == "removal" else before)
    assert copied(run)["step"] == 12  # and nothing of what was left over stays
    back(tmp_path / "again")
    assert files(tmp_path / "again") == files(run)
    named = {key for f in read_manifest(Place(URL))["files"].values() for key, _ in f["parts"]}
    assert {n for n in Place(URL).names() if n != "copy.json"} == named


def test_a_lost_link_is_told_of_once_and_made_up_for(link, tiny_store, tmp_path):
    said: list[str] = []

    def listener(progress):
        if progress.step == 1:
            link.cut()  # the process that copies has just been started
        if progress.step == 6:
            while not (tmp_path / "run" / "copied.json").exists():
                time.sleep(0.05)
            time.sleep(1.1)  # until it is looked at again
        if progress.step == 11:
            link.mend()

    train(tiny_config(tiny_store), tmp_path / "run", copy_to=URL, listener=listener, say=said.append)
    events = [e["event"] for e in read_events(tmp_path / "run") if e["event"] in ("copied", "copy_failed")]
    assert events[0] == "copy_failed"
    assert events.count("copy_failed") == 1
    assert events[-1] == "copied"
    assert read_manifest(Place(URL))["step"] == 12
    assert "can't be reached" in said[0]
    assert "The run goes on" in said[0]
    assert sum("is copied to s3://lab/runs/first again, up to step" in line for line in said) == 1


def test_a_bucket_that_is_not_there_is_found_before_the_run_begins(link, tiny_store, tmp_path):
    with pytest.raises(RemoteError, match=r"^s3://nobucket/run can't be used .*bucket does not exist"):
        train(tiny_config(tiny_store), tmp_path / "new", copy_to="s3://nobucket/run")
    assert not (tmp_path / "new").exists()
    Place(URL).write(MARKER, b"of a start that was killed")
    train(tiny_config(tiny_store), tmp_path / "new", copy_to=URL)
    assert MARKER not in Place(URL).names()


def test_a_run_is_not_copied_over_another_or_over_a_later_state(link, run, tiny_store, tmp_path):
    Place("s3://lab/full").write("thesis.pdf", b"%PDF")
    with pytest.raises(ConfigError, match="is not empty and holds no copy of a run"):
        train(tiny_config(tiny_store), tmp_path / "new", copy_to="s3://lab/full")
    copied(run)
    with pytest.raises(CheckpointError, match="holds the copy of a run; go on with --resume"):
        train(tiny_config(tiny_store), tmp_path / "new", copy_to=URL)
    assert not (tmp_path / "new").exists()
    record = read_json(run / "checkpoints/record.json")["checkpoints"]
    write_json(run / "checkpoints/record.json", {"checkpoints": record[:1]})
    with pytest.raises(CheckpointError, match=r"has a later state \(step 12\) than .* \(step 8\)"):
        settle(URL, run, "must", None)
    settle(URL, run, "must", 8)  # --from-step goes back on purpose
    (run / "run.json").write_text((run / "run.json").read_text() + " ")
    with pytest.raises(CheckpointError, match="the copy of another run"):
        settle(URL, run, "must", None)


def test_two_processes_do_not_copy_to_one_place(link, run):
    copied(run)
    copier = Copier(run, URL)
    copier.copy()
    manifest = read_manifest(Place(URL))
    Place(URL).write("copy.json", json.dumps({**manifest, "step": 13}).encode())
    with pytest.raises(RemoteError, match="was changed by another process meanwhile"):
        copier.copy()
    copier.close()


def test_a_list_of_parts_whose_answer_was_lost_is_not_taken_for_anothers(link, run, monkeypatch):
    write, lost = Place.write, []

    def answer_lost(self, name, data):
        write(self, name, data)
        if name == "copy.json" and not lost:
            lost.append(name)
            raise LinkLost("the link is lost")

    copier = Copier(run, URL)
    monkeypatch.setattr(Place, "write", answer_lost)
    with pytest.raises(LinkLost):
        copier.copy()
    assert copier.copy()["step"] == 12
    copier.close()


@pytest.mark.parametrize("how", ["flipped", "missing", "short"])
def test_a_run_whose_latest_copied_checkpoint_is_damaged_goes_on_from_an_older_one(
    link, run, tiny_run, tiny_store, tmp_path, capsys, how
):
    copied(run)
    spoil("checkpoints/12/d/", how)
    write_json(tmp_path / "config.json", to_dict(tiny_config(tiny_store)))
    out = tmp_path / "back"
    command = ["train", str(tmp_path / "config.json"), "--out", str(out), "--copy-to", URL, "--resume"]
    assert main(command) == 2
    said = capsys.readouterr().err
    assert f"the checkpoint of step 12 in {URL} can't be used ({URL}" in said
    assert ("lacks parts/checkpoints/12/d/" if how == "missing" else "is damaged") in said
    assert "the older checkpoint of step 8 is intact: go on from it with --resume --from-step 8.\n" in said
    with pytest.raises(CheckpointError, match="step 8 is intact: use --step 8"):
        local_run(URL)
    assert not out.exists()
    if how != "missing":
        return
    assert main([*command, "--from-step", "8"]) == 0
    assert metrics_without_timing(out) == metrics_without_timing(tiny_run)
    ends = [read_json(at / "result.json")["parameters_sha256"] for at in (out, tiny_run)]
    assert ends[0] == ends[1]
    assert not (tmp_path / ".back.fetching").exists()
    back(tmp_path / "again")  # and the copy is whole again


def test_a_damaged_checkpoint_before_the_latest_is_left_out_and_one_that_is_alone_leaves_nothing(link, run, tmp_path):
    copied(run)
    with pytest.raises(CheckpointError, match=f"{URL} has no checkpoint of step 9; it has .*8, 12"):
        back(tmp_path / "back", 9)
    spoil("checkpoints/8/d/")
    assert "the checkpoint of step 8 is left out: s3://lab" in back(tmp_path / "back")[0]
    assert [r["step"] for r in read_json(tmp_path / "back/checkpoints/record.json")["checkpoints"]][-1:] == [12]
    assert not (tmp_path / "back/checkpoints/8").exists()
    for name in ("checkpoints/4/d/", "checkpoints/12/d/"):
        if any(name in n for n in Place(URL).names()):
            spoil(name)
    with pytest.raises(CheckpointError, match="no older checkpoint there is intact"):
        back(tmp_path / "none")
    assert not (tmp_path / ".none.fetching").exists()
    spoil("parts/metrics.jsonl", "missing")
    with pytest.raises(RemoteError, match=r"lacks parts/metrics\.jsonl/0\.\w+, a part of metrics\.jsonl; restore"):
        back(tmp_path / "none")
    assert not (tmp_path / ".none.fetching").exists()


def test_a_damaged_list_of_parts_is_said_to_be_damaged(link, run, tmp_path):
    copied(run)
    data = Place(URL).read("copy.json")
    for damaged in (data[: len(data) // 2], b"", b"\0" * 100, data.replace(b'"run.json"', b'"other"')):
        Place(URL).write("copy.json", damaged)
        with pytest.raises(RemoteError, match=rf"{URL}/copy\.json is damaged \(.*\); restore it from a copy"):
            back(tmp_path / "back")
    for other in (b"[]", b'{"format": "areca run copy", "version": 99}'):
        Place(URL).write("copy.json", other)
        with pytest.raises(RemoteError, match="is not what this version of areca writes"):
            local_run(URL)


def test_another_configuration_is_refused_before_the_run_is_fetched(link, run, tiny_store, tmp_path):
    copied(run)
    config = replace(tiny_config(tiny_store), seed=99)
    for resume in ("must", "auto"):
        with pytest.raises(CheckpointError, match=f"{URL} was trained with another configuration .*seed.*--copy-to"):
            train(config, tmp_path / "out" / "x", resume=resume, copy_to=URL)
    assert not (tmp_path / "out").exists()


def test_what_a_lost_link_left_of_a_fetch_goes_when_the_run_is_begun_anew(link, run, tiny_store, tmp_path, monkeypatch):
    copied(run)
    read = Place.read

    def lost(self, name="", *span):
        if "checkpoints/12" in name:
            raise LinkLost("lost")
        return read(self, name, *span)

    monkeypatch.setattr(Place, "read", lost)
    with pytest.raises(LinkLost):
        back(tmp_path / "x")
    assert (tmp_path / ".x.fetching").is_dir()  # the same command goes on with it
    with pytest.raises(ConfigError, match=r"data\.context is 0"):
        train(replace(tiny_config(tiny_store), data=DataConfig(store=str(tiny_store), context=0)), tmp_path / "x")
    assert not (tmp_path / ".x.fetching").exists()


def test_a_model_behind_a_url_is_loaded_exported_and_begins_runs(link, run, tiny_store, tmp_path):
    import jax

    from areca.train.step import init_state

    copied(run)
    for path in tiny_store.iterdir():
        Place("s3://lab/stores/tiny").write(path.name, path.read_bytes())
    digest = read_json(run / "result.json")["parameters_sha256"]
    model = load_model(URL, store="s3://lab/stores/tiny")
    assert parameters_sha256(model.params) == digest
    assert not list((tmp_path / "cache/remote").glob("stores/*"))  # of the store only the tokenizer was fetched
    assert main(["export", "hf", f"{URL}/checkpoints/8", "--out", str(tmp_path / "hf")]) == 0
    assert read_json(tmp_path / "hf/areca.json")["step"] == 8
    config = replace(tiny_config(tiny_store), init_from=URL)
    write_json(tmp_path / "next.json", {k: v for k, v in to_dict(config).items() if k != "model"})
    assert config_table(tmp_path / "next.json", tmp_path / "next")["model"]["d_model"] == 16
    start = start_of(config, TokenStore.open(tiny_store), tmp_path / "next")
    assert start is not None
    assert (start["path"], start["step"]) == (URL, 12)
    example = jax.eval_shape(lambda: init_state(config.model, config.optimizer, 0))
    assert parameters_sha256(first_state(config, start, example, layout_of(config), None).params) == digest


def test_a_directory_that_was_brought_there_by_other_means_is_read(link, run, tmp_path):
    for path in (p for p in run.rglob("*") if p.is_file()):
        Place("s3://lab/plain").write(path.relative_to(run).as_posix(), path.read_bytes())
    found = local_run("s3://lab/plain", 8)
    assert (found / "checkpoints/8").is_dir()
    assert not (found / "checkpoints/12").exists()
    with pytest.raises(CheckpointError, match="s3://lab/none is neither a run, nor the copy of one, nor a model"):
        local_run("s3://lab/none")


def test_outputs_are_written_to_this_machine(tmp_path, capsys):
    write_json(tmp_path / "run.json", to_dict(tiny_config("none")))
    assert main(["train", str(tmp_path / "run.json"), "--out", "s3://lab/runs/first"]) == 2
    said = capsys.readouterr().err
    assert "--out is s3://lab/runs/first" in said
    assert "--copy-to s3://lab/runs/first" in said


def test_a_copying_process_that_is_killed_is_told_of_with_what_sends_the_rest(link, tiny_run, tmp_path):
    said, recorded = [], []
    shutil.copytree(tiny_run, tmp_path / "run")
    copy = Copying(URL, tmp_path / "run", lambda kind, **values: recorded.append((kind, values)), said.append)
    copy.process.kill()
    copy.process.wait()
    copy.look()
    copy.end()
    [(kind, values)] = recorded
    assert kind == "copy_failed"
    assert values["why"] == "its process ended with code -9; --resume with --copy-to sends what is left."
    assert said == [
        f"{tmp_path / 'run'} is not being copied to {URL}: {values['why']} The run goes on, on this machine's disk."
    ]
