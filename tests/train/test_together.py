"""Runs in one program: as alone to rounding, each with its own directory, resumed together, lost one by one."""

import json
import math
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

from areca.config import BatchConfig, CheckpointConfig, DataConfig, EvalConfig, GuardConfig, OptimizerConfig
from areca.errors import ConfigError, Diverged, Interrupted
from areca.files import read_json, read_jsonl
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_metrics
from areca.train.together import Member, train_together
from tiny import tiny_config

RATES = (0.005, 0.01, 0.02)
STEPS = 20


def _config(store, seed, rate, **changes):
    settings = {
        "tokens": STEPS * 4 * 16,
        "data": DataConfig(store=str(store), context=16, seed=seed),
        "optimizer": OptimizerConfig(learning_rate=rate),
        "guard": GuardConfig(enabled=False),
        "checkpoint": CheckpointConfig(every_steps=6, keep_last=1),
        "seed": seed,
    }
    return tiny_config(store, **(settings | changes))


def _members(store, root, rates=RATES, **changes):
    return [
        Member(_config(store, i % 2, rate, **changes), root / f"run-{i}", {"name": f"run-{i}"})
        for i, rate in enumerate(rates)
    ]


@pytest.fixture(scope="module")
def whole(tiny_store, tmp_path_factory):
    """Three runs trained together without a stop, and their results."""
    root = tmp_path_factory.mktemp("together")
    return root, train_together(_members(tiny_store, root))


def test_runs_together_agree_with_runs_alone_to_rounding(whole, tiny_store, tmp_path):
    root, results = whole
    for i, rate in ((0, RATES[0]), (1, RATES[1])):
        alone = train(_config(tiny_store, i, rate), tmp_path / f"alone-{i}")
        one, other = read_metrics(root / f"run-{i}"), read_metrics(tmp_path / f"alone-{i}")
        assert [r["step"] for r in one] == list(range(1, STEPS + 1))
        for name in ("loss", "grad_norm", "update_norm", "param_norm"):
            assert [r[name] for r in one] == pytest.approx([r[name] for r in other], rel=1e-4)
        assert [r["learning_rate"] for r in one] == [r["learning_rate"] for r in other]
        assert results[i]["loss"] == pytest.approx(alone["loss"], rel=1e-4)
        assert read_json(root / f"run-{i}" / "run.json")["fingerprint"] == alone["fingerprint"]


def test_a_run_says_that_it_was_one_of_several(whole):
    root, results = whole
    for i, result in enumerate(results):
        run_dir = root / f"run-{i}"
        assert result == read_json(run_dir / "result.json")
        for file in ("run.json", "result.json"):
            said = read_json(run_dir / file)["together"]
            assert said["runs"] == 3
            assert "agrees with the run alone to rounding, not to the bit" in said["says"]
        events = [e["event"] for e in read_jsonl(run_dir / "events.jsonl")]
        assert events == ["start", "save", "save", "save", "save", "evaluate", "finish"]
        assert result["labels"] == {"name": f"run-{i}"}
    # The program's time is shared out, so that sums over runs are those of the machine.
    seconds = [[row["seconds"] for row in read_metrics(root / f"run-{i}")] for i in range(3)]
    assert seconds[0] == seconds[1] == seconds[2]


def test_first_states_are_those_of_runs_alone_to_the_bit(tiny_store):
    import jax

    from areca.train.identity import parameters_sha256
    from areca.train.step import first_state, init_state

    c = _config(tiny_store, 0, 0.01)
    first = jax.jit(lambda seed: init_state(c.model, c.optimizer, seed))
    for seed in (0, 7, 2**32 - 1):
        alone = first_state(c.model, c.optimizer, seed)
        assert parameters_sha256(first(np.uint32(seed)).params) == parameters_sha256(alone.params)


def _outcome(root, i):
    return metrics_without_timing(root / f"run-{i}"), read_json(root / f"run-{i}" / "result.json")["parameters_sha256"]


def test_an_interrupted_group_goes_on_with_the_same_bits(whole, tiny_store, tmp_path):
    def interrupt(p):
        if p.step == 8 and p.run == "run-1":
            signal.raise_signal(signal.SIGINT)

    members = _members(tiny_store, tmp_path)
    with pytest.raises(Interrupted, match=r"stopped by SIGINT at step \d+ of 20, which is saved"):
        train_together(members, listener=interrupt)
    saved = {m.run_dir.name: _saved(m.run_dir)[-1] for m in members}
    assert len(set(saved.values())) == 1
    said: list[str] = []
    train_together(members, say=said.append)
    assert len([s for s in said if "goes on from its checkpoint at step" in s]) == 3
    assert all(_outcome(tmp_path, i) == _outcome(whole[0], i) for i in range(3))
    assert [e["event"] for e in read_jsonl(tmp_path / "run-2" / "events.jsonl")].count("resume") == 1


def _saved(run_dir):
    return [c["step"] for c in read_json(run_dir / "checkpoints" / "record.json")["checkpoints"]]


def _as_killed(run_dir, saved, lines):
    """Leaves what a kill leaves of a finished run: the checkpoints up to a step, and some lines of metrics."""
    (run_dir / "result.json").unlink(missing_ok=True)
    record = read_json(run_dir / "checkpoints" / "record.json")
    for c in record["checkpoints"]:
        if c["step"] > saved:
            shutil.rmtree(run_dir / "checkpoints" / str(c["step"]))
    record["checkpoints"] = [c for c in record["checkpoints"] if c["step"] <= saved]
    (run_dir / "checkpoints" / "record.json").write_text(json.dumps(record))
    kept = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)[:lines]
    (run_dir / "metrics.jsonl").write_text("".join(kept))


