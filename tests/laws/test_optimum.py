import numpy as np
import pytest
from truth import Truth

from areca.cli.main import main
from areca.errors import ConfigError
from areca.laws import COUPLINGS, LawReport, bootstrap, fit_laws, fit_parametric
from areca.laws.fits.optimum import weighted_interval

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)


@pytest.fixture(scope="module")
def rows():
    return TRUTH.ladder(np.random.default_rng(1), budgets=4, sizes=6, noise=0.003)


@pytest.fixture(scope="module")
def law(rows):
    return fit_laws(rows, samples=200)


def test_the_optimum_is_where_the_law_is_least_and_its_intervals_hold_the_truth(law):
    flops = 4e13
    best = law.optimum(flops)
    n = np.geomspace(1e4, 1e8, 200_001)  # brute force, not the closed form
    assert best.n == pytest.approx(n[np.argmin(law.predict(n, flops / 6 / n))], rel=1e-4)
    assert 6 * best.n * best.d == pytest.approx(flops)
    assert best.loss == pytest.approx(float(law.predict(best.n, best.d)))
    truth = TRUTH.optimum(flops)
    for name, value in (("n", truth[0]), ("d", truth[1]), ("loss", TRUTH.loss(*truth))):
        low, high = best.intervals[name]
        assert low < value < high, name
    # N and D are one choice: C / 6 over an end of N is the other end of D.
    assert best.intervals["d"][0] == pytest.approx(flops / 6 / best.intervals["n"][1])
    wide = law.optimum(flops, level=0.99).intervals["n"]
    assert wide[0] < best.intervals["n"][0] < best.intervals["n"][1] < wide[1]


def test_the_optimum_of_an_average_is_where_its_prediction_is_least(rows):
    law = fit_laws(rows, samples=100, couplings=COUPLINGS)
    best = law.optimum(2e13)
    n = np.geomspace(best.n / 3, best.n * 3, 100_001)
    assert best.n == pytest.approx(n[np.argmin(law.predict(n, 2e13 / 6 / n))], rel=1e-3)
    assert best.intervals["n"][0] < best.n < best.intervals["n"][1]


def test_weighted_percentiles_are_those_of_values_repeated():
    values, weight = np.random.default_rng(0).normal(size=400), np.repeat([1.0, 3.0], 200)
    repeated = np.concatenate([values[:200], np.repeat(values[200:], 3)])
    assert weighted_interval(values, weight, 0.8) == pytest.approx(np.percentile(repeated, [10, 90]), abs=0.02)
    assert weighted_interval(values, np.ones(400), 0.8) == pytest.approx(np.percentile(values, [10, 90]))


def test_any_quantity_of_the_law_has_an_interval(rows):
    fit = fit_parametric(rows)
    samples = bootstrap(rows, fit, samples=100)
    low, high = samples.interval_of(lambda p: p.beta / (p.alpha + p.beta))
    assert [low, high] == pytest.approx(samples.parameter_intervals()["n_exponent"])
    assert samples.interval_of(lambda p: p.E + p.A / 1e5**p.alpha)[0] < TRUTH.E + TRUTH.A / 1e5**TRUTH.alpha
    best = samples.interval_of(
        lambda p: (
            (p.alpha * p.A / p.beta / p.B) ** (1 / (p.alpha + p.beta)) * (1e13 / 6) ** (p.beta / (p.alpha + p.beta))
        )
    )
    assert best == pytest.approx(samples.frontier_intervals(1e13)["n"])


def test_areca_fit_prints_the_optimum_of_the_largest_budget(rows, tmp_path, capsys):
    lines = [f"{n},{d},{x}" for n, d, x in zip(rows.n_params, rows.n_tokens, rows.loss, strict=True)]
    (tmp_path / "runs.csv").write_text("\n".join(["n_params,n_tokens,loss", *lines]) + "\n")
    assert main(["fit", str(tmp_path / "runs.csv"), "--bootstrap", "50", "--out", str(tmp_path / "law.json")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "at the largest budget, 8.1e+12 FLOPs taken as 6 N D: best N" in printed
    law = LawReport.load(tmp_path / "law.json")
    assert f"{law.optimum(8.1e12).n / 1e3:.3g}" in printed


@pytest.mark.parametrize("flops", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(law, flops):
    with pytest.raises(ConfigError, match="the budget is"):
        law.optimum(flops)
