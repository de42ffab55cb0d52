"""Runs that start from the parameters of another run or of an imported model."""

import json
import shutil

import jax
import numpy as np
import pytest

from areca.cli.main import main
from areca.config import BatchConfig, GuardConfig, IslandsConfig, PipelineConfig, replace, to_dict
from areca.data.batches import Batches
from areca.data.build import build_store
from areca.data.store import TokenStore
from areca.errors import CheckpointError, ConfigError
from areca.files import read_json, write_table
from areca.interop.huggingface import export_hf, import_hf
from areca.model import decoder
from areca.train.loop import train
from areca.train.record import metrics_without_timing, read_metrics
from areca.train.restore import load_model
from areca.train.together import check_alike
from tiny import tiny_config


@pytest.fixture(scope="module")
def model(tiny_run, tmp_path_factory):
    """The tiny run's last parameters by way of a Hugging Face directory."""
    root = tmp_path_factory.mktemp("model")
    export_hf(tiny_run, root / "hf")
    import_hf(root / "hf", root / "model")
    return root / "model"


@pytest.fixture(scope="module")
def tuned(model, tiny_store, tmp_path_factory):
    """A run that starts from them, and its result."""
    run = tmp_path_factory.mktemp("tuned") / "run"
    return run, train(_config(tiny_store, model), run)


def _config(store, model, **changes):
    return tiny_config(store, init_from=str(model), **changes)


def _first_loss(store, config, params):
    """The loss of the first batch, by the model alone."""
    tokens = Batches(TokenStore.open(store), config.data).get(0, 4)
    return float(np.mean(jax.jit(lambda p, t: decoder.losses(config.model, p, t))(params, tokens)))


def test_the_first_step_sees_the_parameters(tuned, model, tiny_run, tiny_store):
    run, _ = tuned
    rows, before = read_metrics(run), read_metrics(tiny_run)
    expected = _first_loss(tiny_store, tiny_config(tiny_store), load_model(model).params)
    assert rows[0]["loss"] == pytest.approx(expected, rel=1e-6)
    assert abs(rows[0]["loss"] - before[0]["loss"]) > 0.05  # not those of the seed
    start = read_json(run / "run.json")["start"]
    assert (start["path"], start["step"]) == (str(model), 12)


def test_from_the_run_itself_it_is_the_same_run(tuned, tiny_run, tiny_store, tmp_path):
    run, result = tuned
    other = train(_config(tiny_store, tiny_run), tmp_path / "run")
    assert other["parameters_sha256"] == result["parameters_sha256"]
    assert metrics_without_timing(tmp_path / "run") == metrics_without_timing(run)


