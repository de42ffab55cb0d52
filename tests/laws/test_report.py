import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from truth import Truth

from areca.cli.main import main
from areca.errors import DataError
from areca.laws import LawReport, Observations, fit_laws
from areca.laws.checks.validation import How, validate_largest_budget

TRUTH = Truth(A=60.0, B=900.0, E=2.0, alpha=0.38, beta=0.45)


@pytest.fixture(scope="module")
def law():
    return fit_laws(TRUTH.ladder(np.random.default_rng(0), budgets=4, sizes=5, noise=0.003), samples=200)


@pytest.fixture
def table(tmp_path):
    o = TRUTH.ladder(np.random.default_rng(0), budgets=3, sizes=5, noise=0.003)
    rows = [f"{n},{d},{l}" for n, d, l in zip(o.n_params, o.n_tokens, o.loss, strict=True)]
    (tmp_path / "runs.csv").write_text("\n".join(["n_params,n_tokens,loss", *rows]) + "\n")
    return tmp_path / "runs.csv"


def test_law_json_gives_back_the_same_law(law, tmp_path):
    law.save(tmp_path / "law.json")
    again = LawReport.load(tmp_path / "law.json")
    assert again.parametric == law.parametric
    assert again.predict_interval(3e5, 1e7) == law.predict_interval(3e5, 1e7)
    assert json.dumps(again.to_dict()) == json.dumps(law.to_dict())


def test_law_json_holds_what_its_readers_rely_on(law):
    values = law.to_dict()
    assert np.array(values["parametric"]["bootstrap"]).shape == (200, 5)
    assert values["parametric"]["status"] == "converged"
    for name in ("A", "B", "E", "alpha", "beta"):
        low, high = values["parametric"]["intervals"][name]
        assert low < values["parametric"][name] < high
    assert len(values["isoflop"]["valleys"]) == 4
    assert {"budget_flops", "a", "b", "c", "n_opt", "n_opt_interval", "d_opt", "loss_min", "interior", "points"} <= set(
        values["isoflop"]["valleys"][0]
    )
    # Closed form: beta / (alpha + beta).
    assert values["isoflop"]["n_exponent"] == pytest.approx(0.45 / (0.38 + 0.45), abs=0.03)
    assert values["compute"]["exponent"] > 0
    assert values["compute_with_floor"]["floor"] > 0
    assert len(values["observations"]) == 20


def test_the_same_rows_give_the_same_bits():
    def made():
        return json.dumps(
            fit_laws(TRUTH.ladder(np.random.default_rng(1), budgets=3, sizes=5, noise=0.003), samples=50).to_dict()
        )

    assert made() == made()


def test_the_largest_budget_is_predicted_from_the_others(law):
    v = law.validation
    assert v["rows"] == 5
    assert abs(v["mean_error"]) < 0.02
    assert v["held"] >= 4


def test_a_law_of_another_make_is_refused(tmp_path):
    (tmp_path / "law.json").write_text('{"parametric": {"A": 1}}')
    with pytest.raises(DataError, match=r"is not a law written by `areca fit`"):
        LawReport.load(tmp_path / "law.json")


