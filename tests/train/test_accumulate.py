"""Gradients of the parts of a batch, one after another: nothing changes but memory."""

from dataclasses import replace

import numpy as np
import pytest

from areca.config import (
    BatchConfig,
    GuardConfig,
    IslandsConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PipelineConfig,
)
from areca.errors import ConfigError
from areca.files import read_jsonl
from areca.train.loop import train
from areca.train.step import abstract_state, compile_step
from tiny import tiny_config


@pytest.mark.parametrize(
    "parallel",
    [pytest.param(ParallelConfig(), marks=pytest.mark.exhaustive), ParallelConfig(2, 2)],
    ids=["one device", "2 x 2"],
)
def test_a_run_in_parts_is_the_run(tiny_store, tmp_path, parallel):
    config = tiny_config(tiny_store, parallel=parallel, tokens=4 * 8 * 16, batch=BatchConfig(((0, 8),)))
    for parts in (1, 4):
        made = replace(config, batch=replace(config.batch, accumulate=parts))
        train(made, tmp_path / f"{parts}")
    rows = {p: list(read_jsonl(tmp_path / f"{p}" / "metrics.jsonl")) for p in (1, 4)}
    for name in ("loss", "grad_norm", "update_norm"):
        np.testing.assert_allclose([r[name] for r in rows[4]], [r[name] for r in rows[1]], rtol=2e-5)
    assert [r["loss"] for r in rows[4]] != [r["loss"] for r in rows[1]] or parallel.data > 1


def test_it_needs_less_memory():
    model, optimizer = ModelConfig(256, 32, 2, 2).resolved(), OptimizerConfig()
    state = abstract_state(model, optimizer)
    temporary = [
        compile_step(model, optimizer, state, 64, 128, accumulate=parts).memory_analysis().temp_size_in_bytes
        for parts in (1, 8)
    ]
    assert temporary[1] < temporary[0] / 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": BatchConfig(((0, 8),), accumulate=0)}, "batch.accumulate is 0; it must be at least 1"),
        (
            {"batch": BatchConfig(((0, 8),), accumulate=3)},
            "is 3, which does not cut a batch of 8 sequences into",
        ),
        (
            {"batch": BatchConfig(((0, 8), (128, 12)), accumulate=4), "parallel": ParallelConfig(2, 1)},
            "is 4, which does not cut a batch of 12 sequences on 2 devices",
        ),
        ({"batch": BatchConfig(((0, 8),), accumulate=2), "noise_parts": 4}, "accumulate is 2 and noise_parts 4"),
        ({"batch": BatchConfig(((0, 8),), accumulate=2), "islands": IslandsConfig(2, 2)}, "choose more islands.shards"),
        (
            {"batch": BatchConfig(((0, 8),), accumulate=2), "pipeline": PipelineConfig(2, 4)},
            "choose more pipeline.microbatches",
        ),
    ],
)
def test_parts_that_can_not_be_are_refused(tiny_store, tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        train(tiny_config(tiny_store, guard=GuardConfig(enabled=False), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