def test_killed_before_its_first_checkpoint_it_starts_from_them_again(tuned, model, tiny_store, tmp_path):
    run, result = tuned

    class Killed(Exception):
        pass

    def kill(progress):
        if progress.step == 3:
            raise Killed

    config = _config(tiny_store, model)
    with pytest.raises(Killed):
        train(config, tmp_path / "run", listener=kill)
    again = train(config, tmp_path / "run", resume="must")
    assert again["parameters_sha256"] == result["parameters_sha256"]
    assert metrics_without_timing(tmp_path / "run") == metrics_without_timing(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"islands": IslandsConfig(count=2)},
        {"pipeline": PipelineConfig(stages=2, microbatches=2)},
    ],
)
def test_over_islands_and_in_stages(changes, model, tiny_store, tmp_path):
    config = _config(tiny_store, model, tokens=2 * 4 * 16, **changes)
    train(config, tmp_path / "run")
    expected = _first_loss(tiny_store, config, load_model(model).params)
    assert read_metrics(tmp_path / "run")[0]["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_model_is_its_own_where_the_file_has_none(model, tiny_store, tmp_path, capsys):
    values = to_dict(tiny_config(tiny_store, tokens=128))
    del values["model"]
    write_table(tmp_path / "run.json", values)
    out, copy = str(tmp_path / "run"), shutil.copytree(model, tmp_path / "copy")
    command = ["train", str(tmp_path / "run.json"), "--out", out, "--init-from", str(copy), "--json"]
    assert main(command) == 0
    result = capsys.readouterr().out
    shutil.rmtree(copy)
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr().out == result
    assert read_json(tmp_path / "run" / "run.json")["config"]["model"]["d_ff"] == 32
    assert main(["train", str(tmp_path / "run.json"), "--out", out]) == 2
    assert "config.model" not in capsys.readouterr().out
    for place, words in (
        (tmp_path / "none", "neither a run nor an imported model"),
        (model.parent / "hf", "import hf"),
    ):
        argv = ["train", str(tmp_path / "run.json"), "--out", str(tmp_path / "b"), "--init-from", str(place)]
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert not (tmp_path / "b").exists()


def test_another_model_is_refused_before_anything_is_written(model, tiny_store, tmp_path):
    config = _config(tiny_store, model)
    for name, value in (("d_ff", 64), ("rope_theta", 500.0), ("n_kv_heads", 2), ("base_width", 8)):
        wrong = replace(config, model=replace(config.model, **{name: value}))
        with pytest.raises(ConfigError, match=rf"whose model is another \(model\.{name}: "):
            train(wrong, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # Beyond neither base width they are one model.
    train(replace(config, model=replace(config.model, base_width=0), tokens=128), tmp_path / "run")


def test_the_tokens_must_be_the_models(model, tiny_run, tiny_store, tmp_path):
    text = [f"big={tiny_store.parent / 'big'}"]
    build_store(tmp_path / "other", text, vocab_size=290, heldout_fraction=0.2)
    for start in (model, tiny_run):
        with pytest.raises(ConfigError, match=r"whose tokens are not those of .*other; build the store with"):
            train(_config(tmp_path / "other", start), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    build_store(tmp_path / "same", text, tokenizer=model / "tokenizer.json", heldout_fraction=0.2)
    for i, start in enumerate((model, tiny_run)):
        train(_config(tmp_path / "same", start, tokens=128), tmp_path / f"run-{i}")


def test_runs_of_one_program_draw_their_own(model, tiny_store):
    config = _config(tiny_store, model, guard=GuardConfig(enabled=False))
    with pytest.raises(ConfigError, match="init_from is"):
        check_alike([config, replace(config, seed=1)])


def test_a_run_keeps_what_it_began_from(tuned, model, tiny_store, tiny_run, tmp_path):
    run = shutil.copytree(tuned[0], tmp_path / "run")
    config = _config(tiny_store, model)
    assert train(config, run, resume="must") == tuned[1]
    moved = shutil.copytree(model, tmp_path / "moved")
    assert train(_config(tiny_store, moved), run, resume="must") == tuned[1]
    other = tmp_path / "other"
    train(tiny_config(tiny_store, seed=5, tokens=128), other)
    with pytest.raises(CheckpointError, match="was begun from step 12 of"):
        train(_config(tiny_store, other), run, resume="must")
    with pytest.raises(CheckpointError, match="init_from: "):
        train(tiny_config(tiny_store), run, resume="must")
    assert train(_config(tiny_store, tmp_path / "gone"), run, resume="must") == tuned[1]
    # Without it only the way back to the start is gone.
    shutil.rmtree(moved)
    gone = json.loads((run / "run.json").read_text())
    gone["start"]["path"] = gone["config"]["init_from"] = str(moved)
    (run / "run.json").write_text(json.dumps(gone))
    again = train(_config(tiny_store, moved), run, resume="must", from_step=8)
    assert again["parameters_sha256"] == tuned[1]["parameters_sha256"]


def test_parameters_that_changed_are_not_started_from(model, tiny_store, tiny_run, tmp_path):
    source = tmp_path / "source"
    train(tiny_config(tiny_store, seed=5, tokens=128), source)
    config = _config(tiny_store, source, batch=BatchConfig(ramp=((0, 4),)))

    def kill(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "run", listener=kill)
    shutil.rmtree(source)
    train(tiny_config(tiny_store, seed=6, tokens=128), source)
    with pytest.raises(CheckpointError, match="not any more what the run was begun from"):
        train(config, tmp_path / "run", resume="must")
