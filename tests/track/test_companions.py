"""Tracking while a run goes on: from another process, which may do what it likes without harm to the run."""

import importlib.util
import json
import os
import signal
import sys
import time

import pytest

from areca.config import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    GuardConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrackConfig,
    load,
    replace,
    to_dict,
)
from areca.errors import ConfigError, Interrupted
from areca.files import write_table
from areca.track import companions
from areca.track.trackers import TRACKERS
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_evaluations, read_events
from tiny import poisoned, tiny_config

needs_tensorboard = pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="tensorboard is not installed"
)


def config(store, *to, **changes):
    return tiny_config(store, track=TrackConfig(to=to), **changes)


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """`broken("body of log")`: a tracker "wandb" of a third party whose process runs that code at the second step."""

    def install(body):
        (tmp_path / "third").mkdir()
        (tmp_path / "third" / "third_party.py").write_text(
            "import os, sys, time\n"
            "class Theirs:\n"
            "    def __init__(self, place): self.place = place\n"
            "    def begin(self, name, config): print('noise ' * 50_000); sys.stderr.write('noise ' * 50_000)\n"
            "    def log(self, step, numbers):\n"
            f"        if step == 2: {body}\n"
            "    def rewind(self, step): return step\n"
            "    def end(self): pass\n"
        )
        (tmp_path / "third" / "sitecustomize.py").write_text(
            "from areca.track.trackers import TRACKERS\nTRACKERS['wandb'] = ('third_party:Theirs', 'json', 'wandb')\n"
        )
        path = os.pathsep.join([str(tmp_path / "third"), *filter(None, sys.path)])
        monkeypatch.setenv("PYTHONPATH", path)
        monkeypatch.setitem(TRACKERS, "wandb", ("third_party:Theirs", "json", "wandb"))
        return tmp_path / "run"

    return install


def untracked(run):
    return [e for e in read_events(run) if e["event"] not in ("tracking", "tracker_failed")]


@needs_tensorboard
def test_a_run_is_followed_to_its_end_and_has_the_same_bits(tiny_store, tiny_run, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = []
    train(config(tiny_store, "tensorboard"), tmp_path / "run", say=said.append)
    assert metrics_without_timing(tmp_path / "run") == metrics_without_timing(tiny_run)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    true = [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in metrics_without_timing(tiny_run)]
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == true
    assert [e.step for e in events.Scalars("eval/loss")] == [12]
    assert said == []
    assert [e["event"] for e in untracked(tmp_path / "run")] == [e["event"] for e in read_events(tiny_run)]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("raise OSError(28, 'No space left on device')", "OSError: [Errno 28] No space left on device"),
        ("os.kill(os.getpid(), 9)", "its process ended with code -9"),
        ("sys.exit(3)", "its process ended with code 3"),
    ],
)
def test_a_tracker_that_fails_is_told_once_and_the_run_goes_on(tiny_store, tiny_run, broken, body, why):
    run, said = broken(body), []
    train(config(tiny_store, "wandb"), run, say=said.append)
    assert metrics_without_timing(run) == metrics_without_timing(tiny_run)
    failed = [e for e in read_events(run) if e["event"] == "tracker_failed"]
    assert [(e["tracker"], e["why"]) for e in failed] == [("wandb", why)]
    assert len(said) == 1
    assert said[0].startswith(f"wandb takes no more numbers of {run} ({why}); the run goes on")
    assert said[0].endswith(f"`areca track {run} --to wandb` sends them later.")


def test_a_tracker_that_hangs_holds_nothing_up(tiny_store, tiny_run, broken, monkeypatch):
    run, said = broken("time.sleep(100)"), []
    monkeypatch.setattr(companions, "GRACE_SECONDS", 0.5)
    kept = []
    real = companions._Companion
    monkeypatch.setattr(companions, "_Companion", lambda *a: kept.append(real(*a)) or kept[-1])
    started = time.monotonic()
    train(config(tiny_store, "wandb"), run, say=said.append)
    assert time.monotonic() - started < 30
    assert (run / "result.json").exists()
    assert metrics_without_timing(run) == metrics_without_timing(tiny_run)
    kept[0].process.kill()
    kept[0].process.wait()
    assert len(said) == 1
    assert "still takes the last numbers" in said[0]


