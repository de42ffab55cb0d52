"""Going back from spikes in real runs: recovery, the same bits however it was interrupted, and when it ends."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from areca.config import (
    CheckpointConfig,
    DataConfig,
    GuardConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
    to_dict,
)
from areca.errors import CheckpointError, ConfigError, Interrupted, TrainingError
from areca.files import read_json, read_jsonl, write_json
from areca.train import checkpoint, guard, rewinds
from areca.train.checkpoint import Checkpoints
from areca.train.guard import Spike
from areca.train.loop import train
from areca.train.record import RunRecord, metrics_without_timing, read_metrics
from areca.train.rewinds import Rewind
from areca.train.run import Run
from areca.train.schedules import StepPlan, steps
from tiny import build_tiny_store, poisoned, tiny_config

STEPS, BATCH, CONTEXT = 100, 4, 16
POISON = range(48, 60)  # the steps, counted from 0, whose windows hold noise
GUARD = GuardConfig(window=24, min_steps=16, rewind_steps=8, skip_batches=25, max_rewinds=3)


def _config(store, **changes) -> RunConfig:
    fields = {
        "model": ModelConfig(vocab_size=300, d_model=16, n_layers=1, n_heads=2, d_ff=32),
        "tokens": STEPS * BATCH * CONTEXT,
        "optimizer": OptimizerConfig(learning_rate=0.1),
        "schedule": ScheduleConfig(warmup_tokens=10 * BATCH * CONTEXT),
        "checkpoint": CheckpointConfig(every_steps=10),
        "guard": GUARD,
    }
    return tiny_config(store, **(fields | changes))


def _same(run: Path, other: Path) -> bool:
    """Whether two finished runs have the same bits in parameters, metrics, losses and rewinds."""
    a, b = (read_json(r / "result.json") for r in (run, other))
    timing = ("seconds", "compile_seconds", "tokens_per_second", "mfu", "hfu", "energy_kwh", "carbon_kg", "fingerprint")
    timing += ("peak_flops", "peak_source", "saves", "evaluation")
    assert {k: v for k, v in a.items() if k not in timing} == {k: v for k, v in b.items() if k not in timing}
    assert _rewinds(run) == _rewinds(other)
    return metrics_without_timing(run) == metrics_without_timing(other)


def _rewinds(run: Path) -> list[dict]:
    return read_json(run / "rewinds.json")["rewinds"] if (run / "rewinds.json").exists() else []


def _events(run: Path, *names: str) -> list[dict]:
    return [e for e in read_jsonl(run / "events.jsonl") if e["event"] in names]


@pytest.fixture(scope="module")
def clean_store(tmp_path_factory) -> Path:
    return build_tiny_store(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def poisoned_store(clean_store, tmp_path_factory) -> Path:
    """The same store with noise in the windows that steps 49 to 60 would read."""
    out, examples = tmp_path_factory.mktemp("poisoned") / "store", range(BATCH * POISON.start, BATCH * POISON.stop)
    return poisoned(clean_store, out, DataConfig(str(clean_store), context=CONTEXT), examples)


@pytest.fixture(scope="module")
def clean(clean_store, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "clean"
    train(_config(clean_store), run)
    return run


@pytest.fixture(scope="module")
def recovered(poisoned_store, tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "recovered"
    train(_config(poisoned_store), run)
    return run


def test_going_back_does_not_put_the_next_save_off(poisoned_store, tmp_path, monkeypatch):
    # Else spikes that come faster than saves are due would keep a run from ever having one.
    begun, due = [], Run._save_is_due

    def watched(run, step):
        begun.append(run.last_save)
        return due(run, step)

    monkeypatch.setattr(Run, "_save_is_due", watched)
    config = _config(poisoned_store, checkpoint=CheckpointConfig(every_steps=10_000))
    train(config, tmp_path / "run")
    assert len(_rewinds(tmp_path / "run")) == 1
    assert len(begun) > STEPS
    assert len(set(begun)) == 1


def test_training_recovers_from_a_poisoned_stretch_to_the_loss_of_a_clean_run(recovered, clean):
    result, reference = read_json(recovered / "result.json"), read_json(clean / "result.json")
    (spike,) = _events(recovered, "spike")
    (rewind,) = _events(recovered, "rewind")
    assert spike["step"] == POISON.start + 1
    assert spike["what"] == "loss"
    assert spike["value"] > 1.5 * spike["median"]
    assert rewind["to_step"] == spike["step"] - GUARD.rewind_steps
    # 25 batches from there, which are step 42's to 66's as the run was to be; the noise is within.
    first = BATCH * rewind["to_step"]
    assert (rewind["skipped_from"], rewind["skipped_to"]) == (first, first + 25 * BATCH)
    assert first <= BATCH * POISON.start
    assert first + 25 * BATCH >= BATCH * POISON.stop
    assert (result["rewinds"], result["skipped_tokens"]) == (1, 25 * BATCH * CONTEXT)
    assert (reference["rewinds"], reference["skipped_tokens"]) == (0, 0)
    assert result["loss"] == pytest.approx(reference["loss"], rel=0.02)
    assert max(r["loss"] for r in read_metrics(recovered)[30:]) < 1.5 * spike["median"]
    (finish,) = _events(recovered, "finish")
    assert (finish["rewinds"], finish["skipped_tokens"]) == (1, 1600)


def test_skipped_tokens_do_not_advance_the_schedules_or_the_end(recovered, clean):
    columns = ("step", "tokens", "learning_rate", "batch")
    of = [[tuple(row[c] for c in columns) for row in read_metrics(run)] for run in (recovered, clean)]
    assert of[0] == of[1]
    assert read_json(recovered / "result.json")["n_tokens"] == STEPS * BATCH * CONTEXT


def test_time_spent_on_abandoned_steps_is_not_forgotten(recovered):
    (rewind,) = _events(recovered, "rewind")
    kept = sum(row["seconds"] for row in read_metrics(recovered))
    assert read_json(recovered / "result.json")["seconds"] == pytest.approx(kept + rewind["seconds"])
    assert rewind["seconds"] > 0


def test_without_a_spike_the_guard_changes_no_bit(clean, clean_store, tmp_path):
    train(_config(clean_store, guard=GuardConfig(enabled=False)), tmp_path / "off")
    assert _same(tmp_path / "off", clean)
    train(_config(clean_store, guard=GuardConfig()), tmp_path / "default")
    assert _same(tmp_path / "default", clean)
    names = [e["event"] for e in _events(clean, "start", "save", "evaluate", "finish", "spike", "rewind")]
    assert [e["event"] for e in read_jsonl(tmp_path / "off" / "events.jsonl")] == names
    for run in (clean, tmp_path / "off", tmp_path / "default"):  # nothing more is left on disk either
        recorded = [c["step"] for c in read_json(run / "checkpoints" / "record.json")["checkpoints"]]
        assert recorded == [90, 100]
        assert not (run / "rewinds.json").exists()


def test_the_trajectory_depends_neither_on_checkpoints_nor_on_interrupts(recovered, poisoned_store, tmp_path):
    def at(*stops: int):
        def listen(progress):
            if progress.step in stops:
                signal.raise_signal(signal.SIGTERM)

        return listen

    config = _config(poisoned_store, checkpoint=CheckpointConfig(every_steps=7, keep_last=1))
    for stop in (36, 50, 60):  # the second in the middle of the spike, which is found while the run stops
        with pytest.raises(Interrupted):
            train(config, tmp_path / "run", resume="auto", listener=at(stop))
    train(config, tmp_path / "run", resume="must")
    assert _same(tmp_path / "run", recovered)
    train(_config(poisoned_store, checkpoint=CheckpointConfig(every_steps=1000)), tmp_path / "none")
    assert _events(tmp_path / "none", "rewind")[0]["checkpoint"] == 0
    assert _same(tmp_path / "none", recovered)


class Killed(BaseException):
    """Stands for a SIGKILL; nothing catches it."""


def _kill(monkeypatch, where, name: str, nth: int, after: bool):
    """Makes the nth call of a function the last thing that happens, before or after its work."""
    function, count = getattr(where, name), [0]

    def call(*args, **kwargs):
        count[0] += 1
        if count[0] == nth and not after:
            raise Killed
        value = function(*args, **kwargs)
        if count[0] == nth:
            raise Killed
        return value

    monkeypatch.setattr(where, name, call)


@pytest.mark.parametrize(
    ("where", "name", "nth", "after"),
    [
        pytest.param(rewinds, "write", 1, False, marks=pytest.mark.exhaustive),  # seen, nothing written
        (rewinds, "write", 1, True),  # the list is written, the abandoned checkpoints are there
        (rewinds, "settle", 2, True),  # they are gone, the abandoned metrics are there
        pytest.param(
            RunRecord, "truncate_metrics", 2, True, marks=pytest.mark.exhaustive
        ),  # all is done but for the event
        pytest.param(Checkpoints, "save", 6, False, marks=pytest.mark.slow),  # under way again, no checkpoint since
        pytest.param(Checkpoints, "save", 7, True, marks=pytest.mark.exhaustive),
    ],
)
def test_killed_at_any_instant_of_a_rewind(recovered, poisoned_store, tmp_path, monkeypatch, where, name, nth, after):
    # Saves of the run: steps 10 to 50, the last of which is abandoned; back to 41 from the checkpoint of 40; 50, 60.
    run, config = tmp_path / "run", _config(poisoned_store)
    with monkeypatch.context() as patched:
        _kill(patched, where, name, nth, after)
        with pytest.raises(Killed):
            train(config, run)
    assert _events(run, "spike")
    train(config, run, resume="must")
    assert _same(run, recovered)
    assert len(_events(run, "spike")) == (2 if name == "write" and not after else 1)
    (rewind,) = _events(run, "rewind")  # told once, whoever did it
    assert (rewind["number"], rewind["step"], rewind["to_step"], rewind["checkpoint"]) == (1, 51, 41, 40)


def test_a_save_still_in_progress_when_its_step_is_abandoned_does_not_come_back(
    recovered, poisoned_store, tmp_path, monkeypatch
):
    # Step 50 is saved in the background, slowly, while step 51 finds the spike that began at 49.
    digests = checkpoint.digests

    def slowly(directory):
        time.sleep(0.3)
        return digests(directory)

    monkeypatch.setattr(checkpoint, "digests", slowly)
    train(_config(poisoned_store, checkpoint=CheckpointConfig(every_steps=10, keep_last=9)), tmp_path / "run")
    assert _same(tmp_path / "run", recovered)
    with Checkpoints(tmp_path / "run" / "checkpoints", writable=False) as checkpoints:
        assert [len(e.host["rewinds"]) for e in checkpoints.entries()] == [0] * 3 + [1] * 6  # steps 20 to 100


CHILD = """
    import os, signal, sys
    from areca.train import checkpoint, record, rewinds

    def dies(where, name, nth, after):
        function, count = getattr(where, name), [0]
        def call(*args, **kwargs):
            count[0] += 1
            if count[0] == nth and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            value = function(*args, **kwargs)
            if count[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return value
        setattr(where, name, call)

    place = sys.argv.pop(1)
    if place == "list":  # between the rename and everything else
        dies(rewinds, "write", 1, True)
    if place == "record":  # abandoned checkpoints off the record, their directories still there
        dies(checkpoint.Checkpoints, "_sweep", 2, False)
    if place == "cut":
        dies(record.RunRecord, "truncate_metrics", 1, False)
    from areca.cli.main import main
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.exhaustive
def test_killed_again_and_again_by_the_system_it_ends_with_the_same_bits(poisoned_store, tmp_path):
    config = _config(poisoned_store, threads=1, checkpoint=CheckpointConfig(every_steps=5))
    write_json(tmp_path / "run.json", to_dict(config))
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "NPROC"))}
    environment = keep | {"JAX_PLATFORMS": "cpu", "ARECA_CACHE": str(tmp_path / "cache")}

    def run(out: str, place: str = "nowhere") -> int:
        command = [sys.executable, "-W", "error", "-c", textwrap.dedent(CHILD), place]
        command += ["train", str(tmp_path / "run.json"), "--out", str(tmp_path / out), "--auto-resume"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode

    assert run("whole") == 0
    assert [run("killed", place) for place in ("list", "record", "cut")] == [-signal.SIGKILL] * 3
    assert _rewinds(tmp_path / "killed") == _rewinds(tmp_path / "whole") != []
    assert run("killed") == 0
    assert _same(tmp_path / "killed", tmp_path / "whole")
    assert [e["event"] for e in _events(tmp_path / "killed", "spike", "rewind")] == ["spike", "rewind"]


def test_going_back_by_hand_to_before_a_rewind_forgets_it(recovered, poisoned_store, tmp_path):
    config = _config(poisoned_store, checkpoint=CheckpointConfig(every_steps=10, keep_last=9))
    run = tmp_path / "run"
    train(config, run)
    with Checkpoints(run / "checkpoints", writable=False) as checkpoints:
        assert [len(checkpoints.entry(k).host["rewinds"]) for k in (40, 50)] == [0, 1]

    class Seen(Exception):
        pass

    def first(progress):
        raise Seen(_rewinds(run))

    for step, count in ((90, 1), (40, 0)):
        with pytest.raises(Seen) as seen:
            train(config, run, resume="must", from_step=step, listener=first)
        assert len(seen.value.args[0]) == count
    train(config, run, resume="must")
    assert _same(run, recovered)
    assert len(_events(run, "spike")) == 2  # it was met again


def test_a_rate_that_is_too_large_exhausts_the_rewinds_and_stops_with_the_explanation(clean_store, tmp_path):
    config = _config(
        clean_store,
        optimizer=OptimizerConfig(learning_rate=10.0),
        schedule=ScheduleConfig(name="constant", warmup_tokens=60 * BATCH * CONTEXT),
    )
    with pytest.raises(TrainingError) as stopped:
        train(config, tmp_path / "run")
    sentence = str(stopped.value)
    assert stopped.value.exit_code == 2
    assert "after going back 3 times already, from step " in sentence
    assert (
        "guard.max_rewinds is 3: skipping batches can't cure this, so lower optimizer.learning_rate (10.0)" in sentence
    )
    spikes = [e["step"] for e in _events(tmp_path / "run", "spike")]
    assert len(spikes) == 4
    assert f"training spiked at step {spikes[-1]} (" in sentence
    assert [r["spike_step"] for r in _rewinds(tmp_path / "run")] == spikes[:3]
    assert not (tmp_path / "run" / "result.json").exists()
    # It can be looked at, and resumed, which ends the same way.
    with pytest.raises(TrainingError) as again:
        train(config, tmp_path / "run", resume="must")
    assert str(again.value) == sentence


def test_what_is_not_finite_never_enters_the_parameters(clean_store, tmp_path):
    # This rate overflows within a few steps; every one of them is saved, none of them has a trace of it.
    config = _config(
        clean_store,
        optimizer=OptimizerConfig(learning_rate=100.0),
        checkpoint=CheckpointConfig(every_steps=1, keep_last=99),
        guard=replace(GUARD, max_rewinds=1),
    )
    with pytest.raises(TrainingError, match=r"is not finite\), after going back once already, from step \d+, and"):
        train(config, tmp_path / "run")
    spikes = _events(tmp_path / "run", "spike")
    assert [e["value"] for e in spikes] == [None, None]
    from areca.train.restore import load_model

    recorded = [c["step"] for c in read_json(tmp_path / "run" / "checkpoints" / "record.json")["checkpoints"]]
    assert recorded == list(range(1, spikes[-1]["step"]))
    import jax

    for step in recorded:
        params = load_model(tmp_path / "run", step).params
        assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(params))


