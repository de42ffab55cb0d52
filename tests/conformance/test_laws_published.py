"""Besiroglu et al. 2024, "Chinchilla Scaling: A replication attempt": fits to the points read off the paper's figure 4.

245 rows of which the 5 of highest loss are left out; N = model size, C = training FLOPs, D = C / 6 N.
"""

import pytest

from areca.laws import bootstrap, fit_parametric, load

PARAMETERS = ("A", "B", "E", "alpha", "beta")
PUBLISHED = {
    # objective, rows dropped: A, B, E, alpha, beta as printed
    ("huber", 5): ("477.83", "2143.4", "1.81722", ".34731", ".36717"),
    ("lad", 5): ("482.006", "2085.43", "1.81686", ".34781", ".36585"),
    ("l2", 5): ("593.3", "4875.6", "1.8646", ".3603", ".4059"),
    ("huber", 0): ("495.7", "12846", "1.8913", ".3493", ".4530"),
}


@pytest.fixture
def chinchilla(shared_data):
    path = shared_data("laws/epoch_chinchilla/svg_extracted_data.csv")
    observations = load([path], n_params="Model Size", flops="Training FLOP", loss="loss")
    assert len(observations) == 245
    assert observations.columns["n_tokens"] == "C / 6 N"
    return observations


@pytest.mark.parametrize(("objective", "dropped"), PUBLISHED)
def test_the_replications_parameters(chinchilla, objective, dropped):
    fit = fit_parametric(chinchilla.drop_highest(dropped), objective=objective)
    assert fit.n_points == 245 - dropped
    for name, printed in zip(PARAMETERS, PUBLISHED[objective, dropped], strict=True):
        # Four significant digits, or half of the last one printed where fewer are.
        half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
        assert getattr(fit, name) == pytest.approx(float(printed), rel=1e-4, abs=half), name
    assert fit.share_of_starts > 0.8


@pytest.mark.slow
def test_the_standard_errors_of_4000_pairs_bootstraps(chinchilla):
    rows = chinchilla.drop_highest(5)
    fit = fit_parametric(rows)
    samples = bootstrap(rows, fit, samples=4000, method="pairs")
    errors = samples.standard_errors()
    for name, printed in {"A": 124.5, "E": 0.0257, "alpha": 0.0154, "beta": 0.0206}.items():
        assert errors[name] == pytest.approx(printed, rel=0.10), name
    # B's distribution has a long tail, so its standard deviation moves by a few percent between seeds.
    assert errors["B"] == pytest.approx(1293, rel=0.25)
