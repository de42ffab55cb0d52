"""Energy and carbon of a run (Patterson et al. 2021, section 2.1). Importable without numpy.

    energy_kwh = hours x chips x average system watts x PUE / 1000
    carbon_kg  = energy_kwh x kg CO2e per kWh

Every figure carries its kind: "measured", "estimated (...)" or "assumed". An estimate is never given as a measurement.
Gross carbon counts what the place's grid emits; net carbon leaves out energy that was bought free of carbon for the
same hours. They are separate keys (`carbon_kg`, `carbon_net_kg`) and are never added to each other.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from areca.errors import ConfigError
from areca.footprint.cpus import cpu_watts
from areca.runtime import processor_name

NO_PUE = 1.0  # a laptop or a desk has no datacenter around it
HIGHEST_PUE = 5.0  # more is a percentage or a slip
LEAST_WATTS, MOST_WATTS = 1.0, 1e5  # of one chip, with its share of a host
HIGHEST_KG_PER_KWH = 2.0  # no country's or region's grid reaches it; more is g/kWh or kg/MWh
KINDS = ("measured", "estimated", "assumed")  # from the most certain to the least; a kind begins with one of them
UNKNOWN = "unknown"  # or with this, where there is no value


def check_intensity(kg_per_kwh: float, name: str) -> float:
    """`kg_per_kwh` itself; ConfigError where it is negative, no number, or must be in another unit."""
    if not 0 <= kg_per_kwh < float("inf"):
        raise ConfigError(f"{name} is {kg_per_kwh}; it must be a number of at least 0 kg CO2e per kWh.")
    if kg_per_kwh > HIGHEST_KG_PER_KWH:
        raise ConfigError(
            f"{name} is {kg_per_kwh:g} kg CO2e per kWh, more than any grid emits; if that is g/kWh or kg/MWh, give a "
            f"thousandth of it ({kg_per_kwh / 1000:g})."
        )
    return kg_per_kwh


@dataclass(frozen=True)
class GridIntensity:
    """Carbon of one kWh from the grid, gross; net beside it where it is published.

    Raises ConfigError for what can't be: negative, or so high that it must be g/kWh or kg/MWh.
    """

    kg_per_kwh: float | None  # gross; None where only net is published
    source: str
    kind: str = "assumed"
    net_kg_per_kwh: float | None = None
    region: str = ""
    year: str = ""  # that the figure describes

    def __post_init__(self) -> None:
        for name in ("kg_per_kwh", "net_kg_per_kwh"):
            if (value := getattr(self, name)) is not None:
                check_intensity(value, f"{name} of {self.region or self.source or 'the grid'}")

    def to_dict(self) -> dict[str, Any]:
        """The fields that are known, as result.json holds them; `GridIntensity(**...)` reads them back."""
        optional = ("net_kg_per_kwh", "region", "year")
        return {k: v for k, v in asdict(self).items() if k not in optional or v not in (None, "")}


# Patterson et al. 2021, table 1: the average of the United States, which the paper takes where the place is unknown.
DEFAULT_GRID = GridIntensity(0.429, "United States average, Patterson et al. 2021, table 1")


def energy_kwh(*, hours: float, chips: float, watts: float, pue: float = NO_PUE) -> float:
    """kWh at the meter of the building: hours x chips x watts x PUE / 1000. ConfigError for what can't be."""
    for name, value in (("hours", hours), ("chips", chips), ("watts", watts)):
        if not 0 <= value < float("inf"):
            raise ConfigError(f"{name} is {value}; it must be a number of at least 0.")
    return hours * chips * watts * check_pue(pue) / 1000


def carbon_kg(kwh: float, kg_per_kwh: float) -> float:
    """kg CO2e of `kwh` from a grid of `kg_per_kwh`."""
    if not (kwh >= 0 and kg_per_kwh >= 0):
        raise ConfigError(
            f"carbon needs non-negative energy and grid intensity; got {kwh} kWh and {kg_per_kwh} kg/kWh."
        )
    return kwh * check_intensity(kg_per_kwh, "the grid's intensity")


def check_pue(pue: float, name: str = "pue") -> float:
    """`pue` itself; ConfigError below 1 (a building can't use less than its machines) or where it must be a slip."""
    if not 1 <= pue <= HIGHEST_PUE:
        raise ConfigError(
            f"{name} is {pue:g}; it is the building's energy over its machines', a number from 1 to {HIGHEST_PUE:g} "
            "such as 1.1."
        )
    return pue