def test_areca_fit_writes_prints_and_says_what_it_derived(table, capsys):
    out = table.parent / "law.json"
    assert main(["fit", str(table), "--bootstrap", "100", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "converged" in text
    assert "C = 6 N D is used" in text
    assert "IsoFLOP valleys" in text
    assert LawReport.load(out).sources == ["runs.csv"]
    assert main(["fit", str(table), "--bootstrap", "100", "--json", "--objective", "l2"]) == 0
    assert json.loads(capsys.readouterr().out)["objective"] == "l2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--loss", "val"], "has no column 'val'"),
        (["--drop-highest", "12"], "it needs at least 6"),
        (["--bootstrap", "5"], "at least 20"),
        (["--objective", "huberr"], "huberr"),
        (["--delta", "0"], "delta is 0"),
    ],
)
def test_areca_fit_refuses_in_one_sentence_and_writes_nothing(table, capsys, arguments, said):
    assert main(["fit", str(table), "--out", str(table.parent / "law.json"), *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert [p.name for p in table.parent.iterdir()] == ["runs.csv"]


def test_a_law_that_was_fitted_predicts_without_jax(table):
    assert main(["fit", str(table), "--bootstrap", "20", "--out", str(table.parent / "law.json")]) == 0
    code = (
        f"import sys; from areca.laws import LawReport; law = LawReport.load({str(table.parent / 'law.json')!r});"
        "law.predict_interval(1e5, 1e7); sys.exit('jax' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_an_interval_far_out_has_the_error_that_the_law_made_on_its_own_largest_budget():
    rng = np.random.default_rng(3)
    n, c = np.tile(np.geomspace(3e4, 6e5, 5), 3), np.repeat([5e11, 1.25e12, 3.1e12], 5)
    d = c / (6 * n)
    # A law that bends downwards, which no floor can follow: the fit is too high beyond its rows.
    loss = (2.0 + 20 / n**0.3 + 300 / d**0.45) * (c / 5e11) ** (-0.012 * np.log(c / 5e11))
    report = fit_laws(Observations(n, d, c, loss * np.exp(0.002 * rng.standard_normal(15)), budget=c), samples=200)
    assert report.validation is not None
    assert report.validation["mean_error"] > 0.005
    plain = report.predict_interval(3e5, 7e6)
    low, high = report.predict_interval(3e5, 7e6, flops=1.25e13)
    assert high == pytest.approx(plain[1], rel=1e-4)
    assert report.compute is not None
    centre = float(report.predict(3e5, 7e6))
    factor = np.log(1.25e13 / 3.1e12) / np.log(3.1e12 / 1.25e12)
    frontier = (report.compute["c_c_flops"] / 1.25e13) ** report.compute["exponent"]
    erred = max(factor * np.log1p(report.validation["mean_error"]), np.log(centre / frontier) / 2)
    assert erred > 0.005
    assert np.log(centre / low) ** 2 == pytest.approx(np.log(centre / plain[0]) ** 2 + erred**2, rel=1e-3)
    assert report.predict_interval(3e5, 7e6, flops=1e12) == pytest.approx(plain)  # inside the rows nothing is added


def test_a_check_that_hardly_goes_beyond_its_rows_is_not_scaled(law):
    # 0.4% over a stretch of 1.04 is not 20% over one of 10.
    short = replace(law, compute=None, validation={**law.validation, "mean_error": 0.004, "stretch": 1.04})
    top = float(law.observations.flops.max())
    n, d = 1e6, 10 * top / 6e6
    plain, centre = law.predictor.interval(n, d, 0.9), float(law.predict(n, d))
    low, high = short.predict_interval(n, d, flops=10 * top)
    assert high == pytest.approx(plain[1])
    assert np.log(centre / low) == pytest.approx(np.hypot(np.log(centre / plain[0]), np.log(1.004)))
    assert "only 1.04 times the rest" in short.form_doubt(10 * top)
    assert "+0.40% unscaled" in short.form_doubt(10 * top)
    assert law.form_doubt(10 * top) == ""


def test_the_doubt_about_the_form_does_not_go_below_the_floor(law):
    wild = replace(law, validation={**law.validation, "mean_error": 0.5})
    n, d, c = 1e6, 1e9, 6e15
    assert wild.predict_interval(n, d, flops=c)[0] == law.predictor.interval(1e300, 1e300, 0.9)[0]
    assert wild.predict_interval(n, d, flops=c)[0] == pytest.approx(TRUTH.E, rel=0.1)


@pytest.mark.parametrize(
    ("budgets", "stretch", "left_in"), [((1e12, 4e12, 1.6e13), 4.0, 20), ((4e11, 1e12, 2e12, 2.2e12), 2.2, 20)]
)
def test_what_is_held_out_lies_about_twice_beyond_the_rest(budgets, stretch, left_in):
    """Of budgets as near as 2e12 and 2.2e12, the first is left out of the fit too."""
    c, n = np.repeat(budgets, 10), np.tile(np.geomspace(3e4, 6e5, 10), len(budgets))
    loss = TRUTH.loss(n, c / 6 / n) * np.exp(0.003 * np.random.default_rng(0).standard_normal(len(c)))
    v = validate_largest_budget(Observations(n, c / 6 / n, c, loss, budget=c), How("huber", 1e-3))
    assert v is not None
    assert (v.left_in, v.rows) == (left_in, 10)
    assert v.stretch == pytest.approx(stretch)


def test_without_shared_budgets_the_largest_runs_are_held_out():
    generator = np.random.default_rng(5)
    n, d = 1e5 * 30 ** generator.uniform(size=40), 2e6 * 30 ** generator.uniform(size=40)
    rows = Observations(n, d, 6 * n * d, TRUTH.loss(n, d) * np.exp(0.004 * generator.standard_normal(40)))
    assert len(rows.budgets()) < 2
    law = fit_laws(rows, samples=50, deep=False)
    assert law.validation is not None
    assert law.validation["left_out"] == "the fifth of largest C"
    assert sorted(p["flops"] for p in law.validation["points"]) == sorted(rows.flops)[-8:]
    assert law.validation["stretch"] >= 1.8
    assert law.form_doubt(1e3 * rows.flops.max()) == ""
    assert "above the largest FLOPs" in law.form_doubt(float(rows.flops.max()))


def test_rows_of_about_one_size_are_said_to_leave_the_form_beyond_doubt():
    n, d = np.repeat([1e5, 1.1e5, 1.2e5], 3), np.tile([2e6, 2.2e6, 2.4e6], 3)
    law = fit_laws(Observations(n, d, 6 * n * d, TRUTH.loss(n, d)), samples=50, deep=False)
    assert law.validation is None
    assert any("no runs could be held out" in note for note in law.notes)
    assert "no runs could be held out" in law.form_doubt(1e30)


def test_rows_given_twice_are_said():
    rows = TRUTH.ladder(np.random.default_rng(0), budgets=3, sizes=5, noise=0.003)
    twice = Observations(*(np.concatenate([x, x[:2]]) for x in (rows.n_params, rows.n_tokens, rows.flops, rows.loss)))
    assert any(note.startswith("2 of 17 rows repeat others") for note in fit_laws(twice, samples=20).notes)
    assert not any("repeat others" in note for note in fit_laws(rows, samples=20).notes)


def test_seeds_with_the_same_loss_are_no_rows_given_twice():
    rows = TRUTH.ladder(np.random.default_rng(0), budgets=3, sizes=5, noise=0.003).select(np.append(np.arange(15), 0))
    seeds = replace(rows, others={"seed": np.append(np.zeros(15), 1)})
    assert not any("repeat others" in note for note in fit_laws(seeds, samples=20, deep=False).notes)


def spoilt(law, tmp_path, *path, value):
    """law.json with one place changed, by hand as it were; `...` takes it out."""
    values = at = json.loads(json.dumps(law.to_dict()))
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    if value is ...:
        del at[path[-1]]
    (tmp_path / "law.json").write_text(json.dumps(values))
    return tmp_path / "law.json"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("format",), 7, "has format 7, and this version of Areca reads 1"),
        (("format",), ..., "it has no format"),
        (("parametric", "E"), 1.5, "they were changed after the fit"),
        (("parametric", "E"), "x", "parametric.E is 'x', where a finite number belongs"),
        (("parametric", "alpha"), float("nan"), "parametric.alpha is nan, where a finite number belongs"),
        (("parametric", "sigma"), "x", "parametric.sigma is 'x'"),
        (("parametric", "bootstrap_sigma", 0), float("inf"), "parametric.bootstrap_sigma.0 is inf"),
        (("parametric",), "x", "parametric is 'x', where an object belongs"),
        (("validation",), "x", "validation is 'x', where an object belongs"),
        (("validation", "stretch"), None, "validation.stretch is None"),
        (("observations",), {"a": 1}, "observations is {'a': 1}, where a list belongs"),
        (("observations", 0), "x", "is not a law written by `areca fit`"),
    ],
)
def test_a_law_that_was_changed_or_is_of_another_make_is_refused_in_one_sentence(
    law, tmp_path, capsys, path, value, said
):
    file = str(spoilt(law, tmp_path, *path, value=value))
    shape = ["--vocab-size", "1024", "--context", "128"]
    for argv in (
        ["plan", file, "--flops", "1e14", *shape],
        ["design", file, "--flops", "1e13", "--target-flops", "1e15", *shape],
    ):
        assert main(argv) == 2
        error = capsys.readouterr().err
        assert said in error
        assert "law.json" in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(("path", "value"), [(("format",), 7), (("parametric", "E"), 1.5), (("parametric", "E"), "x")])
