"""`areca plan` on a ladder: the planned run takes rate and batch from the rule its rungs follow."""

import json
from dataclasses import asdict, replace

import pytest

from areca.cli.main import main
from areca.config import OptimizerConfig, to_dict
from areca.files import read_json, write_json
from areca.model.counts import count_params
from areca.study import recipe
from areca.study.ladder import plan_ladder
from areca.study.ladderjson import describe


def _finish(ladder, change=lambda config: config):
    """Writes the ladder's runs as if trained, with losses of a known law."""
    for job in ladder.jobs:
        config = change(job.config)
        n, d = count_params(config.model).non_embedding, config.tokens
        loss = 3.0 + 6 / n**0.3 + 30 / d**0.4
        result = {"loss": loss, "n_params": n, "n_tokens": d, "flops_exact": job.cost, "flops_6nd": 6 * n * d}
        write_json(job.run_dir / "run.json", {"config": to_dict(config)})
        write_json(job.run_dir / "result.json", result)
    write_json(ladder.directory / "ladder.json", describe(ladder))


def _planned(directory, store, tmp_path, *options):
    written = tmp_path / "run.json"
    argv = ["plan", directory, "--flops", "6e9", "--config-out", written, "--store", store, *options]
    assert main([str(a) for a in argv]) == 0
    return read_json(written)


@pytest.fixture
def ladder(tiny_store, tmp_path):
    return plan_ladder(tmp_path / "ladder", tiny_store, [2e8, 5e8, 1.2e9], sizes=4, context=16, epochs=1e6)


def test_a_ladder_of_the_recipe_plans_by_the_recipe(ladder, tiny_store, tmp_path, capsys):
    assert all(recipe.follows(job.config) for job in ladder.jobs)
    _finish(ladder)
    config = _planned(ladder.directory, tiny_store, tmp_path)
    batch = config["batch"]["ramp"][0][1]
    steps = config["tokens"] // (batch * 16)
    assert config["optimizer"]["learning_rate"] == recipe.learning_rate(steps)
    assert batch == pytest.approx(recipe.batch_tokens(config["tokens"]) / 16, abs=1)
    assert batch > max(job.config.batch.ramp[0][1] for job in ladder.jobs)
    assert "ladder's own rule" in capsys.readouterr().out


def test_runs_that_follow_no_rule_give_their_own_settings(ladder, tiny_store, tmp_path, capsys):
    own = OptimizerConfig(learning_rate=0.0123)
    _finish(ladder, lambda config: replace(config, optimizer=own))
    config = _planned(ladder.directory, tiny_store, tmp_path)
    assert json.loads(json.dumps(asdict(own))) == config["optimizer"]
    assert "ladder's own rule" not in capsys.readouterr().out


def test_a_batch_that_is_given_stands(ladder, tiny_store, tmp_path):
    _finish(ladder)
    config = _planned(ladder.directory, tiny_store, tmp_path, "--batch", "3")
    assert config["batch"]["ramp"] == [[0, 3]]
    assert config["optimizer"]["learning_rate"] == recipe.learning_rate(config["tokens"] // (3 * 16))
