"""A plan, a search for a loss and a design give a law its N, and their own C beside its rows, as the rows count them.

A small vocabulary's embeddings are most of N in small models, so a wrong count is far off here.
"""

import json
from functools import cache

import numpy as np
import pytest

from areca.cli.main import main
from areca.counted import flops_count, n_count, says_n_count
from areca.laws import LawReport, Observations, bootstrap, fit_parametric
from areca.laws.law import Fitted
from areca.laws.published import published
from areca.laws.reading.questions import mixed_sizes
from areca.laws.reading.tables import load
from areca.model.counts import count_params, exact_flops_per_token
from areca.plan import family, plan_run
from areca.plan.at_hand import AtHand
from areca.plan.experiments import design_runs
from areca.plan.target import plan_target

VOCAB, CONTEXT = 8192, 64
SHAPES = family(VOCAB, smallest=3e4, largest=1e8)
SIZES = {"non-embedding": "n_params", "total": "n_params_total"}
BUDGETS = (1e13, 3e13, 9e13)
PLANNED = 9e14


def truth(n, d):
    return 1.8 + 150 * n**-0.35 + 500 * d**-0.37


def size(shape, counts):
    found = count_params(shape)
    return found.total if counts == "total" else found.non_embedding


@cache
def law_of(counts="total", flops="exact"):
    """A law without noise, N and C of its rows in these counts, its samples made to doubt it a little."""
    rows = []
    for budget in BUDGETS:
        for shape in SIZES_OF_LADDER:
            n, per_token = size(shape, counts), exact_flops_per_token(shape, CONTEXT)
            d = budget / (per_token if flops == "exact" else FACTOR[flops] * n)
            rows.append((n, d, budget, truth(n, d)))
    n, d, c, loss = np.array(rows, float).T
    loss = loss * (1 + 1e-4 * np.random.default_rng(0).standard_normal(len(loss)))
    columns = {"n_params": SIZES[counts], "flops": {"exact": "flops_exact", "6nd": "6 N D", "table": "C"}[flops]}
    observations = Observations(n, d, c, loss, columns=columns)
    fit = fit_parametric(observations)
    drawn = bootstrap(observations, fit, samples=60)
    return LawReport(fit, drawn, {}, {}, None, None, None, None, observations)


FACTOR = {"6nd": 6.0, "table": 7.5}
SIZES_OF_LADDER = [s for s in SHAPES if 6e4 < count_params(s).non_embedding < 3e7][::5]


@pytest.mark.parametrize("counts", ["total", "non-embedding"])
def test_a_plan_is_the_minimum_of_the_true_law_over_the_shapes_in_the_rows_count_of_n(counts):
    plan = plan_run(law_of(counts), PLANNED, SHAPES, context=CONTEXT)
    spent = [(s, PLANNED / exact_flops_per_token(s, CONTEXT)) for s in SHAPES]
    shape, tokens = min(spent, key=lambda run: truth(size(run[0], counts), run[1]))
    other = {"total": "non-embedding", "non-embedding": "total"}[counts]
    wrong, _ = min(spent, key=lambda run: truth(size(run[0], other), run[1]))
    places = [SHAPES.index(s) for s in (plan.model(), shape, wrong)]
    assert abs(places[0] - places[1]) <= 1 < abs(places[0] - places[2])  # the valley's floor, one shape wide
    assert plan.best.n_tokens == pytest.approx(tokens, rel=0.2 if places[0] != places[1] else 1e-4)
    n = size(plan.model(), counts)
    assert plan.predicted_loss == pytest.approx(truth(n, plan.best.n_tokens), rel=5e-4)
    assert plan.interval[0] < plan.predicted_loss < plan.interval[1]
    assert plan.interval == pytest.approx(law_of(counts).predictor.interval(n, plan.best.n_tokens, 0.9), rel=1e-2)
    assert plan.law["n_counts"] == counts
    for near, factor in (("half", 0.5), ("double", 2.0)):
        c = plan.neighbours[near]
        assert size(c.model(), counts) / n == pytest.approx(factor, rel=0.25)
        assert c.predicted_loss == pytest.approx(truth(size(c.model(), counts), c.n_tokens), rel=5e-4)
    assert plan.extrapolation["n_params"] == pytest.approx(
        max(1.0, n / max(size(s, counts) for s in SIZES_OF_LADDER)), rel=1e-9
    )


