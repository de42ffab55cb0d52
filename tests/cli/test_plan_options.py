"""`areca plan` from a shell: budgets, published laws, meshes, files; and what can't be, in one sentence."""

import json
from itertools import pairwise

import pytest

from areca.cli.main import main
from areca.config import load
from areca.data.store import TokenStore
from areca.train.identity import check

SHAPE = ["--vocab-size", "50257", "--context", "2048"]


def _plan(capsys, *words):
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_dollars_become_a_run_with_its_hours_energy_and_cost(capsys):
    words = ["--law", "chinchilla", "--usd", "10000", "--usd-per-chip-hour", "2.5", "--chip", "h100"]
    plan = _plan(capsys, *words, "--mesh", "8x2", *SHAPE)
    # 4,000 chip-hours at the assumed 40% of 989.5 TFLOP/s.
    assert plan["budget_flops"] == pytest.approx(4000 * 3600 * 989.5e12 * 0.4)
    cost = plan["cost"]
    assert cost["usd"] == pytest.approx(10_000, rel=1e-3)
    assert cost["hours"] == pytest.approx(250, rel=1e-3)  # the mesh's 16 chips
    assert cost["energy_kwh"]["value"] == pytest.approx(4000 * 0.7 * 1.1, rel=1e-3)
    assert cost["energy_kwh"]["kind"] == "estimated (TDP)"
    assert cost["mfu_source"].startswith("assumed")
    assert plan["best"]["shape"]["n_heads"] % 2 == 0
    # Kaplan's critical batch, in sequences that the 8 devices of the data axis can share.
    assert all(size % 8 == 0 for _, size in plan["ramp"])
    assert [b for _, b in plan["ramp"]] == sorted(b for _, b in plan["ramp"])
    assert main(["plan", *words, *SHAPE]) == 0
    text = capsys.readouterr().out
    for said in (
        "4,000 chip-hours of h100",
        "10,000 USD",
        "estimated (TDP)",
        "no interval",
        "40.0%, assumed (published",
    ):
        assert said in text
    assert "orders of magnitude outside" in text


def test_a_name_is_a_law_whether_as_an_option_or_not(capsys):
    budget = ["--flops", "1e20", "--batch", "64", *SHAPE]
    assert _plan(capsys, "kaplan", *budget) == _plan(capsys, "--law", "kaplan", *budget)


def test_kaplans_recipe_is_printed_fitted_and_derived(capsys):
    assert main(["plan", "--law", "kaplan", "--flops", "1e20", "--batch", "64", *SHAPE]) == 0
    text = capsys.readouterr().out
    assert "fitted: power laws drawn through the runs, table 6" in text
    assert "derived: L(N, S_min) with B_crit(L) minimised at fixed C_min" in text
    for curve in ("one epoch, table 6", "equation 6.7"):
        assert f"with D by {curve}" in text


@pytest.fixture
def planned(tiny_store, tmp_path, capsys):
    """(the plan, its configuration in TOML, read back) of a run on the tiny store."""
    vocabulary = json.loads((tiny_store / "store.json").read_text())["vocab_size"]
    out, config = tmp_path / "plan.json", tmp_path / "run.toml"
    words = ["plan", "--law", "kaplan", "--flops", "1e18", "--vocab-size", str(vocabulary), "--context", "16"]
    words += ["--mesh", "2x2", "--b-crit", "1.3e5,0.21", "--store", str(tiny_store), "--out", str(out)]
    assert main([*words, "--config-out", str(config)]) == 0
    said = capsys.readouterr().out
    return json.loads(out.read_text()), load(config), said


def test_a_configuration_in_toml_is_one_that_training_takes(planned, tiny_store):
    plan, config, said = planned
    check(config, TokenStore.open(tiny_store))
    assert [list(row) for row in config.batch.ramp] == plan["ramp"]
    assert len(plan["ramp"]) > 3
    assert all(b == 2 * a for (_, a), (_, b) in pairwise(plan["ramp"]))
    assert config.tokens == plan["best"]["n_tokens"]
    assert (config.parallel.data, config.parallel.model, config.parallel.remat) == (2, 2, "block")
    assert config.optimizer.learning_rate == plan["learning_rate"]["value"] == 1e-2
    assert config.model.base_width == 0  # PaLM's rate goes with PaLM's parametrization
    assert "not tuned for these runs" in said


