"""Training over the stages of a pipeline: the same bits on any number of them, and what can't be trained so."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from areca.cli.main import main
from areca.config import (
    BatchConfig,
    DataConfig,
    IslandsConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PipelineConfig,
    RunConfig,
    to_dict,
)
from areca.errors import CheckpointError, ConfigError, TrainingError
from areca.files import read_json
from areca.pathways.program import Program
from areca.pathways.seeing.replay import replay, steps_of
from areca.train.identity import parameters_sha256, with_pipeline
from areca.train.loop import train
from areca.train.pipeline.run import OverStages
from areca.train.record import read_metrics
from areca.train.step import abstract_state, first_state, train_step
from tiny import tiny_config

MODEL = ModelConfig(vocab_size=300, d_model=16, n_layers=4, n_heads=2, d_ff=32)
GPT = replace(
    MODEL, block="serial", n_kv_heads=2, mlp="gelu", positions="learned", n_positions=16, tied=False, biases=True
)
ADAM = OptimizerConfig(name="adam", learning_rate=1e-3, beta2=0.95, weight_decay=0.1)
NUMBERS = ("loss", "z_loss", "grad_norm", "update_norm", "param_norm")
TOKENS = np.random.default_rng(0).integers(0, 300, (3, 8, 17)).astype(np.int32)


def config_of(model, pipeline, **changes) -> RunConfig:
    return with_pipeline(RunConfig(model.resolved(), DataConfig("", 16), 1, pipeline=pipeline, **changes))


def trained(config, look=lambda over, state: None):
    """Three steps: (SHA-256 of the parameters, the numbers of each step, what `look` says of the last state)."""
    over = OverStages(config, abstract_state(config.model, config.optimizer))
    try:
        step, found = over.program(8, 16), []
        state = over.place(first_state(config.model, config.optimizer, 0))
        for tokens in TOKENS:
            state, metrics = step(state, tokens, config.optimizer.learning_rate)
            found.append(np.asarray(metrics).tolist())
        assert int(state.local().step) == 3
        return parameters_sha256(state.params), found, look(over, state)
    finally:
        over.close()


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [(MODEL, OptimizerConfig()), pytest.param(GPT, ADAM, marks=pytest.mark.exhaustive)],
    ids=["tied", "untied"],
)
def test_any_number_of_stages_and_either_schedule_have_the_bits_of_one_stage(model, optimizer):
    one = trained(config_of(model, PipelineConfig(1, 4), optimizer=optimizer))
    for stages, schedule in ((2, "1f1b"), (2, "gpipe"), (4, "1f1b"), (4, "gpipe")):
        assert trained(config_of(model, PipelineConfig(stages, 4, schedule), optimizer=optimizer)) == one
    # And it is the training that one program does, up to rounding.
    state = first_state(model, optimizer, 0)
    step = jax.jit(lambda s, t: train_step(model, optimizer, s, t, jnp.float32(optimizer.learning_rate)))
    for tokens, numbers in zip(TOKENS, one[1], strict=True):
        state, metrics = step(state, tokens)
        np.testing.assert_allclose(numbers, metrics, rtol=2e-5)


def test_layers_of_a_program_and_microbatches_are_part_of_the_numbers():
    one, two = (trained(config_of(MODEL, PipelineConfig(stages, 4, "gpipe", layers=2))) for stages in (1, 2))
    assert one == two
    other = trained(config_of(MODEL, PipelineConfig(1, 2)))
    assert other[0] != trained(config_of(MODEL, PipelineConfig(1, 4)))[0]
    np.testing.assert_allclose(other[1], one[1], rtol=2e-5)


def test_stages_of_a_mesh_have_the_bits_of_one_stage_of_that_mesh():
    found = [trained(config_of(MODEL, PipelineConfig(s, 4), parallel=ParallelConfig(2, 2))) for s in (1, 2)]
    assert found[0] == found[1]
    np.testing.assert_allclose(found[0][1], trained(config_of(MODEL, PipelineConfig(1, 4)))[1], rtol=2e-5)


def test_a_stage_holds_its_own_layers_and_both_ends_the_shared_embedding():
    def look(over, state):
        held = {i.name: 0 for i in over.islands}
        for future in (*state.held, *state.moments):
            for island in future.islands:
                held[island.name] += sum(a.size for a in future.arrays(island) if a.ndim)
        return held, over.layers_of

    _, _, (held, layers_of) = trained(config_of(MODEL, PipelineConfig(4, 4)), look)
    # PaLM's block: D H K + 2 D K + H K D + 3 D F + D, three times with Adafactor's two moments.
    layer = 3 * (16 * 16 + 2 * 16 * 8 + 16 * 16 + 3 * 16 * 32 + 16)
    assert layers_of == [[(s, s + 1)] for s in range(4)]
    assert held == {
        "stage 0": layer + 3 * 300 * 16,
        "stage 1": layer,
        "stage 2": layer,
        "stage 3": layer + 3 * 300 * 16 + 3 * 16,
    }


def test_1f1b_keeps_fewer_activations_than_gpipe(monkeypatch):
    """min(S - s, M) microbatches' layer inputs against M; each is 2 sequences x 16 x 16 float32."""
    monkeypatch.setattr(Program, "compiled", lambda self, island: None)  # the graph is traced and not run
    model, input_of_layer, peaks = replace(MODEL, vocab_size=32), 2 * 16 * 16 * 4, {}
    for schedule in ("1f1b", "gpipe"):
        over = OverStages(config_of(model, PipelineConfig(2, 4, schedule)), abstract_state(model, OptimizerConfig()))
        over.program(8, 16)
        over.close()
        assert [len(layers) for layers in over.layers_of] == [2, 2]
        forward = [s for s in steps_of(over.graphs[8]) if s.name == "forward of a layer"]
        kept = {part.outs[0][0]: input_of_layer for s in forward for part in s.parts}
        seconds = {"forward of a layer": 1.0, "backward of a layer": 3.0}
        peaks[schedule] = replay(over.graphs[8], lambda step, part, s=seconds: s.get(step.name, 0.0), kept).peak
    assert peaks["gpipe"] == {"stage 0": 4 * 2 * input_of_layer, "stage 1": 4 * 2 * input_of_layer}
    assert peaks["1f1b"] == {"stage 0": 2 * 2 * input_of_layer, "stage 1": 2 * input_of_layer}