def test_the_cheapest_run_for_a_loss_is_that_of_the_true_law():
    target = float(min(truth(size(s, "total"), PLANNED / exact_flops_per_token(s, CONTEXT)) for s in SHAPES))
    found = plan_target(law_of(), target, SHAPES, context=CONTEXT, probability=0.5)
    best = found.sure.plan.best
    assert best.flops_exact == pytest.approx(PLANNED, rel=0.02)
    assert truth(best.n_params_total, best.n_tokens) == pytest.approx(target, rel=5e-4)
    assert found.sure.probability == pytest.approx(0.5, abs=0.01)
    for near, factor in (("half", 0.5), ("double", 2.0)):
        c = found.neighbours[near]
        assert c["n_params_total"] / best.n_params_total == pytest.approx(factor, rel=0.25)
        assert truth(c["n_params_total"], c["n_tokens"]) == pytest.approx(target, rel=1e-3)


@pytest.mark.parametrize("flops", ["exact", "6nd", "table"])
def test_a_budget_is_compared_with_the_rows_in_their_own_count(flops):
    law = Fitted(law_of("total", flops))
    inside = plan_run(law, 1e12, SHAPES, context=CONTEXT)
    plan = plan_run(law, PLANNED, SHAPES, context=CONTEXT)
    n, d = plan.best.n_params_total, plan.best.n_tokens
    counted = PLANNED if flops == "exact" else FACTOR[flops] * n * d
    assert plan.extrapolation["flops"] == pytest.approx(counted / BUDGETS[-1])
    words = {"exact": "the budget = ", "6nd": "the budget as 6 N D, N with embeddings, = ",
             "table": "the budget as the rows count FLOPs, N with embeddings, = "}[flops]  # fmt: skip
    assert any(w.startswith(f"{words}{counted:.3g} is ") for w in plan.warnings)
    assert inside.extrapolation["flops"] < 1


def test_the_doubt_beyond_the_rows_begins_where_their_own_count_does():
    """A run beyond the rows in exact FLOPs and not as 6 N D of all parameters has no doubt of the form in it."""
    report = law_of("non-embedding", "6nd")
    report = LawReport(**{**vars(report), "validation": {"mean_error": -0.05, "stretch": 3.0}})
    law, n = Fitted(report), 1e6
    d = 0.99 * BUDGETS[-1] / 6 / n
    assert law.interval(n, d, 0.9, flops=2 * BUDGETS[-1]) == law.interval(n, d, 0.9)
    assert law.interval(n, 2 * d, 0.9, flops=2 * BUDGETS[-1])[1] > law.interval(n, 2 * d, 0.9)[1]


@pytest.mark.parametrize("flops", ["exact", "6nd"])
def test_a_design_is_in_its_laws_count_throughout(flops):
    law = law_of("total", flops)
    have = AtHand(law, None, VOCAB, CONTEXT, lambda shape, flops: 1, [], "law.json")
    target = (4e7, 3e9)
    design = design_runs(have, allowance=5e13, target=target, runs=3)
    o = law.observations
    ratios = o.n_tokens / o.n_params
    assert design.n_params_total == pytest.approx(target[0])
    assert design.n_params < target[0]
    assert design.predicted_loss == pytest.approx(truth(*target), rel=2e-3)
    assert design.interval == pytest.approx(law.predictor.interval(*target, 0.9))
    for run in (*design.proposed.runs, *design.next_rung.runs):
        assert run.predicted_loss == pytest.approx(truth(run.n_params_total, run.n_tokens), rel=1e-3)
    for run in design.proposed.runs:
        assert 0.99 * ratios.min() <= run.n_tokens / run.n_params_total <= 1.01 * ratios.max()
    # The next rung: the budgets' step once more and the sizes moved by the frontier, both as the rows count them.
    step = BUDGETS[-1] * BUDGETS[-1] / BUDGETS[-2]
    moved = float(law.parametric.frontier(step)[0] / law.parametric.frontier(BUDGETS[-1])[0])
    for run in design.next_rung.runs:
        cost = run.flops_exact if flops == "exact" else 6 * run.n_params_total * run.n_tokens
        assert cost == pytest.approx(step, rel=1e-3)
    largest = max(r.n_params_total for r in design.next_rung.runs)
    assert largest == pytest.approx(moved * o.n_params.max(), rel=0.15)
    assert design.law["n_counts"] == "total"


