"""Contract 1 with everything on at once: a run stopped and killed at arbitrary steps has the bits of one that was not.

Each case has a batch ramp, a mixture and a stretch of noise that takes the run back past some batches; the cases differ
in mesh, rematerialization and optimizer. (Kills by the system, at any instant rather than between steps, are in
test_kill and benchmarks/kill.py.)
"""

import random
import signal
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from areca.config import (
    BatchConfig,
    CheckpointConfig,
    DataConfig,
    GuardConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
    ScheduleConfig,
)
from areca.errors import Interrupted
from areca.files import read_json, read_jsonl
from areca.train.loop import train
from areca.train.record import metrics_without_timing
from tiny import poisoned, saved_state, tiny_config

CONTEXT, SMALL, LARGE = 16, 4, 8  # sequences a step, before and after step 48
RAMP = 48 * SMALL
POISON = range(RAMP - 2 * SMALL, RAMP + 6 * LARGE)  # examples: the last two steps of the small batch, six of the large
STEPS = 80

CASES = [
    pytest.param(
        ParallelConfig(1, 1, "none"),
        OptimizerConfig(learning_rate=0.1),
        id="1x1-none-adafactor",
        marks=pytest.mark.exhaustive,
    ),
    pytest.param(
        ParallelConfig(2, 2, "selective"),
        OptimizerConfig(learning_rate=0.1),
        id="2x2-selective-adafactor",
        marks=pytest.mark.exhaustive,
    ),
    pytest.param(
        ParallelConfig(4, 2, "block"),
        OptimizerConfig("adam", learning_rate=0.05, beta2=0.95, weight_decay=0.01),
        id="4x2-block-adam",
        marks=pytest.mark.slow,
    ),
]


class Killed(BaseException):
    """Stands for a kill between two steps: nothing is saved because of it."""


def _config(store: Path, parallel: ParallelConfig, optimizer: OptimizerConfig) -> RunConfig:
    return tiny_config(
        store,
        model=ModelConfig(vocab_size=300, d_model=16, n_layers=1, n_heads=2, d_ff=32),
        data=DataConfig(str(store), context=CONTEXT, weights=(("big", 0.7), ("small", 0.3))),
        tokens=(RAMP + (STEPS - 48) * LARGE) * CONTEXT,
        optimizer=optimizer,
        schedule=ScheduleConfig(warmup_tokens=10 * SMALL * CONTEXT),
        batch=BatchConfig(((0, SMALL), (RAMP * CONTEXT, LARGE))),
        checkpoint=CheckpointConfig(every_steps=9),
        guard=GuardConfig(window=24, min_steps=16, rewind_steps=8, skip_batches=25, max_rewinds=3),
        parallel=parallel,
    )


@pytest.fixture(scope="module")
def store(tiny_store, tmp_path_factory) -> Path:
    data = _config(tiny_store, ParallelConfig(), OptimizerConfig()).data
    return poisoned(tiny_store, tmp_path_factory.mktemp("poisoned") / "store", data, POISON)


@pytest.mark.parametrize(("parallel", "optimizer"), CASES)
def test_a_run_stopped_and_killed_at_arbitrary_steps_has_the_bits_of_one_that_was_not(
    store, tmp_path, parallel, optimizer
):
    config = _config(store, parallel, optimizer)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = train(config, whole)
    assert expected["rewinds"] == 1
    assert {row["batch"] for row in metrics_without_timing(whole)} == {SMALL, LARGE}

    choose = random.Random(f"{parallel} {optimizer.name}")
    # Before the spike, in the stretch that finds it and is gone over again, and on the way to the end.
    for stop, among in (("kill", (5, 44)), ("SIGTERM", (46, 52)), ("kill", (53, 79))):
        at = [choose.randint(*among)]

        def listen(progress, stop=stop, at=at):
            if at and progress.step >= at[0]:
                at.clear()  # a second signal would act as usual
                if stop == "kill":
                    raise Killed
                signal.raise_signal(signal.SIGTERM)

        with pytest.raises((Killed, Interrupted)):
            train(config, broken, resume="auto", listener=listen)
    result = train(config, broken, resume="must")

    assert metrics_without_timing(broken) == metrics_without_timing(whole)
    assert read_json(broken / "rewinds.json") == read_json(whole / "rewinds.json")
    for what in ("parameters_sha256", "loss", "loss_by_corpus", "skipped_tokens"):
        assert result[what] == expected[what]
    ours, theirs = (jax.tree.leaves(saved_state(run, config)) for run in (broken, whole))
    assert len(ours) > len(jax.tree.leaves(saved_state(whole, config).params)) * 2  # the optimizer's are among them
    assert [np.asarray(x).tobytes() for x in ours] == [np.asarray(x).tobytes() for x in theirs]
    assert len([e for e in read_jsonl(broken / "events.jsonl") if e["event"] == "resume"]) == 3


def test_the_order_of_kills_is_not_what_makes_them_equal(store, tmp_path):
    # The comparison can fail: another seed of the data's order is another run.
    config = _config(store, ParallelConfig(), OptimizerConfig(learning_rate=0.1))
    config = replace(config, tokens=20 * SMALL * CONTEXT, batch=BatchConfig(((0, SMALL),)))
    train(config, tmp_path / "a")
    train(replace(config, data=replace(config.data, seed=1)), tmp_path / "b")
    assert metrics_without_timing(tmp_path / "a") != metrics_without_timing(tmp_path / "b")