def test_a_gradient_that_is_not_finite_moves_nothing_on_any_stage():
    config = config_of(MODEL, PipelineConfig(2, 4))
    over = OverStages(config, abstract_state(config.model, config.optimizer))
    try:
        first = first_state(config.model, config.optimizer, 0)
        bad = replace(first.params, norm=first.params.norm.at[3].set(jnp.inf))
        before = parameters_sha256(bad)
        state, metrics = over.program(8, 16)(over.place(replace(first, params=bad)), TOKENS[0], 1e-2)
        numbers = dict(zip(NUMBERS, np.asarray(metrics).tolist(), strict=True))
        assert not np.isfinite(numbers["grad_norm"])
        assert numbers["update_norm"] == 0
        assert parameters_sha256(state.params) == before
        after = state.local()
        assert int(after.step) == 0
        assert all(not np.any(a) for a in jax.tree.leaves(after.optimizer))
    finally:
        over.close()


def test_shared_embeddings_that_differ_stop_the_run():
    config = config_of(MODEL, PipelineConfig(2, 4), islands=IslandsConfig(digest_every=2))
    over = OverStages(config, abstract_state(config.model, config.optimizer))
    try:
        step = over.program(8, 16)
        state = over.place(first_state(config.model, config.optimizer, 0))
        for tokens in TOKENS[:2]:
            state, metrics = step(state, tokens, 1e-2)
            assert np.isfinite(np.asarray(metrics)).all()
        other = state.held[0].arrays(over.islands[1])
        other[0] = other[0].at[3, 5].add(1e-3)
        state, metrics = step(state, TOKENS[0], 1e-2)
        np.asarray(metrics)  # step 3 does not compare
        _, metrics = step(state, TOKENS[1], 1e-2)
        with pytest.raises(TrainingError, match=r"different parameters \(stage 0 [0-9a-f]{16}, stage 1 [0-9a-f]{16}\)"):
            np.asarray(metrics)
    finally:
        over.close()