@pytest.mark.slow
def test_a_dry_run_says_whether_it_fits(capsys):
    words = ["--law", "chinchilla", "--chip-hours", "3", "--chip", "h100", "--batch", "8", "--mesh", "2x2"]
    plan = _plan(capsys, *words, "--vocab-size", "1000", "--context", "128", "--dry-run")
    memory = plan["memory"]
    assert memory["mesh"] == {"data": 2, "model": 2, "islands": 1}
    assert memory["n_params"] == plan["best"]["n_params"]
    assert memory["fits"]["memory"] == 80e9
    # Float32 parameters and two moments over four chips.
    state = memory["bytes_per_chip"]["parameters"] + memory["bytes_per_chip"]["optimizer"]
    assert state == pytest.approx(3 * plan["best"]["n_params_total"], rel=0.01)


CHIP = ["--chip", "h100"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--flops", "1e21", "--usd", "5"], "--flops and --usd are both budgets; give one of them"),
        ([], "there is no budget; give one of --flops"),
        (["--chip-hours", "-10", *CHIP], "--chip-hours is -10; it must be a positive number"),
        (["--chip-hours", "10", "--chip", "h1000"], "there is no chip 'h1000' (did you mean 'h100'?)"),
        (["--chip-hours", "10", *CHIP, "--mfu", "1.2"], "--mfu is 1.2; it is a share of the peak"),
        (["--chip-hours", "10", *CHIP, "--mfu", "0"], "--mfu is 0.0; it is a share of the peak"),
        (["--flops", "1e21", "--mesh", "100000x8"], "no shape of 1e+03 to 1e+12 parameters divides over a mesh"),
        (["--flops", "1e21", "--mesh", "8"], "the mesh is '8'; write it as DATAxMODEL"),
        (["--flops", "1e21", "--mesh", "3x1", "--batch", "16"], "data axis of 3 does not divide"),
        (["--flops", "1e21", "--unique-tokens", "-5"], "--unique-tokens is -5; it must be a positive number"),
        (["--inference-tokens", "1e12", "--target-loss", "1.5"], "1.5 is below the law's floor of 1.693"),
        (["--flops", "1e21", "--target-loss", "2.5"], "--flops belongs to a plan for a budget"),
        (["--flops", "1e21", "--stop-above-convergence", "0.1"], "use --law kaplan"),
        (["--flops", "1e21", "--b-crit", "big"], "--b-crit is 'big'"),
        (["--flops", "1e21", "--b-crit", "kaplan", "--batch", "4"], "give one of them"),
        (["--flops", "1e3"], "do not pay for one step"),
        (["--flops", "1e21", "--context", "-1"], "--context is -1"),
        (["--flops", "1e21", "--level", "1.5"], "--level is 1.5; it is a probability"),
        (["law.json", "--flops", "1e21"], "LAW and --law are both given"),
    ],
)
def test_plans_that_cannot_be(capsys, tmp_path, words, says):
    out, config = tmp_path / "plan.json", tmp_path / "run.toml"
    files = ["--out", str(out), "--config-out", str(config), "--store", "corpus"]
    positional = [w for w in words if w.endswith(".json")]
    shape = [w for w in SHAPE if "--context" not in words] or SHAPE[:2]
    assert main(["plan", *positional, "--law", "chinchilla", *words[len(positional) :], *shape, *files]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_law_that_there_is_not_names_the_closest(capsys):
    assert main(["plan", "--law", "chinchila", "--flops", "1e21", *SHAPE]) == 2
    assert "there is no law 'chinchila' (did you mean 'chinchilla'?)" in capsys.readouterr().err
    assert main(["plan", "--flops", "1e21"]) == 2
    assert "LAW is missing" in capsys.readouterr().err
    assert main(["plan", "--law", "kaplan", "--flops", "1e21"]) == 2
    assert "kaplan is a published law, so the plan needs --vocab-size and --context" in capsys.readouterr().err
