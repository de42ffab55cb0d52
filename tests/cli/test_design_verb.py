"""`areca design` and `areca plan --target-loss` on a ladder's runs and on a table."""

import json

import numpy as np
import pytest

from areca.cli.main import main
from areca.config import from_dict, to_dict
from areca.files import read_json, write_json
from areca.model.counts import count_params, exact_flops_per_token
from areca.study import recipe
from areca.study.ladder import plan_ladder
from areca.study.ladderjson import describe


@pytest.fixture(scope="module")
def law(tiny_store, tmp_path_factory):
    """The law.json of a ladder by the recipe, its runs written as if trained, with losses of a known law."""
    tmp_path = tmp_path_factory.mktemp("design")
    generator = np.random.default_rng(0)
    ladder = plan_ladder(tmp_path / "ladder", tiny_store, [2e8, 5e8, 1.2e9], sizes=4, context=16, epochs=1e6)
    for job in ladder.jobs:
        n, d = count_params(job.config.model).non_embedding, job.config.tokens
        loss = (3.5 + 20 / n**0.3 + 10 / d**0.4) * np.exp(0.003 * generator.standard_normal())
        result = {"loss": loss, "n_params": n, "n_tokens": d, "flops_exact": job.cost, "flops_6nd": 6 * n * d}
        write_json(job.run_dir / "run.json", {"config": to_dict(job.config)})
        write_json(job.run_dir / "result.json", {**result, "budget_flops": job.labels["budget_flops"]})
    write_json(ladder.directory / "ladder.json", describe(ladder))
    path = tmp_path / "law.json"
    assert main(["fit", str(ladder.directory), "--bootstrap", "100", "--out", str(path)]) == 0
    return path


def test_a_design_writes_runs_that_train_as_the_ladders_own(law, tiny_store, tmp_path, capsys):
    out, place = tmp_path / "design.json", tmp_path / "next"
    argv = ["design", law, "--flops", "2e9", "--target-flops", "1e11", "--runs", "4", "--out", out]
    argv += ["--config-dir", place, "--store", tiny_store, "--json"]
    assert main([str(a) for a in argv]) == 0
    design = json.loads(capsys.readouterr().out)
    assert design == read_json(out)
    runs = design["proposed"]["runs"]
    assert 1 <= len(runs) <= 4
    assert sum(r["flops_exact"] for r in runs) == design["proposed"]["flops"] <= 2e9
    configs = [from_dict(read_json(path)) for path in sorted(place.glob("*.json"))]
    assert sorted(c.tokens for c in configs) == sorted(r["n_tokens"] for r in runs)
    taken = {from_dict(read_json(p)["config"]).seed for p in (law.parent / "ladder" / "runs").glob("*/run.json")}
    for config in configs:
        assert recipe.follows(config)
        assert config.model in [recipe.shape(300, w) for w in range(16, 128, 8)]
        assert not config.guard.enabled
        assert config.schedule.warmup_tokens == pytest.approx(0.1 * config.tokens, rel=0.02)
        assert exact_flops_per_token(config.model, 16) * config.tokens in [r["flops_exact"] for r in runs]
    assert len({c.data.seed for c in configs} | taken) == len(configs) + len(taken)  # a rung's order has its seed
    assert len({c.seed for c in configs} | taken) == len(configs) + len(taken)
    # Inside what the ladder has tried.
    o = read_json(law)["observations"]
    ratios = [r["n_tokens"] / r["n_params"] for r in o]
    assert all(min(ratios) <= r["n_tokens"] / r["n_params"] <= max(ratios) for r in runs)
    # The next rung: the budgets' step once more, as many sizes as before.
    rung = design["next_rung"]
    assert len(rung["runs"]) == 4
    assert rung["flops"] == pytest.approx(4 * 1.2e9 * 1.2 / 0.5, rel=0.03)
    for added in (design["proposed"], rung, design["at_the_rungs_cost"]):
        narrower = design["half_width_relative"] - added["half_width_relative"]
        assert narrower > 0
        assert added["narrowing_per_flop"] == pytest.approx(narrower / added["flops"])
        assert added["half_width_relative"] > design["noise_half_width"]
    assert design["at_the_rungs_cost"]["half_width_relative"] < rung["half_width_relative"]


def test_a_design_reads_well_and_takes_a_target_by_size(law, capsys):
    argv = ["design", str(law), "--flops", "2e9", "--target-params", "1e5", "--target-tokens", "1e6"]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "target: 100.00 k parameters on 1.00 M tokens" in text
    for words in ("with the proposed", "with the next rung", "1 x the rung's", "all but size"):
        assert (words in text) == (words != "all but size")


