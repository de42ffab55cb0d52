import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from areca.cli.main import main
from areca.config import DataConfig, OptimizerConfig, RunConfig, ScheduleConfig, from_dict, to_dict
from areca.errors import ConfigError, DataError
from areca.laws import Observations, fit_laws
from areca.model.config import ModelConfig
from areca.model.counts import count_params, exact_flops_per_token
from areca.plan import family, find_template, interpolate, plan_run
from areca.plan.shapes import heads_for

CONTEXT, VOCAB = 128, 1024


def _loss(n, d):
    return 2.0 + 60 * n**-0.38 + 900 * d**-0.45


@pytest.fixture(scope="module")
def ladder():
    """[(shape, tokens, budget)]: 3 budgets x 6 shapes, tokens by exact FLOPs."""
    shapes = [s for s in family(VOCAB) if 4e3 < count_params(s).non_embedding < 1.2e6][::2][:6]
    return [(s, round(c / exact_flops_per_token(s, CONTEXT)), c) for c in (5e11, 1.5e12, 4.5e12) for s in shapes]


@pytest.fixture(scope="module")
def law(ladder):
    n = np.array([count_params(s).non_embedding for s, _, _ in ladder], dtype=float)
    d = np.array([t for _, t, _ in ladder], dtype=float)
    c = np.array([b for _, _, b in ladder])
    noise = 1 + 0.003 * np.random.default_rng(0).standard_normal(len(n))
    return fit_laws(Observations(n, d, c, _loss(n, d) * noise, budget=c), samples=100)


def test_the_best_shape_spends_the_budget_and_no_other_is_predicted_better(law):
    shapes = family(VOCAB)
    plan = plan_run(law, 2e13, shapes, context=CONTEXT, batch=16)
    best = plan.best
    assert best.n_tokens == best.steps * 16 * CONTEXT
    per_token = exact_flops_per_token(plan.model(), CONTEXT)
    assert best.flops_exact == per_token * best.n_tokens
    assert 2e13 - per_token * 16 * CONTEXT < best.flops_exact <= 2e13
    assert best.flops_6nd == 6 * best.n_params * best.n_tokens
    # By hand for every shape, with the law's own parameters.
    p = law.parametric
    for shape in shapes:
        n = count_params(shape).non_embedding
        d = 2e13 / exact_flops_per_token(shape, CONTEXT)
        if d >= 16 * CONTEXT:
            assert plan.predicted_loss <= (p.E + p.A * n**-p.alpha + p.B * d**-p.beta) * (1 + 1e-3)


def test_a_larger_budget_buys_a_lower_loss_and_a_wider_interval(law):
    plans = [plan_run(law, c, family(VOCAB), context=CONTEXT) for c in (5e12, 2e13, 8e13)]
    losses = [p.predicted_loss for p in plans]
    assert losses == sorted(losses, reverse=True)
    widths = [p.half_width_relative for p in plans]
    assert widths == sorted(widths)
    for p in plans:
        assert p.interval[0] < p.predicted_loss < p.interval[1]
        assert p.half_width_relative == pytest.approx((p.interval[1] - p.interval[0]) / 2 / p.predicted_loss)


def test_neighbours_are_half_and_double_the_size_at_the_same_compute(law):
    plan = plan_run(law, 2e13, family(VOCAB), context=CONTEXT)
    for name, factor in (("half", 0.5), ("double", 2.0)):
        c = plan.neighbours[name]
        assert c.n_params / plan.best.n_params == pytest.approx(factor, rel=0.3)
        assert c.flops_exact == pytest.approx(2e13, rel=0.01)
        assert c.predicted_loss > plan.predicted_loss
    assert plan.flat_range[0] <= plan.best.n_params <= plan.flat_range[1]


def test_leaving_the_fitted_range_is_said_with_its_factor(law):
    inside = plan_run(law, 4e12, family(VOCAB), context=CONTEXT)
    assert inside.warnings == []
    assert set(inside.extrapolation.values()) == {1.0}
    far = plan_run(law, 4.5e15, family(VOCAB), context=CONTEXT)
    assert far.extrapolation["flops"] == pytest.approx(1000)
    assert any(w.startswith("N = ") and "times the largest" in w for w in far.warnings)
    assert not any("trusts the law's form" in w for w in far.warnings)  # it has the doubt
    blind = replace(law, validation=None, compute=None)
    for beyond in (1.2, 1000):
        said = plan_run(blind, beyond * 4.5e12, family(VOCAB), context=CONTEXT).warnings
        assert sum("the interval trusts the law's form: no runs could be held out" in w for w in said) == 1
    assert plan_run(blind, 4e12, family(VOCAB), context=CONTEXT).warnings == []


def test_the_naive_baseline_is_the_best_observed_loss(law):
    plan = plan_run(law, 2e13, family(VOCAB), context=CONTEXT)
    assert plan.baseline["loss"] == law.observations.loss.min()


