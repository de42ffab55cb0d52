import numpy as np
import pytest
from truth import Truth

from areca.errors import ConfigError, FitError
from areca.laws import Observations, bootstrap, fit_parametric, predict_interval

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)


def _ladder(seed=0, noise=0.004, budgets=3, sizes=5):
    return TRUTH.ladder(np.random.default_rng(seed), budgets=budgets, sizes=sizes, noise=noise)


def test_same_seed_same_interval_other_seed_nearly_the_same():
    o = _ladder()
    fit = fit_parametric(o)
    first = predict_interval(bootstrap(o, fit, samples=400, seed=1), 3e5, 1e7)
    assert first == predict_interval(bootstrap(o, fit, samples=400, seed=1), 3e5, 1e7)
    other = predict_interval(bootstrap(o, fit, samples=400, seed=2), 3e5, 1e7)
    assert first != other
    assert other == pytest.approx(first, rel=0.005)


@pytest.mark.parametrize("method", ["parametric", "residual", "pairs"])
def test_every_method_brackets_the_prediction_and_widens_with_distance_and_level(method):
    o = _ladder(budgets=4)
    fit = fit_parametric(o)
    samples = bootstrap(o, fit, samples=200, method=method)
    assert samples.failed == 0

    def width(n, d, level=0.9):
        low, high = predict_interval(samples, n, d, level)
        assert low < fit.predict(n, d) < high
        return (high - low) / fit.predict(n, d)

    assert width(3e4, 2e6) < width(3e6, 2e8)
    assert width(3e4, 2e6, 0.5) < width(3e4, 2e6, 0.99)
    # Never narrower than the noise of one run alone.
    assert width(3e4, 2e6) > 2 * 1.64 * 0.6 * fit.sigma


def test_interval_is_as_wide_as_the_delta_method_says_for_least_squares():
    # With 4 x 6 runs the law is close to linear in its parameters: prediction +- t sqrt(sigma^2 (1 + leverage)).
    from scipy.stats import t

    o = _ladder(budgets=4, sizes=6, noise=0.002)
    fit = fit_parametric(o, objective="l2")
    theta, n, d = fit.theta, 2e5, 1e7

    def log_loss(p, n, d):
        return np.log(np.exp(p[2]) + np.exp(p[0]) * n ** -p[3] + np.exp(p[1]) * d ** -p[4])

    steps = np.eye(5) * 1e-6
    jacobian = np.stack(
        [
            (log_loss(theta + s, o.n_params, o.n_tokens) - log_loss(theta - s, o.n_params, o.n_tokens)) / 2e-6
            for s in steps
        ],
        1,
    )
    new = np.array([(log_loss(theta + s, n, d) - log_loss(theta - s, n, d)) / 2e-6 for s in steps])
    leverage = new @ np.linalg.solve(jacobian.T @ jacobian, new)
    half = t.ppf(0.95, len(o) - 5) * fit.sigma * np.sqrt(1 + leverage)
    low, high = predict_interval(bootstrap(o, fit, samples=2000), n, d)
    assert np.log(high / low) / 2 == pytest.approx(half, rel=0.07)


@pytest.mark.slow
def test_ninety_percent_intervals_hold_a_new_run_at_four_times_the_compute():
    generator = np.random.default_rng(20)
    held, widths = [], []
    for i in range(100):
        truth = Truth.draw(generator)
        noise = (0.003, 0.004, 0.005)[i % 3]
        o = truth.ladder(generator, budgets=(3, 4)[i % 2], sizes=(4, 5, 6)[i % 3], noise=noise)
        n, d = truth.optimum(4 * o.flops.max())
        new = truth.loss(n, d) * np.exp(noise * generator.standard_normal())
        fit = fit_parametric(o)
        low, high = predict_interval(bootstrap(o, fit, samples=150, seed=i), n, d)
        held.append(low <= new <= high)
        widths.append((high - low) / 2 / float(fit.predict(n, d)))
    assert 0.82 <= np.mean(held) <= 0.97, np.mean(held)
    assert np.median(widths) < 0.015
    assert np.quantile(widths, 0.95) < 0.03


def test_refits_that_do_not_converge_are_an_error(monkeypatch):
    from areca.laws.fits import engine

    o = _ladder()
    fit = fit_parametric(o)
    monkeypatch.setattr(engine, "ITERATIONS", 1)
    with pytest.raises(FitError, match="bootstrap refits did not converge"):
        bootstrap(o, fit, samples=50)


def test_levels_and_sample_counts_that_make_no_sense():
    o = _ladder()
    fit = fit_parametric(o)
    with pytest.raises(ConfigError, match="at least 20"):
        bootstrap(o, fit, samples=3)
    with pytest.raises(ConfigError, match=r"level is 90"):
        predict_interval(bootstrap(o, fit, samples=20), 1e5, 1e6, level=90)


def test_rows_that_are_the_law_itself_have_intervals_without_width():
    n, d = (v.ravel() for v in np.meshgrid([1e6, 3e6, 1e7, 3e7], [1e8, 1e9, 1e10]))
    rows = Observations(n, d, 6 * n * d, 1.7 + 400 / n**0.34 + 410 / d**0.28)
    fit = fit_parametric(rows)
    samples = bootstrap(rows, fit, samples=50)
    assert (fit.E, fit.alpha, fit.beta) == pytest.approx((1.7, 0.34, 0.28), rel=1e-3)
    low, high = predict_interval(samples, 1e9, 1e11)
    assert low == pytest.approx(1.7 + 400 / 1e9**0.34 + 410 / 1e11**0.28, rel=1e-3)
    assert high == pytest.approx(low, rel=1e-4)
