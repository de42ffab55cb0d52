import pytest

from areca.errors import ConfigError
from areca.footprint import GridIntensity, add, carbon_kg, energy_kwh, estimate_run


def test_energy_of_a_kettle():
    assert energy_kwh(hours=0.5, chips=1, watts=2000) == 1.0
    assert energy_kwh(hours=0.5, chips=1, watts=2000, pue=1.5) == 1.5


def test_a_run_is_charged_for_its_cores_and_tagged_as_an_estimate():
    result = estimate_run(3600, 2, watts_per_core=10, grid=GridIntensity(0.5, "somewhere"))
    energy, carbon = result["energy_kwh"], result["carbon_kg"]
    assert (energy["value"], energy["unit"], energy["kind"], energy["watts"]) == (0.02, "kWh", "estimated (TDP)", 20)
    assert energy["source"]
    assert (carbon["value"], carbon["unit"], carbon["kind"]) == (0.01, "kg CO2e", "estimated (TDP), grid assumed")
    assert carbon["grid"] == {"kg_per_kwh": 0.5, "source": "somewhere", "kind": "assumed"}


def test_the_default_grid_is_named_with_its_source():
    grid = estimate_run(60, 1)["carbon_kg"]["grid"]
    assert grid["kg_per_kwh"] == 0.429
    assert "Patterson et al. 2021" in grid["source"]
    assert grid["kind"] == "assumed"


def test_a_known_cpu_is_charged_its_own_tdp():
    from areca.footprint.cpus import cpu_watts

    known = cpu_watts("AMD EPYC 7763 64-Core Processor")
    assert (known.watts_per_core, known.kind) == (280 / 64, "estimated (TDP)")
    assert "EPYC 7763" in known.source
    unknown = cpu_watts("Intel(R) Xeon(R) Processor @ 2.60GHz")
    assert (unknown.watts_per_core, unknown.kind) == (10, "assumed")
    assert "assumed" in unknown.source
    assert cpu_watts("Intel(R) Xeon(R) Gold 6248R CPU @ 3.00GHz").watts_per_core != 150 / 20  # another CPU's


def test_a_sum_is_no_more_certain_than_its_parts():
    measured = {
        "energy_kwh": {"value": 1.0, "unit": "kWh", "kind": "measured"},
        "carbon_kg": {"value": 0.4, "unit": "kg CO2e", "kind": "measured"},
    }
    total = add([measured, estimate_run(3600, 100, watts_per_core=10)])
    assert total["energy_kwh"]["value"] == pytest.approx(2.0)
    assert total["energy_kwh"]["kind"] == "estimated (TDP)"
    assert total["energy_kwh"]["runs"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hours": -1, "chips": 1, "watts": 1}, "hours is -1"),
        ({"hours": 1, "chips": 1, "watts": float("nan")}, "watts is nan"),
        ({"hours": 1, "chips": 1, "watts": 1, "pue": 0.9}, "pue is 0.9"),
    ],
)
def test_impossible_inputs(arguments, message):
    with pytest.raises(ConfigError, match=message):
        energy_kwh(**arguments)
    with pytest.raises(ConfigError, match="non-negative"):
        carbon_kg(1.0, -0.1)
