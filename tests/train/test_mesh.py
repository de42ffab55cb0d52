"""Runs on a mesh: the loop, checkpoints and evaluation on several devices, and from one mesh to another."""

import json
from dataclasses import replace

import numpy as np
import pytest

from areca.config import ParallelConfig
from areca.errors import ConfigError, Interrupted
from areca.files import read_json
from areca.train.loop import train
from areca.train.restore import load_model
from tiny import tiny_config


def _config(store, data, model, remat="block"):
    return tiny_config(store, parallel=ParallelConfig(data, model, remat))


def _losses(run_dir):
    return [json.loads(line)["loss"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def on_eight(tiny_store, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("mesh") / "run"
    return run_dir, train(_config(tiny_store, 4, 2), run_dir)


def test_a_run_on_a_mesh_follows_the_run_on_one_device(on_eight, tiny_run):
    run_dir, result = on_eight
    np.testing.assert_allclose(_losses(run_dir), _losses(tiny_run), rtol=1e-4)
    assert result["loss"] == pytest.approx(read_json(tiny_run / "result.json")["loss"], rel=1e-4)
    assert read_json(run_dir / "run.json")["config"]["parallel"] == {"data": 4, "model": 2, "remat": "block"}
    assert result["hfu"] > result["mfu"]  # the blocks are computed again


def test_a_run_on_a_mesh_repeats_to_the_bit(on_eight, tiny_store, tmp_path):
    again = train(_config(tiny_store, 4, 2), tmp_path / "again")
    assert again["parameters_sha256"] == on_eight[1]["parameters_sha256"]


def _stopped(config, run_dir, monkeypatch):
    """A run stopped by its own listener in mid-way, as by a signal."""

    def stop(progress):
        if progress.step == 6:
            raise Interrupted("stopped for the test")

    with pytest.raises(Interrupted):
        train(config, run_dir, listener=stop)


def test_a_run_resumed_on_its_mesh_has_the_bits_of_one_that_never_stopped(on_eight, tiny_store, tmp_path, monkeypatch):
    config = _config(tiny_store, 4, 2)
    _stopped(config, tmp_path / "run", monkeypatch)
    resumed = train(config, tmp_path / "run", resume="must")
    assert resumed["parameters_sha256"] == on_eight[1]["parameters_sha256"]
    assert _losses(tmp_path / "run") == _losses(on_eight[0])


def test_a_run_goes_on_on_another_mesh_and_says_that_its_bits_may_differ(on_eight, tiny_store, tmp_path, monkeypatch):
    config = _config(tiny_store, 4, 2)
    _stopped(config, tmp_path / "run", monkeypatch)
    said = []
    other = replace(config, parallel=ParallelConfig(2, 1, "none"))
    result = train(other, tmp_path / "run", resume="must", say=said.append)
    assert any("its bits may differ" in line and "parallel.data: 4 -> 2" in line for line in said)
    np.testing.assert_allclose(_losses(tmp_path / "run"), _losses(on_eight[0]), rtol=1e-4)
    assert result["loss"] == pytest.approx(on_eight[1]["loss"], rel=1e-4)


def test_a_model_trained_on_a_mesh_loads_on_one_device(on_eight):
    model = load_model(on_eight[0])
    assert {len(leaf.devices()) for leaf in _leaves(model)} == {1}


def _leaves(model):
    import jax

    return [leaf for leaf in jax.tree.leaves(model.params) if hasattr(leaf, "devices")]


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        (ParallelConfig(3, 1), "d_model 16 is not divisible by 3"),
        (ParallelConfig(8, 1), "batch.ramp is 4 sequences, which the mesh's data axis of 8"),
        (ParallelConfig(1, 4), "n_heads 2 is not divisible by 4"),
        (ParallelConfig(0, 1), "the mesh is 0 x 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused_before_anything_is_written(parallel, words, tiny_store, tmp_path):
    with pytest.raises(ConfigError) as caught:
        train(tiny_config(tiny_store, parallel=parallel), tmp_path / "run")
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_more_devices_than_there_are_is_refused(tiny_store, tmp_path):
    config = tiny_config(tiny_store, parallel=ParallelConfig(16, 1))
    config = replace(config, batch=replace(config.batch, ramp=((0, 16),)))
    config = replace(config, evaluation=replace(config.evaluation, batch=16))
    with pytest.raises(ConfigError, match="needs 16 devices and there are 8"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
