"""Where: published regions need nothing, codecarbon's data are read in their own units, mistakes are named."""

import pytest

from areca.errors import ConfigError
from areca.footprint import maintained
from areca.footprint.cpus import cpu_watts, plain
from areca.footprint.energy import DEFAULT_GRID, GridIntensity, add, tagged
from areca.footprint.regions import PUBLISHED, grid_of, here, listing

needs_codecarbon = pytest.mark.skipif(not maintained.installed(), reason="codecarbon (areca[energy]) is not installed")


@pytest.fixture
def without_codecarbon(monkeypatch):
    monkeypatch.setattr(maintained, "directory", lambda: None)
    monkeypatch.setattr(maintained, "grids", dict)
    monkeypatch.setattr(maintained, "cpu_tdps", dict)


def test_published_regions_need_nothing_installed(without_codecarbon):
    iowa = grid_of("Iowa")
    assert (iowa.kg_per_kwh, iowa.net_kg_per_kwh) == (0.478, 0.080)
    assert grid_of("taiwan").year == "2019"
    assert "table 1" in iowa.source
    assert grid_of("North Carolina").net_kg_per_kwh == 0.177
    assert grid_of("oklahoma").kg_per_kwh is None  # only net is printed: gross stays unknown


def test_an_unknown_region_names_the_closest_and_the_extra(without_codecarbon):
    with pytest.raises(ConfigError, match=r"no region 'iowaa' \(did you mean 'iowa'\?\).*\.\[energy\]"):
        grid_of("iowaa")
    with pytest.raises(ConfigError, match=r"no region 'france' among the published ones \(us-average, iowa, .*energy"):
        grid_of("france")


@needs_codecarbon
def test_countries_states_and_cloud_regions_leave_in_kg_per_kwh():
    # 213 countries, 52 of the US, 40 cloud regions; units in the files are g/kWh and lbs/MWh.
    assert grid_of("france").kg_per_kwh == grid_of("FRA").kg_per_kwh < 0.1
    assert 0.3 < grid_of("usa").kg_per_kwh < 0.45
    assert grid_of("us-ia").kg_per_kwh == pytest.approx(634.156 * 0.45359237 / 1000)
    assert grid_of("us-ia").region == "Iowa, US"
    assert grid_of("us-central1").kg_per_kwh == grid_of("gcp:us-central1").kg_per_kwh == pytest.approx(0.430)
    assert all(g.kg_per_kwh < 2 for g in maintained.grids().values())
    assert len(maintained._countries()) > 2 * 200
    france = grid_of("france")
    assert france.net_kg_per_kwh is None  # yearly averages are gross
    assert france.year
    assert "codecarbon 3" in france.source
    with pytest.raises(ConfigError, match=r"no region 'frence' \(did you mean 'france'\?\)"):
        grid_of("frence")


@needs_codecarbon
def test_a_published_name_means_the_same_with_and_without_codecarbon():
    assert {name: grid_of(name).source for name in PUBLISHED} == {n: p.source for n, p in PUBLISHED.items()}
    assert grid_of("georgia").kg_per_kwh == 0.415
    assert grid_of("GEO").region == "Georgia"  # the country


@needs_codecarbon
def test_every_listed_region_is_found_by_its_name():
    rows = listing()
    assert len(rows) > 300
    for row in rows:
        assert grid_of(row["region"]).kg_per_kwh == row["gross"]


@needs_codecarbon
def test_a_cpu_of_codecarbons_table_is_charged_its_tdp_over_this_machines_cores(tmp_path):
    name = "AMD EPYC 7543 32-Core Processor"
    assert plain(name) == "amd epyc 7543"
    info = tmp_path / "cpuinfo"
    info.write_text(f"model name\t: {name}\ncpu cores\t: 32\nflags\t\t: fpu vme\n")
    found = cpu_watts(name, info)
    assert (found.watts_per_core, found.kind) == (225 / 32, "estimated (TDP)")
    assert "codecarbon 3" in found.source
    info.write_text(f"model name\t: {name}\ncpu cores\t: 2\nflags\t\t: fpu hypervisor\n")
    virtual = cpu_watts(name, info)  # 225 W for two cores would be far too much
    assert (virtual.watts_per_core, virtual.kind) == (10, "assumed")
    assert "a virtual machine does not say" in virtual.source


@pytest.mark.parametrize("value", [430.0, 2.1])
def test_grams_or_megawatt_hours_are_not_taken_for_kg_per_kwh(value):
    with pytest.raises(ConfigError, match="if that is g/kWh or kg/MWh, give a thousandth of it"):
        GridIntensity(value, "x")
    with pytest.raises(ConfigError, match="thousandth"):
        GridIntensity(0.4, "x", net_kg_per_kwh=value)


def test_gross_and_net_are_never_mixed():
    both = tagged(10.0, kind="measured", watts=1, source="s", pue=1, grid=grid_of("iowa"))
    gross = tagged(10.0, kind="measured", watts=1, source="s", pue=1, grid=DEFAULT_GRID)
    net = tagged(10.0, kind="measured", watts=1, source="s", pue=1, grid=grid_of("oklahoma"))
    assert both["carbon_kg"]["value"] == pytest.approx(4.78)
    assert both["carbon_net_kg"]["value"] == pytest.approx(0.80)
    assert "carbon_net_kg" not in gross
    total = add([both, gross])
    assert total["carbon_kg"]["value"] == pytest.approx(4.78 + 4.29)
    assert "carbon_net_kg" not in total
    total = add([both, net])
    assert total["carbon_net_kg"]["value"] == pytest.approx(0.80 + 0.79)
    assert (total["carbon_kg"]["value"], total["carbon_kg"]["runs_unknown"]) == (pytest.approx(4.78), 1)


def test_where_this_machine_is_comes_from_the_environment():
    nowhere = here({})
    assert (nowhere.grid, nowhere.pue) == (DEFAULT_GRID, 1.0)
    place = here({"ARECA_REGION": "taiwan", "ARECA_PUE": "1.12"})
    assert (place.grid.kg_per_kwh, place.pue, place.pue_source) == (0.545, 1.12, "given in ARECA_PUE")


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"ARECA_REGION": "atlantis"}, "ARECA_REGION: there is no region 'atlantis'"),
        ({"ARECA_PUE": "0.9"}, "ARECA_PUE is 0.9"),
        ({"ARECA_PUE": "110"}, "ARECA_PUE is 110"),
        ({"ARECA_PUE": "low"}, "ARECA_PUE is 'low', which is not a number"),
        ({"ARECA_PUE": "nan"}, "ARECA_PUE is nan"),
    ],
)
def test_a_place_that_cannot_be_is_refused(environ, says):
    with pytest.raises(ConfigError, match=says):
        here(environ)