def test_budgets_that_buy_nothing(law):
    with pytest.raises(ConfigError, match="do not pay for one step"):
        plan_run(law, 1e6, family(VOCAB), context=CONTEXT, batch=16)
    for budget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(
            ConfigError, match=r"the budget in FLOPs is .*; it must be (a positive number|below 1e\+40)"
        ):
            plan_run(law, budget, family(VOCAB), context=CONTEXT)


# Shapes


def test_every_shape_of_the_family_is_one_that_the_decoder_takes():
    shapes = family(VOCAB)
    sizes = [count_params(s).non_embedding for s in shapes]
    assert sizes == sorted(sizes)
    assert sizes[0] < 1e4
    assert sizes[-1] > 9e11
    for s in shapes:
        assert s.resolved().head_dim * s.n_heads == s.d_model
        assert s.d_model % 16 == 0
        assert s.resolved().d_ff == 4 * s.d_model
    # Fine enough to plan with: no gap is wider than a factor of 2, above a million parameters of 1.3.
    assert max(b / a for a, b in itertools.pairwise(sizes) if a > 3e4) < 2
    assert max(b / a for a, b in itertools.pairwise(sizes) if a > 1e6) < 1.3


def test_palms_widths_get_heads_that_shard():
    assert heads_for(4096) == 32
    assert heads_for(64) == 2
    assert all(heads_for(d) >= 1 and d % heads_for(d) == 0 for d in range(16, 4096, 16))


def test_a_ladders_own_shapes_come_first():
    odd = ModelConfig(vocab_size=VOCAB, d_model=48, n_layers=5, n_heads=3, rope_theta=500.0)
    shapes = interpolate([odd], VOCAB)
    assert odd.resolved() in shapes
    assert {s.rope_theta for s in shapes} == {500.0}


# Files