def test_after_a_kill_all_go_on_from_the_last_step_that_each_has_saved(whole, tiny_store, tmp_path):
    members = _members(tiny_store, tmp_path / "killed")
    shutil.copytree(whole[0], tmp_path / "killed")
    assert _saved(members[0].run_dir) == [18, 20]
    _as_killed(members[0].run_dir, saved=20, lines=20)
    _as_killed(members[1].run_dir, saved=18, lines=19)
    _as_killed(members[2].run_dir, saved=18, lines=20)
    said: list[str] = []
    train_together(members, say=said.append)
    assert "run-0: back to step 18, the last that all runs have saved, since they are one program." in said
    assert all(_outcome(tmp_path / "killed", i) == _outcome(whole[0], i) for i in range(3))
    # Killed before one has saved anything: all start over.
    _as_killed(members[1].run_dir, saved=0, lines=3)
    for i in (0, 2):
        _as_killed(members[i].run_dir, saved=20, lines=20)
    train_together(members)
    assert all(_outcome(tmp_path / "killed", i) == _outcome(whole[0], i) for i in range(3))
    # Killed between two results: what is finished stays, the others need no step.
    (members[2].run_dir / "result.json").unlink()
    before = (members[0].run_dir / "events.jsonl").read_bytes()
    results = train_together(members)
    assert (members[0].run_dir / "events.jsonl").read_bytes() == before
    assert results[2]["parameters_sha256"] == whole[1][2]["parameters_sha256"]


def test_one_run_that_diverges_leaves_the_others_their_bits(whole, tiny_store, tmp_path):
    schedule = _config(tiny_store, 0, 1.0).schedule
    members = _members(tiny_store, tmp_path)
    members[2] = replace(members[2], config=_config(tiny_store, 0, 1e18, schedule=schedule))
    results = train_together(members)
    assert isinstance(results[2], Diverged)
    assert "lower optimizer.learning_rate (1e+18)" in str(results[2])
    assert all(_outcome(tmp_path, i) == _outcome(whole[0], i) for i in range(2))
    assert not (tmp_path / "run-2" / "result.json").exists()
    rows = read_metrics(tmp_path / "run-2")
    assert len(rows) < STEPS
    assert None in rows[-1].values()
    assert all(math.isfinite(r["loss"]) for r in rows[:-1])
    assert [e["event"] for e in read_jsonl(tmp_path / "run-2" / "events.jsonl")][-1] == "not_finite"
    # Killed and resumed, it is not trained again, and keeps its place: the others have the same bits still.
    for i in range(2):
        _as_killed(tmp_path / f"run-{i}", saved=18, lines=18)
    again = train_together(members)
    assert str(again[2]) == str(results[2])
    assert read_metrics(tmp_path / "run-2") == rows
    assert all(_outcome(tmp_path, i) == _outcome(whole[0], i) for i in range(2))


def test_a_group_that_diverges_as_a_whole_ends(tiny_store, tmp_path):
    results = train_together(_members(tiny_store, tmp_path, rates=(1e18, 2e18, 3e18)))
    assert all(isinstance(r, Diverged) for r in results)
    assert all(
        isinstance(r, Diverged) for r in train_together(_members(tiny_store, tmp_path, rates=(1e18, 2e18, 3e18)))
    )


def test_ramps_and_evaluations_on_the_way(tiny_store, tmp_path):
    changes = {
        "tokens": 600,
        "batch": BatchConfig(((0, 2), (100, 4))),
        "evaluation": EvalConfig(every_tokens=200, max_tokens=64, batch=4),
    }
    train_together(_members(tiny_store, tmp_path, rates=(0.01, 0.02), **changes))
    train(_config(tiny_store, 1, 0.02, **changes), tmp_path / "alone")
    evaluated = [
        [(e["step"], e["loss"]) for e in read_jsonl(tmp_path / name / "events.jsonl") if e["event"] == "evaluate"]
        for name in ("run-1", "alone")
    ]
    assert len(evaluated[0]) == 3
    assert np.array(evaluated[0]) == pytest.approx(np.array(evaluated[1]), rel=1e-4)


def test_a_run_of_a_group_that_goes_on_alone_says_so(whole, tiny_store, tmp_path):
    run_dir = shutil.copytree(whole[0] / "run-1", tmp_path / "run-1")
    _as_killed(run_dir, saved=18, lines=20)
    said: list[str] = []
    result = train(_config(tiny_store, 1, RATES[1]), run_dir, resume="must", say=said.append)
    assert "bits may differ: together runs: 3 -> 1" in said[0]
    assert "together" not in result
    assert result["loss"] == pytest.approx(whole[1][1]["loss"], rel=1e-4)


def test_runs_that_can_not_be_one_program_are_refused_before_anything_is_written(tiny_store, tmp_path):
    members = _members(tiny_store, tmp_path)
    other = replace(members[1], config=replace(members[1].config, tokens=640))
    with pytest.raises(
        ConfigError, match=r"can't be one program because they differ in tokens: 1280 -> 640; only seed"
    ):
        train_together([members[0], other])
    with pytest.raises(ConfigError, match=r"guard\.enabled is True"):
        train_together(_members(tiny_store, tmp_path, guard=GuardConfig()))
    assert not list(tmp_path.iterdir())
