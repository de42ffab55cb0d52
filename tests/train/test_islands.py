"""Training over islands: the same bits on any number of them, and what can't be trained so."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.cli.main import main
from areca.config import BatchConfig, GuardConfig, IslandsConfig, ParallelConfig, PipelineConfig, to_dict
from areca.errors import CheckpointError, ConfigError, TrainingError
from areca.files import read_json
from areca.model.layout import Layout
from areca.pathways.future import Future
from areca.train.islands.over import OverIslands
from areca.train.islands.values import compare
from areca.train.loop import train
from areca.train.record import read_metrics
from areca.train.step import abstract_state, first_state
from areca.train.together import check_alike
from tiny import tiny_config

NUMBERS = ("loss", "z_loss", "grad_norm", "update_norm", "param_norm")


def numbers(run_dir):
    return [[row[k] for k in NUMBERS] for row in read_metrics(run_dir)]


@pytest.fixture(scope="module")
def one(tiny_store, tmp_path_factory):
    """A run of two shards on one island."""
    place = tmp_path_factory.mktemp("islands") / "one"
    return place, train(tiny_config(tiny_store, islands=IslandsConfig(1, 2)), place)


def test_two_islands_have_the_bits_of_one(one, tiny_store, tmp_path):
    """DESIGN's contracts 2 and 3: who computes a shard leaves no trace."""
    place, result = one
    two = train(tiny_config(tiny_store, islands=IslandsConfig(2, 2, digest_every=4)), tmp_path / "two")
    assert two["parameters_sha256"] == result["parameters_sha256"]
    assert numbers(tmp_path / "two") == numbers(place)
    # And it is the training that one program does, up to rounding.
    whole = train(tiny_config(tiny_store), tmp_path / "whole")
    assert two["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    np.testing.assert_allclose(numbers(tmp_path / "two"), numbers(tmp_path / "whole"), rtol=2e-5)


def test_two_islands_of_a_mesh_and_a_rounded_wire_have_the_bits_of_one(tiny_store, tmp_path):
    settings = {"parallel": ParallelConfig(2, 2, "block"), "tokens": 6 * 4 * 16}
    found = [
        train(tiny_config(tiny_store, islands=IslandsConfig(n, 2, wire="bfloat16"), **settings), tmp_path / str(n))
        for n in (1, 2)
    ]
    assert found[0]["parameters_sha256"] == found[1]["parameters_sha256"]
    exact = train(tiny_config(tiny_store, islands=IslandsConfig(2, 2), **settings), tmp_path / "exact")
    assert exact["parameters_sha256"] != found[0]["parameters_sha256"]
    assert exact["loss"] == pytest.approx(found[0]["loss"], rel=1e-3)


def test_a_run_goes_on_with_the_same_bits_on_another_number_of_islands(one, tiny_store, tmp_path):
    """Stopped after half on two islands, it goes on on one."""
    config, place = tiny_config(tiny_store, islands=IslandsConfig(2, 2)), tmp_path / "run"

    class Enough(Exception):
        pass

    def stop(progress):
        if progress.step == 6:
            raise Enough

    with pytest.raises(Enough):
        train(config, place, listener=stop)
    said: list[str] = []
    result = train(replace(config, islands=IslandsConfig(1, 2)), place, resume="must", say=said.append)
    assert result["parameters_sha256"] == one[1]["parameters_sha256"]
    assert numbers(place) == numbers(one[0])
    assert any("same numbers on other islands: islands.count: 2 -> 1" in s for s in said)
    with pytest.raises(CheckpointError, match=r"another configuration \(islands.shards: 2 -> 4\)"):
        train(replace(config, islands=IslandsConfig(1, 4)), place, resume="must")


def test_a_resumed_run_keeps_the_shards_that_its_first_islands_gave_it(one, tiny_store, tmp_path):
    """`--resume --islands 1` after `--islands 2`: nobody has said how many shards there are."""
    config = tiny_config(tiny_store, islands=IslandsConfig(2))
    place = tmp_path / "run"

    def stop(progress):
        if progress.step == 6:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        train(config, place, listener=stop)
    result = train(replace(config, islands=IslandsConfig(1)), place, resume="auto")
    assert result["parameters_sha256"] == one[1]["parameters_sha256"]


def test_a_batch_that_grows_is_cut_into_as_many_shards(tiny_store, tmp_path):
    ramp = BatchConfig(ramp=((0, 2), (4 * 2 * 16, 4)))
    found = [
        train(tiny_config(tiny_store, batch=ramp, tokens=320, islands=IslandsConfig(n, 2)), tmp_path / str(n))
        for n in (1, 2)
    ]
    assert found[0]["parameters_sha256"] == found[1]["parameters_sha256"]
    assert {row["batch"] for row in read_metrics(tmp_path / "2")} == {2, 4}


def test_islands_that_differ_stop_the_run(tiny_store):
    config = tiny_config(tiny_store, islands=IslandsConfig(2, 2, segments=1, digest_every=2))
    config = replace(config, parallel=ParallelConfig(1, 1, "block"))
    layout = Layout(1, 1, "block")
    over = OverIslands(config, abstract_state(config.model, config.optimizer), layout)
    try:
        step = over.program(4, 16)
        state = over.place(first_state(config.model, config.optimizer, 0, layout))
        tokens = np.arange(4 * 17, dtype=np.int32).reshape(4, 17)
        for _ in range(2):
            state, metrics = step(state, tokens, 0.01)
            assert np.isfinite(np.asarray(metrics)).all()
        # One bit of one parameter on the second island.
        params = state.futures[0]
        other = params.arrays(over.islands[1])
        bits = jax.lax.bitcast_convert_type(other[0], jnp.uint32)
        other[0] = jax.lax.bitcast_convert_type(bits.at[3, 5].set(bits[3, 5] ^ 1), jnp.float32)
        assert isinstance(params, Future)
        with pytest.raises(
            TrainingError, match=r"different parameters \(island 0 [0-9a-f]{16}, island 1 [0-9a-f]{16}\)"
        ):
            compare(over.client.call(over.digest, params))
        state, metrics = step(state, tokens, 0.01)
        np.asarray(metrics)  # step 3 does not compare
        _, metrics = step(state, tokens, 0.01)
        with pytest.raises(TrainingError, match="the islands have different parameters"):
            np.asarray(metrics)
    finally:
        over.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"islands": IslandsConfig(3, 2)}, "islands.shards is 2 and there are 3 islands"),
        ({"islands": IslandsConfig(0)}, "islands.count is 0; it must be at least 1"),
        ({"islands": IslandsConfig(2, 3)}, "islands.shards is 3, which does not cut a batch of 4 sequences"),
        ({"islands": IslandsConfig(2, 2, segments=3)}, "segments is 3 and the model has 2 layers"),
        ({"islands": IslandsConfig(2, 2, digest_every=0)}, "islands.digest_every is 0"),
        ({"islands": IslandsConfig(9, 9)}, "9 islands of 1 x 1 devices need 9 and there are 8"),
        ({"islands": IslandsConfig(2, 2), "noise_parts": 2}, "the gradient noise scale is not measured over islands"),
        ({"islands": IslandsConfig(2, 2), "parallel": ParallelConfig(1, 1, "selective")}, "remat is 'selective'"),
    ],
)
def test_what_cannot_be_trained_over_islands(tiny_store, tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        train(tiny_config(tiny_store, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_several_runs_of_one_program_are_on_one_island(tiny_store):
    config = tiny_config(tiny_store, islands=IslandsConfig(2, 2), guard=GuardConfig(enabled=False))
    with pytest.raises(ConfigError, match="islands asks for 2 of them and 2 shards, but several runs in one program"):
        check_alike([config, replace(config, seed=1)])
    config = replace(config, islands=IslandsConfig(), pipeline=PipelineConfig(2, 4))
    with pytest.raises(ConfigError, match="pipeline asks for 4 microbatches on 2 stages, but several"):
        check_alike([config, replace(config, seed=1)])


def test_the_command_line_trains_over_islands(tiny_store, tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(to_dict(tiny_config(tiny_store, tokens=4 * 4 * 16))))
    argv = ["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "run")]
    assert main([*argv, "--islands", "0"]) == 2
    assert "islands.count is 0; it must be at least 1" in capsys.readouterr().err
    assert main([*argv, "--islands", "2"]) == 0
    said = read_json(tmp_path / "run" / "run.json")["config"]
    chosen = {"count": 2, "shards": 2, "segments": 2, "wire": "float32", "digest_every": 50, "on": "devices"}
    assert said["islands"].items() >= chosen.items()
    assert said["parallel"]["remat"] == "block"


def test_lengths_of_segments_are_part_of_a_run_and_the_same_to_rounding(tiny_store, tmp_path):
    config = tiny_config(tiny_store, islands=IslandsConfig(2, 2, lengths=(1, 1)), tokens=4 * 4 * 16)
    train(config, tmp_path / "run")
    said = read_json(tmp_path / "run" / "run.json")["config"]["islands"]
    assert (said["segments"], said["lengths"]) == (2, [1, 1])
    with pytest.raises(CheckpointError, match=r"islands.lengths: \[1, 1\] -> \[2\]"):
        train(replace(config, islands=IslandsConfig(2, 2, lengths=(2,))), tmp_path / "run", resume="must")
    with pytest.raises(ConfigError, match=r"segments is 1 and islands.lengths has 2 segments, \[1, 1\]; leave one"):
        train(replace(config, islands=IslandsConfig(2, 2, segments=1, lengths=(1, 1))), tmp_path / "other")
    # What is not said is as it was begun.
    train(replace(config, islands=IslandsConfig(1)), tmp_path / "run", resume="must")
    with pytest.raises(ConfigError, match=r"islands.lengths is \[2, 1\], for 2 segments of a model of 2 layers"):
        train(replace(config, islands=IslandsConfig(2, 2, lengths=(2, 1))), tmp_path / "other")
    assert not (tmp_path / "other").exists()