@pytest.fixture
def runs(ladder, tmp_path):
    rng = np.random.default_rng(1)
    for i, (shape, tokens, budget) in enumerate(ladder):
        path = tmp_path / "ladder" / "runs" / f"r{i}"
        path.mkdir(parents=True)
        config = RunConfig(
            model=shape,
            data=DataConfig(store="corpus", context=CONTEXT),
            tokens=tokens,
            optimizer=OptimizerConfig(learning_rate=0.02),
            schedule=ScheduleConfig(warmup_tokens=tokens // 10),
        )
        (path / "run.json").write_text(json.dumps({"config": to_dict(config)}))
        n, flops = count_params(shape).non_embedding, tokens * exact_flops_per_token(shape, CONTEXT)
        grid = {"kg_per_kwh": 0.4, "source": "here", "kind": "assumed"}
        energy = {"value": flops / 1e15, "watts": 20, "pue": 1.0, "source": "TDP", "kind": "estimated (TDP)"}
        result = {
            "n_params": n,
            "n_tokens": tokens,
            "flops_exact": flops,
            "flops_6nd": 6 * n * tokens,
            "seconds": flops / 1e11,
        }
        result |= {"loss": _loss(n, tokens) * (1 + 0.003 * rng.standard_normal()), "budget_flops": budget}
        (path / "result.json").write_text(json.dumps({**result, "energy_kwh": energy, "carbon_kg": {"grid": grid}}))
    return tmp_path / "ladder"


def test_a_plan_from_runs_takes_vocabulary_context_batch_and_settings_from_them(runs, tmp_path, capsys):
    law, out, config = tmp_path / "law.json", tmp_path / "plan.json", tmp_path / "run.json"
    assert main(["fit", str(runs), "--bootstrap", "100", "--out", str(law)]) == 0
    capsys.readouterr()
    argv = ["plan", str(law), "--flops", "2e13", "--out", str(out), "--config-out", str(config), "--store", "corpus"]
    assert main([*argv, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan == json.loads(out.read_text())
    run = from_dict(json.loads(config.read_text()))
    assert run.model.vocab_size == VOCAB
    assert run.data == DataConfig(store="corpus", context=CONTEXT)
    assert run.tokens == plan["best"]["n_tokens"]
    assert run.optimizer.learning_rate == 0.02
    assert run.schedule.warmup_tokens == pytest.approx(run.tokens / 10, rel=0.01)
    # The runs did 1e11 FLOP/s and 1 kWh for 1e15 FLOPs.
    assert plan["cost"]["seconds"] == pytest.approx(plan["best"]["flops_exact"] / 1e11)
    assert plan["cost"]["energy_kwh"]["value"] == pytest.approx(plan["best"]["flops_exact"] / 1e15)
    assert plan["cost"]["energy_kwh"]["kind"] == "estimated (TDP)"
    assert plan["cost"]["carbon_kg"]["value"] == pytest.approx(0.4 * plan["cost"]["energy_kwh"]["value"])
    # Straight from the ladder, and as prose.
    assert main(["plan", str(runs), "--flops", "2e13"]) == 0
    text = capsys.readouterr().out
    assert "predicted loss" in text
    assert "estimated (TDP)" in text


def test_hours_on_the_runs_own_chip_are_at_their_own_mfu(runs, capsys):
    for path in (runs / "runs").iterdir():
        run, result = json.loads((path / "run.json").read_text()), json.loads((path / "result.json").read_text())
        run["topology"] = {"device_kind": "NVIDIA H100 80GB HBM3"}
        (path / "run.json").write_text(json.dumps(run))
        (path / "result.json").write_text(json.dumps(result | {"mfu": 0.02}))
    argv = ["plan", str(runs), "--chip-hours", "0.001", "--json"]
    assert main([*argv, "--chip", "h100"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["budget_flops"] == pytest.approx(3.6 * 989.5e12 * 0.02)
    assert plan["cost"]["mfu_source"].startswith("measured in r")
    assert plan["cost"]["chip_hours"] == pytest.approx(0.001, rel=0.01)
    assert main([*argv, "--chip", "h200", "--mfu", "0.5"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["mfu"] == 0.5
    assert main([*argv, "--chip", "a100-40gb"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["mfu_source"].startswith("assumed")


def test_a_plan_from_a_table_needs_the_vocabulary_and_the_context(law, tmp_path, capsys):
    law.save(tmp_path / "law.json")
    argv = ["plan", str(tmp_path / "law.json"), "--flops", "2e13"]
    assert main(argv) == 2
    assert "needs --vocab-size and --context" in capsys.readouterr().err
    config = tmp_path / "run.json"
    argv += ["--vocab-size", str(VOCAB), "--context", str(CONTEXT), "--config-out", str(config)]
    assert main(argv) == 2
    assert "name it with --store" in capsys.readouterr().err
    assert not config.exists()
    assert main([*argv, "--store", "corpus"]) == 0
    assert "Areca's defaults, not tuned" in capsys.readouterr().out
    assert from_dict(json.loads(config.read_text())).schedule.warmup_tokens > 0


def test_a_plan_from_a_quickstart_takes_its_ladder_and_says_so(runs, tmp_path, capsys):
    assert main(["plan", str(runs), "--flops", "2e13", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    root = tmp_path / "quickstart"
    root.mkdir()
    runs.rename(root / "ladder")
    names = sorted(p.name for p in (root / "ladder" / "runs").iterdir())
    listed = [{"name": name, "path": f"runs/{name}"} for name in names]
    (root / "ladder" / "ladder.json").write_text(json.dumps({"runs": listed}))
    (root / "quickstart.json").write_text("{}")
    (root / "law.json").write_text("{}")
    (root / "verify").mkdir()
    (root / "verify" / "result.json").write_text((root / "ladder" / "runs" / names[0] / "result.json").read_text())
    assert main(["plan", str(root), "--flops", "2e13", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["predicted_loss"] == plain["predicted_loss"]
    said = "\n".join(plan["warnings"])
    assert f"is a quickstart: the {len(names)} runs of its ladder are taken" in said
    assert f"{root / 'verify'} is left out" in said
    assert f"the quickstart's own law, an average over couplings, is {root / 'law.json'}" in said


@pytest.mark.parametrize(
    ("header", "options"),
    [("n_params,n_tokens,val", "--loss COLUMN"), ("model,n_tokens,loss", "--n-params COLUMN")],
)
def test_a_table_whose_columns_must_be_named_goes_through_fit(tmp_path, capsys, header, options):
    """`areca plan` has no options for columns (its --flops is the budget), so the way out is another verb's."""
    table = tmp_path / "runs.csv"
    table.write_text(f"{header}\n1e6,1e8,3\n")
    assert main(["plan", str(table), "--flops", "1e20", "--vocab-size", "1000", "--context", "64"]) == 2
    said = capsys.readouterr().err
    assert f"fit it first, `areca fit {table} {options} --out law.json`" in said


def test_a_plan_from_a_table_in_json_is_one_from_its_rows(tmp_path, capsys):
    rng = np.random.default_rng(0)
    rows = [
        {"n_params": n, "n_tokens": d, "loss": _loss(n, d) * (1 + 0.003 * rng.standard_normal())}
        for n, d in itertools.product((1e6, 3e6, 1e7, 3e7, 1e8), (1e8, 1e9, 1e10))
    ]
    (tmp_path / "runs.json").write_text(json.dumps(rows))
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = []
    for name in ("runs.json", "runs.jsonl"):
        argv = ["plan", str(tmp_path / name), "--flops", "1e18", "--vocab-size", "1000", "--context", "64", "--json"]
        assert main(argv) == 0
        found.append(json.loads(capsys.readouterr().out)["predicted_loss"])
    assert found[0] == found[1]


def test_a_run_of_another_make_is_named(runs):
    (runs / "runs" / "r3" / "run.json").write_text("{}")
    with pytest.raises(DataError, match="r3 does not hold a run"):
        find_template([runs])