def test_a_run_goes_on_with_the_same_bits_on_another_number_of_stages(tiny_store, tmp_path):
    """Stopped after half on two stages, it goes on on one with the other schedule; its batch grows on the way."""
    ramp = BatchConfig(ramp=((0, 4), (8 * 4 * 16, 8)))
    config = tiny_config(tiny_store, batch=ramp, pipeline=PipelineConfig(2, 4))
    whole = train(replace(config, pipeline=PipelineConfig(1, 4)), tmp_path / "one")

    class Enough(Exception):
        pass

    def stop(progress):
        if progress.step == 6:
            raise Enough

    with pytest.raises(Enough):
        train(config, tmp_path / "run", listener=stop)
    said: list[str] = []
    config = replace(config, pipeline=PipelineConfig(1, 4, "gpipe"))
    result = train(config, tmp_path / "run", resume="must", say=said.append)
    assert result["parameters_sha256"] == whole["parameters_sha256"]
    assert result["loss"] == whole["loss"]
    rows = [[[row[k] for k in NUMBERS] for row in read_metrics(tmp_path / name)] for name in ("run", "one")]
    assert rows[0] == rows[1]
    wanted = "same numbers on other stages: pipeline.schedule: '1f1b' -> 'gpipe'; pipeline.stages: 2 -> 1"
    assert any(wanted in s for s in said)
    with pytest.raises(CheckpointError, match=r"another configuration \(pipeline.microbatches: 4 -> 2\)"):
        train(replace(config, pipeline=PipelineConfig(1, 2)), tmp_path / "run", resume="must")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pipeline": PipelineConfig(3, 4)}, "pipeline.stages is 3 and the model has 2 layers"),
        ({"pipeline": PipelineConfig(2, 3)}, "pipeline.microbatches is 3, which does not cut a batch of 4 sequences"),
        ({"pipeline": PipelineConfig(2)}, "pipeline.stages is 2 and pipeline.microbatches is not set"),
        ({"pipeline": PipelineConfig(0, 4)}, "pipeline.stages is 0; it must be at least 1"),
        ({"pipeline": PipelineConfig(2, -1)}, "pipeline.microbatches is -1; it must be at least 0"),
        ({"pipeline": PipelineConfig(2, 4, layers=3)}, "pipeline.layers is 3 and the model has 2 layers"),
        ({"pipeline": PipelineConfig(2, 4, "zb")}, "pipeline.schedule is 'zb'; choose one of '1f1b', 'gpipe'"),
        ({"pipeline": PipelineConfig(2, 4), "islands": IslandsConfig(2)}, "a stage of a pipeline is on one island"),
        ({"pipeline": PipelineConfig(2), "islands": IslandsConfig(2)}, "pipeline.stages is 2 and islands.count is 2"),
        ({"pipeline": PipelineConfig(2, 4), "islands": IslandsConfig(digest_every=0)}, "islands.digest_every is 0"),
        (
            {"pipeline": PipelineConfig(2, 4), "islands": IslandsConfig(2)},
            "count is 2, but .*; set islands.count to 1",
        ),
        (
            {"pipeline": PipelineConfig(2, 4), "islands": IslandsConfig(1, 2)},
            "shards is 2, but .*; set islands.shards",
        ),
        ({"pipeline": PipelineConfig(2, 4), "islands": IslandsConfig(on="processes")}, "islands.on is 'processes' and"),
        ({"pipeline": PipelineConfig(2, 4), "noise_parts": 2}, "noise scale is not measured in a pipeline"),
        ({"pipeline": PipelineConfig(2, 4), "parallel": ParallelConfig(1, 1, "selective")}, "remat is 'selective'"),
        ({"pipeline": PipelineConfig(2, 4), "parallel": ParallelConfig(2, 1)}, "a microbatch of batch.ramp is 1 seq"),
        (
            {"pipeline": PipelineConfig(9, 4), "model": replace(MODEL, n_layers=9)},
            "pipeline.stages is 9, of 1 x 1 devices each, which needs 9 and there are 8",
        ),
    ],
)
def test_what_cannot_be_trained_in_stages(tiny_store, tmp_path, changes, says):
    with pytest.raises(ConfigError, match=says):
        train(tiny_config(tiny_store, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_line_trains_in_stages(tiny_store, tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps(to_dict(tiny_config(tiny_store, tokens=2 * 4 * 16))))
    argv = ["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "run")]
    assert main([*argv, "--stages", "2", "--microbatches", "2", "--schedule", "zb"]) == 2
    assert "pipeline.schedule is 'zb'; choose one of '1f1b', 'gpipe'." in capsys.readouterr().err
    assert main([*argv, "--stages", "2", "--microbatches", "2", "--schedule", "gpipe"]) == 0
    said = read_json(tmp_path / "run" / "run.json")["config"]
    assert said["pipeline"] == {"stages": 2, "microbatches": 2, "schedule": "gpipe", "layers": 1}
    assert said["parallel"]["remat"] == "block"