def test_what_columns_say_of_n():
    for name in ("total_params", "Total parameters (M)", "n_params_total", "params_with_embeddings", "all_params"):
        assert (n_count(name), says_n_count(name)) == ("total", True)
    for name in ("", "n_params", "n_params (M)", "non_embedding_params", "total_non_embedding", "params_without_emb"):
        assert (n_count(name), says_n_count(name)) == ("non-embedding", True)
    for name in ("params", "N", "C / 6 D", "Model Size (M)"):
        assert (n_count(name), says_n_count(name)) == ("non-embedding", False)
    # 6 N D of parameters without embeddings is not that of the law's N.
    assert flops_count("flops_6nd (6 N D)", [(2e6, 1e8, 6e14)]) == "table"
    assert flops_count("flops_6nd (6 N D)", [(1e6, 1e8, 6e14)]) == "6nd"


def test_published_rows_have_their_own_count():
    n, d = 6e9, 2.5e11
    assert published("chinchilla").flops_of(n, d, 1e22) == 1e22
    assert published("data-constrained").flops_of(n, d, 1e22) == 6 * n * d
    # Muennighoff et al. 2023: the smallest run, 7.09M parameters on 100M tokens, is printed with 4.25e15.
    ranges = published("data-constrained").ranges
    assert 6 * ranges.n_params[0] * ranges.n_tokens[0] == pytest.approx(ranges.flops[0], rel=2e-3)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """One ladder as three tables, which differ in what N is called."""
    place, o = tmp_path_factory.mktemp("tables"), law_of("total", "6nd").observations
    lines = [
        f"{n:.0f},{d:.0f},{c:.6g},{loss:.5f}"
        for n, d, c, loss in zip(o.n_params, o.n_tokens, o.flops, o.loss, strict=True)
    ]
    for name, column in (("total", "total_params"), ("unsaid", "params"), ("own", "n_params")):
        (place / f"{name}.csv").write_text("\n".join([f"{column},n_tokens,flops,loss", *lines]))
        options = ["--n-params", column, "--bootstrap", "40", "--quick"]
        assert main(["fit", str(place / f"{name}.csv"), *options, "--out", str(place / f"{name}.json")]) == 0
    return place


def test_the_verbs_say_what_n_counts(tables, capsys):
    common = ["--vocab-size", str(VOCAB), "--context", str(CONTEXT), "--batch", "1"]
    target = ["--target-params", "4e7", "--target-tokens", "3e9"]
    assert main(["plan", str(tables / "total.json"), "--flops", "9e14", *common]) == 0
    plan = capsys.readouterr().out
    assert main(["plan", str(tables / "total.json"), "--target-loss", "2.7", *common]) == 0
    reach = capsys.readouterr().out
    assert main(["design", str(tables / "total.json"), "--flops", "5e13", *target, *common]) == 0
    design = capsys.readouterr().out
    for said in (plan, reach, design):
        assert "law: fit, huber fit to " in said
        assert "; N counts all parameters (" in said
        assert "all N" in said
        assert "does not say whether" not in said
    assert "; N counts all parameters (40" in design
    assert "target: 40.00 M parameters, embeddings included, on 3.00 B tokens" in design
    law = json.loads((tables / "total.json").read_text())
    assert law["equation"].endswith("N with embeddings")
    for name, note in (("unsaid", True), ("own", False)):
        for argv in (["plan", "--flops", "9e14"], ["design", "--flops", "5e13", *target]):
            assert main([argv[0], str(tables / f"{name}.json"), *argv[1:], *common]) == 0
            said = " ".join(capsys.readouterr().out.split())
            assert "N counts parameters without embeddings (" in said
            assert ("the rows' N is 'params', which does not say whether it counts embeddings" in said) == note