def test_a_guard_that_may_never_go_back_stops_at_the_first_spike(poisoned_store, tmp_path):
    with pytest.raises(TrainingError) as stopped:
        train(_config(poisoned_store, guard=replace(GUARD, max_rewinds=0)), tmp_path / "run")
    assert f"training spiked at step {POISON.start + 1} (the loss is " in str(stopped.value)
    assert "), guard.max_rewinds is 0: skipping" in str(stopped.value)
    assert "the checkpoint of step 40 is from before" in str(stopped.value)


def test_a_guard_that_cannot_be_is_refused_before_anything_is_written(clean_store, tmp_path):
    with pytest.raises(ConfigError, match=r"guard\.skip_batches is 7"):
        train(_config(clean_store, guard=replace(GUARD, skip_batches=7)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", ["{", '{"rewinds": [{"to": 3}]}', '{"rewinds": []}', None])
def test_a_list_of_rewinds_that_was_lost_or_changed_is_said(recovered, poisoned_store, tmp_path, damage):
    run = Path(shutil.copytree(recovered, tmp_path / "run"))
    (run / "result.json").unlink()
    (run / "rewinds.json").unlink()
    if damage is not None:
        (run / "rewinds.json").write_text(damage)
    metrics = (run / "metrics.jsonl").read_bytes()
    way_out = r"rewinds\.json .*restore it from a copy, or go on with --resume --from-step 100"
    with pytest.raises(CheckpointError, match=way_out):
        train(_config(poisoned_store), run, resume="must")
    assert (run / "metrics.jsonl").read_bytes() == metrics
    if damage is None:
        train(_config(poisoned_store), run, resume="must", from_step=100)
        assert _same(run, recovered)


# --- the list, by hand


def _plan(ranges=()) -> list[StepPlan]:
    from areca.config import BatchConfig

    return list(steps(BatchConfig(((0, 4), (400, 6))), 1000, 10, ranges))


def _spike(step: int) -> Spike:
    return Spike(step, step + 2, "loss", 9.0, 3.0, 0.1)


def test_a_rewind_skips_the_batches_of_the_plan_from_where_it_goes_back_to():
    # Ten steps of 4 sequences, then steps of 6: step 9 begins at example 32, step 14 at 40 + 3 * 6.
    config = GuardConfig(rewind_steps=4, skip_batches=5)
    first = rewinds.decide(config, _spike(12), _plan())
    assert first == Rewind(spike_step=12, to_step=8, skipped_from=32, skipped_to=58)
    plan = _plan(rewinds.skipped((first,)))
    assert [p.first_example for p in plan][6:10] == [24, 28, 58, 62]
    assert [(p.batch, p.tokens) for p in plan] == [(p.batch, p.tokens) for p in _plan()]
    assert [p.first_example for p in plan[:8]] == [p.first_example for p in _plan()[:8]]
    # A second spike soon after goes back to before the first one's place: the five steps from 7 on now begin at 24, 28,
    # 58, 62 and 66, the last of them of 6, and the range takes in the first.
    second = rewinds.decide(config, _spike(10), plan)
    assert second == Rewind(spike_step=10, to_step=6, skipped_from=24, skipped_to=72)
    assert rewinds.skipped((first, second)) == [(24, 72)]
    assert rewinds.skipped_tokens((first, second), 10) == 480


def test_a_spike_early_in_the_run_goes_back_to_the_start_and_one_at_its_end_skips_past_it():
    config = GuardConfig(rewind_steps=4, skip_batches=5)
    assert rewinds.decide(config, _spike(3), _plan()) == Rewind(3, 0, 0, 20)
    last = _plan()[-1]
    late = rewinds.decide(config, _spike(last.step), _plan())
    assert late.to_step == last.step - 4
    assert late.skipped_to == last.first_example + 2 * last.batch


def test_the_messages_of_the_guard_name_what_happened():
    config = _config("store")
    error = guard.exhausted(config, _spike(70), [61, 65, 61], [])
    assert str(error) == (
        "training spiked at step 70 (the loss is 9, where 3 is usual), after going back 3 times already, from step 61"
        " (2 times), 65, and guard.max_rewinds is 3: skipping batches can't cure this, so lower optimizer.learning_rate"
        " (0.1) or lengthen the warm-up in a new run (nothing was saved yet)."
    )


def test_metrics_of_a_run_that_went_back_are_one_line_a_step(recovered):
    assert [row["step"] for row in read_metrics(recovered)] == list(range(1, STEPS + 1))
