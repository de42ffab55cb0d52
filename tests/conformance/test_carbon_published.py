"""Tables 1 and 4 of Patterson et al. 2021 and PaLM's appendix B: every row follows from the formula.

Inputs are printed rounded, so a row agrees within 1% or half of the last digit printed, whichever is larger.
Carbon in Table 4 is computed from the energy printed there, so that the rounding of two columns does not add up.
"""

import csv

import pytest

from areca.footprint import carbon_kg, energy_kwh


def _rows(path):
    with path.open() as f:
        return list(csv.DictReader(f))


def _close(value, printed):
    decimals = len(printed.partition(".")[2])
    return value == pytest.approx(float(printed), rel=0.01, abs=0.5 * 10**-decimals)


def test_published_training_runs(shared_data):
    rows = _rows(shared_data("carbon/published_training_runs.csv"))
    assert len(rows) == 6
    for row in rows:
        watts, pue = float(row["avg_system_w"]), float(row["pue"])
        if row["model"] == "PaLM-540B":
            parts = [(1200.0, 6144), (336.0, 3072)]
        else:
            parts = [(24 * float(row["days"]), int(row["n_chips"]))]
        kwh = sum(energy_kwh(hours=h, chips=n, watts=watts, pue=pue) for h, n in parts)
        assert _close(kwh / 1000, row["energy_mwh"]), row["model"]
        for kind in ("gross", "net"):
            if row[f"{kind}_kg_per_kwh"]:
                tonnes = carbon_kg(1000 * float(row["energy_mwh"]), float(row[f"{kind}_kg_per_kwh"])) / 1000
                assert _close(tonnes, row[f"{kind}_tco2e"]), (row["model"], kind)


def test_table_1(shared_data):
    rows = _rows(shared_data("carbon/patterson2021_table1.csv"))
    assert len(rows) == 5
    for row in rows:
        kwh = energy_kwh(
            hours=24 * float(row["days"]),
            chips=int(row["n_chips"]),
            watts=float(row["avg_system_w"]),
            pue=float(row["pue"]),
        )
        assert _close(kwh, row["energy_kwh"]), row["case"]
        for kind in ("gross", "net"):
            assert _close(carbon_kg(kwh, float(row[f"{kind}_kg_per_kwh"])) / 1000, row[f"{kind}_tco2e"]), (
                row["case"],
                kind,
            )
