"""Energy and carbon on the page: kinds beside figures, gross apart from net, sources and gaps."""

import json

import numpy as np
from synthetic_quickstart import write_run

from areca.report import build_report


def _run(path, **fields):
    write_run(path, 1e5, 2e6, 3.0, np.random.default_rng(0), steps=20)
    result = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps({**result, **fields}))


def _figures(kwh, kind, net=None):
    grid = {"kg_per_kwh": 0.478, "source": "Google's datacenter in Iowa", "kind": "yearly average", "year": "2020"}
    energy = {
        "value": kwh,
        "kind": kind,
        "pue": 1.1,
        "pue_source": "given",
        "source": "RAPL: package-0",
        "gaps": ["dram can't be read"],
    }
    found = {
        "energy_kwh": energy,
        "carbon_kg": {"value": kwh * 0.478, "kind": f"{kind}, grid yearly average", "grid": grid},
    }
    if net:
        found["carbon_net_kg"] = {
            "value": kwh * net,
            "kind": f"{kind}, grid yearly average",
            "grid": grid | {"net_kg_per_kwh": net},
        }
    return found


def _page(tmp_path):
    summary = build_report([tmp_path / "runs"], tmp_path / "out")
    return summary, (tmp_path / "out" / "report.html").read_text()


def test_measured_energy_gross_and_net_are_shown_with_kind_grid_pue_source_and_gap(tmp_path):
    for name in ("a", "b"):
        _run(tmp_path / "runs" / name, **_figures(2.0, "measured", net=0.08))
    summary, html = _page(tmp_path)
    assert summary["energy_kwh"]["value"] == 4.0
    assert summary["carbon_net_kg"]["value"] == 0.32
    for words in (
        "energy, measured",
        "carbon, gross, measured, grid yearly average",
        "carbon, net of carbon-free energy bought",
        "0.478 gross kg CO2e per kWh: Google&#x27;s datacenter in Iowa, 2020 (yearly average)",
        "1.1 (given)",
        "Energy is from: RAPL: package-0.",
        "Not in it or not seen: dram can&#x27;t be read.",
    ):
        assert words in html, words
    assert "An estimate is not a measurement" not in html


def test_net_of_some_runs_is_not_set_beside_gross_of_all(tmp_path):
    _run(tmp_path / "runs" / "a", **_figures(2.0, "measured", net=0.08))
    _run(tmp_path / "runs" / "b", **_figures(2.0, "assumed"))
    _, html = _page(tmp_path)
    assert "carbon, gross" in html
    assert "carbon-free energy bought" not in html
    assert "An estimate is not a measurement" in html