def test_a_page_is_not_made_of_a_law_whose_values_were_changed(law, tmp_path, capsys, path, value):
    file = spoilt(law, tmp_path, *path, value=value)
    assert main(["report", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "law.json" in error
    assert error.count("\n") == 1


def test_an_old_law_without_a_fingerprint_is_read_with_a_note(law, tmp_path, capsys):
    file = str(spoilt(law, tmp_path, "fingerprint", value=...))
    assert main(["plan", file, "--flops", "1e14", "--vocab-size", "1024", "--context", "128"]) == 0
    assert "bears no fingerprint" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["plan", "--target-loss", "8"], "evenly among 1,024 tokens already gives ln V = 6.93"),
        (["plan", "--inference-tokens", "1e9", "--target-loss", "8"], "--target-loss is 8, and guessing evenly"),
        (["design", "--flops", "1e13", "--target-params", "0.5", "--target-tokens", "1e9"], "above ln V = 6.93"),
    ],
)
def test_losses_that_guessing_gives_are_refused(law, tmp_path, capsys, argv, said):
    law.save(tmp_path / "law.json")
    argv = [argv[0], str(tmp_path / "law.json"), *argv[1:], "--vocab-size", "1024", "--context", "128"]
    assert main(argv) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "raise the budget" not in error
    assert error.count("\n") == 1
