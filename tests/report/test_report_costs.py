"""Energy and carbon: of every run, their sum, with the kind of each figure."""

import json
import re

import numpy as np
from synthetic_quickstart import write_run

from areca.report import build_report

MEASURED = {"energy_kwh": {"value": 2.5, "kind": "measured", "source": "RAPL"}}
MEASURED |= {"carbon_kg": {"value": 1.5, "kind": "measured, grid assumed", "grid": {"source": "a table"}}}


def _page(tmp_path, *changes):
    for i, change in enumerate(changes):
        path = tmp_path / f"run{i}"
        result = write_run(path, 1e4, 1e5, 5.0, np.random.default_rng(0), steps=20)
        if change is None:
            (path / "result.json").unlink()
        else:
            (path / "result.json").write_text(json.dumps(result | change))
    summary = build_report([tmp_path / f"run{i}" for i in range(len(changes))], tmp_path / "out")
    html = (tmp_path / "out" / "report.html").read_text()
    return summary, html.split('<section id="costs">')[1].split("</section>")[0]


def _rows(html):
    body = html.split("Energy and carbon by run")[1].split("<tbody>")[1].split("</tbody>")[0]
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in body.split("<tr>")[1:]]


def test_each_run_has_its_energy_and_carbon_with_their_kinds(tmp_path):
    other = {"energy_kwh": {"value": 0.5, "kind": "estimated (TDP)", "source": "a desk"}}
    other |= {"carbon_kg": {"value": 0.2, "kind": "assumed"}}
    summary, html = _page(tmp_path, MEASURED, other)
    one, two = _rows(html)
    assert one[2:6] == ["2.50 kWh", "measured", "1.50 kg CO<sub>2</sub>e", "measured, grid assumed"]
    assert "RAPL; a table" in one[6]
    assert "a desk" in two[6]
    assert two[2:6] == ["500 Wh", "estimated (TDP)", "200 g CO<sub>2</sub>e", "assumed"]
    assert summary["energy_kwh"] == {"value": 3.0, "kind": "estimated (TDP), measured", "runs": 2, "runs_without": 0}
    assert summary["carbon_kg"]["value"] == 1.7
    assert "An estimate is not a measurement" in html


def test_a_sum_that_leaves_runs_out_says_how_many(tmp_path):
    unknown = {"energy_kwh": {"value": None, "kind": "unknown"}, "carbon_kg": {"value": None, "kind": "unknown"}}
    summary, html = _page(tmp_path, MEASURED, None)
    assert "1 run recorded no energy and is not in the sum; `areca footprint` counts such runs." in html
    assert summary["energy_kwh"]["runs_without"] == 1
    _, html = _page(tmp_path, MEASURED, None, unknown)
    assert "2 runs recorded no energy and are not in the sum; `areca footprint` counts such runs." in html
    assert _rows(html)[2][2:4] == ["not known", "unknown"]
    older = {"energy_kwh": {"value": None, "kind": "measured"}, "carbon_kg": {"value": None, "kind": "measured"}}
    _, html = _page(tmp_path, MEASURED, older)
    assert _rows(html)[1][2:6] == ["not known", "unknown"] * 2


def test_net_carbon_is_summed_only_where_every_run_has_it(tmp_path):
    net = {"carbon_net_kg": {"value": 0.1, "kind": "measured, grid assumed"}}
    summary, html = _page(tmp_path, MEASURED | net, MEASURED | net)
    assert summary["carbon_net_kg"]["value"] == 0.2
    assert "carbon, net of carbon-free energy bought, measured, grid assumed" in html
    summary, html = _page(tmp_path, MEASURED | net, MEASURED)
    assert "carbon_net_kg" not in summary
    assert "net of carbon-free" not in html
    assert _rows(html)[0][6:] == ["100 g CO<sub>2</sub>e", "measured, grid assumed"]  # the run that has it shows it


def test_where_figures_are_from_is_said_once_where_all_runs_agree(tmp_path):
    _, html = _page(tmp_path, MEASURED, MEASURED, None)
    assert len(_rows(html)[0]) == 6
    assert "From: RAPL; a table." in html
