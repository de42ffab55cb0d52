"""Runs that share islands: the bits of each alone, failures that others never notice, weights, a clean stop."""

import json
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from areca.cli.main import main
from areca.config import BatchConfig, CheckpointConfig, DataConfig, IslandsConfig, ModelConfig, ParallelConfig
from areca.errors import ConfigError, Interrupted, ProgramError, TrainingError
from areca.files import read_json
from areca.study import islands as module
from areca.study.islands import RETRIES, Islands, on_islands, run_over_islands
from areca.study.ladder import plan_ladder, run_ladder
from areca.study.ladderjson import describe
from areca.study.pool import Job
from areca.train.islands.run import IslandsRun
from areca.train.islands.tenant import Tenant
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_events
from tiny import tiny_config


def job(config, directory, name, cost=1.0):
    return Job(name, config, directory / name, {"name": name}, cost)


def go(jobs, islands, on_progress=lambda *_: None, **more):
    return run_over_islands(jobs, islands, on_progress=on_progress, on_result=lambda *_: None, **more)


def events(run_dir, name):
    return [e for e in read_events(run_dir) if e["event"] == name]


def failing(monkeypatch, name, at_step, times):
    """Has a run fail before a step, so many times."""
    left = [times]

    def before(self, say):
        if self.run_dir.name == name and self.step == at_step and left[0]:
            left[0] -= 1
            raise ProgramError("a program failed.")

    monkeypatch.setattr(IslandsRun, "_before_step", before)


@pytest.fixture(scope="module")
def cut(tiny_store, tmp_path_factory):
    """A run of two shards, alone on an island: its configuration and directory."""
    config, place = tiny_config(tiny_store, islands=IslandsConfig(1, 2), seed=1), tmp_path_factory.mktemp("cut") / "run"
    train(config, place)
    return config, place


def test_runs_that_share_islands_have_the_bits_of_runs_alone_and_one_that_fails_goes_on(
    tiny_store, tiny_run, cut, tmp_path, monkeypatch
):
    """Three at a time on two islands: the whole batch in one program, two shards on one island, and one on each."""
    config, alone = cut
    failing(monkeypatch, "whole", 6, times=1)
    said: list[str] = []
    jobs = [
        job(tiny_config(tiny_store), tmp_path, "whole"),
        job(config, tmp_path, "cut"),
        job(replace(config, islands=IslandsConfig(2, 2, digest_every=4)), tmp_path, "both"),
    ]
    results = go(jobs, Islands(2, at_once=3), say=said.append)
    for name, like in (("whole", tiny_run), ("cut", alone), ("both", alone)):
        assert results[name]["parameters_sha256"] == read_json(like / "result.json")["parameters_sha256"]
        assert metrics_without_timing(tmp_path / name) == metrics_without_timing(like)
        assert read_json(tmp_path / name / "run.json")["shared"]["runs"] == 3
    (retry,) = events(tmp_path / "whole", "retry")
    assert (retry["number"], retry["of"], retry["why"]) == (1, RETRIES, "a program failed.")
    assert events(tmp_path / "whole", "resume")[0]["step"] == 4  # its checkpoint
    assert [s for s in said if "tried again (1 of at most 3 times)" in s]
    assert not [e for n in ("cut", "both") for e in read_events(tmp_path / n) if e["event"] in ("retry", "resume")]
    assert go(jobs, Islands(2)) == results  # finished runs are taken as they are


def test_a_run_that_always_fails_ends_the_family_after_the_others(tiny_store, tmp_path, monkeypatch):
    failing(monkeypatch, "bad", 2, times=99)
    short = tiny_config(tiny_store, tokens=4 * 4 * 16)
    jobs = [job(short, tmp_path, "bad", 2.0), job(replace(short, seed=1), tmp_path, "good")]
    with pytest.raises(TrainingError, match=r"run bad: a program failed. The same command .*; the other 1 have ended"):
        go(jobs, Islands(1))
    assert len(events(tmp_path / "bad", "retry")) == RETRIES
    assert (tmp_path / "good" / "result.json").exists()


def test_runs_go_on_where_their_only_island_was_killed(tiny_store, tiny_run, cut, tmp_path, monkeypatch):
    """SIGKILL of the one process that two runs have: both are retried on the one that is started again."""
    config, alone = cut
    killed: list[str] = []

    def before(self, say):
        if self.step == 6 and not killed:
            killed.append(self.run_dir.name)
            os.kill(self.over.islands[0].channels[0].process.pid, signal.SIGKILL)

    monkeypatch.setattr(IslandsRun, "_before_step", before)
    results = go(
        [job(tiny_config(tiny_store), tmp_path, "whole"), job(config, tmp_path, "cut")], Islands(1, "processes")
    )
    for name, like in (("whole", tiny_run), ("cut", alone)):
        assert results[name]["parameters_sha256"] == read_json(like / "result.json")["parameters_sha256"]
    assert events(tmp_path / killed[0], "retry")[0]["why"].startswith(
        "all islands are lost; the last: island 0 was lost"
    )


