"""Critical batches: Kaplan's published law, trade-offs drawn from known minima, and where steps are read off."""

import math

import numpy as np
import pytest

from areca.errors import DataError
from areca.laws.fits.critical_batch import fastest, fit_batch_law, fit_tradeoff, noise_at, steps_to

BATCHES = 2.0 ** np.arange(7, 15)


def _steps(s_min, e_min, batch):
    """From (S / S_min - 1)(E / E_min - 1) = 1 with E = B S, solved for S by bisection."""
    low, high = s_min, s_min * 1e9
    for _ in range(200):
        s = math.sqrt(low * high)
        value = (s / s_min - 1) * (batch * s / e_min - 1) if batch * s > e_min else 0.0
        low, high = (s, high) if value < 1 else (low, s)
    return s


def test_a_tradeoff_without_noise_gives_back_its_minima():
    fit = fit_tradeoff(3.0, BATCHES, [_steps(70.0, 2.1e5, b) for b in BATCHES])
    assert fit.s_min == pytest.approx(70, rel=1e-5)
    assert fit.e_min == pytest.approx(2.1e5, rel=1e-5)
    assert fit.b_crit == pytest.approx(3000, rel=1e-5)
    assert fit.within


def test_at_the_critical_batch_a_run_takes_twice_the_least_steps_and_twice_the_least_tokens():
    assert _steps(100.0, 1e5, 1000.0) == pytest.approx(200)


def test_intervals_of_a_noisy_tradeoff_cover_as_often_as_they_say():
    generator = np.random.default_rng(0)
    steps = np.array([_steps(70.0, 2.1e5, b) for b in BATCHES])
    held = 0
    for _ in range(200):
        fit = fit_tradeoff(3.0, BATCHES, steps * np.exp(0.05 * generator.standard_normal(len(steps))))
        held += fit.b_crit_interval[0] <= 3000 <= fit.b_crit_interval[1]
    assert 0.84 <= held / 200 <= 0.96


def test_a_critical_batch_beyond_the_batches_is_marked():
    small = BATCHES[:4]
    assert not fit_tradeoff(3.0, small, [_steps(10.0, 1e6, b) for b in small]).within


def test_kaplans_law_comes_back_and_doubles_over_13_percent():
    losses = np.array([2.5, 3.0, 3.5, 4.0, 5.0])
    tradeoffs = []
    for loss in losses:
        b_crit = 2.1e8 / loss ** (1 / 0.21)
        around = b_crit * 2.0 ** np.arange(-3, 4)
        tradeoffs.append(fit_tradeoff(loss, around, [_steps(1000.0, 1000 * b_crit, b) for b in around]))
    law = fit_batch_law(tradeoffs)
    assert law.b_star == pytest.approx(2.1e8, rel=1e-3)
    assert law.alpha == pytest.approx(0.21, rel=1e-3)
    assert law.doubling == pytest.approx(0.13, abs=0.006)  # "doubles for every 13% decrease in loss"
    assert law.predict(3.0) == pytest.approx(2.1e8 / 3 ** (1 / 0.21), rel=1e-3)


def test_steps_to_a_loss_are_read_between_evaluations():
    curve = [(10, 5.0), (100, 4.0), (1000, 3.0)]
    assert steps_to(curve, 3.5) == pytest.approx(math.sqrt(100 * 1000))
    assert steps_to(curve, 3.0) == pytest.approx(1000)
    assert steps_to(curve, 2.9) is None
    assert steps_to(curve, 5.5) is None  # it came before the first evaluation


def test_of_several_rates_the_fastest_counts():
    curves = {128.0: [[(1, 5.0), (100, 3.0)], [(1, 5.0), (50, 3.0)]], 256.0: [[(1, 5.0), (9, 4.0)]]}
    assert fastest(curves, 3.0) == {128.0: pytest.approx(50)}


def test_the_noise_scale_at_a_loss_is_a_ratio_of_means():
    losses = np.linspace(5, 3, 200)
    trace, grad_sq = np.full(200, 40.0), np.where(np.arange(200) % 2, 0.03, -0.01)
    assert noise_at(losses, trace, grad_sq, 4.0) == pytest.approx(4000, rel=0.15)
    assert noise_at(losses, trace, grad_sq, 2.0) is None
    assert noise_at(losses, trace, -np.ones(200), 4.0) is None


def test_too_few_batches_or_losses_are_said():
    with pytest.raises(DataError, match="reached at 3 batch sizes; a critical batch needs four"):
        fit_tradeoff(3.0, [1, 2, 4], [3, 2, 1])
    one = fit_tradeoff(3.0, BATCHES, [_steps(70.0, 2.1e5, b) for b in BATCHES])
    with pytest.raises(DataError, match="known at 1 losses"):
        fit_batch_law([one, one])
