import numpy as np
import pytest
from scipy.optimize import minimize
from truth import Truth

from areca.errors import ConfigError, FitError
from areca.laws import Observations, fit_parametric
from areca.laws.fits import engine
from areca.laws.forms.declared import coupled

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)


def _noisy(noise=0.004, seed=0, budgets=4, sizes=5):
    return TRUTH.ladder(np.random.default_rng(seed), budgets=budgets, sizes=sizes, noise=noise)


@pytest.mark.parametrize("objective", ["huber", "lad", "l2"])
def test_parameters_are_recovered_from_a_ladder_without_noise(objective):
    fit = fit_parametric(_noisy(noise=0.0), objective=objective)
    for name in ("A", "B", "E", "alpha", "beta"):
        assert getattr(fit, name) == pytest.approx(getattr(TRUTH, name), rel=2e-3), name
    assert fit.status == "converged"
    assert fit.share_of_starts > 0.5


@pytest.mark.parametrize("coupling", [1.0, 1.5, 3.0])
def test_derivatives_are_those_of_finite_differences(coupling):
    form = coupled(coupling)
    inputs = {"n_params": np.geomspace(1e4, 1e8, 12), "n_tokens": np.geomspace(1e9, 1e6, 12)}
    theta = np.array([4.0, 6.0, 0.6, 0.38, 0.45])
    found = engine.jacobian(form, theta, inputs)
    for k, step in enumerate(np.eye(5) * 1e-6):
        up, down = engine.response(form, np.stack([theta + step, theta - step]), inputs)
        np.testing.assert_allclose(found[:, k], (up - down) / 2e-6, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_another_optimiser_finds_no_lower_objective(seed):
    o = _noisy(seed=seed)
    fit = fit_parametric(o)
    n, d, l = np.log(o.n_params), np.log(o.n_tokens), np.log(o.loss)

    def objective(t):
        predicted = np.logaddexp(np.logaddexp(t[0] - t[3] * n, t[1] - t[4] * d), t[2])
        return engine.huber(predicted - l, 1e-3).sum()

    assert objective(fit.theta) == pytest.approx(fit.objective_value, rel=1e-9)
    generator = np.random.default_rng(seed)
    for _ in range(5):
        start = fit.theta * (1 + 0.05 * generator.standard_normal(5))
        other = minimize(
            objective, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-10, "fatol": 1e-14}
        )
        assert fit.objective_value <= other.fun * (1 + 1e-9)


def test_a_loss_in_other_units_scales_E_A_and_B_alone():
    o = _noisy()
    bits = Observations(o.n_params, o.n_tokens, o.flops, o.loss / np.log(2))
    nats, other = fit_parametric(o), fit_parametric(bits)
    for name in ("A", "B", "E"):
        assert getattr(other, name) == pytest.approx(getattr(nats, name) / np.log(2), rel=1e-6)
    assert other.alpha == pytest.approx(nats.alpha, rel=1e-6)
    assert other.beta == pytest.approx(nats.beta, rel=1e-6)


def test_one_spoilt_run_moves_huber_less_than_least_squares():
    o = _noisy(noise=0.001)
    loss = o.loss.copy()
    loss[7] *= 1.2
    spoilt = Observations(o.n_params, o.n_tokens, o.flops, loss)

    def error(objective):
        fit = fit_parametric(spoilt, objective=objective)
        return abs(fit.predict(3e5, 1e7) / TRUTH.loss(3e5, 1e7) - 1)

    assert error("huber") < 0.005
    assert error("l2") > 2 * error("huber")


def test_frontier_is_where_the_loss_of_a_budget_is_least():
    fit = fit_parametric(_noisy(noise=0.0))
    n, d = fit.frontier(1e14)
    best, _ = TRUTH.optimum(1e14)
    assert n == pytest.approx(best, rel=0.01)
    assert 6 * n * d == pytest.approx(1e14)


def test_five_rows_are_too_few():
    o = _noisy().select(np.arange(5))
    with pytest.raises(FitError, match=r"5 parameters and the table has 5 rows; it needs at least 6"):
        fit_parametric(o)


def test_two_sizes_can_not_carry_the_law():
    o = _noisy()
    n = np.where(np.arange(len(o)) % 2 == 0, 1e4, 2e4)
    with pytest.raises(FitError, match=r"at least 3 distinct values of N and the table has 2"):
        fit_parametric(Observations(n, o.n_tokens, 6 * n * o.n_tokens, o.loss))


def test_a_fixed_ratio_of_tokens_to_parameters_can_not_carry_the_law():
    n = np.geomspace(1e4, 1e6, 10)
    with pytest.raises(FitError, match="N and D move together"):
        fit_parametric(Observations(n, 20 * n, 120 * n * n, TRUTH.loss(n, 20 * n)))


def test_a_loss_that_rises_with_size_is_said_to():
    o = _noisy()
    loss = 2 + 900 * o.n_tokens**-0.45 + 1e-6 * o.n_params
    with pytest.raises(FitError, match="does not fall with N"):
        fit_parametric(Observations(o.n_params, o.n_tokens, o.flops, loss))


def test_a_fit_cut_short_is_an_error_and_not_a_result(monkeypatch):
    monkeypatch.setattr(engine, "ITERATIONS", 2)
    with pytest.raises(FitError, match=r"did not converge.*relative gradient"):
        fit_parametric(_noisy())


def test_pure_noise_is_never_a_law_without_a_word():
    generator = np.random.default_rng(5)
    o = _noisy()
    for _ in range(10):
        noise = Observations(o.n_params, o.n_tokens, o.flops, np.exp(generator.normal(1, 0.2, len(o))))
        try:
            fit = fit_parametric(noise)
        except FitError:
            continue
        assert fit.at_bound or fit.sigma > 0.05


@pytest.mark.parametrize(
    ("objective", "delta", "message"), [("mse", 1e-3, "objective is 'mse'"), ("huber", 0.0, "delta is 0")]
)
def test_unknown_objective_and_delta(objective, delta, message):
    with pytest.raises(ConfigError, match=message):
        fit_parametric(_noisy(), objective=objective, delta=delta)