def check_watts(watts: float, name: str) -> float:
    """`watts` of one chip; ConfigError for what no chip with its share of a host draws, with the unit it may be in."""
    if not LEAST_WATTS <= watts <= MOST_WATTS:
        unit = "kilowatts" if 0 < watts < LEAST_WATTS else "milliwatts, or of all chips together" if watts > 0 else ""
        guess = f" ({watts:g} may be in {unit})" if unit and math.isfinite(watts) else ""
        raise ConfigError(
            f"{name} is {watts:g}; it is the average of one chip in watts, from {LEAST_WATTS:g} to {MOST_WATTS:,.0f} "
            f"such as 400{guess}."
        )
    return watts


def estimate_run(
    seconds: float,
    cores: float,
    *,
    watts_per_core: float | None = None,
    source: str = "",
    pue: float = NO_PUE,
    grid: GridIntensity = DEFAULT_GRID,
) -> dict[str, Any]:
    """{"energy_kwh": {...}, "carbon_kg": {...}} of a run on `cores` CPU cores, tagged as an estimate.

    Only the cores in use are counted: a container is not charged for its whole host. Watts a core are this CPU's TDP
    over its cores where `cpus.py` knows it, otherwise an assumption; kind and `source` say which.
    """
    kind = "estimated (TDP)"
    if watts_per_core is None:
        cpu = cpu_watts(processor_name())
        watts_per_core, source, kind = cpu.watts_per_core, cpu.source, cpu.kind
    source = source or "watts a core as given; no sensor was read"
    kwh = energy_kwh(hours=seconds / 3600, chips=cores, watts=watts_per_core, pue=pue)
    return tagged(kwh, kind=kind, watts=cores * watts_per_core, source=source, pue=pue, grid=grid)


def tagged(
    kwh: float | None,
    *,
    kind: str,
    watts: float | None,
    source: str,
    pue: float,
    grid: GridIntensity = DEFAULT_GRID,
    **more: Any,
) -> dict[str, Any]:
    """Energy and carbon as result.json holds them, each with its kind and where it is from.

    `kwh` includes PUE; None stays None, never 0, and its kind is "unknown" with the reason, whatever `kind` says of the
    other figures. `more` goes into the energy's entry. `carbon_net_kg` is there where the place's net intensity is
    known.
    """
    if kwh is None and not kind.startswith(UNKNOWN):
        kind = UNKNOWN
    energy = {"value": kwh, "unit": "kWh", "kind": kind, "watts": watts, "pue": pue, "source": source, **more}
    found: dict[str, Any] = {"energy_kwh": energy}
    for name, intensity in (("carbon_kg", grid.kg_per_kwh), ("carbon_net_kg", grid.net_kg_per_kwh)):
        if name == "carbon_net_kg" and intensity is None:
            continue
        if kwh is None:
            value, how = None, kind
        elif intensity is None:
            value, how = None, f"{UNKNOWN}: no gross intensity is published for {grid.region or grid.source}"
        else:
            value, how = carbon_kg(kwh, intensity), f"{kind}, grid {grid.kind}" if kind != grid.kind else kind
        found[name] = {"value": value, "unit": "kg CO2e", "kind": how, "grid": grid.to_dict()}
    return found


def add(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several runs' `{"energy_kwh", "carbon_kg"}`; its kind is that of the least certain part.

    What is unknown (None) is left out of the sum and counted in `runs_unknown`. Net carbon is summed only where every
    part has it: gross figures never fill in for it.
    """

    total: dict[str, Any] = {}
    for name, unit in (("energy_kwh", "kWh"), ("carbon_kg", "kg CO2e"), ("carbon_net_kg", "kg CO2e")):
        if name == "carbon_net_kg" and not (parts and all(name in p for p in parts)):
            continue
        values = [p[name] for p in parts]
        known = [v for v in values if v.get("value") is not None]
        total[name] = {
            "value": sum(v["value"] for v in known) if known else None,
            "unit": unit,
            "kind": least_certain([v["kind"] for v in known]),
            "runs": len(known),
        }
        if len(known) < len(values):
            total[name]["runs_unknown"] = len(values) - len(known)
    return total


def least_certain(kinds: list[str]) -> str:
    """The kind that claims the least: one of no known kind before all others; "unknown" of none."""

    def rank(kind: str) -> int:
        return next((i for i in reversed(range(len(KINDS))) if kind.startswith(KINDS[i])), len(KINDS))

    return max(kinds, key=rank, default=UNKNOWN)
