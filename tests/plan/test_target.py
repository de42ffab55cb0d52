import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import norm

from areca.errors import ConfigError, FitError
from areca.laws import LawReport, bootstrap, fit_laws, fit_parametric
from areca.model.counts import count_params, exact_flops_per_token
from areca.plan import family
from areca.plan.target import plan_target

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "laws"))
from truth import Truth

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)
CONTEXT, SHAPES = 128, family(1024, smallest=1e3, largest=1e9)


@lru_cache(maxsize=4)  # a law is not changed
def law_of(seed=0, noise=0.005, samples=200):
    rows = TRUTH.ladder(np.random.default_rng([3, seed]), budgets=4, sizes=5, noise=noise)
    fit = fit_parametric(rows)
    return LawReport(fit, bootstrap(rows, fit, samples=samples, seed=seed), {}, {}, None, None, None, None, rows)


def certain(law, sigma):
    """The law with no doubt about itself: only a run's noise is left."""
    theta = np.repeat(law.parametric.theta[None], 20, 0)
    return replace(law, samples=replace(law.samples, theta=theta, sigma=np.full(20, sigma)))


def target_at(times, law):
    """The loss of the best run at so many times the ladder's largest budget."""
    return float(TRUTH.loss(*TRUTH.optimum(times * law.observations.flops.max())))


def test_with_noise_alone_the_plan_is_that_of_a_loss_lower_by_the_normal_quantile():
    law = certain(law_of(), 0.01)
    target = target_at(10, law)
    found = plan_target(law, target, SHAPES, context=CONTEXT, probability=0.9)
    best = found.sure.plan.best
    aimed = target * np.exp(-norm.ppf(0.9) * 0.01)
    assert best.predicted_loss == pytest.approx(aimed, rel=1e-6)
    # By hand: for every shape the D at which the law's own formula gives the loss aimed at.
    p, costs = law.parametric, []
    for shape in SHAPES:
        rest = aimed - p.E - p.A * count_params(shape).non_embedding ** -p.alpha
        if rest > 0:
            costs.append((p.B / rest) ** (1 / p.beta) * exact_flops_per_token(shape, CONTEXT))
    assert best.flops_exact == pytest.approx(min(costs), rel=1e-3)
    assert found.median is not None
    assert found.median.plan.best.predicted_loss == pytest.approx(target, rel=1e-6)
    assert found.certainty_costs == pytest.approx(best.flops_exact / found.median.plan.best.flops_exact)


def test_the_plan_has_the_probability_asked_for_and_a_step_less_has_not():
    law = law_of()
    target = target_at(10, law)
    for probability in (0.3, 0.5, 0.9, 0.99):
        found = plan_target(law, target, SHAPES, context=CONTEXT, batch=16, probability=probability)
        best, samples = found.sure.plan.best, law.samples

        def reached(tokens, n=best.n_params, samples=samples):
            centre = samples.predict_log(float(n), float(tokens))[:, 0]
            return float(ndtr((np.log(target) - centre) / samples.sigma).mean())

        assert best.n_tokens == best.steps * 16 * CONTEXT
        assert reached(best.n_tokens) == pytest.approx(found.sure.probability)
        assert reached(best.n_tokens - 16 * CONTEXT) < probability <= found.sure.probability


def test_certainty_costs_and_a_lower_loss_costs():
    law = law_of()
    costs = [
        plan_target(law, target_at(10, law), SHAPES, context=CONTEXT, probability=p).sure.plan.best.flops_exact
        for p in (0.5, 0.8, 0.9, 0.99)
    ]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    costs = [
        plan_target(law, target_at(times, law), SHAPES, context=CONTEXT).sure.plan.best.flops_exact
        for times in (3, 10, 30)
    ]
    assert costs == sorted(costs)


def test_half_and_double_the_size_cost_more_for_the_same_certainty():
    found = plan_target(law_of(), target_at(10, law_of()), SHAPES, context=CONTEXT)
    assert set(found.neighbours) == {"half", "double"}
    for near, factor in zip(found.neighbours.values(), (0.5, 2.0), strict=True):
        assert near["n_params"] / found.sure.plan.best.n_params == pytest.approx(factor, rel=0.25)
        assert near["flops_exact"] > found.sure.plan.best.flops_exact


