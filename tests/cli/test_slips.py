"""Figures that must be a slip, and options that would say nothing: each refused in one sentence."""

import json

import pytest

from areca.cli.main import main

SHAPE = ["--vocab-size", "50257", "--context", "2048", "--batch", "64"]
BUDGET = ["plan", "chinchilla", "--flops", "1e21", *SHAPE]
GPT3 = ["footprint", "published:gpt-3"]


@pytest.fixture(autouse=True)
def nowhere(monkeypatch):
    monkeypatch.delenv("ARECA_REGION", raising=False)
    monkeypatch.delenv("ARECA_PUE", raising=False)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([*BUDGET, "--chip", "h100", "--watts", "0.7"], "from 1 to 100,000 such as 400 (0.7 may be in kilowatts)"),
        ([*BUDGET, "--chip", "h100", "--watts", "1e6"], "may be in milliwatts"),
        ([*GPT3, "--what-if", "watts=0.3"], "(0.3 may be in kilowatts)"),
        ([*GPT3, "--what-if", "watts=nan"], "watts is nan"),
        ([*GPT3, "--what-if", "chip=h100,tflops=99999"], "the peak of h100"),
        ([*GPT3, "--what-if", "tflops=99999999"], "at most"),
        ([*GPT3, "--what-if", "flops=1e300"], "from 1e+06 to 1e+30"),
        ([*GPT3, "--what-if", "tflops=100,mfu=0.5"], "give one of them"),
        ([*GPT3, "--what-if", ""], "--what-if is empty"),
        ([*BUDGET, "--probability", "0.8"], "give --target-loss with it"),
        ([*BUDGET, "--store", "x"], "give --config-out with it"),
        (["design", "law.json", "--flops", "1e12", "--store", "x"], "give --config-dir with it"),
        (["fit", "runs.csv", "--flops-kind", "6nd"], "--flops-kind 6nd is of run directories"),
        (["fit", "runs.csv", "--rates", "all"], "--rates all is of run directories"),
        (["footprint", "runs.csv"], "runs.csv is a file of another kind; name"),
    ],
)
def test_slips_are_said(capsys, tmp_path, monkeypatch, argv, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs.csv").write_text("n_params,n_tokens,loss\n1e6,1e8,4\n")
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_what_chips_reach_and_draw_is_taken(capsys):
    assert main([*GPT3, "--what-if", "chip=h100,tflops=989,watts=1500,flops=1e25"]) == 0
    assert main([*GPT3, "--what-if", "watts=1,mfu=1,chip=h100"]) == 0


@pytest.mark.parametrize(("name", "value"), [("ARECA_PUE", "0.5"), ("ARECA_REGION", "atlantis")])
def test_a_place_that_cannot_be_is_refused_by_a_plan_too(capsys, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert main(BUDGET) == 2
    assert name in capsys.readouterr().err


def test_a_plan_takes_the_place_of_this_machine_and_flags_win(capsys, monkeypatch, tmp_path):
    plain, told = tmp_path / "plain.json", tmp_path / "told.json"
    chips = [*BUDGET, "--chip", "h100", "--json"]

    def run(*argv):
        assert main([*map(str, argv)]) == 0
        return json.loads(capsys.readouterr().out)

    assert run(*chips, "--out", plain)["cost"]["energy_kwh"]["pue"] == 1.10
    run(*chips, "--pue", "1.3", "--kg-per-kwh", "0.1", "--out", told)
    monkeypatch.setenv("ARECA_PUE", "1.2")
    monkeypatch.setenv("ARECA_REGION", "iowa")
    cost = run(*chips)["cost"]
    hours = cost["chip_hours"]
    # H100's 700 W; Iowa's 0.478 kg/kWh gross (Patterson et al. 2021, table 1).
    assert cost["energy_kwh"]["value"] == pytest.approx(hours * 0.7 * 1.2)
    assert cost["carbon_kg"]["value"] == pytest.approx(hours * 0.7 * 1.2 * 0.478)
    assert "assumed" not in cost["energy_kwh"]["source"]
    cost = run(*chips, "--pue", "1.5", "--kg-per-kwh", "0.2")["cost"]
    assert cost["carbon_kg"]["value"] == pytest.approx(hours * 0.7 * 1.5 * 0.2)
    found = run("footprint", plain, "--json")
    assert found["footprint"]["energy_kwh"]["value"] == pytest.approx(hours * 0.7 * 1.2)
    assert found["footprint"]["carbon_kg"]["value"] == pytest.approx(hours * 0.7 * 1.2 * 0.478)
    found = run("footprint", told, "--json")  # what the plan was told stays
    assert found["footprint"]["carbon_kg"]["value"] == pytest.approx(hours * 0.7 * 1.3 * 0.1)
    found = run("footprint", plain, "--pue", "1.3", "--region", "taiwan", "--json")
    assert found["footprint"]["carbon_kg"]["value"] == pytest.approx(hours * 0.7 * 1.3 * 0.545)
    assert "1.10" not in found["footprint"]["energy_kwh"]["source"]


def test_a_run_chosen_for_its_service_says_what_it_takes_beside_the_budget(capsys):
    assert main([*BUDGET, "--inference-tokens", "1e13"]) == 0
    text = capsys.readouterr().out
    assert main([*BUDGET, "--inference-tokens", "1e13", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["flops_exact"] > 1.01e21
    assert "budget: 1e+21 exact FLOPs; this run, chosen for its service" in text
    assert f"takes {best['flops_exact']:.4g} to train" in text