def test_a_plan_for_a_loss_writes_a_configuration(law, tiny_store, tmp_path, capsys):
    out, config = tmp_path / "plan.json", tmp_path / "run.json"
    argv = ["plan", law, "--target-loss", "4.3", "--probability", "0.8", "--out", out, "--config-out", config]
    assert main([str(a) for a in [*argv, "--store", tiny_store, "--json"]]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan == read_json(out)
    assert plan["sure"]["probability"] == pytest.approx(0.8, abs=0.01)
    assert plan["median"]["best"]["flops_exact"] < plan["sure"]["best"]["flops_exact"]
    run = from_dict(read_json(config))
    assert run.tokens == plan["sure"]["best"]["n_tokens"]
    assert run.optimizer.learning_rate == recipe.learning_rate(plan["sure"]["best"]["steps"])
    assert main([str(a) for a in [*argv, "--store", tiny_store]]) == 0
    assert "an even chance" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["plan"], "there is no budget; give one of --flops"),
        (["plan", "--flops", "1e10", "--target-loss", "4"], "--flops belongs to a plan for a budget"),
        (["plan", "--target-loss", "0.1"], "lies below the floor of the law"),
        (["plan", "--target-loss", "-1"], "the target loss in nats a token is -1"),
        (["plan", "--target-loss", "4.3", "--probability", "90"], "probability is 90.0"),
        (["design", "--flops", "1e6", "--target-flops", "1e11"], "pay for no run"),
        (["design", "--flops", "nan", "--target-flops", "1e11"], "must be a positive number"),
        (["design", "--flops", "2e9"], "the target is one of --target-flops, or --target-params"),
        (["design", "--flops", "2e9", "--target-params", "1e5"], "belong together"),
        (["design", "--flops", "2e9", "--target-flops", "1e11", "--runs", "0"], "runs is 0"),
        (["design", "--flops", "2e9", "--target-flops", "-1"], "must be a positive number"),
        (["design", "--flops", "2e9", "--target-flops", "1e11", "--config-dir", "x"], "name it with --store"),
        (["design", "--flops", "2e9", "--target-flops", "1e11", "--context", "-1"], "--context is -1"),
        (["design", "--flops", "2e9", "--target-flops", "1e11", "--level", "1"], "level is 1.0"),
    ],
)
def test_what_cannot_be_planned_or_designed_is_one_sentence(law, tmp_path, monkeypatch, capsys, argv, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert main([argv[0], str(law), *argv[1:]]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_law_from_a_table_writes_runs_as_a_plan_does(law, tmp_path, capsys):
    moved, values = tmp_path / "elsewhere.json", read_json(law)
    write_json(moved, {**values, "sources": []})
    argv = ["design", str(moved), "--flops", "2e9", "--target-flops", "1e11"]
    assert main(argv) == 2
    assert "needs --vocab-size and --context" in capsys.readouterr().err
    argv += ["--vocab-size", "300", "--context", "16", "--batch", "2"]
    assert main(argv) == 0
    assert main([*argv, "--config-dir", str(tmp_path / "next"), "--store", "s"]) == 0
    assert "no run says how to train, so it is Adafactor" in " ".join(capsys.readouterr().out.split())
    configs = [from_dict(read_json(path)) for path in (tmp_path / "next").glob("*.json")]
    assert configs
    assert {c.batch.ramp[-1][1] for c in configs} == {2}
    assert len({c.seed for c in configs}) == len({c.data.seed for c in configs}) == len(configs)
    # And one whose samples are gone.
    write_json(moved, {**values, "parametric": {**values["parametric"], "bootstrap": [], "bootstrap_sigma": []}})
    assert main(["plan", str(moved), "--target-loss", "4.3", "--vocab-size", "300", "--context", "16"]) == 2
    assert "holds no bootstrap samples" in capsys.readouterr().err


def test_configurations_of_another_design_are_not_left_among_these(law, tiny_store, tmp_path, capsys):
    place = tmp_path / "next"
    argv = ["design", str(law), "--flops", "2e9", "--target-flops", "1e11", "--config-dir", str(place), "--store"]
    argv += [str(tiny_store), "--out", str(place / "design.json")]
    assert main([*argv, "--runs", "3"]) == 0
    written = {p.name: p.read_bytes() for p in place.iterdir()}
    assert main([*argv, "--runs", "3"]) == 0  # the same again
    capsys.readouterr()
    (place / "old.json").write_text("{}")
    assert main([*argv, "--runs", "3"]) == 2
    said = capsys.readouterr().err
    assert "old.json, which is not of this design" in said
    assert said.count("\n") == 1
    assert {p.name: p.read_bytes() for p in place.iterdir()} == {**written, "old.json": b"{}"}


@pytest.mark.parametrize("columns", ["20", "80"])
def test_no_figure_is_cut_at_a_narrow_terminal_or_in_a_file(law, columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    budget = ["--flops", "6.975e10"]
    for argv, last in (
        (["plan", str(law), *budget], "6 N D"),
        (["design", str(law), "--flops", "2e9", "--target-flops", "1e11"], "exact FLOPs"),
        (["plan", str(law), "--target-loss", "5"], "exact FLOPs"),
        (["fit", str(law.parent / "ladder"), "--bootstrap", "100"], "N within 0.1%"),
        (["footprint", "published:gpt-3", "--what-if", "region=iowa,pue=1.05"], "less gross"),
    ):
        assert main(argv) == 0
        lines = capsys.readouterr().out.splitlines()
        assert not [line for line in lines if "…" in line]
        assert any(last in line for line in lines), argv
