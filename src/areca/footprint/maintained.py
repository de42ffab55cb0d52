"""Figures that others keep up to date, read from codecarbon's package (MIT; the extra `energy`): grids and CPUs.

Only its data files are read: importing the package would import pandas and look for trackers. Units differ from file
to file (g/kWh, lbs/MWh); all leave here as kg/kWh. They are averages over a year of what was generated: gross.
"""

import contextlib
import csv
import functools
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.errors import ConfigError, install

EXTRA = install("energy")
KG_PER_LB = 0.45359237
CLOUD = "cloud/impact.csv"


@dataclass(frozen=True)
class Grid:
    """A place's grid: kg CO2e per kWh, the year it describes, where it is from."""

    name: str
    kg_per_kwh: float
    year: str
    source: str


def installed() -> bool:
    """Whether codecarbon's data are there."""
    return directory() is not None


@functools.cache
def directory() -> Path | None:
    """The data of the installed codecarbon, found without importing it; None where it is not installed."""
    spec = importlib.util.find_spec("codecarbon")
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (Path(place) / "data").is_dir():
            return Path(place) / "data"
    return None


def source() -> str:
    """The package and its version, which dates what it holds."""
    try:
        return f"codecarbon {importlib.metadata.version('codecarbon')}"
    except importlib.metadata.PackageNotFoundError:
        return "codecarbon"


@functools.cache
def grids() -> dict[str, Grid]:
    """All grids by a name in small letters: countries by name and ISO code, states and provinces, cloud regions.

    Empty where codecarbon is not installed. A state that has a country's name (Georgia) is `georgia, us`.
    """
    if directory() is None:
        return {}
    return {**_cloud(), **_states(), **_zones(), **_countries()}


@functools.cache
def cpu_tdps() -> dict[str, float]:
    """TDP in watts by a CPU's plain name (`areca.footprint.cpus.plain`); empty where codecarbon is not installed."""
    from areca.footprint.cpus import plain

    found = {}
    for row in _rows("hardware/cpu_power.csv"):
        with contextlib.suppress(KeyError, ValueError):  # a damaged row (there is one, "27.29.5") is no figure
            found[plain(row["Name"])] = float(row["TDP"])
    return found


def cpu_tdp(plain_name: str) -> float | None:
    """TDP in watts of the package of that name, if it is known."""
    return cpu_tdps().get(plain_name)


def _countries() -> dict[str, Grid]:
    found = {}
    for code, entry in _object("private_infra/global_energy_mix.json").items():
        grams = entry.get("carbon_intensity")
        if grams:
            name, year = entry["country_name"], str(entry["year"])
            grid = Grid(name, grams / 1000, year, f"{source()}, electricity generated in {name}")
            found |= {name.lower(): grid, code.lower(): grid}
    return found


def _states() -> dict[str, Grid]:
    table = dict(_object("private_infra/2023/usa_emissions.json"))
    about, unit = table.pop("_source", {}), table.pop("_unit", {}).get("emissions")
    if table and unit != "lbs/MWh":
        raise ConfigError(f"{source()} gives the states' intensities in {unit!r}, not in lbs/MWh; report it, please.")
    found = {}
    for name, entry in table.items():
        kg = entry["emissions"] * KG_PER_LB / 1000
        grid = Grid(
            f"{name.title()}, US", kg, str(about.get("year", "")), f"{source()}, {about.get('name', 'EPA eGRID')}"
        )
        found |= {name: grid, f"{name}, us": grid, f"us-{entry['regionCode'].lower()}": grid}
    return found


def _zones() -> dict[str, Grid]:
    """Provinces of China and bidding zones of Scandinavia, by their codes and names."""
    found = {}
    for file in ("private_infra/2023/china_provincial_emissions.json", "private_infra/nordic_emissions.json"):
        for code, entry in _object(file).get("data", {}).items():
            if not str(entry.get("unit", "")).lower().startswith("gco2"):
                continue
            year = str(entry.get("year", ""))
            grid = Grid(entry["description"], entry["emission_factor"] / 1000, year, f"{source()}, {code}")
            found |= dict.fromkeys([code.lower(), *entry.get("names", [])], grid)
    return found


def _cloud() -> dict[str, Grid]:
    found = {}
    for row in _rows(CLOUD):
        if row["impact"]:
            name = f"{row['provider']} {row['region']}"
            where = ", ".join(filter(None, (row["city"], row["country_name"])))
            grid = Grid(f"{name} ({where})", float(row["impact"]) / 1000, "", f"{source()}, {row['source']}")
            found |= {row["region"].lower(): grid, f"{row['provider']}:{row['region']}".lower(): grid}
    return found


def _object(file: str) -> dict[str, Any]:
    path = _path(file)
    return json.loads(path.read_text("utf-8")) if path else {}


def _rows(file: str) -> list[dict[str, str]]:
    path = _path(file)
    if path is None:
        return []
    with path.open(encoding="utf-8-sig", newline="") as f:
        return list(csv.DictReader(f))


def _path(file: str) -> Path | None:
    """A data file; one that another version of codecarbon does not have any more is nothing."""
    place = directory()
    return place / file if place and (place / file).is_file() else None
