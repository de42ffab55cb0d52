"""A report of files alone: law.json of a table with all that a fit may add, plan.json, design.json."""

import csv
import json
import math
import re
from statistics import NormalDist

import full_law
import numpy as np
import pytest
from synthetic_quickstart import ALPHA, BETA, write_run

from areca.cli.main import main
from areca.errors import DataError
from areca.laws import fit_laws, load
from areca.report import build_report

PARTS = ("intervals_by", "leave_one_out", "validation", "curvature", "sensitivity", "forms", "isoflop", "compute")
SENTENCES = {
    "leave_one_out": "No budget was left out in turn",
    "validation": "The largest budget was not held out",
    "curvature": "law.json has no tests for curvature",
    "sensitivity": "law.json has no table of other choices",
    "isoflop": "No budget has a fitted valley",
    "observations": "There are no finished runs to draw",
    "parametric": "The law has no complete set of parameters",
}


@pytest.fixture(scope="module")
def built(fitted, tmp_path_factory):
    """(summary, page, figures) of the whole report."""
    out = tmp_path_factory.mktemp("law")
    summary = build_report([fitted / f"{name}.json" for name in ("law", "plan", "design")], out)
    return summary, *page(out)


def page(out):
    html = (out / "report.html").read_text(encoding="utf-8")
    return html, json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])


def words(html):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.split("<script")[0]))


def section(html, anchor):
    return words(html.split(f'<section id="{anchor}">')[1].split("</section>")[0])


def named(figure, name):
    return next(t for t in figure["data"] if t.get("name") == name)


def changed(fitted, tmp_path, **parts):
    """law.json with parts replaced, as a file; a part that is `...` is taken out."""
    law = json.loads((fitted / "law.json").read_text()) | parts
    path = tmp_path / "law.json"
    path.write_text(json.dumps({k: v for k, v in law.items() if v is not ...}))
    return path


def test_every_part_of_a_law_has_its_figure(built):
    _, html, figures = built
    names = {"law", "fit", "observed", "valleys", "optima", "quantiles", "held-out", "left-out", "plan", "design"}
    names |= {f"residuals-{of}" for of in ("n", "d", "c", "fitted")} | {
        f"choices-{of}" for of in ("exponent", "size", "loss")
    }
    names |= {"form-0", "form-0-residuals", "form-1", "form-1-residuals"}
    assert {name.removeprefix("plot-") for name in figures} == names
    assert html.count('class="absent"') == 1  # of <noscript>
    assert "Training curves" not in html  # nothing about runs, where there are none


def test_a_law_of_a_quick_fit_says_in_sentences_what_it_lacks(fitted, tmp_path):
    summary = build_report([fitted / "plain.json"], tmp_path)
    html, figures = page(tmp_path)
    assert summary["kind"] == "law"
    assert {"plot-law", "plot-fit", "plot-valleys", "plot-residuals-n"} <= figures.keys()
    for part in ("leave_one_out", "curvature", "sensitivity"):
        assert SENTENCES[part] in words(html)
    assert "No plan was given" in words(html)


@pytest.mark.parametrize("part", [*PARTS, "observations", "parametric", "columns", "notes", "compute_with_floor"])
@pytest.mark.parametrize("value", [..., None, [], {}, [3], [None], {"a": [1, None]}, "text", math.nan, [{}], -1.0])
def test_a_part_that_is_missing_or_odd_leaves_a_sentence(fitted, tmp_path, part, value):
    unmarked = {"fingerprint": ...} if part == "parametric" else {}
    build_report([changed(fitted, tmp_path, **{part: value}, **unmarked)], tmp_path)
    html, _ = page(tmp_path)
    if value in (..., None) and part in SENTENCES:
        assert SENTENCES[part] in words(html)
    json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)


