"""The solver: what is solved beside others, padded, gathered or begun elsewhere has the answer that it has alone."""

from dataclasses import replace

import numpy as np
import pytest
from truth import Truth

from areca.laws.fits import engine
from areca.laws.fits.fitting import fit, rows_of
from areca.laws.fits.starts import starts
from areca.laws.forms.declared import coupled

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)
FORM = coupled(1.5)


def ladder(seed=0):
    return TRUTH.ladder(np.random.default_rng(seed), budgets=3, sizes=5, noise=0.005)


def far_starts(count=150):
    """A problem's plain grid, most of it far off: from some of it the way takes a hundred iterations."""
    return starts(replace(FORM, begin=None), rows_of(FORM, ladder()))[:count]


def test_problems_that_go_on_after_others_end_as_they_would_have_in_one_go(monkeypatch):
    rows, theta = rows_of(FORM, ladder()), far_starts()
    gathered = engine.solve(FORM, rows, theta, delta=1e-3)
    assert 0.1 < np.mean(gathered.iterations > engine.ROUNDS[-1]) < 0.9
    monkeypatch.setattr(engine, "ROUNDS", ())
    whole = engine.solve(FORM, rows, theta, delta=1e-3)
    for name in ("theta", "objective", "gradient", "converged", "at_bound", "iterations"):
        np.testing.assert_array_equal(getattr(gathered, name), getattr(whole, name), name)


def test_a_problem_among_many_has_the_answer_that_it_has_alone():
    rows, theta = rows_of(FORM, ladder()), far_starts()
    among = engine.solve(FORM, rows, theta, delta=1e-3)
    for i in np.flatnonzero(among.converged)[[0, 70, -1]]:
        alone = engine.solve(FORM, rows, theta[i : i + 1], delta=1e-3)
        np.testing.assert_allclose(alone.theta[0], among.theta[i], rtol=1e-9)


def test_rows_that_fill_a_program_up_weigh_nothing():
    """Fifteen rows and an empty one against the same rows thrice at a third of the weight, 45 and 19 empty ones."""
    o = ladder()
    rows, theta = rows_of(FORM, o), far_starts(20)
    plain = engine.solve(FORM, rows, theta, delta=1e-3)
    thrice = rows_of(FORM, o.select(np.tile(np.arange(len(o)), 3)))  # 45 rows: a program of 64
    thirds = engine.solve(FORM, thrice, theta, delta=1e-3, weight=np.full(len(thrice), 1 / 3))
    both = plain.converged & thirds.converged
    assert both.mean() > 0.5
    np.testing.assert_allclose(thirds.objective[both], plain.objective[both], rtol=1e-9)


def test_where_a_problem_is_held_it_stays():
    rows, theta = rows_of(FORM, ladder()), far_starts(10)
    held = np.exp(theta[:, 2])  # a floor E given: no freedom
    low, high = (np.repeat(v[None], 10, axis=0) for v in engine.bounds(FORM))
    low[:, 2], high[:, 2] = np.log(held), np.log(held)
    found = engine.solve(FORM, rows, theta, delta=1e-3, lower=low, upper=high)
    np.testing.assert_allclose(np.exp(found.theta[:, 2]), held)
    assert found.at_bound[:, 2].all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("objective", ["huber", "l2"])
def test_a_coupled_law_begun_at_chinchillas_is_as_good_as_from_the_whole_grid(objective, seed):
    rows = ladder(seed)
    begun, blind = fit(FORM, rows, objective=objective), fit(replace(FORM, begin=None), rows, objective=objective)
    assert (begun.n_starts, blind.n_starts) == (64, 256)
    assert begun.objective_value == pytest.approx(blind.objective_value, rel=1e-6)
    assert begun.share_of_starts > 0.4
