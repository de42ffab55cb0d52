"""Tables 1, 3 and 4 of Patterson et al. 2021, PaLM's appendix B, and the claims made of them: all from the formula.

Inputs are printed rounded, so a row agrees within 1% or half of the last digit printed, whichever is larger.
Carbon in Table 4 is computed from the energy printed there, so that the rounding of two columns does not add up.
"""

import csv

import pytest

from areca.footprint import carbon_kg, energy_kwh
from areca.footprint.cases import published, published_names
from areca.footprint.levers import parse, what_if
from areca.footprint.power import chip_power
from areca.footprint.regions import PUBLISHED

TABLE_4 = {
    "EvolvedTransformer-NAS": "evolved-transformer-nas",
    "T5-11B": "t5-11b",
    "Meena": "meena",
    "GShard-600B": "gshard-600b",
    "GPT-3": "gpt-3",
    "PaLM-540B": "palm-540b",
}
TABLE_1 = {
    "Transformer-Big@P100 US average": "transformer-big-p100-us",
    "Transformer-Big@P100 Iowa": "transformer-big-p100-iowa",
    "EvolvedTransformer-Medium@P100 Iowa": "evolved-transformer-p100-iowa",
    "Transformer-Big@TPUv2 Iowa": "transformer-big-tpuv2-iowa",
    "EvolvedTransformer-Medium@TPUv2 Iowa": "evolved-transformer-tpuv2-iowa",
}


def _rows(path):
    with path.open() as f:
        return list(csv.DictReader(f))


def _close(value, printed):
    decimals = len(printed.partition(".")[2])
    return value == pytest.approx(float(printed), rel=0.01, abs=0.5 * 10**-decimals)


def _carbon(found, kind):
    return found.get({"gross": "carbon_kg", "net": "carbon_net_kg"}[kind], {}).get("value")


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


def test_the_built_in_cases_are_the_rows_of_table_4_and_palm(shared_data):
    rows = _rows(shared_data("carbon/published_training_runs.csv"))
    for row in rows:
        case = published(TABLE_4[row["model"]])
        found = case.footprint()
        assert _close(found["energy_kwh"]["value"] / 1000, row["energy_mwh"]), row["model"]
        assert (case.pue, case.flops) == (float(row["pue"]), float(row["total_flop"]))
        assert case.chip.replace("-", "") == row["chip"].lower()
        assert case.watts_per_chip == pytest.approx(float(row["avg_system_w"]))
        if row["tflops_per_chip"]:  # FLOPs over chip-seconds, all printed to 3 digits
            assert case.flops_per_chip / 1e12 == pytest.approx(float(row["tflops_per_chip"]), rel=0.02)
        # The table's carbon is of the energy as printed.
        scale = 1000 * float(row["energy_mwh"]) / found["energy_kwh"]["value"]
        for kind in ("gross", "net"):
            if row[f"{kind}_tco2e"]:
                assert _close(_carbon(found, kind) * scale / 1000, row[f"{kind}_tco2e"]), (row["model"], kind)
            else:
                assert _carbon(found, kind) is None  # what is not printed is not filled in


def test_palm_is_3436_mwh_and_271_43_tonnes():
    found = published("palm-540b").footprint()
    assert _close(found["energy_kwh"]["value"] / 1000, "3436")
    assert _close(found["carbon_net_kg"]["value"] / 1000, "271.43")
    assert found["carbon_kg"]["value"] is None


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
        found = published(TABLE_1[row["case"]]).footprint()
        assert found["energy_kwh"]["value"] == pytest.approx(kwh)
        for kind in ("gross", "net"):
            tonnes = carbon_kg(kwh, float(row[f"{kind}_kg_per_kwh"])) / 1000
            assert _close(tonnes, row[f"{kind}_tco2e"]), (row["case"], kind)
            assert _carbon(found, kind) / 1000 == pytest.approx(tonnes)
    assert set(published_names()) == {*TABLE_1.values(), *TABLE_4.values()}


def test_table_3_average_watts(shared_data):
    rows = _rows(shared_data("carbon/patterson2021_table3_avg_power.csv"))
    assert len(rows) == 4
    for row in rows:
        chip = chip_power(row["processor"])
        assert chip.watts == float(row["avg_system_w"])
        assert chip.spread == float(row["stdev_pct"]) / 100
        assert chip.kind == "estimated (published average)"  # of other runs than this one


def test_moving_a_training_between_regions_changes_its_carbon_5_to_10_times():
    # The same training of T5 in Google's datacenters, net; Patterson et al. 2021 say about 5 to 10 times.
    case = published("t5-11b")
    regions = ("taiwan", "georgia", "iowa", "oklahoma", "north-carolina")
    net = [what_if(case, {"region": r})["after"]["carbon_net_kg"]["value"] for r in regions]
    assert 5 <= max(net) / min(net) <= 10
    # And within Iowa, by what is bought for the same hours.
    assert 5 <= PUBLISHED["iowa"].gross / PUBLISHED["iowa"].net <= 10


def test_the_four_levers_together_are_about_100_to_1000_times():
    # From table 1: a Transformer (Big) on P100s in an average datacenter, to the Evolved Transformer on TPUv2 in Iowa.
    case = published("transformer-big-p100-us")
    better = published("evolved-transformer-tpuv2-iowa")
    settings = parse(f"flops={better.flops},chip=tpu-v2,watts=227,tflops=24.0,pue=1.11,region=iowa")
    found = what_if(case, settings)
    assert found["carbon_net_factor"] == pytest.approx(0.1357 / 0.0024, rel=0.02)  # the two rows as printed: 57
    assert [x["lever"] for x in found["levers"]] == ["Model", "Machine", "Mechanization", "Map"]
    assert found["levers"][2]["energy_factor"] == pytest.approx(1.59 / 1.11)
    assert found["levers"][3]["carbon_net_factor"] == pytest.approx(0.429 / 0.080)
    # With the same model on PaLM's TPUv4 in PaLM's datacenter it is beyond 100.
    palm = what_if(case, parse(f"flops={better.flops},chip=tpu-v4,pue=1.08,region=oklahoma"))
    assert 100 <= palm["carbon_net_factor"] <= 1000
