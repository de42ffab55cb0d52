"""Half-finished, foreign and damaged inputs: said or refused, never a traceback."""

import json
import math
import shutil

import numpy as np
import pytest
from synthetic_quickstart import write_run

from areca.errors import DataError
from areca.report import build_report
from areca.report.curves import POINTS, downsample
from areca.report.gather import gather
from areca.report.lawfile import read_law
from areca.report.markup import duration, power, short, si

PARTS = ["store", "ladder", "law.json", "plan.json", "verify", "samples.json", "quickstart.json"]


@pytest.mark.parametrize("part", PARTS)
def test_a_missing_part_is_said(quickstart, part):
    gone = quickstart / part
    shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    summary = build_report([quickstart], quickstart)
    assert len(summary["missing"]) == 1
    assert part.split("/")[0] in summary["missing"][0]
    assert (quickstart / "report.html").is_file()


def test_a_quickstart_that_only_has_its_store_yet(quickstart):
    for part in PARTS[1:-1]:
        gone = quickstart / part
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
    summary = build_report([quickstart], quickstart)
    assert summary["predicted_loss"] is None
    assert len(summary["missing"]) == len(PARTS) - 2


def test_a_project_with_a_store_is_no_quickstart(finished, tmp_path):
    root = tmp_path / "project"
    for part in ("store", "ladder"):
        shutil.copytree(finished / part, root / part)
    shutil.copytree(finished / "verify", root / "big")
    shutil.copy(finished / "law.json", root / "law.json")
    found = gather([root])
    assert found.kind == "runs"
    assert len(found.runs) == 16
    assert found.law is not None
    assert "Quickstart" not in _page(root)


def _page(root):
    build_report([root], root)
    return (root / "report.html").read_text()


def test_a_run_that_has_not_finished_is_marked(quickstart):
    (quickstart / "verify" / "result.json").unlink()
    summary = build_report([quickstart], quickstart)
    assert summary["achieved_loss"] is None
    assert summary["covered"] is None
    assert "has not finished" in (quickstart / "report.html").read_text()


@pytest.mark.parametrize("name", ["plan.json", "law.json", "store/store.json", "verify/result.json", "quickstart.json"])
@pytest.mark.parametrize("content", ["[1, 2]", "3", '"text"', "null", "{", "\x00", ""])
def test_json_that_is_not_an_object_is_one_sentence(quickstart, name, content):
    (quickstart / name).write_text(content)
    with pytest.raises(DataError) as error:
        gather([quickstart])
    assert name in str(error.value)
    assert str(error.value).count("\n") == 0


@pytest.mark.parametrize("value", ["x", None, [], {}, True, math.nan, math.inf, -1.0])
def test_wrong_values_leave_a_gap_not_a_traceback(quickstart, value):
    for name in ("plan.json", "law.json", "verify/result.json", "store/store.json", "quickstart.json"):
        path = quickstart / name
        path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_text()), value)))
    build_report([quickstart], quickstart, figures=value in ("x", -1.0))
    json.loads((quickstart / "report.json").read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize("value", [1e300, 1e-300, -1e9])
def test_an_absurd_law_leaves_gaps(quickstart, value):
    law = json.loads((quickstart / "law.json").read_text())
    law["parametric"] |= {"alpha": value, "bootstrap": [[value] * 5] * 20}
    law["isoflop"]["valleys"][0] |= {"a": value, "c": value, "n_opt": value}
    del law["fingerprint"]  # of another tool
    (quickstart / "law.json").write_text(json.dumps(law))
    build_report([quickstart], quickstart)


def test_metrics_cut_in_the_middle_of_a_line_are_read_up_to_it(quickstart):
    path = quickstart / "verify" / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert len(gather([quickstart]).verify.metrics["loss"]) == whole.count(b"\n") - 1


def test_damaged_metrics_name_the_line(quickstart):
    path = quickstart / "verify" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:4], "garbage\n", *lines[5:]]))
    with pytest.raises(DataError, match=r"metrics\.jsonl line 5 is not valid JSON"):
        gather([quickstart])