def test_doubt_about_the_form_beyond_the_rows_counts_as_in_the_plans_interval():
    """The upper end of a 90% interval is where a run of 95% probability is."""
    rows = TRUTH.ladder(np.random.default_rng(1), budgets=4, sizes=5, noise=0.005)
    law = fit_laws(rows, samples=200)
    # As if the law had predicted its own largest budget 2% too low.
    law = replace(law, validation={**law.validation, "mean_error": -0.02})
    target = target_at(10, law)
    best = plan_target(law, target, SHAPES, context=CONTEXT, probability=0.95).sure.plan.best
    n, d = float(best.n_params), float(best.n_tokens)
    assert law.predict_interval(n, d, 0.9, flops=6 * n * d)[1] == pytest.approx(target, rel=2e-3)  # C as of the rows
    assert law.predict_interval(n, d, 0.9)[1] < target * 0.99


def test_a_run_that_was_there_already_is_named():
    law = law_of()
    found = plan_target(law, 1.2 * float(law.observations.loss.min()), SHAPES, context=CONTEXT)
    assert any("reached" in w and "already, with" in w for w in found.warnings)


@pytest.mark.slow
def test_runs_planned_at_ninety_percent_reach_the_target_as_often():
    # The chance differs between ladders by 0.15 (0.30 for an even one): over 120 of them the mean has a standard error
    # of 0.014 (0.027), so the bounds are 3.6 (3.7) of them away from what is asked.
    reached, even = [], []
    for seed in range(120):
        law = law_of(seed, samples=100)
        target = target_at(5, law)
        found = plan_target(law, target, SHAPES[::4], context=CONTEXT)
        for runs, into in ((found.sure, reached), (found.median, even)):
            best = runs.plan.best
            # The chance of a run of the true law with the ladder's noise, in place of one draw.
            short = np.log(target) - np.log(TRUTH.loss(float(best.n_params), float(best.n_tokens)))
            into.append(ndtr(short / 0.005))
    assert 0.85 <= np.mean(reached) <= 0.95, np.mean(reached)
    assert 0.4 <= np.mean(even) <= 0.6, np.mean(even)


def test_targets_that_cannot_be_reached_name_the_floor_and_what_can_be():
    law = certain(law_of(), 0.005)
    floor = law.parametric.E
    with pytest.raises(FitError, match=f"a loss of 1.5 lies below the floor of the law, {floor:.4g} nats a token"):
        plan_target(law, 1.5, SHAPES, context=CONTEXT)
    # Just above the floor of a law that doubts it: some samples have their floor above, so certainty is not for sale.
    doubting = law_of()
    target = float(np.exp(np.quantile(doubting.samples.theta[:, 2], 0.7)))
    words = r"with 90% probability: the floor of the law, .* is too little known, and the most that any run reaches is"
    with pytest.raises(FitError, match=words):
        plan_target(doubting, target, family(1024, largest=1e12), context=CONTEXT)


def test_probabilities_and_targets_that_make_no_sense():
    law = law_of(samples=20)
    for probability in (0.0, 1.0, 90.0, -0.1, float("nan")):
        with pytest.raises(ConfigError, match="probability is"):
            plan_target(law, 2.5, SHAPES, context=CONTEXT, probability=probability)
    for target in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="the target loss in nats a token is"):
            plan_target(law, target, SHAPES, context=CONTEXT)
    with pytest.raises(ConfigError, match="batch is 0"):
        plan_target(law, 2.5, SHAPES, context=CONTEXT, batch=0)
    none = replace(law.samples, theta=np.zeros((0, 5)), sigma=np.zeros(0))
    with pytest.raises(FitError, match="holds no bootstrap samples"):
        plan_target(replace(law, samples=none), 2.5, SHAPES, context=CONTEXT)