@pytest.mark.exhaustive
def test_steps_follow_weights_while_two_runs_share_an_island(tiny_store, tmp_path, monkeypatch):
    """Weights 1:2 by FLOPs. An end of steps is heard up to eight late, of 90; what else runs here moves the rest."""
    seen: list[str] = []
    weights = {}
    choose = Tenant.choose

    def chosen(self):
        weights[self.name] = self.weight
        return choose(self)

    monkeypatch.setattr(Tenant, "choose", chosen)
    listen = module._Telling.listen

    def heard(self, progress):
        seen.append(self.job.name)
        listen(self, progress)

    monkeypatch.setattr(module._Telling, "listen", heard)
    config = tiny_config(
        tiny_store,
        model=ModelConfig(vocab_size=300, d_model=64, n_layers=3, n_heads=4, d_ff=256),
        data=DataConfig(str(tiny_store), context=32),
        batch=BatchConfig(ramp=((0, 16),)),
        tokens=90 * 16 * 32,
        checkpoint=CheckpointConfig(every_steps=1000),
    )
    jobs = [job(config, tmp_path, "one", 1.0), job(replace(config, seed=1), tmp_path, "two", 2.0)]
    go(jobs, Islands(1, weights="flops"))
    first = max(seen.index("one"), seen.index("two"))
    last = len(seen) - max(seen[::-1].index("one"), seen[::-1].index("two"))
    both = seen[first:last]
    assert weights == pytest.approx({"one": 2 / 3, "two": 4 / 3})
    assert 1.4 < both.count("two") / both.count("one") < 3


def test_ctrl_c_saves_all_runs_and_the_same_call_goes_on(tiny_store, tiny_run, cut, tmp_path, monkeypatch):
    config, alone = cut
    jobs = [job(tiny_config(tiny_store), tmp_path, "whole"), job(config, tmp_path, "cut")]
    at_three = threading.Barrier(2)

    def before(self, say):
        if self.step == 3 and not self.tenant.stop.signal:
            if at_three.wait(60) == 0:
                os.kill(os.getpid(), signal.SIGINT)
            while not self.tenant.stop.signal:
                time.sleep(0.01)

    monkeypatch.setattr(IslandsRun, "_before_step", before)
    with pytest.raises(Interrupted, match="stopped; all runs are saved and the same command goes on"):
        go(jobs, Islands(1))
    for name in ("whole", "cut"):
        (stopped,) = events(tmp_path / name, "interrupt")
        assert (stopped["step"], stopped["signal"]) == (4, "SIGINT")
    monkeypatch.undo()
    results = go(jobs, Islands(2))
    for name, like in (("whole", tiny_run), ("cut", alone)):
        assert results[name]["parameters_sha256"] == read_json(like / "result.json")["parameters_sha256"]
        assert events(tmp_path / name, "resume")[0]["step"] == 4


def test_a_ladder_over_islands_is_the_ladder_without_and_goes_on_over_others(tiny_store, tmp_path):
    def planned():
        return plan_ladder(tmp_path / "ladder", tiny_store, [2e7], sizes=1, context=16, epochs=1e6, threads=0)

    quiet = {"on_progress": lambda *_: None, "on_result": lambda *_: None}
    said: list[str] = []
    results = run_ladder(planned(), islands=Islands(1), **quiet, say=said.append)
    assert said[0] == "ladder: 1 run over 1 island (devices), one after another."
    assert run_ladder(planned(), islands=Islands(2), workers=3, **quiet) == results
    assert read_json(tmp_path / "ladder" / "ladder.json") == json.loads(json.dumps(describe(planned())))
    with pytest.raises(ConfigError, match=r"another ladder \(islands.segments: 0 -> 3 in .*; choose another --out"):
        run_ladder(planned(), islands=Islands(2, each=2), **quiet)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--islands", "0"], "--islands is 0; give 1 to 64."),
        (["--islands", "2", "--islands-each", "3"], "--islands-each is 3 and there are 2 islands"),
        (["--islands-on", "processes"], "are about islands; give --islands with them"),
        (["--islands", "2", "--together", "vmap"], "together is 'vmap', but runs over islands go one by one"),
        (["--islands", "2", "--workers", "-1"], "workers is -1; give up to 128 runs at a time"),
        (
            ["--islands", "2", "--islands-each", "2", "--vary", "batch", "--batches", "4", "--tokens", "1024"],
            "measures the gradient noise scale, which is not measured over several islands",
        ),
    ],
)
def test_what_a_ladder_over_islands_cannot_do(tiny_store, tmp_path, capsys, options, says):
    budgets = [] if "--vary" in options else ["--budgets", "2e8"]
    more = ["--widths", "16", "--epochs", "99"] if "--vary" in options else ["--sizes", "1"]
    argv = ["ladder", str(tiny_store), "--out", str(tmp_path / "out"), *budgets, *more, "--context", "16", *options]
    assert main(argv) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_on_a_mesh_do_not_share_islands(tiny_store, tmp_path):
    mesh = job(tiny_config(tiny_store, parallel=ParallelConfig(2, 1)), tmp_path, "mesh")
    with pytest.raises(ConfigError, match="run mesh has a mesh of 2 x 1 devices, and runs that share islands have one"):
        on_islands([mesh], Islands(2))
