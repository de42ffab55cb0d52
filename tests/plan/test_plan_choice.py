"""Runs other than that of least loss: over-trained, stopped early, cheap to serve; and repeated data."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from areca.errors import ConfigError
from areca.laws.published import LAWS, published
from areca.model.counts import exact_flops_per_token
from areca.plan import Choice, family, plan_run

VOCAB, CONTEXT = 50_257, 2048
SHAPES = family(VOCAB)


def _plan(name, flops=1e21, shapes=SHAPES, **options):
    return plan_run(published(name), flops, shapes, context=CONTEXT, batch=16, **options)


# Published laws


@pytest.mark.parametrize("name", LAWS)
def test_the_best_size_is_the_frontiers_as_the_law_counts_parameters(name):
    law, plan = published(name), _plan(name, 1e22)
    n = plan.best.counted(law)
    assert n == (plan.best.n_params if name == "kaplan" else plan.best.n_params_total)
    # The frontier under C = 6 N D; exact FLOPs add the logits and attention, a tenth here.
    assert n == pytest.approx(law.frontier(6 * n * plan.best.n_tokens)[0], rel=0.2)
    assert plan.predicted_loss == pytest.approx(float(law.predict(n, plan.best.n_tokens)))
    assert plan.interval is None
    assert plan.half_width_relative is None
    assert plan.law["no_interval"]
    assert plan.to_dict()["law"]["name"] == name


def test_the_range_within_a_tenth_of_a_percent_is_wide():
    plan = _plan("chinchilla")
    law, (low, high) = published("chinchilla"), plan.flat_range
    assert low < plan.best.n_params / 1.2
    assert high > plan.best.n_params * 1.2
    for c in plan.neighbours.values():
        assert c.predicted_loss > plan.predicted_loss * 1.001
    assert float(law.predict(*law.frontier(1e21))) == pytest.approx(plan.predicted_loss, rel=0.01)


def test_beyond_what_a_law_was_measured_on_a_plan_says_so_in_orders_of_magnitude():
    plan = _plan("kaplan", 1e24)
    assert plan.extrapolation["n_params"] == pytest.approx(plan.best.n_params / 1.5e9)
    orders = np.log10(plan.best.n_params / 1.5e9)
    said = "\n".join(plan.warnings)
    assert f"{orders:.2g} orders of magnitude outside" in said
    assert "the context = 2.05e+03 is 2 times the largest the law was measured on (1.02e+03), 0.3 orders" in said
    assert "below the lowest the law was measured at (2.4)" in said
    inside = plan_run(published("kaplan"), 1e18, SHAPES, context=1024, batch=16)
    assert inside.warnings == []
    assert set(inside.extrapolation.values()) == {1.0}


def test_a_run_whose_loss_is_above_that_of_guessing_is_refused():
    with pytest.raises(ConfigError, match=r"above ln V = 5\.7 that guessing has.*raise the budget"):
        plan_run(published("chinchilla"), 1e11, family(300), context=16)
    with pytest.raises(ConfigError, match=r"of 1e\+03 different tokens a loss of .* give more different tokens"):
        plan_run(published("data-constrained"), 1e20, SHAPES, context=1024, batch=16, unique_tokens=1e3)


def test_kaplans_recipe_stands_beside_the_plan_fitted_and_derived():
    plan = plan_run(published("kaplan"), 1e21, SHAPES, context=1024, batch=16)
    pf_days = 6 * plan.best.n_params * plan.best.n_tokens / 8.64e19
    recipe = plan.recipe
    assert recipe["pf_days"] == pytest.approx(pf_days, rel=1e-3)
    # At the critical batch C_min is half of the budget: table 6, and N ~ C^.68 through 5.84e8 at one PF-day.
    assert recipe["fitted"]["n_params"] == pytest.approx(1.3e9 * (pf_days / 2) ** 0.73, rel=1e-3)
    assert recipe["derived"]["n_params"] == pytest.approx(5.84e8 * (pf_days / 2) ** 0.6812, rel=0.01)
    assert plan.best.n_params == pytest.approx(recipe["derived"]["n_params"], rel=0.15)
    assert plan.predicted_loss == pytest.approx(recipe["derived"]["loss"], rel=1e-3)
    assert _plan("chinchilla").recipe is None


def test_the_flat_range_does_not_depend_on_how_close_the_shapes_are():
    fine = _plan("chinchilla").flat_range
    for start in range(8):
        coarse = _plan("chinchilla", shapes=SHAPES[start::8]).flat_range
        # Fewer shapes miss the valley's lowest point by a little, which widens the range.
        assert coarse == pytest.approx(fine, rel=0.25)
    # In closed form, under C = 6 N D through the same optimum: the law's own valley.
    law = published("chinchilla")
    n, _ = law.frontier(1e21)
    grid = n * np.geomspace(0.3, 3, 2001)
    loss = law.predict(grid, 1e21 / (6 * grid))
    flat = grid[loss <= loss.min() * 1.001]
    assert fine[1] / fine[0] == pytest.approx(flat[-1] / flat[0], rel=0.1)


# Choices


def test_over_training_takes_a_smaller_model_and_names_the_penalty():
    best = _plan("chinchilla")
    plan = _plan("chinchilla", choice=Choice(over_train=10))
    assert plan.best.tokens_per_param / best.best.tokens_per_param == pytest.approx(10, rel=0.15)
    assert plan.best.n_params < best.best.n_params
    assert plan.best.flops_exact == pytest.approx(1e21, rel=1e-3)
    penalty = plan.predicted_loss / best.predicted_loss - 1
    assert plan.choice["loss_penalty"] == pytest.approx(penalty)
    assert 0.005 < penalty < 0.05
    assert plan.choice["optimum"]["n_params"] == best.best.n_params
    with pytest.raises(ConfigError, match="give a factor nearer to 1"):
        _plan("chinchilla", choice=Choice(over_train=1e30))


def test_stopping_ten_percent_above_convergence_is_the_best_use_of_compute():
    best = _plan("kaplan").best
    plan = _plan("kaplan", choice=Choice(stop_above_convergence=0.077 / 0.76))
    assert plan.best.n_params == pytest.approx(best.n_params, rel=0.25)
    assert plan.choice["loss_penalty"] < 1e-3
    # Nearer to convergence a smaller model sees more tokens for the same compute, and ends higher.
    near = _plan("kaplan", choice=Choice(stop_above_convergence=0.02))
    assert near.best.n_params < best.n_params / 3
    assert near.predicted_loss > 1.03 * plan.predicted_loss
    converged = (6.5e13 / near.best.n_params) ** 0.077
    assert near.predicted_loss / converged - 1 == pytest.approx(0.02, abs=0.005)


def test_the_cheapest_model_to_train_and_serve():
    law, served = published("besiroglu"), 2e12
    base = _plan("besiroglu")
    plan = _plan("besiroglu", choice=Choice(inference_tokens=served))
    assert plan.predicted_loss == pytest.approx(base.predicted_loss, rel=1e-4)
    assert plan.best.n_params < base.best.n_params
    assert plan.best.n_tokens > base.best.n_tokens
    # Sardana et al. 2023 in their own terms, 6 N D + 2 N D_inference with N of all parameters.
    least = law.E + 1e-9

    def total(log_n):
        n = np.exp(log_n)
        room = base.predicted_loss - least - law.A * n**-law.alpha
        return 1e40 if room <= 0 else 6 * n * (law.B / room) ** (1 / law.beta) + 2 * n * served

    n = np.exp(minimize_scalar(total, bounds=(np.log(5e8), np.log(1e11)), method="bounded").x)
    assert plan.best.n_params_total == pytest.approx(n, rel=0.2)
    # In exact FLOPs no other shape is cheaper.
    c = plan.choice
    assert c["total_flops"] == pytest.approx(
        exact_flops_per_token(plan.model(), CONTEXT) * (plan.best.n_tokens + served / 3)
    )
    assert c["total_flops"] < c["optimum_total_flops"]
    assert c["saved"] == pytest.approx(1 - c["total_flops"] / c["optimum_total_flops"])


def test_a_model_that_is_hardly_served_is_the_compute_optimum():
    base, plan = _plan("besiroglu"), _plan("besiroglu", choice=Choice(inference_tokens=1.0))
    assert plan.best.n_params == base.best.n_params
    assert plan.best.flops_exact == pytest.approx(1e21, rel=0.01)


def test_a_target_loss_is_a_budget():
    plan = _plan("besiroglu", None, choice=Choice(inference_tokens=1.0, target_loss=2.4))
    assert plan.predicted_loss <= 2.4
    assert plan.predicted_loss == pytest.approx(2.4, abs=1e-4)
    # Any budget less by 2% ends higher.
    assert _plan("besiroglu", plan.best.flops_exact * 0.98).predicted_loss > 2.4
    for loss, says in ((1.8, "below the law's floor of 1.817"), (1.8169, "no shape of the family reaches")):
        with pytest.raises(ConfigError, match=says):
            _plan("besiroglu", None, choice=Choice(inference_tokens=1.0, target_loss=loss))


# Repeated data


def test_a_data_constrained_law_trains_less_on_what_is_repeated():
    free = _plan("data-constrained", 1e22)
    tight = _plan("data-constrained", 1e22, unique_tokens=1e9)
    assert tight.predicted_loss > 1.05 * free.predicted_loss
    assert tight.unique_tokens == 1e9
    assert not any("read" in w for w in tight.warnings)
    # Unique tokens enough for all of D change nothing.
    assert _plan("data-constrained", 1e22, unique_tokens=1e13).best == free.best


def test_a_law_without_repeats_says_by_how_much_four_epochs_are_exceeded():
    plan = _plan("chinchilla", 1e22, unique_tokens=1e10)
    epochs = plan.best.n_tokens / 1e10
    (said,) = [w for w in plan.warnings if "unique tokens" in w]
    assert f"are read {epochs:.3g} times, {epochs / 4:.3g} times the 4 epochs" in said
    assert not any("unique" in w for w in _plan("chinchilla", 1e22, unique_tokens=1e12).warnings)
    for bad in (0.0, -5.0, float("nan")):
        with pytest.raises(ConfigError, match="--unique-tokens is"):
            _plan("chinchilla", unique_tokens=bad)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (Choice(over_train=2, inference_tokens=1e9), "two ways to choose a run"),
        (Choice(over_train=-1), "--over-train is -1"),
        (Choice(target_loss=2.0), "give --inference-tokens with it"),
        (Choice(stop_above_convergence=0.1), "use --law kaplan"),
    ],
)
def test_choices_that_cannot_be(choice, says):
    with pytest.raises(ConfigError, match=says):
        _plan("chinchilla", choice=choice)
