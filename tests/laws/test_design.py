import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from truth import Truth

from areca.errors import ConfigError, FitError
from areca.laws import Average, Bootstrap, LawReport, bootstrap, fit_laws, fit_parametric
from areca.laws.design import Doubt, Menu, propose, waste
from areca.laws.fits.average import Member
from areca.laws.predictive import Predictive

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)
TARGET = (3e6, 1e8)


def law_of(noise=0.0005, samples=4000, seed=0, objective="l2"):
    rows = TRUTH.ladder(np.random.default_rng(seed), budgets=4, sizes=6, noise=noise)
    fit = fit_parametric(rows, objective=objective)
    drawn = bootstrap(rows, fit, samples=samples, seed=seed)
    return LawReport(fit, drawn, {}, {}, None, None, None, None, rows)


def menu_of(n=(1e4, 1e5, 1e6), flops=(3e11, 3e12, 3e13)):
    n, c = (v.ravel() for v in np.meshgrid(n, flops))
    return Menu(n, c / 6 / n, c)


def random_doubt(seed, size=10):
    """A menu and a target of which six unknown numbers decide, drawn at random."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((6, size + 1)) * generator.uniform(0.2, 2, size + 1)
    moments = values.T @ values
    cost = generator.uniform(1, 4, size)
    return Doubt(moments[:-1, :-1], moments[:-1, -1], float(moments[-1, -1]), 1.0, 1.0), Menu(cost, cost, cost)


def test_the_variance_left_is_that_of_the_information_matrix():
    """With noise so small that the law is linear: g' (M + J'J / s)^-1 g, all derivatives by differences."""
    law, menu, chosen = law_of(), menu_of(), [0, 5, 8]

    def log_loss(p, n, d):
        return np.log(np.exp(p[2]) + np.exp(p[0]) * n ** -p[3] + np.exp(p[1]) * d ** -p[4])

    def jacobian(n, d):
        steps = np.eye(5) * 1e-6
        theta = law.parametric.theta
        return np.stack([(log_loss(theta + s, n, d) - log_loss(theta - s, n, d)) / 2e-6 for s in steps], 1)

    # In units of the noise, whose size differs a little between samples.
    at_hand = jacobian(law.observations.n_params, law.observations.n_tokens)
    new = jacobian(menu.n_params[chosen], menu.n_tokens[chosen])
    g = jacobian(*(np.array([v]) for v in TARGET))[0]
    expected = [
        float(g @ np.linalg.solve(information, g))
        for information in (at_hand.T @ at_hand, at_hand.T @ at_hand + new.T @ new)
    ]
    doubt = Doubt.of(law, menu, *TARGET)
    assert doubt.of_target / doubt.noise == pytest.approx(expected[0], rel=0.1)
    assert doubt.after(chosen)[2] / doubt.of_target == pytest.approx(expected[1] / expected[0], rel=0.05)
    assert doubt.narrowing(chosen) == pytest.approx(np.sqrt((expected[1] + 1) / (expected[0] + 1)), rel=0.05)


def test_least_squares_wastes_nothing_and_hubers_function_what_is_published():
    # Huber 1981: at 1.345 it has 95% of the efficiency of least squares; the median has 2 / pi.
    assert waste("l2", 0.0) == 1.0
    assert waste("huber", 1.345) == pytest.approx(1 / 0.95, rel=1e-3)
    assert waste("huber", 1e-4) == pytest.approx(np.pi / 2, rel=1e-3) == waste("lad", 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_proposal_is_the_best_of_all_sets_that_the_allowance_pays_for(seed):
    doubt, menu = random_doubt(seed)
    sets = [list(s) for k in (1, 2, 3) for s in itertools.combinations(range(len(menu)), k)]
    best = min(doubt.after(s)[2] for s in sets if menu.flops[s].sum() <= 7)
    chosen = propose(doubt, menu, allowance=7.0, runs=3)
    assert menu.flops[chosen].sum() <= 7
    assert len(set(chosen)) == len(chosen) <= 3
    gone = doubt.of_target - best
    assert doubt.of_target - doubt.after(chosen)[2] >= 0.97 * gone  # an exchange may end at a set that is nearly best


def test_a_run_that_looked_best_alone_gives_way_to_two_that_are_better_together():
    """The target is x + y; one run shows their sum, blurred, the others x and y nearly free of noise."""
    shown = np.array([[1.0, 1.0, 0.7], [10.0, 0.0, 0.0], [0.0, 10.0, 0.0], [1.0, 1.0, 0.0]])  # last: the target
    moments = shown @ shown.T
    doubt = Doubt(moments[:-1, :-1], moments[:-1, -1], float(moments[-1, -1]), 1.0, 1.0)
    menu = Menu(np.ones(3), np.ones(3), np.ones(3))
    assert propose(doubt, menu, allowance=1.0, runs=1) == [0]
    assert propose(doubt, menu, allowance=2.0, runs=2) == [1, 2]
    assert doubt.after([1, 2])[2] == pytest.approx(2 - 2 * 100 / 101)  # 1 - 10 x 10 / (100 + 1) for each of x and y


def test_what_was_spent_well_is_not_undone_by_more():
    doubt, menu = random_doubt(9)
    left = [doubt.after(propose(doubt, menu, allowance=a, runs=9))[2] for a in (4.0, 8.0, 16.0)]
    assert left == sorted(left, reverse=True)
    assert doubt.narrowing([]) == 1.0


def test_runs_that_tell_two_forms_apart_are_taken():
    """Two forms without any doubt of their own, which agree on one run of the menu and not on the other."""
    fit = law_of(samples=20).parametric

    def form(theta, coupling):
        return Member(0.5, fit, Bootstrap(np.repeat(theta[None], 20, 0), np.full(20, 1e-4), "exact", 0, coupling))

    law = law_of(samples=20)
    sum_of_terms = form(fit.theta, 1.0)
    coupled = form(fit.theta, 2.0)
    law = replace(law, average=Average((sum_of_terms, coupled)))
    # With D without end only N decides, whatever the coupling; where both count the forms differ by percents.
    menu = Menu(np.array([1e5, 1e5]), np.array([1e30, 2e6]), np.array([1.0, 1.0]))
    apart = np.ptp(Predictive.of(law).log_loss(menu.n_params, menu.n_tokens), axis=0)
    assert apart[0] < 1e-4 < 0.1 < apart[1]
    doubt = Doubt.of(law, menu, *TARGET)
    assert propose(doubt, menu, allowance=1.0, runs=1) == [1]
    assert doubt.after([1])[2] < 1e-3 * doubt.of_target


@pytest.mark.parametrize("couplings", [(1.0,), (1.0, 2.0)])
def test_one_new_run_is_distributed_as_the_interval_says(couplings):
    rows = TRUTH.ladder(np.random.default_rng(0), budgets=4, sizes=6, noise=0.005)
    law = fit_laws(rows, samples=100, couplings=couplings)
    low, high = law.predict_interval(*TARGET)
    predictive = Predictive.of(law)
    assert predictive.probability(low, *TARGET) == pytest.approx([0.05], abs=1e-6)
    assert predictive.probability(high, *TARGET) == pytest.approx([0.95], abs=1e-6)


def test_designs_that_make_no_sense():
    law, menu = law_of(samples=50), menu_of()
    doubt = Doubt.of(law, menu, *TARGET)
    with pytest.raises(ConfigError, match=r"1e\+10 FLOPs pay for no run .* the cheapest of the menu costs 3e\+11"):
        propose(doubt, menu, allowance=1e10, runs=3)
    for allowance in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(
            ConfigError, match=r"the allowance in FLOPs is .*; it must be (a positive number|below 1e\+40)"
        ):
            propose(doubt, menu, allowance=allowance, runs=3)
    with pytest.raises(ConfigError, match="runs is 0"):
        propose(doubt, menu, allowance=1e13, runs=0)
    none = replace(law.samples, theta=np.zeros((0, 5)), sigma=np.zeros(0))
    with pytest.raises(FitError, match="holds no bootstrap samples"):
        Doubt.of(replace(law, samples=none), menu, *TARGET)
    same = replace(law.samples, theta=np.repeat(law.samples.theta[:1], 50, 0))
    with pytest.raises(FitError, match="agree on the target"):
        Doubt.of(replace(law, samples=same), menu, *TARGET)


@pytest.mark.slow
def test_on_simulated_truth_proposed_runs_narrow_the_refitted_interval_more_than_the_next_rung():
    """A small part of benchmarks/design.py: a third of the next rung's FLOPs, 1.5 times as much for each."""
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "design.py"
    spec = importlib.util.spec_from_file_location("benchmark_of_design", path)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = benchmark  # its dataclasses look themselves up
    spec.loader.exec_module(benchmark)
    setting = benchmark.Setting(4, 100, 1 / 3)
    of = ("proposed", "rung")
    found = [f for seed in range(16) if (f := benchmark.replicate(setting, seed, samples=80, extensions=of))]
    assert len(found) >= 15
    assert np.median([f["proposed_flops"] / f["rung_flops"] for f in found]) < 0.35
    assert benchmark.ratio(found, "proposed") >= 1.5
    # What was promised is what came: the width expected beforehand, over that of the refit.
    assert np.median([f["proposed"] / f["proposed_expected"] for f in found]) == pytest.approx(1.0, abs=0.15)
