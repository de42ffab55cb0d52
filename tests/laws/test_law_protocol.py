"""A fit and a published law answer to the same words."""

import numpy as np
import pytest

from areca.errors import ConfigError
from areca.laws import Observations, fit_laws
from areca.laws.law import Fitted, as_law, least_loss, minimise_over_size
from areca.laws.published import LAWS, published


@pytest.fixture(scope="module")
def report():
    law = published("chinchilla-rounded")
    n, d = (v.ravel() for v in np.meshgrid(np.geomspace(1e6, 1e9, 5), np.geomspace(1e8, 1e11, 5)))
    noise = 1 + 0.002 * np.random.default_rng(0).standard_normal(len(n))
    return fit_laws(Observations(n, d, 6 * n * d, law.predict(n, d) * noise), samples=100)


def test_a_fit_is_a_law_with_an_interval(report):
    law, truth = as_law(report), published("chinchilla-rounded")
    assert law.n_counts == "non-embedding"
    assert law.no_interval == ""
    assert float(law.predict(3e8, 1e10)) == float(report.predict(3e8, 1e10))
    low, high = law.interval(3e8, 1e10, 0.9, flops=1.8e19)
    assert (low, high) == report.predict_interval(3e8, 1e10, 0.9, flops=1.8e19)
    assert low < float(truth.predict(3e8, 1e10)) < high
    assert law.ranges.n_params == pytest.approx((1e6, 1e9))
    assert law.ranges.n_tokens == pytest.approx((1e8, 1e11))
    # The law behind the rows: its frontier, and its floor of 1.69.
    n, d = law.frontier(1e20)
    assert n == pytest.approx(truth.frontier(1e20)[0], rel=0.3)
    assert 6 * n * d == pytest.approx(1e20)
    assert least_loss(law) == pytest.approx(1.69, abs=0.1)
    assert as_law(law) is law


@pytest.mark.parametrize("name", [n for n in LAWS if n != "kaplan"])
def test_a_minimum_that_is_found_is_the_one_in_closed_form(name):
    law = published(name)
    for flops in (1e18, 1e22, 1e26):
        assert minimise_over_size(law, flops) == pytest.approx(law.frontier(flops), rel=1e-4)


@pytest.mark.parametrize("name", LAWS)
def test_every_law_says_what_it_is(name):
    law = published(name)
    assert law.name == name
    assert law.equation.startswith("L = ")
    assert " 20" in law.source
    assert law.n_counts in ("non-embedding", "total")
    assert law.interval(1e9, 1e10, 0.9) is None
    assert law.no_interval
    # More of anything never hurts, and vectors are as their parts.
    n, d = np.array([1e7, 1e9, 1e11]), np.array([1e8, 1e10, 1e12])
    grid = law.predict(n[:, None], d[None, :])
    assert (np.diff(grid, axis=0) <= 0).all()
    assert (np.diff(grid, axis=1) <= 0).all()
    assert float(law.predict(1e9, 1e12)) == pytest.approx(grid[1, 2], rel=1e-12)


def test_a_name_that_is_no_law():
    with pytest.raises(ConfigError, match="did you mean 'besiroglu'"):
        published("besirogl")
    assert not isinstance(published("kaplan"), Fitted)