def test_a_fitted_law_of_repeated_data_counts_n_as_its_rows(tmp_path, capsys):
    law = published("data-constrained")
    rows = [(n, d, d / e) for n in (1e7, 5e7, 2e8) for d in (1e9, 4e9, 1.6e10) for e in (1, 8, 40)]
    loss = [float(law.predict(n, d, u)) for n, d, u in rows]
    lines = [",".join(f"{v:.6g}" for v in (*row, y)) for row, y in zip(rows, loss, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["total_params,n_tokens,unique_tokens,loss", *lines]))
    argv = ["fit", tmp_path / "t.csv", "--n-params", "total_params", "--form", "data-constrained", "--bootstrap", "20"]
    assert main([*map(str, argv), "--quick", "--out", str(tmp_path / "law.json")]) == 0
    capsys.readouterr()
    argv = ["plan", str(tmp_path / "law.json"), "--flops", "1e19", "--vocab-size", "50257", "--context", "512"]
    assert main([*argv, "--batch", "8", "--unique-tokens", "1e9", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["law"]["n_counts"] == "total"
    best = plan["best"]
    there = float(law.predict(best["n_params_total"], best["n_tokens"], 1e9))
    assert plan["predicted_loss"] == pytest.approx(there, rel=2e-3)
    assert plan["extrapolation"]["flops"] == pytest.approx(
        max(1.0, 6 * best["n_params_total"] * best["n_tokens"] / (6 * 2e8 * 1.6e10))
    )
    # What makes the form no result to build on stands in a plan from it.
    written = json.loads((tmp_path / "law.json").read_text())
    written["forms"][0]["warnings"] = ["R_N is at the bound of its range"]
    (tmp_path / "law.json").write_text(json.dumps(written))
    assert main([*argv, "--batch", "8", "--unique-tokens", "1e9", "--json"]) == 0
    assert "R_N is at the bound of its range" in json.loads(capsys.readouterr().out)["warnings"]
    written["forms"][0]["values"]["E"] = 1.0
    (tmp_path / "law.json").write_text(json.dumps(written))
    assert main([*argv, "--batch", "8"]) == 2
    assert "they were changed after the fit" in capsys.readouterr().err


def test_tables_that_count_differently_are_told_apart(tmp_path):
    rows = [f"{n:g},{d:g},{truth(n, d):.5f}" for n in (1e6, 3e6) for d in (1e8, 3e8)]
    (tmp_path / "a.csv").write_text("\n".join(["n_params,n_tokens,loss", *rows]))
    rows = [f"{n:g},{d:g},{8 * n * d:g},{truth(n, d):.5f}" for n in (2e6, 6e6) for d in (1e8, 3e8)]
    (tmp_path / "b.csv").write_text("\n".join(["n_params,n_tokens,flops,loss", *rows]))
    both = load([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert both.flops_counts == "table"
    assert both.flops_of(1e6, 1e8, 0.0) == pytest.approx(7e14)  # the median of 6 and 8 times N D
    columns = [{"n_params": "total_params (M)"}, {"flops": "C"}, {"n_params": "n_params"}]
    (note,) = mixed_sizes(columns)
    assert "some of the rows ('total_params (M)') and not in others ('n_params')" in note
    assert mixed_sizes(columns[:2]) == mixed_sizes(columns[1:]) == []
