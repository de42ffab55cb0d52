"""Which law a plan or a design is of; marks of a plan and of runs in the units of the law's own axes."""

import json
import re
from html import unescape

import full_law
import numpy as np
import pytest
from synthetic_quickstart import FLOPS_PER_ND, write_run

from areca.cli.main import main
from areca.lawjson import fingerprint
from areca.laws import LawReport
from areca.report import build_report

CHINCHILLA = {"name": "chinchilla", "given": "chinchilla", "source": "Hoffmann et al. 2022", "fingerprint": ""}
OLD_CHINCHILLA = {"name": "chinchilla", "source": "Hoffmann et al. 2022"}
STALE = {"name": "fit", "given": "old/law.json", "source": "huber fit to 20 runs", "fingerprint": "0123456789abcdef"}


def built(tmp_path, *, law, plan=None, design=None):
    """(summary, words of the page's body, figures) of files with that content."""
    given = {"law": law, "plan": plan, "design": design}
    for name, value in given.items():
        if value is not None:
            (tmp_path / f"{name}.json").write_text(json.dumps(value))
    paths = [tmp_path / f"{name}.json" for name, value in given.items() if value is not None]
    summary = build_report(paths, tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])
    words = unescape(re.sub(r"<[^>]+>", " ", html.split("<script")[0]))
    return summary, re.sub(r"\s+", " ", words), figures


def names(figure):
    return [t.get("name") for t in figure["data"]]


def named(figure, name):
    return next(t for t in figure["data"] if t.get("name") == name)


def is_apart(figures, plan):
    """Whether the plan is in no figure of the page's law, and in its own by its own prediction."""
    assert named(figures["plot-plan"], "planned, 90% interval of one run")["y"] == pytest.approx(
        [plan["predicted_loss"]], rel=1e-5
    )
    drawn = [n for place in ("plot-law", "plot-optima") for n in names(figures[place])]
    ours = {"predicted, 90% interval", "best run carried over", "planned N", "planned D", "neighbours"} & set(drawn)
    curve = "law at the same compute" in names(figures["plot-plan"])
    assert bool(ours) == curve
    return not ours


@pytest.fixture
def law(fitted):
    return json.loads((fitted / "law.json").read_text())


def test_a_plan_of_this_law_is_named_and_drawn_and_nothing_is_said(law, tmp_path):
    plan = full_law.plan(law)
    summary, words, figures = built(tmp_path, law=law, plan=plan, design=full_law.design(law))
    assert not is_apart(figures, plan)
    assert summary["notes"] == []
    assert summary["plan_law"]["of_this_law"]
    assert summary["design_law"]["of_this_law"]
    assert f"law law.json, huber fit to 24 runs ({law['fingerprint'][:8]})" in words
    assert "is of another law" not in words


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (CHINCHILLA, "chinchilla, Hoffmann et al. 2022"),
        (OLD_CHINCHILLA, "chinchilla, Hoffmann et al. 2022"),
        (STALE, "old/law.json, huber fit to 20 runs (01234567)"),
    ],
)
def test_what_is_of_another_law_is_shown_apart_under_that_laws_name(law, tmp_path, of, name):
    plan, design = full_law.plan() | {"law": of}, full_law.design() | {"law": of}
    summary, words, figures = built(tmp_path, law=law, plan=plan, design=design)
    assert is_apart(figures, plan)
    here = law["fingerprint"][:8]
    for what in ("plan", "design"):
        said = f"The {what} is of another law than this page's ({here}), {name}: it is shown apart, by that law."
        assert said in summary["notes"]
        assert words.count(said) == 2  # at the head of the page and of its section
        assert summary[f"{what}_law"] == {"name": name, "of_this_law": False, "said": said}
    # What the page's own law gives that run stands beside the plan's own prediction.
    best = plan["best"]
    ours = full_law.predicted(law, best["n_params"], best["n_tokens"])
    assert f"this page's law at its N and D {ours:.4f}" in words
    assert f"predicted loss, nats per token {plan['predicted_loss']:.4f}" in words
    assert "runs there are" not in names(figures["plot-design"])


