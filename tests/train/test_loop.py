"""A run from configuration to result.json, on a store of a few thousand tokens: start, stop, resume, refuse."""

import json
import math
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

from areca.config import (
    BatchConfig,
    CheckpointConfig,
    EvalConfig,
    GuardConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
)
from areca.data.store import TokenStore
from areca.errors import CheckpointError, ConfigError, DataError, Interrupted, TrainingError
from areca.files import read_json, read_jsonl, write_json
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_metrics
from tiny import build_tiny_store, tiny_config


def _events(run_dir) -> list[str]:
    return [e["event"] for e in read_jsonl(run_dir / "events.jsonl")]


def _interrupt_at(step: int):
    """A listener that sends SIGINT when it hears of `step`."""

    def listen(progress):
        if progress.step == step:
            signal.raise_signal(signal.SIGINT)

    return listen


@pytest.fixture(scope="module")
def finished(tiny_run):
    return tiny_run


@pytest.fixture
def copy(finished, tmp_path):
    """A copy of the finished run that a test may change."""
    return shutil.copytree(finished, tmp_path / "copy")


def test_result_json_says_what_was_trained(finished, tiny_store):
    r = read_json(finished / "result.json")
    # By hand: L (2 D H K + 2 D K + 3 D F) + (L + 1) D with D 16, H 2, K 8, F 32, L 2; the table is 300 x 16.
    n = 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32) + 3 * 16
    assert r["n_params"] == n
    assert r["n_params_total"] == n + 300 * 16
    assert r["n_tokens"] == 12 * 4 * 16
    assert r["flops_6nd"] == 6 * n * 768
    assert r["flops_exact"] == (6 * (n - 3 * 16 + 300 * 16) + 12 * 2 * 16 * 16) * 768
    assert r["steps"] == 12
    rows = read_metrics(finished)
    assert r["train_loss_last"] == rows[-1]["loss"]  # the last 5% of 12 steps
    assert r["seconds"] == pytest.approx(sum(row["seconds"] for row in rows))
    # Saved after every fourth step: each stretch has one step that does not count and three that do.
    assert [row["steady"] for row in rows] == [False, True, True, True] * 3
    stretches = [3 * 64 / sum(row["seconds"] for row in rows[k + 1 : k + 4]) for k in (0, 4, 8)]
    assert r["tokens_per_second"] == pytest.approx(sorted(stretches)[1])
    assert r["hfu"] == r["mfu"]  # nothing is rematerialized
    assert r["mfu"] == pytest.approx(
        r["tokens_per_second"] * (6 * r["n_params_total"] + 12 * 2 * 16 * 16) / r["peak_flops"]
    )
    assert 4 < r["loss"] < 7
    assert set(r["loss_by_corpus"]) == {"big", "small"}
    assert min(r["loss_by_corpus"].values()) < r["loss"] < max(r["loss_by_corpus"].values())
    assert r["energy_kwh"]["kind"] in (
        "measured",
        "estimated (TDP)",
        "assumed",
        "estimated (RAPL, by share of CPU time)",
    )
    assert r["energy_kwh"]["value"] > 0
    assert len(r["parameters_sha256"]) == 64


def test_metrics_are_one_line_a_step(finished):
    rows = read_metrics(finished)
    assert [r["step"] for r in rows] == list(range(1, 13))
    assert [r["tokens"] for r in rows] == [64 * k for k in range(1, 13)]
    assert {r["batch"] for r in rows} == {4}
    assert all(math.isfinite(r[k]) for r in rows for k in ("loss", "z_loss", "grad_norm", "update_norm", "param_norm"))
    # Warm-up over the first 2 of 12 steps, each step at the rate of its middle: a quarter, three quarters, then cosine.
    assert [r["learning_rate"] for r in rows[:2]] == pytest.approx([0.0025, 0.0075])
    assert rows[-1]["learning_rate"] == pytest.approx(1e-2 * (0.1 + 0.45 * (1 + math.cos(math.pi * 9.5 / 10))))
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_run_json_says_what_the_numbers_depend_on(finished, tiny_store):
    run, store = read_json(finished / "run.json"), TokenStore.open(tiny_store)
    assert run["store"]["fingerprint"] == store.fingerprint
    assert run["store"]["tokenizer_sha256"] == store.tokenizer_sha256
    assert run["config"]["model"]["head_dim"] == 8  # resolved
    assert run["config"]["threads"] > 0
    assert run["topology"]["backend"] == "cpu"
    assert {"jax", "numpy", "areca", "python"} <= set(run["versions"])
    assert run["fingerprint"] == read_json(finished / "result.json")["fingerprint"]


def test_events_tell_the_story(finished):
    assert _events(finished) == ["start", "save", "save", "save", "evaluate", "finish"]
    assert [e["step"] for e in read_jsonl(finished / "events.jsonl")] == [0, 4, 8, 12, 12, 12]


