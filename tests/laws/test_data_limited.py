"""L(D) and overfitting: Kaplan's published constants come back from runs drawn from them."""

import numpy as np
import pytest

from areca.errors import DataError
from areca.laws.fits.data_limited import fit_data_law, fit_overfitting

A_N, A_D, N_C, D_C = 0.076, 0.103, 6.4e13, 1.8e13  # Kaplan et al. 2020, table 2
N, D = (v.ravel() for v in np.meshgrid([4e5, 3e6, 8.5e7, 7e8], [2.2e7, 2e8, 2e9, 2.2e10]))
LOSS = ((N_C / N) ** (A_N / A_D) + D_C / D) ** A_D


def test_kaplans_overfitting_comes_back():
    fit = fit_overfitting(N, D, LOSS)
    assert (fit.alpha_n, fit.alpha_d) == (pytest.approx(A_N, rel=1e-4), pytest.approx(A_D, rel=1e-4))
    assert (fit.n_c, fit.d_c) == (pytest.approx(N_C, rel=1e-2), pytest.approx(D_C, rel=1e-2))
    assert fit.exponent == pytest.approx(0.74, abs=0.005)  # "overfitting depends on N^0.74 / D"


def test_eight_times_the_model_needs_five_times_the_data_to_overfit_as_much():
    fit = fit_overfitting(N, D, LOSS)
    assert fit.excess(8e6, 5 * 1e8) == pytest.approx(fit.excess(1e6, 1e8), rel=0.08)


def test_kaplans_guard_keeps_overfitting_at_two_percent():
    """D > 5e3 N^0.74 keeps the penalty near the variation of loss with the seed, 0.02 (their equation 4.4)."""
    fit = fit_overfitting(N, D, LOSS)
    assert fit.excess(1e8, 5e3 * 1e8**0.74) == pytest.approx(0.02, abs=0.005)


def test_l_of_d_comes_back_with_and_without_a_floor():
    d = np.geomspace(1e4, 1e7, 7)
    plain = fit_data_law(d, (5.4e13 / d) ** 0.095)
    assert (plain.alpha, plain.d_c) == (pytest.approx(0.095, rel=1e-6), pytest.approx(5.4e13, rel=1e-4))
    floored = fit_data_law(d, 1.7 + (2e6 / d) ** 0.3, with_floor=True)
    assert floored.alpha == pytest.approx(0.3, rel=1e-3)
    assert floored.floor == pytest.approx(1.7, rel=1e-3)


def test_the_interval_of_an_exponent_covers_as_often_as_it_says():
    generator, d = np.random.default_rng(1), np.geomspace(1e4, 1e7, 8)
    held = 0
    for _ in range(200):
        fit = fit_data_law(d, (5.4e13 / d) ** 0.095 * np.exp(0.01 * generator.standard_normal(8)))
        held += fit.alpha_interval[0] <= 0.095 <= fit.alpha_interval[1]
    assert 0.84 <= held / 200 <= 0.96


def test_too_little_is_said():
    with pytest.raises(DataError, match="L\\(D\\) needs runs on 3 amounts of text, not 2"):
        fit_data_law([1e4, 1e5, 1e5], [4, 3, 3])
    with pytest.raises(DataError, match="needs five runs of two sizes on two amounts of text, not 5 of 1 on 5"):
        fit_overfitting([1e4] * 5, [1e4, 2e4, 3e4, 4e4, 5e4], [5, 4, 3, 2.5, 2.2])