def test_a_file_that_does_not_say_its_law_is_told_by_its_prediction(law, tmp_path):
    plan = full_law.plan()
    summary, _, figures = built(tmp_path, law=law, plan=plan)
    assert is_apart(figures, plan)
    assert summary["notes"] == [
        "The plan does not say which law it is of, and its predicted loss is not this law's at its N and D: it is "
        "shown apart; make it again from this law."
    ]
    best = plan["best"]
    plan["predicted_loss"] = full_law.predicted(law, best["n_params"], best["n_tokens"])
    summary, _, figures = built(tmp_path, law=law, plan=plan)
    assert not is_apart(figures, plan)
    assert summary["notes"] == [
        "The plan does not say which law it is of; its predicted loss is this law's at its N and D, so it is shown as "
        "such."
    ]
    del law["fingerprint"]
    summary, _, figures = built(tmp_path, law=law, plan=plan | full_law.identity({"fingerprint": "0123456789abcdef"}))
    assert not is_apart(figures, plan)
    assert summary["notes"][0].startswith("law.json bears no fingerprint (fit it again)")
    (tmp_path / "plan.json").write_text(json.dumps(full_law.plan()))
    assert build_report([tmp_path / "plan.json"], tmp_path)["notes"] == ["The plan does not say which law it is of."]


@pytest.mark.parametrize("value", [None, [], "x", {"name": 3, "fingerprint": []}, {"name": "", "fingerprint": ""}])
def test_an_odd_origin_is_none(law, tmp_path, value):
    summary = built(tmp_path, law=law, plan=full_law.plan() | {"law": value})[0]
    assert "does not say which law it is of" in summary["notes"][0]


def test_the_verbs_write_which_law_it_is_and_the_page_of_two_laws_is_a_page(fitted, tmp_path, capsys, monkeypatch):
    """`areca plan` and `areca design` of law.json, then of a published law, as a user runs them."""
    monkeypatch.chdir(fitted)
    common = ["--vocab-size", "2048", "--context", "128", "--batch", "16"]
    out = {name: str(tmp_path / f"{name}.json") for name in ("ours", "reach", "chinchilla", "design")}
    assert main(["plan", "plain.json", "--flops", "1e15", *common, "--out", out["ours"]]) == 0
    assert main(["plan", "--law", "chinchilla", "--flops", "1e15", *common, "--out", out["chinchilla"]]) == 0
    assert main(["plan", "plain.json", "--target-loss", "3.5", *common, "--out", out["reach"]]) == 0
    target = ["--target-params", "3e7", "--target-tokens", "1e10"]
    assert main(["design", "plain.json", "--flops", "1e15", *target, *common, "--out", out["design"]]) == 0
    capsys.readouterr()
    law = json.loads((fitted / "plain.json").read_text())
    files = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in out}
    ours = files["ours"]["law"]
    assert (ours["name"], ours["given"], ours["fingerprint"]) == ("fit", "plain.json", law["fingerprint"])
    assert files["reach"]["sure"]["law"] == files["design"]["law"] == ours
    assert (files["chinchilla"]["law"]["given"], files["chinchilla"]["law"]["fingerprint"]) == ("chinchilla", "")
    for plan, said in (("ours", ""), ("reach", ""), ("chinchilla", "The plan is of another law than this page's")):
        page = ["report", "plain.json", out[plan], out["design"], "--out", str(tmp_path / "page")]
        assert main(page) == 0
        shown = capsys.readouterr().out
        assert shown.startswith(said if said else "a law, a plan, a design of further runs; open")


def test_a_fingerprint_is_of_the_fitted_values_alone(fitted):
    report = LawReport.load(fitted / "plain.json")
    plain, checked = (json.loads((fitted / f"{n}.json").read_text()) for n in ("plain", "law"))
    del checked["forms"]
    for same in (plain, checked, plain | {"sources": ["elsewhere"], "seed": 7, "level": 0.8}):
        assert fingerprint(same) == report.fingerprint == plain["fingerprint"]
    fit = plain["parametric"]
    nearly = plain | {"parametric": fit | {"alpha": fit["alpha"] * (1 + 1e-9)}}
    moved = plain | {"parametric": fit | {"alpha": fit["alpha"] * 1.001}}
    assert fingerprint(nearly) == report.fingerprint != fingerprint(moved)
    form = {"parametric": None, "forms": [{"form": "data-constrained", "values": {"E": 1.7}, "constants": {}}]}
    assert fingerprint(form) != fingerprint({**form, "forms": [{**form["forms"][0], "values": {"E": 1.8}}]})