def test_an_interrupted_run_resumes_to_the_same_bits(finished, tiny_store, tmp_path):
    run_dir = tmp_path / "run"
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(
        Interrupted, match=r"stopped by SIGINT at step [0-9]+ of 12, which is saved; go on with --resume"
    ):
        train(tiny_config(tiny_store), run_dir, listener=_interrupt_at(2))
    assert not (run_dir / "result.json").exists()
    assert signal.getsignal(signal.SIGINT) is before
    said: list[str] = []
    result = train(tiny_config(tiny_store), run_dir, resume="must", say=said.append)
    assert "goes on from its checkpoint at step" in said[-1]
    assert result["parameters_sha256"] == read_json(finished / "result.json")["parameters_sha256"]
    assert result["loss"] == read_json(finished / "result.json")["loss"]
    assert metrics_without_timing(run_dir) == metrics_without_timing(finished)
    assert _events(run_dir)[:1] == ["start"]
    assert {"interrupt", "resume", "finish"} <= set(_events(run_dir))


def test_going_back_to_a_checkpoint_repeats_the_same_bits(copy, finished, tiny_store):
    before = read_json(copy / "result.json")
    result = train(tiny_config(tiny_store), copy, resume="must", from_step=8)
    assert result["parameters_sha256"] == before["parameters_sha256"]
    assert metrics_without_timing(copy) == metrics_without_timing(finished)


