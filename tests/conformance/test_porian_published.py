"""Porian et al. 2024, "Resolving discrepancies in compute-optimal scaling of language models": the exponents of N_opt.

Their five experiments on two corpora, in their order: Kaplan's counts and warm-up; the head's FLOPs counted; the
warm-up shortened; the cosine's length fitted to the run; learning rate, batch and beta2 tuned. optimal_pairs.csv has
the best N of each budget, isoflop_points.csv the runs that they come from.
"""

import csv
from collections import defaultdict

import numpy as np
import pytest

from areca.laws import Observations, fit, fit_isoflop
from areca.laws.forms.declared import N_OPT

EXPERIMENTS = (
    ("base", "long", "kaplan", "kaplan"),
    ("base", "long", "kaplan", "standard"),
    ("base", "short", "kaplan", "standard"),
    ("base", "short", "chinchilla", "standard"),
    ("tuned", "short", "const", "standard"),
)
PUBLISHED = {"rw": (0.834, 0.701, 0.604, 0.571, 0.497), "owt2": (0.870, 0.700, 0.602, 0.569, 0.518)}
FILES = {"rw": "summary_df", "owt2": "summary_df_owt2"}
CASES = [(c, e, a) for c, printed in PUBLISHED.items() for e, a in zip(EXPERIMENTS, printed, strict=True)]


def _rows(path, corpus, experiment, columns):
    """Columns of one experiment's rows; a budget whose optimum they could not bracket has empty cells."""
    found = defaultdict(list)
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["file"] != FILES[corpus]:
                continue
            if tuple(row[k] for k in ("hparams", "warmup", "decay", "param_count")) != experiment:
                continue
            if all(row[c] for c in columns):
                for c in columns:
                    found[c].append(float(row[c]))
    return {k: np.array(v) for k, v in found.items()}


@pytest.mark.parametrize(("corpus", "experiment", "exponent"), CASES)
def test_the_exponent_of_the_best_size(shared_data, corpus, experiment, exponent):
    path = shared_data("laws/porian/optimal_pairs.csv")
    rows = _rows(path, corpus, experiment, ("flops", "n"))
    law = fit(N_OPT, {"flops": rows["flops"], "n_params": rows["n"]}, objective="l2")
    assert law.values["a"] == pytest.approx(exponent, abs=0.001)


def test_the_exponents_with_each_budget_weighed_by_its_error(shared_data):
    # published_fits.csv has both: least squares of ln N on ln C, and with weights 1 / variance of ln N.
    pairs, fits = shared_data("laws/porian/optimal_pairs.csv"), shared_data("laws/porian/published_fits.csv")
    with fits.open() as file:
        printed = [r for r in csv.DictReader(file) if r["fit"] == "weighted" and r["file"] in FILES.values()]
    assert len(printed) == 10
    for row in printed:
        corpus = row["dataset"]
        experiment = tuple(row[k] for k in ("hparams", "warmup", "decay", "param_count"))
        rows = _rows(pairs, corpus, experiment, ("flops", "n", "n_star_std"))
        data = {"flops": rows["flops"], "n_params": rows["n"]}
        law = fit(N_OPT, data, objective="l2", weights=rows["n_star_std"] ** -2)
        assert law.values["a"] == pytest.approx(float(row["n_exponent"]), abs=0.005), experiment


@pytest.mark.parametrize(("corpus", "experiment", "exponent"), CASES)
def test_our_valleys_have_their_best_sizes(shared_data, corpus, experiment, exponent):
    """Theirs are minima of an interpolation with noise (standard error of ln N .1 to .3), ours of a curve for each
    budget: within 30% in four of five budgets, 15% in the middle, and the exponent within .03."""
    pairs = _rows(shared_data("laws/porian/optimal_pairs.csv"), corpus, experiment, ("flops", "n"))
    points = _rows(
        shared_data("laws/porian/isoflop_points.csv"), corpus, experiment, ("n", "t_tokens", "flops", "loss")
    )
    valleys = fit_isoflop(Observations(*points.values()), samples=100)
    assert valleys is not None
    off = []
    for valley in valleys.valleys:
        at = np.abs(np.log(pairs["flops"] / valley.budget_flops))
        if at.min() < 0.05 and valley.interior:
            off.append(abs(np.log(valley.n_opt / pairs["n"][at.argmin()])))
    assert len(off) >= 8
    assert np.median(off) < 0.15
    assert np.quantile(off, 0.8) < 0.26
    assert valleys.n_exponent == pytest.approx(exponent, abs=0.03)