@pytest.mark.parametrize(
    ("column", "k", "title"),
    [
        ("flops_exact (exact training FLOPs)", None, "exact FLOPs"),
        ("6 N D", 6.0, "FLOPs as 6 N D"),
        ("flops_6nd (6 N D)", 6.0, "FLOPs as 6 N D"),
        ("Training FLOP", 6.0, "FLOPs as 6 N D"),  # by the numbers
        ("Training FLOP", 7.0, "FLOPs as in the table"),
    ],
)
def test_every_mark_along_compute_is_counted_as_the_laws_rows(law, tmp_path, column, k, title):
    """A plan and a run beside a law stand at k N D where its rows count so, at exact FLOPs where they do."""
    law["columns"] = law["columns"] | {"flops": column}
    for row in law["observations"]:
        row["flops"] *= (k or 6.0) / 6.0
    plan = full_law.plan(law)
    n, d = 5e6, 2e8
    write_run(tmp_path / "run", n, d, 3.0, np.random.default_rng(0), steps=5)
    (tmp_path / "law.json").write_text(json.dumps(law))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    build_report([tmp_path / "law.json", tmp_path / "plan.json", tmp_path / "run"], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])

    def counted(run):
        return k * run["n_params"] * run["n_tokens"] if k else run["flops_exact"]

    along, optima = figures["plot-law"], figures["plot-optima"]
    for figure in (along, optima, figures["plot-residuals-c"]):
        assert figure["layout"]["xaxis"]["title"]["text"].endswith(title)
    best, near = plan["best"], plan["neighbours"]
    assert named(along, "predicted, 90% interval")["x"] == pytest.approx([counted(best)], rel=1e-5)
    assert named(along, "best run carried over")["x"] == pytest.approx([full_law.BASELINE, counted(best)], rel=1e-5)
    assert named(optima, "planned D")["x"] == pytest.approx([counted(best)], rel=1e-5)
    assert named(optima, "neighbours")["x"] == pytest.approx([counted(near[s]) for s in ("half", "double")], rel=1e-5)
    run = {"n_params": n, "n_tokens": d, "flops_exact": FLOPS_PER_ND * n * d}
    assert named(along, "achieved")["x"] == pytest.approx([counted(run)], rel=1e-5)
    assert named(figures["plot-residuals-c"], "runs not fitted")["x"] == pytest.approx([counted(run)], rel=1e-5)


def test_every_mark_along_size_counts_embeddings_where_the_laws_rows_do(law, tmp_path):
    law["columns"] = law["columns"] | {"n_params": "n_params_total"}
    plan = full_law.plan(law)
    plan["law"]["n_counts"] = "total"
    write_run(tmp_path / "run", 5e6, 2e8, 3.0, np.random.default_rng(0), steps=5)
    (tmp_path / "law.json").write_text(json.dumps(law))
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    build_report([tmp_path / "law.json", tmp_path / "plan.json", tmp_path / "run"], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', html, re.DOTALL)[1])
    for place in ("plot-fit", "plot-valleys", "plot-residuals-n", "plot-held-out"):
        assert figures[place]["layout"]["xaxis"]["title"]["text"] == "N: parameters, embeddings included"
    total = plan["best"]["n_params_total"]
    optima = figures["plot-optima"]
    assert named(optima, "planned N")["y"] == pytest.approx([total], rel=1e-5)
    assert named(optima, "planned N")["x"] == pytest.approx([6 * total * plan["best"]["n_tokens"]], rel=1e-5)
    assert named(figures["plot-residuals-n"], "runs not fitted")["x"] == [5.12e6]  # write_run's 120k embeddings
    # The plan's own axis has N without embeddings; the law's curve is taken at the N that the law counts.
    curve = named(figures["plot-plan"], "law at the same compute")
    i = int(np.abs(np.log(np.array(curve["x"]) / plan["best"]["n_params"])).argmin())
    n = curve["x"][i]
    d = plan["best"]["n_tokens"] * plan["best"]["n_params"] / n
    assert figures["plot-plan"]["layout"]["xaxis"]["title"]["text"] == "N: parameters without embeddings"
    assert curve["y"][i] == pytest.approx(full_law.predicted(law, 1.1 * n, d), rel=1e-4)


def test_a_design_whose_law_counts_embeddings_is_drawn_and_listed_so(law, tmp_path):
    law["columns"] = law["columns"] | {"n_params": "total_params"}
    design = full_law.design(law)
    design["law"]["n_counts"] = "total"
    design["n_params_total"] = 1.25 * design["n_params"]
    for key in ("proposed", "next_rung"):
        for run in design[key]["runs"]:
            run["n_params_total"] = 1.25 * run["n_params"]
    _, words, figures = built(tmp_path, law=law, design=design)
    drawn = figures["plot-design"]
    assert drawn["layout"]["xaxis"]["title"]["text"] == "N: parameters, embeddings included"
    assert named(drawn, "target")["x"] == pytest.approx([1.25 * design["n_params"]], rel=1e-5)
    shown = [1.25 * r["n_params"] for r in design["proposed"]["runs"]]
    assert named(drawn, "proposed")["x"] == pytest.approx(shown, rel=1e-5)
    rows = [row["n_params"] for row in law["observations"]]
    assert named(drawn, "runs there are")["x"] == pytest.approx(rows, rel=1e-5)
    assert "target, N, embeddings included" in words