def test_a_run_killed_before_its_first_checkpoint_starts_over(copy, finished, tiny_store):
    # What a kill at step 3 leaves: the lines so far, and no checkpoint in the record.
    lines = (copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    shutil.rmtree(copy / "checkpoints")
    (copy / "result.json").unlink()
    said: list[str] = []
    train(tiny_config(tiny_store), copy, resume="must", say=said.append)
    assert "the start (it has no checkpoint yet)" in said[-1]
    assert metrics_without_timing(copy) == metrics_without_timing(finished)


def test_a_finished_run_is_returned_as_it_is(finished, tiny_store):
    before = (finished / "events.jsonl").read_bytes()
    assert train(tiny_config(tiny_store), finished, resume="auto") == read_json(finished / "result.json")
    assert (finished / "events.jsonl").read_bytes() == before


def test_auto_starts_where_there_is_nothing(tiny_store, tmp_path, finished):
    said: list[str] = []
    result = train(tiny_config(tiny_store), tmp_path / "new", resume="auto", say=said.append)
    assert "holds no run yet: starting one" in said[0]
    assert result["parameters_sha256"] == read_json(finished / "result.json")["parameters_sha256"]


def test_never_refuses_a_run_and_must_refuses_none(finished, tiny_store, tmp_path):
    with pytest.raises(CheckpointError, match="holds a run already; go on with --resume"):
        train(tiny_config(tiny_store), finished)
    with pytest.raises(CheckpointError, match="holds no run to resume; leave out --resume"):
        train(tiny_config(tiny_store), tmp_path / "none", resume="must")
    assert not (tmp_path / "none").exists()


def test_another_directory_of_the_users_is_left_alone(tiny_store, tmp_path):
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        train(tiny_config(tiny_store), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_resume_with_a_changed_configuration_says_what_differs(finished, tiny_store):
    changed = tiny_config(tiny_store, optimizer=OptimizerConfig(learning_rate=0.02), seed=5)
    with pytest.raises(
        CheckpointError, match=r"optimizer.learning_rate: 0.01 -> 0.02; seed: 0 -> 5\); resume with the same"
    ):
        train(changed, finished, resume="must")


def test_a_run_from_before_a_setting_was_there_goes_on_with_its_default(finished, tiny_store, tmp_path):
    copy = tmp_path / "older"
    shutil.copytree(finished, copy)
    run = read_json(copy / "run.json")
    del run["config"]["model"]["block"], run["config"]["guard"]
    write_json(copy / "run.json", run)
    assert train(tiny_config(tiny_store), copy, resume="must") == read_json(finished / "result.json")
    serial = replace(tiny_config(tiny_store).model, block="serial")
    with pytest.raises(CheckpointError, match=r"model.block: 'parallel' -> 'serial'"):
        train(tiny_config(tiny_store, model=serial), copy, resume="must")


def test_a_resume_on_another_store_is_refused_and_a_moved_one_is_not(finished, tiny_store, tmp_path):
    moved = shutil.copytree(tiny_store, tmp_path / "moved")
    assert train(tiny_config(moved), finished, resume="must") == read_json(finished / "result.json")
    other = build_tiny_store(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match="token store with other contents"):
        train(tiny_config(other), finished, resume="must")


def test_another_environment_is_said(copy, tiny_store):
    run = read_json(copy / "run.json")
    run["versions"]["jaxlib"] = "0.0.1"
    (copy / "run.json").write_text(json.dumps(run))
    said: list[str] = []
    train(tiny_config(tiny_store), copy, resume="must", say=said.append)
    assert "bits may differ: versions jaxlib: '0.0.1' ->" in said[0]


def test_divergence_without_the_guard_stops_and_leaves_the_last_good_checkpoint(tiny_store, tmp_path):
    # Far too large a rate after a constant warm-up that is harmless: the parameters overflow after the first save.
    run_dir = tmp_path / "run"
    config = tiny_config(
        tiny_store,
        optimizer=OptimizerConfig(learning_rate=1e18),
        schedule=ScheduleConfig(name="cosine", warmup_tokens=0),
        checkpoint=CheckpointConfig(every_steps=1),
        guard=GuardConfig(enabled=False),
    )
    with pytest.raises(TrainingError, match=r"at step \d+ the loss is .*diverged .*lower optimizer.learning_rate"):
        train(config, run_dir)
    assert not (run_dir / "result.json").exists()
    rows = read_metrics(run_dir)
    assert rows[-1]["grad_norm"] is None or rows[-1]["loss"] is None or rows[-1]["param_norm"] is None
    assert all(None not in r.values() or r["mfu"] is None for r in rows[:-1])
    recorded = [c["step"] for c in read_json(run_dir / "checkpoints" / "record.json")["checkpoints"]]
    assert all(step < rows[-1]["step"] for step in recorded)
    assert "not_finite" in _events(run_dir)


def test_progress_counts_to_the_end(tiny_store, tmp_path):
    heard = []
    train(tiny_config(tiny_store), tmp_path / "run", listener=heard.append)
    assert [p.step for p in heard] == list(range(1, 13))
    assert heard[-1].seconds_left == 0
    assert heard[-1].tokens == heard[-1].total_tokens == 768


def test_a_ramp_and_evaluation_on_the_way(tiny_store, tmp_path):
    config = tiny_config(
        tiny_store,
        tokens=600,
        batch=BatchConfig(((0, 2), (100, 4), (300, 8))),
        evaluation=EvalConfig(every_tokens=200, max_tokens=64, batch=4),
        checkpoint=CheckpointConfig(every_steps=1000),
    )
    train(config, tmp_path / "run")
    rows = read_metrics(tmp_path / "run")
    assert [r["batch"] for r in rows] == [2, 2, 2, 2, 4, 4, 4, 8, 8, 8]
    assert [r["tokens"] for r in rows] == list(np.cumsum([16 * r["batch"] for r in rows]))
    events = list(read_jsonl(tmp_path / "run" / "events.jsonl"))
    evaluated = [e["tokens"] for e in events if e["event"] == "evaluate"]
    assert [t // 200 for t in evaluated] == [1, 2, 3]
    assert [r["step"] for r in rows if not r["steady"]] == [1, 7, 9]  # the first, and those after an evaluation
    assert [e["step"] for e in events if e["event"] == "save"] == [len(rows)]  # none on the way, one at the end


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        (
            {"batch": BatchConfig(((0, 5000),)), "tokens": 10**7},
            DataError,
            "a batch of 5000 sequences of 16 tokens is larger",
        ),
        ({"data": {"context": 100_000}, "tokens": 10**7}, DataError, "fewer than one window"),
        ({"data": {"context": 0}}, ConfigError, "data.context is 0"),
        ({"data": {"weights": (("novels", 1.0),)}}, ConfigError, "'novels'"),
        ({"model": ModelConfig(300, 16, 2, 3)}, ConfigError, "d_model 16 is not divisible by n_heads 3"),
        ({"model": ModelConfig(299, 16, 2, 2)}, ConfigError, "model.vocab_size is 299 but the tokenizer"),
        ({"tokens": 10}, ConfigError, "tokens is 10, less than one batch"),
        ({"optimizer": OptimizerConfig(name="adam")}, ConfigError, "needs optimizer.beta2"),
        ({"optimizer": OptimizerConfig(clip_norm=-1.0)}, ConfigError, "clip_norm is -1"),
        ({"checkpoint": CheckpointConfig(keep_last=0)}, ConfigError, "checkpoint.keep_last is 0"),
        ({"evaluation": EvalConfig(batch=0)}, ConfigError, "evaluation.batch is 0"),
        ({"threads": 999}, ConfigError, "999"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(tiny_store, tmp_path, changes, error, says):
    config = tiny_config(tiny_store, **{k: v for k, v in changes.items() if k != "data"})
    config = replace(config, data=replace(config.data, **changes.get("data", {})))
    with pytest.raises(error, match=says):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_store_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match="there is no token store"):
        train(tiny_config(tmp_path / "store"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_store_without_held_out_text_is_refused_before_anything_is_written(tmp_path):
    store = build_tiny_store(tmp_path / "data", heldout_fraction=0.0)
    with pytest.raises(DataError, match="has no held-out text"):
        train(tiny_config(store), tmp_path / "run")
    assert not (tmp_path / "run").exists()