@needs_tensorboard
def test_a_run_that_spikes_and_is_stopped_leaves_one_rising_series(tiny_store, tmp_path):
    """A real spike and rewind, a stop, a resume: TensorBoard has what metrics.jsonl has, each step once."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    data = DataConfig(str(tiny_store), context=16)
    store = poisoned(tiny_store, tmp_path / "store", data, range(4 * 48, 4 * 60))
    c = config(
        store,
        "tensorboard",
        model=ModelConfig(vocab_size=300, d_model=16, n_layers=1, n_heads=2, d_ff=32),
        tokens=100 * 4 * 16,
        optimizer=OptimizerConfig(learning_rate=0.1),
        schedule=ScheduleConfig(warmup_tokens=10 * 4 * 16),
        checkpoint=CheckpointConfig(every_steps=10),
        evaluation=EvalConfig(every_tokens=20 * 4 * 16, max_tokens=512, batch=4),
        guard=GuardConfig(window=24, min_steps=16, rewind_steps=8, skip_batches=25, max_rewinds=3),
    )
    run, waited = tmp_path / "run", []

    def listen(p):
        if p.step == 45 and not waited:  # until the tracker has caught up, so that it has what will be taken back
            until = time.monotonic() + 20
            while time.monotonic() < until and sent(run) < 40:
                time.sleep(0.05)
            waited.append(sent(run))
        if p.step == 52 and len(waited) == 1:
            waited.append(p.step)
            time.sleep(1.5)
        if p.step == 70 and len(waited) == 2:
            waited.append(p.step)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(c, run, listener=listen)
    train(c, run, resume="must")  # at once: the process that followed may still be at work, and is waited for
    assert waited[0] >= 40
    assert [e["event"] for e in read_events(run)].count("rewind") == 1
    events = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    true = [(row["step"], pytest.approx(row["loss"], rel=1e-6)) for row in metrics_without_timing(run)]
    assert [step for step, _ in true] == list(range(1, 101))
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == true
    held = [(e["step"], pytest.approx(e["loss"], rel=1e-6)) for e in read_evaluations(run)]
    assert [(e.step, e.value) for e in events.Scalars("eval/loss")] == held


def sent(run):
    try:
        return json.loads((run / "tensorboard" / "sent.json").read_text())["step"]
    except (OSError, ValueError):
        return 0


def test_tracking_is_no_part_of_what_a_run_is(tiny_store, tiny_run, tmp_path):
    plain, tracked = tiny_config(tiny_store), config(tiny_store, "tensorboard")
    assert plain.fingerprint() == tracked.fingerprint()
    assert plain.fingerprint() != replace(plain, guard=GuardConfig(enabled=False)).fingerprint()
    said = []
    result = train(replace(tracked, threads=0), tiny_run, resume="must", say=said.append)
    assert result == json.loads((tiny_run / "result.json").read_text())
    assert said == [f"{tiny_run} is finished already."]


def test_what_can_not_be_tracked_is_refused_before_anything_is_written(tiny_store, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"no tracker 'tensorbord' \(did you mean 'tensorboard'\?\)"):
        train(config(tiny_store, "tensorbord"), tmp_path / "run")
    monkeypatch.setitem(TRACKERS, "trackio", ("areca.track.trackio:Trackio", "no_such_library", "trackio"))
    with pytest.raises(ConfigError, match=r"^trackio is not installed; `pip install -e '\.\[trackio\]'`"):
        train(config(tiny_store, "trackio"), tmp_path / "run")
    nameless = tiny_config(tiny_store, track=TrackConfig(to=("tensorboard",), project=" "))
    monkeypatch.setitem(TRACKERS, "tensorboard", ("", "json", "track"))
    with pytest.raises(ConfigError, match=r"track\.project is empty text"):
        train(nameless, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_table_of_a_configuration(tmp_path):
    values = to_dict(tiny_config("store")) | {"track": {"to": ["wandb", "trackio"], "project": "palms"}}
    write_table(tmp_path / "run.toml", values)
    assert load(tmp_path / "run.toml").track == TrackConfig(to=("wandb", "trackio"), project="palms")
    write_table(tmp_path / "run.toml", values | {"track": {"to": "wandb"}})
    with pytest.raises(ConfigError, match=r"run\.toml: track\.to must be a list such as \[\"name\"\], not 'wandb'"):
        load(tmp_path / "run.toml")
