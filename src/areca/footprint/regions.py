"""Where: the carbon of a kWh by place, from the papers' own tables and from what others keep up to date.

A published region is one datacenter in one year, with its gross and net intensity and its PUE; it needs nothing
installed and is found first, so that a name means the same on every machine. All other names are codecarbon's
(`areca.footprint.maintained`): yearly averages of countries, states and cloud regions, gross only.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from areca.errors import ConfigError, closest
from areca.footprint import maintained
from areca.footprint.energy import DEFAULT_GRID, NO_PUE, GridIntensity, check_pue

REGION, PUE = "ARECA_REGION", "ARECA_PUE"  # where this machine is, for the runs it makes

_T1 = "Patterson et al. 2021, table 1"
_T4 = "Patterson et al. 2021, table 4"


@dataclass(frozen=True)
class Published:
    """A datacenter of the papers: kg CO2e per kWh gross and net (None: not printed) and PUE, as printed."""

    gross: float | None
    net: float | None
    pue: float
    year: str  # of the training it was printed for; "" where the table names none
    source: str


PUBLISHED: dict[str, Published] = {
    "us-average": Published(0.429, 0.429, 1.59, "", f"United States average, {_T1}"),
    "iowa": Published(0.478, 0.080, 1.11, "", f"Google's datacenter in Iowa, {_T1}"),
    "oklahoma": Published(None, 0.079, 1.08, "2022", "Google's datacenter in Oklahoma, Chowdhery et al. 2022, app. B"),
    "georgia": Published(0.415, 0.415, 1.09, "2019", f"Google's datacenter in Georgia (US), {_T4}"),
    "georgia-2018": Published(0.431, 0.431, 1.10, "2018", f"Google's datacenter in Georgia (US), {_T4}"),
    "taiwan": Published(0.545, 0.545, 1.12, "2019", f"Google's datacenter in Taiwan, {_T4}"),
    "north-carolina": Published(0.201, 0.177, 1.09, "2020", f"Google's datacenter in North Carolina, {_T4}"),
    "azure-us": Published(0.429, 0.429, 1.10, "2020", f"Microsoft Azure in the United States, {_T4}"),
}


@dataclass(frozen=True)
class Location:
    """Where a run is: its grid, and the building's PUE with where that is from."""

    grid: GridIntensity = DEFAULT_GRID
    pue: float = NO_PUE
    pue_source: str = "assumed: no datacenter around the machine"


def grid_of(name: str) -> GridIntensity:
    """The grid of a region by name; ConfigError names the closest ones, and the extra that knows more."""
    key = " ".join(name.lower().replace("_", " ").split())
    published = PUBLISHED.get(key.replace(" ", "-"))
    if published is not None:
        return GridIntensity(
            published.gross, published.source, "yearly average", published.net, key.replace(" ", "-"), published.year
        )
    known = maintained.grids()
    found = known.get(key) or known.get(key.replace("-", " "))
    if found is not None:
        return GridIntensity(found.kg_per_kwh, found.source, "yearly average", None, found.name, found.year)
    if known:
        raise ConfigError(
            f"there is no region {name!r}{closest(key, [*PUBLISHED, *known])}; give a country, a state of the US or a "
            "cloud region by its code (`areca footprint --region list`)."
        )
    raise ConfigError(
        f"there is no region {name!r}{closest(key, PUBLISHED)} among the published ones ({', '.join(PUBLISHED)}); "
        f"{maintained.EXTRA} adds countries, states and cloud regions."
    )


def here(environ: Mapping[str, str] = os.environ) -> Location:
    """Where this machine is: $ARECA_REGION and $ARECA_PUE; else the United States' average and no datacenter.

    Raises ConfigError, which names the variable, for a region that is not known and a PUE that can't be.
    """
    grid, pue, source = DEFAULT_GRID, NO_PUE, Location.pue_source
    if name := environ.get(REGION, ""):
        try:
            grid = grid_of(name)
        except ConfigError as error:
            raise ConfigError(f"{REGION}: {error}") from None
    if text := environ.get(PUE, ""):
        pue, source = check_pue(number(text, PUE), PUE), f"given in {PUE}"
    return Location(grid, pue, source)


def given_here(environ: Mapping[str, str] = os.environ) -> tuple[GridIntensity | None, float | None]:
    """(grid, PUE) as $ARECA_REGION and $ARECA_PUE give them, None for what they do not; raises as `here`."""
    place = here(environ)
    return place.grid if environ.get(REGION) else None, place.pue if environ.get(PUE) else None


def number(text: str, name: str) -> float:
    """The number in `text`; ConfigError names the setting."""
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}, which is not a number.") from None


def listing() -> list[dict[str, object]]:
    """Every region that has a name, for a person to choose from: the published ones first."""
    rows: list[dict[str, object]] = [
        {"region": name, "gross": p.gross, "net": p.net, "year": p.year, "source": p.source}
        for name, p in PUBLISHED.items()
    ]
    keys: dict[maintained.Grid, list[str]] = {}
    for key, grid in maintained.grids().items():
        if key not in PUBLISHED:
            keys.setdefault(grid, []).append(key)
    rows += sorted(
        ({"region": min(names, key=len), "name": g.name, "gross": g.kg_per_kwh, "net": None, "year": g.year,
          "source": g.source} for g, names in keys.items()),
        key=lambda row: str(row["name"]),
    )  # fmt: skip
    return rows
