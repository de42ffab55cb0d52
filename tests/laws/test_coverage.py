"""How often intervals hold the truth, in short; benchmarks/coverage.py does it for twenty laws, every method."""

import numpy as np
import pytest
from truth import Truth

from areca.laws import (
    Form,
    Observations,
    bootstrap,
    delta_intervals,
    fit,
    fit_isoflop,
    fit_parametric,
    positive,
    profile,
    resample,
)

LAWS = (
    Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45),
    Truth(A=30.0, B=400.0, E=1.0, alpha=0.30, beta=0.40),
    Truth(A=300.0, B=500.0, E=1.6, alpha=0.46, beta=0.36),
)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["huber", pytest.param("l2", marks=pytest.mark.exhaustive)])
def test_ninety_percent_intervals_hold_parameters_and_optimum(objective):
    held, errors = {}, []
    for k, truth in enumerate(LAWS):
        generator = np.random.default_rng(k)
        for seed in range(60 if objective == "l2" else 40):
            o = truth.ladder(generator, budgets=(3, 4, 5)[k], sizes=5, noise=0.005)
            law = fit_parametric(o, objective=objective)
            samples = bootstrap(o, law, samples=150, seed=seed)
            top = float(o.flops.max())
            true = {name: getattr(truth, name) for name in ("A", "B", "E", "alpha", "beta")}
            true |= {"n_exponent": truth.beta / (truth.alpha + truth.beta), "n": truth.optimum(top)[0]}
            found = {**samples.parameter_intervals(), **samples.frontier_intervals(top)}
            for name, value in true.items():
                held.setdefault(name, []).append(found[name][0] <= value <= found[name][1])
            errors.append(abs(float(law.frontier(top)[0]) / true["n"] - 1))
    for name, each in held.items():
        assert 0.85 <= np.mean(each) <= 0.96, (name, np.mean(each))
    assert np.median(errors) < 0.05


def test_residuals_that_a_small_delta_made_vanish_do_not_make_the_interval_narrow():
    # Huber's fit passes through five of fifteen rows; the parametric bootstrap knows nothing of residuals.
    ratios = []
    for seed in range(8):
        o = LAWS[0].ladder(np.random.default_rng(seed), budgets=3, sizes=5, noise=0.005)
        law = fit_parametric(o)
        widths = [
            np.log(np.divide(*bootstrap(o, law, samples=300, method=m).frontier_intervals(3e12)["n"][::-1]))
            for m in ("residual", "parametric")
        ]
        ratios.append(widths[0] / widths[1])
    assert np.median(ratios) == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize("objective", ["huber", "lad", "l2"])
def test_profile_and_delta_method_are_as_wide_as_the_bootstrap(objective):
    # Other assumptions, the same answer where the law is near linear: six ladders of 30 runs, the middle of the ratios.
    ratios = []
    for seed in range(6):
        o = LAWS[0].ladder(np.random.default_rng(seed), budgets=5, sizes=6, noise=0.005)
        law = fit_parametric(o, objective=objective)
        ends = [
            bootstrap(o, law, samples=200, method="parametric").parameter_intervals()["alpha"],
            delta_intervals(law.generic(), o)["alpha"],
            profile(law.generic(), o, "alpha").interval,
        ]
        widths = [high - low for low, high in ends]
        ratios.append([widths[1] / widths[0], widths[2] / widths[0]])
    assert np.median(ratios, axis=0) == pytest.approx([1.0, 1.0], abs=0.3)


def test_drawn_clusters_have_the_spread_of_their_means():
    # Of a mean, the standard error over G groups of one size is s / sqrt(G), s of the groups' means with G - 1.
    groups = np.repeat(np.arange(6), 5)
    generator = np.random.default_rng(3)
    y = 5 + generator.normal(0, 0.3, 6)[groups] + generator.normal(0, 0.1, 30)
    form = Form("mean", "y = m", ("x",), (positive("m", starts=(1.0, 5.0)),), lambda p, x: p.m + 0 * x.x,
                response="y", compare="linear")  # fmt: skip
    data = {"x": np.arange(1.0, 31.0), "y": y}
    drawn = resample(fit(form, data, objective="l2"), data, samples=4000, method="cluster", groups=groups.tolist())
    means = y.reshape(6, 5).mean(axis=1)
    assert drawn.standard_errors()["m"] == pytest.approx(means.std(ddof=1) / np.sqrt(6), rel=0.05)


def test_a_wide_valley_of_unequal_exponents_keeps_its_bottom():
    truth = LAWS[2]
    c = np.repeat(3e11 * 4.0 ** np.arange(4), 7)
    best = np.array([truth.optimum(x)[0] for x in c])
    n = best * np.tile(np.geomspace(1 / 6, 6, 7), 4)
    rows = Observations(n, c / 6 / n, c, truth.loss(n, c / 6 / n), budget=c)
    valleys = fit_isoflop(rows, samples=50)
    for valley in valleys.valleys:
        assert valley.n_opt == pytest.approx(truth.optimum(valley.budget_flops)[0], rel=0.015)
        x = np.log([p["n_params"] for p in valley.points])
        curve = valley.a + valley.b * x + valley.c * x**2 + valley.d * x**3
        assert np.exp(curve) == pytest.approx([p["loss"] for p in valley.points], rel=0.01)
        # The parabola alone is off by more than this.
        alone = np.polyfit(x, np.log([p["loss"] for p in valley.points]), 2)
        assert abs(-alone[1] / 2 / alone[0] - np.log(truth.optimum(valley.budget_flops)[0])) > 0.03


def test_runs_far_up_the_sides_do_not_move_the_bottom():
    c = np.repeat([1e12, 4e12], 7)
    x = np.tile(np.linspace(-1.2, 1.2, 7), 2)
    rows = Observations(n := 0.02 * c**0.5 * np.exp(x), c / 6 / n, c, 3 * np.exp(0.02 * x**2))
    up = [0.02 * 1e6 * 90, 0.02 * 1e6 * 300]  # far too large, their training hardly begun
    more = Observations(
        *(np.append(a, b) for a, b in zip(
            (rows.n_params, rows.n_tokens, rows.flops, rows.loss),
            (up, [1e12 / 6 / v for v in up], [1e12] * 2, [7.0, 9.0]), strict=True,
        ))
    )  # fmt: skip
    plain, beside = fit_isoflop(rows, samples=30), fit_isoflop(more, samples=30)
    assert beside.valleys[0].n_opt == pytest.approx(plain.valleys[0].n_opt)
    assert (len(beside.valleys[0].points), beside.valleys[0].rows_used) == (9, 7)
    assert any("2 runs more than 10% above" in note for note in beside.notes)
