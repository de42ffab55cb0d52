"""A fit that converged and is no result to build on says so beside its numbers, and a sound one says nothing."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from areca.cli.main import main
from areca.laws import LawReport
from areca.laws.checks.doubts import doubts
from areca.laws.form_report import report_form
from areca.laws.forms.declared import CHINCHILLA, COMPUTE_FLOOR
from areca.report.lawfile import read_law

# Six runs of 1.7 + 406 / N^.34 + 411 / D^.28 with 1% of noise: the best fit of L(N, D) has no floor.
SIX = """params,tokens,loss
10000000,200000000,5.391
10000000,1000000000,4.569
30000000,600000000,4.268
30000000,2000000000,3.902
100000000,2000000000,3.461
100000000,8000000000,3.165
"""


class Fit:
    """A sound fit, but for what a case changes."""

    def __init__(self, **changes):
        sound = {"n_points": 40, "n_starts": 64, "share_of_starts": 1.0, "at_bound": (), "condition": 2e5}
        vars(self).update(sound | changes)


VALUES = {"A": 406.0, "B": 411.0, "E": 1.69, "alpha": 0.34, "beta": 0.28}
NARROW = CHINCHILLA.inner(VALUES) + np.random.default_rng(0).normal(0, 0.01, (400, 5))
PROFILE = {n: [v / 2, v * 2] for n, v in VALUES.items()}


def _said(samples=NARROW, profile=PROFILE, values=VALUES, **changes):
    return doubts(Fit(**changes), CHINCHILLA, values, samples, profile, 0.90)


def test_a_sound_fit_is_not_doubted():
    assert _said() == []


@pytest.mark.parametrize("freedom", [1, 2, 3])
def test_few_degrees_of_freedom_are_said_with_what_they_do(freedom):
    (line,) = _said(n_points=5 + freedom)
    times = stats.t.ppf(0.95, freedom) / 1.6449  # Student against normal: 3.84, 1.78, 1.43
    assert f"({5 + freedom} rows for 5 parameters)" in line
    assert f"intervals {times:.2g} times as wide" in line
    assert _said(n_points=9) == []


def test_a_parameter_at_its_bound_is_said_with_what_hangs_on_it():
    (line,) = _said(at_bound=("E",), values=VALUES | {"E": 1e-9})
    assert line.startswith("E is at the bound of its range, 1e-09 (no floor")
    assert "alpha" not in line
    spread = NARROW.copy()
    spread[:, 3:] = np.random.default_rng(1).uniform(0.05, 1.0, (400, 2))
    (line,) = _said(samples=spread, at_bound=("E",), values=VALUES | {"E": 1e-9})
    assert "alpha and beta are not identified beside it" in line


def test_what_the_rows_do_not_limit_is_said():
    (line,) = _said(profile=PROFILE | {"alpha": [0.1, None]})
    assert line.startswith("alpha is not identified")
    at_range = NARROW.copy()
    at_range[:40, 2] = math.log(1e-9)  # E at its least in a tenth of the samples
    (line,) = _said(samples=at_range)
    assert "E at 1e-09 in 10% of them" in line


@pytest.mark.parametrize("condition", [1e10, float("inf"), float("nan")])
def test_parameters_that_act_alike_are_not_identified(condition):
    (line,) = _said(condition=condition)
    assert line.startswith("not identified")


def test_few_starts_at_the_optimum_are_said():
    (line,) = _said(share_of_starts=7 / 64)
    assert line.startswith("only 7 of 64 starts")


def test_six_rows_for_five_parameters_are_loud_in_print_in_law_json_on_the_page_and_in_a_plan(tmp_path, capsys):
    table, out = tmp_path / "six.csv", tmp_path / "law.json"
    table.write_text(SIX)
    assert main(["fit", str(table), "--bootstrap", "100", "--quick", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = [line.removeprefix("WARNING: ") for line in lines if line.startswith("WARNING: ")]
    assert any(line.startswith("E is at the bound of its range, 1e-09") for line in said)
    assert any(line.startswith("1 degree of freedom (6 rows for 5 parameters)") for line in said)
    # They stand between the parameters and the status of the fit.
    first = next(i for i, line in enumerate(lines) if line.startswith("WARNING: "))
    assert any(line.startswith("D_opt ~ C^") for line in lines[:first])
    assert any(line.startswith("converged") for line in lines[first:])
    written = json.loads(out.read_text())
    assert written["parametric"]["warnings"] == said
    assert LawReport.load(out).warnings == said
    assert set(said) <= set(read_law(written).notes)
    plan = ["plan", str(out), "--flops", "1e19", "--vocab-size", "32000", "--context", "1024", "--batch", "64"]
    assert main(plan) == 0
    assert "1 degree of freedom (6 rows for 5 parameters)" in capsys.readouterr().out.replace("\n", " ")


def test_forms_are_doubted_alike():
    c = np.geomspace(1e17, 1e21, 12)
    loss = (2 + (1e19 / c) ** 0.3) * np.exp(np.random.default_rng(0).normal(0, 0.001, 12))
    sound = report_form(COMPUTE_FLOOR, {"flops": c, "loss": loss}, samples=40, deep=False)
    assert sound.to_dict()["warnings"] == []
    few = report_form(COMPUTE_FLOOR, {"flops": c[:4], "loss": loss[:4]}, samples=40, deep=False)
    assert any(w.startswith("1 degree of freedom (4 rows for 3 parameters)") for w in few.to_dict()["warnings"])
