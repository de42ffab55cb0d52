"""The trackers themselves: what their own readers find of a run after kills and rewinds, and what is not in there."""

import importlib.util
import json
import os
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from areca.cli.main import main
from areca.errors import ConfigError
from areca.track.follow import Follower
from areca.track.send import send


def needs(library):
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


@pytest.fixture
def run(tmp_path):
    """Six steps of a run with an evaluation, in a directory whose path must not be sent."""
    directory = tmp_path / "first"
    directory.mkdir()
    store = str(Path.home() / "stores" / "books")
    config = {"data": {"store": store}, "optimizer": {"learning_rate": 0.01}, "model": {"d_model": 16}}
    (directory / "run.json").write_text(
        json.dumps({"config": config, "counts": {"n_params": 4096}, "store": {"path": store}})
    )
    (directory / "metrics.jsonl").write_text("".join(line(s, 10.0 - s) for s in range(1, 7)))
    (directory / "events.jsonl").write_text(json.dumps({"event": "evaluate", "step": 6, "loss": 4.5}) + "\n")
    return directory


def line(step, loss):
    return json.dumps({"step": step, "tokens": 64 * step, "loss": loss, "seconds": 0.1, "mfu": 0.25}) + "\n"


def rewound(run):
    """The run goes back from step 6 to step 3, and to another end."""
    kept = "".join(line(s, 10.0 - s) for s in range(1, 4))
    (run / "metrics.jsonl").write_text(kept + line(4, 6.5) + line(5, 5.5))
    with (run / "events.jsonl").open("a") as f:
        f.write(json.dumps({"event": "rewind", "step": 6, "to_step": 3, "number": 1}) + "\n")


TRUE = [(1, 9.0), (2, 8.0), (3, 7.0), (4, 6.5), (5, 5.5)]


def scalars(run, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


def shown(run, tag):
    """What TensorBoard's own server has of a run; it reads event files by other code than EventAccumulator."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util import tensor_util

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return [(e.step, float(tensor_util.make_ndarray(e.tensor_proto))) for e in events.Tensors(tag)]


@needs("tensorboard")
def test_tensorboard_reads_each_step_once_after_a_rewind(run):
    with Follower(run, "tensorboard") as follower:
        follower.poll()
        assert scalars(run, "train/loss") == [(s, 10.0 - s) for s in range(1, 7)]
        rewound(run)
        follower.poll()
    assert scalars(run, "train/loss") == shown(run, "train/loss") == TRUE
    assert scalars(run, "speed/mfu") == [(s, 0.25) for s in range(1, 6)]
    assert scalars(run, "eval/loss") == []  # it was of the end that does not hold


@needs("tensorboard")
def test_tensorboard_goes_on_after_a_kill_without_doubles(run):
    follower = Follower(run, "tensorboard")
    follower.poll()
    sent = (run / "tensorboard" / "sent.json").read_text()
    with (run / "metrics.jsonl").open("a") as f:
        f.write(line(7, 3.0))
    follower.poll()
    # Killed after the step was written and before that was recorded.
    os.close(follower._lock)
    (run / "tensorboard" / "sent.json").write_text(sent)
    with Follower(run, "tensorboard") as again:
        again.poll()
    assert scalars(run, "train/loss") == [(s, 10.0 - s) for s in range(1, 8)]


@needs("tensorboard")
def test_areca_fit_reads_what_was_sent_to_tensorboard(run):
    from areca.laws.reading.tensorboard import read_tensorboard

    assert [r["rows"] for r in send(run, ["tensorboard"])] == [6]
    cells = read_tensorboard(run / "tensorboard").rows[0].cells
    assert cells["counts.n_params"] == 4096
    assert cells["config.optimizer.learning_rate"] == 0.01
    assert (cells["tokens"], cells["eval/loss"], cells["step"]) == (384, 4.5, 6)


@needs("tensorboard")
def test_several_runs_are_sent_and_then_nothing_is_new(run):
    other = run.parent / "ladder" / "runs" / "second"
    other.mkdir(parents=True)
    for name in ("run.json", "metrics.jsonl"):
        (other / name).write_bytes((run / name).read_bytes())
    found = send(run.parent, ["tensorboard"])
    assert [(Path(r["run"]).name, r["rows"], r["step"]) for r in found] == [("first", 6, 6), ("second", 6, 6)]
    assert [r["rows"] for r in send(run.parent, ["tensorboard"])] == [0, 0]


def python(code, *arguments, **environment):
    """Runs code in a process without our settings of warnings, which libraries of others don't live up to."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip


FOLLOW = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from areca.track.follow import Follower
from test_track_adapters import rewound
run, name = Path(sys.argv[1]), sys.argv[3]
with Follower(run, name, "palms") as follower:
    follower.poll()
    if "rewind" in sys.argv:
        rewound(run)
        follower.poll()
    print(follower.sent)
"""

# A .wandb file is a log as LevelDB's: 7 bytes, then blocks of 32 KiB; before each record a checksum, length and kind.
WANDB_ROWS = """
import json, sys
from wandb.proto import wandb_internal_pb2 as pb
def records(data):
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts, at = parts + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):
            record, whole, parts = pb.Record(), parts, b""
            record.ParseFromString(whole)
            yield record