def test_plain_runs_get_curves_table_and_events(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        write_run(tmp_path / name, 1e4, 1e5, 5.0, rng, steps=40)
    with (tmp_path / "two" / "events.jsonl").open("a") as f:
        f.write('{"time": 1767225701.0, "event": "spike", "step": 33, "loss": 9.0}\n{"event": 7, "time": 1e300}\n3\n')
    summary = build_report([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text()
    assert [run["name"] for run in summary["runs"]] == ["one", "two"]
    assert summary["kind"] == "runs"
    assert ">spike<" in html
    assert 'id="plot-training"' in html
    assert 'id="headline"' not in html


def test_a_directory_of_runs_is_its_runs_each_once(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a/run", "b/run"):
        write_run(tmp_path / name, 1e4, 1e5, 5.0, rng, steps=5)
    found = gather([tmp_path / "a", tmp_path / "b", tmp_path / "a" / "run"])
    assert [run.name for run in found.runs] == ["a/run", "b/run"]


def test_a_ladder_is_its_runs_with_budgets(finished):
    found = gather([finished / "ladder"])
    assert found.kind == "ladder"
    assert len(found.runs) == 15
    assert {run.budget_flops for run in found.runs} == {1e12, 3e12, 1e13}


def test_a_directory_without_runs_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no run"):
        gather([tmp_path])
    (tmp_path / "runs.csv").write_text("")
    with pytest.raises(DataError, match=r"areca fit .*runs\.csv --out law\.json"):
        gather([tmp_path / "runs.csv"])
    with pytest.raises(DataError, match="needs a law"):
        gather([])


def test_a_plan_that_keeps_its_run_under_best_reads_the_same(quickstart):
    plan = json.loads((quickstart / "plan.json").read_text())
    best = {key: plan.pop(key) for key in ("n_params", "n_tokens", "flops_exact", "flops_6nd")}
    plan |= {"best": best, "interval": plan.pop("interval_90"), "baseline": {"loss": plan.pop("naive_baseline_loss")}}
    whole = build_report([quickstart], quickstart)
    (quickstart / "plan.json").write_text(json.dumps(plan))
    assert build_report([quickstart], quickstart) == whole


def test_a_valley_at_its_edge_has_no_best_size():
    valley = {"budget_flops": 1e12, "a": 9.0, "b": -1.0, "c": 0.04, "n_opt": 1e5, "interior": True, "curved": True}
    bottoms = [
        read_law({"isoflop": {"valleys": [valley | change]}}).valleys[0].bottom
        for change in ({}, {"interior": False}, {"curved": False})
    ]
    assert bottoms == [1e5, None, None]


def test_downsampling_keeps_the_mean_and_the_ends():
    tokens = np.arange(1.0, 100_001.0)
    x, y = downsample(list(tokens), list(3.0 + 0 * tokens))
    assert len(x) <= POINTS
    assert y == pytest.approx(3.0)
    assert x[0] == 1.0
    x, y = downsample(list(tokens), list(tokens), logarithmic=False)
    assert y == pytest.approx(x)
    assert len(downsample([None, 2.0, 3.0], [1.0, None, 5.0])[0]) == 1
    assert len(downsample([], [])[0]) == 0
    assert len(downsample([7.0] * 1000, [1.0] * 1000)[0]) == 1000


def test_numbers_are_written_as_people_write_them():
    assert [si(v) for v in (14_305, 999_999, 1_234_567, 0, None)] == ["14.3k", "1.00M", "1.23M", "0", "–"]
    assert power(4.5e13) == "4.5×10<sup>13</sup>"
    assert [short(w) for w in ("20.0k", "1.00M", "100k", "10", power(1e12), power(2e12))] == [
        "20k", "1M", "100k", "10", "10<sup>12</sup>", "2×10<sup>12</sup>",
    ]  # fmt: skip
    assert [duration(v) for v in (0.4, 59.7, 75, 7380)] == ["0.40 s", "1 min 00 s", "1 min 15 s", "2 h 03 min"]
