import numpy as np
import pytest
from truth import Truth

from areca.laws import Observations, fit_compute, fit_isoflop

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)


def _parabolas(budgets, curvature=0.02, noise=0.0, sizes=5, seed=0, shift=0.0):
    """ln L = ln(loss of C) + curvature (ln N - ln N_opt)^2 with N_opt = 0.02 C^0.5 and loss (1e17 / C)^0.08."""
    generator = np.random.default_rng(seed)
    n, c, l = [], [], []
    for flops in budgets:
        x = np.linspace(-1.2, 1.2, sizes) + shift
        n += list(0.02 * flops**0.5 * np.exp(x))
        c += [flops] * sizes
        l += list((1e17 / flops) ** 0.08 * np.exp(curvature * x**2 + noise * generator.standard_normal(sizes)))
    n, c = np.array(n), np.array(c)
    return Observations(n, c / 6 / n, c, np.array(l))


def test_vertices_power_laws_and_frontier_of_exact_parabolas():
    valleys = fit_isoflop(_parabolas([1e12, 4e12, 1.6e13]), samples=50)
    for v, flops in zip(valleys.valleys, [1e12, 4e12, 1.6e13], strict=True):
        assert v.interior
        assert v.curved
        assert v.c == pytest.approx(0.02)
        assert v.n_opt == pytest.approx(0.02 * flops**0.5)
        assert v.d_opt == pytest.approx(flops / 6 / v.n_opt)
        assert v.loss_min == pytest.approx((1e17 / flops) ** 0.08)
        # a + b x + c x^2 in ln N itself gives the observed losses back.
        for p in v.points:
            x = np.log(p["n_params"])
            assert np.exp(v.a + v.b * x + v.c * x * x) == pytest.approx(p["loss"])
        # 0.1% above the lowest loss at both ends of the flat range.
        for edge in v.n_flat:
            assert 0.02 * np.log(edge / v.n_opt) ** 2 == pytest.approx(np.log(1.001))
    assert valleys.n_exponent == pytest.approx(0.5)
    assert valleys.n_coefficient == pytest.approx(0.02)
    assert valleys.d_exponent == pytest.approx(0.5)
    law = fit_compute(valleys)
    assert law.exponent == pytest.approx(0.08)
    assert law.c_c_flops == pytest.approx(1e17, rel=1e-6)
    assert law.c_c_pf_days == pytest.approx(1e17 / 8.64e19, rel=1e-6)
    assert law.predict(1e15) == pytest.approx(100**0.08)


def test_a_frontier_with_a_floor_needs_four_budgets_and_finds_it():
    budgets = 1e12 * 3.0 ** np.arange(5)
    o = _parabolas(budgets)
    factor = (1.7 + (1e14 / o.flops) ** 0.25) / (1e17 / o.flops) ** 0.08
    o = Observations(o.n_params, o.n_tokens, o.flops, o.loss * factor)
    assert fit_compute(fit_isoflop(o.select(o.flops < 2e13), samples=30), with_floor=True) is None
    law = fit_compute(fit_isoflop(o, samples=30), with_floor=True)
    assert law.floor == pytest.approx(1.7, abs=0.01)
    assert law.exponent == pytest.approx(0.25, abs=0.005)


def test_intervals_on_the_best_size_hold_it():
    held = 0
    for seed in range(60):
        valleys = fit_isoflop(_parabolas([1e12, 4e12, 1.6e13], noise=0.004, seed=seed), samples=300, seed=seed)
        low, high = valleys.valleys[0].n_opt_interval
        held += low <= 0.02 * 1e6 <= high
        assert valleys.n_exponent_interval[0] < valleys.n_exponent < valleys.n_exponent_interval[1]
    assert 0.80 <= held / 60 <= 1.0


def test_a_best_size_at_the_edge_and_a_valley_that_is_none_are_said():
    edge = fit_isoflop(_parabolas([1e12, 4e12], shift=2.0), samples=50)
    assert not edge.valleys[0].interior
    assert edge.n_exponent is None
    assert any("at the edge" in note for note in edge.notes)
    dome = fit_isoflop(_parabolas([1e12, 4e12], curvature=-0.02), samples=50)
    assert not dome.valleys[0].curved
    assert dome.valleys[0].n_opt is None
    assert any("no valley" in note for note in dome.notes)


def test_runs_of_no_common_budget_have_no_valleys():
    n = np.geomspace(1e4, 1e6, 12)
    d = np.geomspace(1e7, 1e6, 12) * np.tile([1, 2, 4], 4)
    assert fit_isoflop(Observations(n, d, 6 * n * d, TRUTH.loss(n, d))) is None


def test_budgets_named_in_the_rows_count_before_their_flops():
    o = _parabolas([1e12, 1.05e12])  # nearer than any rounding
    assert len(o.budgets()) == 1
    named = Observations(o.n_params, o.n_tokens, o.flops, o.loss, budget=o.flops)
    assert [round(c / 1e12, 2) for c, _ in named.budgets()] == [1.0, 1.05]