for path in sys.argv[1:]:
    rows, name = [], None
    for record in records(open(path, "rb").read()):
        if record.HasField("run"):
            name = record.run.display_name
            settings = {item.key: item.value_json for item in record.run.config.update}
        if record.HasField("history"):
            rows.append({item.key or "/".join(item.nested_key): item.value_json for item in record.history.item})
    series = [(json.loads(r["_step"]), json.loads(r["train/loss"])) for r in rows if "train/loss" in r]
    others = sorted({k for r in rows for k in r})
    print(json.dumps([name, series, others, {k: json.loads(v) for k, v in settings.items() if k != "_wandb"}]))
"""


@needs("wandb")
def test_wandb_offline_has_a_whole_run_for_each_end_and_nothing_of_the_machine(run):
    followed = python(FOLLOW, run, Path(__file__).parent, "wandb", "rewind", WANDB_MODE="offline")
    assert followed.returncode == 0, followed.stderr
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"), key=lambda p: len(p.name))
    assert len(files) == 2
    read = python(WANDB_ROWS, *files)
    assert read.returncode == 0, read.stderr
    (name, before, keys, settings), (name_after, after, _, _) = map(json.loads, read.stdout.splitlines())
    assert (name, name_after) == ("first", "first, rewound 1")
    assert before == [[s, 10.0 - s] for s in range(1, 7)]
    assert after == [list(point) for point in TRUE]
    assert {"eval/loss", "speed/mfu", "tokens"} <= set(keys)
    assert settings["counts.n_params"] == 4096
    assert settings["config.data.store"] == "books"
    private = [str(Path.home() / "stores"), socket.gethostname(), str(run.parent)]
    for path in (p for p in run.glob("wandb/offline-run-*/**/*") if p.is_file() and "logs" not in p.parts):
        assert [p for p in private if p.encode() in path.read_bytes()] == [], path


@needs("trackio")
def test_trackio_has_a_whole_run_for_each_end(run, tmp_path):
    store = {"TRACKIO_DIR": str(tmp_path / "store"), "HF_HUB_OFFLINE": "1"}
    followed = python(FOLLOW, run, Path(__file__).parent, "trackio", "rewind", **store)
    assert followed.returncode == 0, followed.stderr
    again = python(FOLLOW, run, Path(__file__).parent, "trackio", **store)  # goes on in the run, with nothing new
    assert again.stdout.split() == ["5"], again.stderr
    database = sqlite3.connect(tmp_path / "store" / "palms.db")
    rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    database.close()
    series: dict[str, list] = {}
    for name, step, metrics in rows:
        if "train/loss" in (values := json.loads(metrics)):
            series.setdefault(name.removeprefix("first-")[4:], []).append((step, values["train/loss"]))
    assert series == {"": [(s, 10.0 - s) for s in range(1, 7)], "-rewound-1": TRUE}


@needs("trackio")
def test_what_trackio_only_warns_of_is_a_failure(run, tmp_path):
    full = tmp_path / "store"
    full.write_text("a file where a directory has to be")
    followed = python(FOLLOW, run, Path(__file__).parent, "trackio", TRACKIO_DIR=str(full), HF_HUB_OFFLINE="1")
    assert followed.returncode == 1


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_written(run, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"tensorboard is not installed; `pip install -e '\.\[track\]'`"):
        send(run, ["tensorboard"])
    assert sorted(p.name for p in run.iterdir()) == ["events.jsonl", "metrics.jsonl", "run.json"]


@needs("tensorboard")
def test_the_verb_and_mistakes_in_it(run, capsys):
    assert main(["track", str(run), "--to", "tensorboard", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == [{"run": str(run), "tracker": "tensorboard", "rows": 6, "step": 6, "at": str(run / "tensorboard")}]
    assert main(["track", str(run), "--to", "tensorboard"]) == 0
    assert capsys.readouterr().out.startswith(f"{run} to tensorboard: nothing new, up to step 6")
    for words, said in (
        ([str(run / "none"), "--to", "tensorboard"], "none does not exist; name a run directory"),
        ([str(run / "tensorboard"), "--to", "tensorboard"], "tensorboard holds no run"),
        ([str(run), "--to", "tensorbord"], "there is no tracker 'tensorbord' (did you mean 'tensorboard'?)"),
        ([str(run), "--to", "tensorboard", "--project", " "], "--project is empty text"),
        ([str(run), "--to"], "--to is given without a value; name one or more"),
    ):
        assert main(["track", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