def test_odd_values_deep_inside_are_left_out(fitted, tmp_path):
    law = json.loads((fitted / "law.json").read_text())

    def leaves(value, path=()):
        if isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value[:2]):
                yield from leaves(item, (*path, key))
        yield path

    generator = np.random.default_rng(0)
    places = [p for part in PARTS for p in leaves(law[part], (part,)) if len(p) > 1]
    for values in ([None], ["x"], [0.0], [-1e300], [10**400], [[]]):
        copy = json.loads(json.dumps(law))
        for i in generator.permutation(len(places))[: len(places) // 3]:
            at = copy
            try:
                for key in places[i][:-1]:
                    at = at[key]
                at[places[i][-1]] = values[0]
            except (KeyError, IndexError, TypeError):
                continue  # a place inside what was replaced
        (tmp_path / "law.json").write_text(json.dumps(copy))
        build_report([tmp_path / "law.json"], tmp_path)


def test_intervals_of_all_methods_stand_side_by_side(built, fitted):
    _, html, _ = built
    row = next(r for r in html.split("<tr>") if r.startswith('<th scope="row">B, of the data'))
    cells = re.findall(r"<td[^>]*>(.*?)</td>", row)
    law = json.loads((fitted / "law.json").read_text())
    assert len(cells) == 4
    assert cells[2].endswith(", ∞)")  # the profile's open end
    assert float(cells[1].strip("[]").split(",")[0]) == pytest.approx(law["parametric"]["intervals"]["B"][0], rel=1e-3)
    assert "90%, bootstrap 90%, profile 90%, delta" in words(html)


def test_the_fit_is_drawn_along_each_budgets_own_hyperbola(built, fitted):
    """A curve at budget C is E + A / N^alpha + B / (C / 6 N)^beta, since the table's C is 6 N D."""
    _, _, figures = built
    law = json.loads((fitted / "law.json").read_text())
    curves = [t for t in figures["plot-fit"]["data"] if t["mode"] == "lines" and t.get("legendgroup", "band") != "band"]
    assert len(curves) == len(full_law.BUDGETS)
    for curve, c in zip(curves, full_law.BUDGETS, strict=True):
        expected = [full_law.predicted(law, n, c / 6 / n) for n in curve["x"]]
        assert curve["y"] == pytest.approx(expected, rel=2e-3)  # D is rounded in the table


def test_the_valleys_width_is_where_the_loss_is_a_thousandth_above(built, fitted):
    _, _, figures = built
    valleys = json.loads((fitted / "law.json").read_text())["isoflop"]["valleys"]
    flat = [t for t in figures["plot-valleys"]["data"] if t.get("name") == "N within 0.1%"]
    assert len(flat) == len(valleys)
    for trace in flat:
        lowest = min(trace["y"])
        assert [trace["y"][0], trace["y"][-1]] == pytest.approx([1.001 * lowest] * 2, rel=1e-4)


def test_optima_grow_with_the_exponents_of_the_law_behind_them(built):
    _, _, figures = built
    names = [t["name"] for t in figures["plot-optima"]["data"] if t["mode"] == "lines"]
    n, d = (float(re.search(r"<sup>(.*)</sup>", name)[1]) for name in names)
    assert n == pytest.approx(BETA / (ALPHA + BETA), abs=0.05)
    assert d == pytest.approx(ALPHA / (ALPHA + BETA), abs=0.05)


def test_the_outlier_is_named_first_and_leaves_the_quantile_line(built):
    _, html, figures = built
    first = html.split("<h3>Outliers</h3>")[1].split("<tbody>")[1]
    assert first.startswith(f'<tr><th scope="row">{full_law.OUTLIER}</th>')
    dots = named(figures["plot-quantiles"], "runs")
    assert dots["x"] == pytest.approx([NormalDist().inv_cdf((i + 0.5) / 24) for i in range(24)], abs=1e-4)
    assert dots["y"] == sorted(dots["y"])
    assert dots["y"][-1] > 2.5
    assert full_law.OUTLIER in dots["text"][-1]


def test_each_run_held_out_is_drawn_with_its_interval(built, fitted):
    summary, html, figures = built
    held = json.loads((fitted / "law.json").read_text())["validation"]
    drawn = next(t for t in figures["plot-held-out"]["data"] if t["name"].startswith("predicted"))
    points = sorted(held["points"], key=lambda p: p["n_params"])
    assert drawn["y"] == pytest.approx([p["predicted"] for p in points], rel=1e-5)
    upper = [y + e for y, e in zip(drawn["y"], drawn["error_y"]["array"], strict=True)]
    assert upper == pytest.approx([p["high"] for p in points], rel=1e-5)
    assert "(4 times the rest)" in section(html, "extrapolation")
    assert summary["law"]["largest_budget_held_out"]["held"] == held["held"]
    assert len(summary["law"]["budgets_left_out"]) == 4


def test_a_run_outside_its_interval_is_marked_in_plot_and_table(built):
    _, html, figures = built
    outside = named(figures["plot-left-out"], "outside its interval")
    assert outside["y"] == pytest.approx([100 * (1.004 / 1.03 - 1)], abs=0.5)
    assert outside["x"] == [full_law.BUDGETS[1]]
    assert "Over all budgets 23 of 24 runs (96%) lie inside." in section(html, "extrapolation")


def test_choices_are_compared_with_the_law_as_fitted(built):
    _, html, figures = built
    for name in ("exponent", "size", "loss"):
        dots = named(figures[f"plot-choices-{name}"], "choices")
        line = next(t for t in figures[f"plot-choices-{name}"]["data"] if t["mode"] == "lines")
        assert line["x"] == [dots["x"][0]] * 2
        assert dots["y"] == [0, 1, 2, 3, 4, 5]  # the failed one has a name and no dot
        assert figures[f"plot-choices-{name}"]["layout"]["yaxis"]["ticktext"][-1] == "drop 20 highest (failed)"
    assert "drop 20 highest: 4 rows can&#x27;t carry five parameters." in html


def test_tests_for_curvature_say_what_they_found(built):
    said = section(built[1], "curvature")
    assert "the best size grows more slowly at larger budgets." in said
    assert "−0.0130 [−0.0220, −0.00400] 0.006" in said


def test_laws_of_other_forms_have_curve_band_and_residuals(built):
    _, html, figures = built
    form = full_law.other_forms()[0]
    curve = named(figures["plot-form-0"], "fitted")
    assert curve["y"] == pytest.approx(form["curve"]["fitted"], rel=1e-5)
    low, high = figures["plot-form-0"]["data"][:2]
    assert all(a < y < b for a, y, b in zip(low["y"], curve["y"], high["y"], strict=True))
    differences = np.subtract(form["observed"]["response"], form["observed"]["fitted"])
    assert figures["plot-form-0-residuals"]["data"][0]["y"] == pytest.approx(list(differences), abs=1e-6)
    assert figures["plot-form-1-residuals"]["data"][0]["y"] == pytest.approx([3.0] * 6)  # in percent: `compare` is log
    assert "parameters at a bound b" in section(html, "forms")


def test_a_law_of_other_forms_alone_is_a_page(tmp_path):
    (tmp_path / "law.json").write_text(json.dumps({"parametric": None, "forms": full_law.other_forms()}))
    build_report([tmp_path / "law.json"], tmp_path)
    html, figures = page(tmp_path)
    assert set(figures) == {"plot-form-0", "plot-form-0-residuals", "plot-form-1", "plot-form-1-residuals"}
    assert 'id="valleys"' not in html


def test_a_plan_is_drawn_on_the_frontier_with_its_neighbours_and_costs(built):
    summary, html, figures = built
    plan = full_law.plan()
    diamond = named(figures["plot-law"], "predicted, 90% interval")
    # The table's C is 6 N D, so every mark of the plan on its axis is, and not the plan's exact FLOPs, 1.3% more.
    assert [diamond["x"][0], diamond["y"][0]] == pytest.approx([full_law.TARGET, plan["predicted_loss"]], rel=1e-5)
    assert figures["plot-law"]["layout"]["xaxis"]["title"]["text"].endswith("FLOPs as 6 N D")
    carried = named(figures["plot-law"], "best run carried over")
    assert carried["x"] == pytest.approx([full_law.BASELINE, full_law.TARGET], rel=1e-5)
    for name in "ND":
        assert named(figures["plot-optima"], f"planned {name}")["x"] == pytest.approx([full_law.TARGET], rel=1e-5)
    assert "compute over the largest fitted 15.6 times" in section(html, "plan")
    beside = named(figures["plot-optima"], "neighbours")
    near = plan["neighbours"]
    assert beside["x"] == pytest.approx([full_law.TARGET] * 2, rel=1e-5)
    assert beside["y"] == pytest.approx([near["half"]["n_params"], near["double"]["n_params"]], rel=1e-5)
    said = section(html, "plan")
    for figure in (
        "energy, estimated (TDP) 3.20 kWh",
        "carbon, gross, estimated (TDP), grid assumed 1.37 kg CO",
        "2.10 USD",
    ):
        assert figure in said
    more = near["half"]["predicted_loss"] / plan["predicted_loss"] - 1
    assert f"{100 * more:+.2f}%" in said
    assert summary["plan"]["cost"]["carbon_kg"]["kind"] == "estimated (TDP), grid assumed"


def test_a_plan_for_a_target_loss_shows_the_run_to_buy(tmp_path):
    value = {"target_loss": 2.6, "asked": 0.9, "sure": full_law.plan() | {"probability": 0.9}, "median": None}
    (tmp_path / "plan.json").write_text(json.dumps(value | {"neighbours": {}, "warnings": []}))
    summary = build_report([tmp_path / "plan.json"], tmp_path)
    assert summary["kind"] == "plan"
    assert "target loss, and its probability 2.6, 90%" in section(page(tmp_path)[0], "plan")


def test_runs_named_beside_a_law_are_held_against_it(fitted, tmp_path):
    law = json.loads((fitted / "law.json").read_text())
    seen = law["observations"][0]
    n, d = 5e6, 2e8
    write_run(tmp_path / "seen", seen["n_params"], seen["n_tokens"], seen["loss"], np.random.default_rng(0), steps=20)
    write_run(tmp_path / "new", n, d, 1.02 * full_law.predicted(law, n, d), np.random.default_rng(0), steps=20)
    build_report([fitted / "law.json", tmp_path / "seen", tmp_path / "new"], tmp_path / "out")
    html, figures = page(tmp_path / "out")
    new = named(figures["plot-residuals-n"], "runs not fitted")
    assert new["x"] == [n]
    assert new["y"] == pytest.approx([2.0], abs=1e-3)
    assert "Training curves" in html


def test_files_are_told_apart_and_a_second_law_is_refused(fitted, tmp_path, capsys):
    with pytest.raises(DataError, match="a second law"):
        build_report([fitted / "law.json", fitted / "plain.json"], tmp_path / "out")
    assert main(["report", str(fitted / "law.json"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"a law; open {tmp_path / 'out' / 'report.html'}\n"


WHAT_A_PAGE_IS_OF = (
    "give a law, a plan or a design, which `areca fit`, `areca plan` and `areca design` write with --out"
)


@pytest.mark.parametrize(
    ("content", "says", "needed"),
    [
        ('{"n_params": 1, "flops_exact": 1, "loss": 2.0}', "the result of a run", "name the directory of the run, {0}"),
        ('{"config": {}, "fingerprint": "x"}', "the record of a run", "name the directory of the run, {0}"),
        ('{"stages": []}', "the record of a quickstart", "name its directory, {0}"),
        ('{"budgets_flops": [], "runs": []}', "the list of a ladder's runs", "name its directory, {0}"),
        ('{"kind": "quickstart", "areca": "1", "predicted_loss": 2}', "the summary of a page", "or a law.json"),
        ("{}", "an empty JSON object", WHAT_A_PAGE_IS_OF),
        ('{"a": 1}', "a JSON object with a", WHAT_A_PAGE_IS_OF),
        ("[1, 2]", "a JSON list", WHAT_A_PAGE_IS_OF),
        ('"text"', "a JSON text", WHAT_A_PAGE_IS_OF),
        ("3", "a JSON number", WHAT_A_PAGE_IS_OF),
        ("null", "a JSON null", WHAT_A_PAGE_IS_OF),
    ],
)
def test_a_file_that_no_page_is_made_of_is_named_with_what_it_is(tmp_path, capsys, content, says, needed):
    path = tmp_path / "other.json"
    path.write_text(content)
    assert main(["report", str(path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"areca report: {path} is {says}")
    assert needed.format(tmp_path) in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_checks_of_a_fit_itself_are_drawn_as_those_by_hand(built, tmp_path):
    """The parts that `full_law` writes by hand, as `fit_laws` makes them of the same table."""
    law = fit_laws(load([full_law.write_table(tmp_path / "runs.csv")]), samples=50)
    law.save(tmp_path / "law.json")
    build_report([tmp_path / "law.json"], tmp_path)
    html, figures = page(tmp_path)
    by_hand = {name for name in built[2] if not name.startswith(("plot-form-", "plot-plan", "plot-design"))}
    assert figures.keys() == by_hand
    for part in ("leave_one_out", "validation", "curvature", "sensitivity"):
        assert SENTENCES[part] not in words(html)
    errors = [100 * v["mean_error"] for v in law.to_dict()["leave_one_out"]]
    assert len(errors) == len(full_law.BUDGETS)
    rows = [r for r in section(html, "extrapolation").split("%") if r]
    for error in errors:
        assert any(r.endswith(f"{abs(error):.2f}") for r in rows), error


def test_chinchillas_points_make_a_whole_page(shared_data, tmp_path):
    """The replication's 240 rows (Besiroglu et al. 2024): exponents of its table, more budgets than colours."""
    text = shared_data("laws/epoch_chinchilla/svg_extracted_data.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    lines = [f"{r['Model Size']},{r['Training FLOP']},{r['loss']}" for r in rows]
    (tmp_path / "runs.csv").write_text("\n".join(["n_params,flops,loss", *lines]) + "\n")
    fit_laws(load([tmp_path / "runs.csv"]), drop_highest=5, samples=50, deep=False).save(tmp_path / "law.json")
    summary = build_report([tmp_path / "law.json"], tmp_path)
    found = {name: p["value"] for name, p in summary["law"]["parameters"].items()}
    assert [found["alpha"], found["beta"], found["E"]] == pytest.approx([0.34731, 0.36717, 1.81722], abs=1e-4)
    _, figures = page(tmp_path)
    shown = [t for t in figures["plot-valleys"]["data"] if t["mode"] == "markers" and t.get("showlegend")]
    assert len(shown) == 7  # of 20 budgets the legend names seven
    looks = {
        (t["marker"]["color"], t["marker"]["symbol"]) for t in figures["plot-fit"]["data"] if t["mode"] == "markers"
    }
    assert len(looks) == 20


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["design"], "a design of further runs; open"),
        (["plan"], "a plan; open"),
        (["law", "plan", "design"], "a law, a plan, a design of further runs; open"),
    ],
)
def test_what_the_page_holds_is_said(fitted, tmp_path, capsys, names, said):
    assert main(["report", *(str(fitted / f"{n}.json") for n in names), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(said)
