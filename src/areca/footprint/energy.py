"""Energy and carbon of a run (Patterson et al. 2021, section 2.1). Importable without numpy.

    energy_kwh = hours x chips x average system watts x PUE / 1000
    carbon_kg  = energy_kwh x kg CO2e per kWh

Every figure carries its kind: "measured", "estimated (TDP)" or "assumed". An estimate is never given as a measurement.
"""

from dataclasses import asdict, dataclass
from typing import Any

from areca.errors import ConfigError
from areca.footprint.cpus import cpu_name, cpu_watts_per_core


@dataclass(frozen=True)
class GridIntensity:
    """Carbon of one kWh from the grid."""

    kg_per_kwh: float
    source: str
    kind: str = "assumed"


# Patterson et al. 2021, table 1: the average of the United States, which the paper takes where the place is unknown.
DEFAULT_GRID = GridIntensity(0.429, "United States average, Patterson et al. 2021, table 1")
NO_PUE = 1.0  # a laptop or a desk has no datacenter around it


def energy_kwh(*, hours: float, chips: float, watts: float, pue: float = NO_PUE) -> float:
    """kWh at the meter of the building: hours x chips x watts x PUE / 1000. ConfigError for what can't be."""
    for name, value, least in (("hours", hours, 0), ("chips", chips, 0), ("watts", watts, 0), ("pue", pue, 1)):
        if not least <= value < float("inf"):
            raise ConfigError(f"{name} is {value}; it must be a number of at least {least}.")
    return hours * chips * watts * pue / 1000


def carbon_kg(kwh: float, kg_per_kwh: float) -> float:
    """kg CO2e of `kwh` from a grid of `kg_per_kwh`."""
    if not (kwh >= 0 and kg_per_kwh >= 0):
        raise ConfigError(
            f"carbon needs non-negative energy and grid intensity; got {kwh} kWh and {kg_per_kwh} kg/kWh."
        )
    return kwh * kg_per_kwh


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
    over its cores where `cpus.py` knows it, otherwise an assumption; `source` says which.
    """
    if watts_per_core is None:
        watts_per_core, source = cpu_watts_per_core(cpu_name())
    source = source or "watts a core as given; no sensor was read"
    kwh = energy_kwh(hours=seconds / 3600, chips=cores, watts=watts_per_core, pue=pue)
    return tagged(kwh, kind="estimated (TDP)", watts=cores * watts_per_core, source=source, pue=pue, grid=grid)


def tagged(
    kwh: float, *, kind: str, watts: float | None, source: str, pue: float, grid: GridIntensity = DEFAULT_GRID
) -> dict[str, Any]:
    """Energy and carbon as result.json holds them, each with its kind and where it is from."""
    return {
        "energy_kwh": {"value": kwh, "unit": "kWh", "kind": kind, "watts": watts, "pue": pue, "source": source},
        "carbon_kg": {
            "value": carbon_kg(kwh, grid.kg_per_kwh),
            "unit": "kg CO2e",
            "kind": f"{kind}, grid {grid.kind}" if kind != grid.kind else kind,
            "grid": asdict(grid),
        },
    }


def add(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of several runs' `{"energy_kwh", "carbon_kg"}`; its kind is that of the least certain part."""
    order = ("measured", "estimated (TDP)", "assumed")

    def rank(part: dict[str, Any]) -> int:
        return next((i for i in reversed(range(len(order))) if part["kind"].startswith(order[i])), len(order))

    total: dict[str, Any] = {}
    for name, unit in (("energy_kwh", "kWh"), ("carbon_kg", "kg CO2e")):
        values = [p[name] for p in parts]
        worst = max(values, key=rank, default={"kind": "measured"})
        total[name] = {
            "value": sum(v["value"] for v in values),
            "unit": unit,
            "kind": worst["kind"],
            "runs": len(values),
        }
    return total
