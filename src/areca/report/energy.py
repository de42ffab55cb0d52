"""Where the runs' energy and carbon are from: the grid, the PUE, the sensors, and what no sensor saw."""

from typing import Any

from areca.report.gather import Gathered
from areca.report.markup import note, text
from areca.report.values import number, sentences

SHOWN = 6  # sentences on where figures are from, and on gaps


def entries(found: Gathered) -> list[tuple[str, str]]:
    """The grid and PUE that energy and carbon were computed with."""
    rows = []
    grids, pues = _distinct(found, "carbon_kg", _grid), _distinct(found, "energy_kwh", _pue)
    if grids:
        rows.append(("grid", "<br>".join(text(g) for g in grids[:SHOWN])))
    if pues:
        rows.append(("PUE", text(", ".join(pues[:SHOWN]))))
    return rows


def notes(found: Gathered) -> str:
    """What energy was measured from, and what is not in it."""
    body = ""
    sources = _distinct(found, "energy_kwh", lambda f: [str(f["source"])] if f.get("source") else [])
    gaps = _distinct(found, "energy_kwh", lambda f: sentences(f.get("gaps")))
    for title, said in (("Energy is from", sources), ("Not in it or not seen", gaps)):
        if said:
            more = f"; {len(said) - SHOWN} more in result.json" if len(said) > SHOWN else ""
            body += note(text(f"{title}: {'; '.join(said[:SHOWN])}{more}."))
    return body


def _distinct(found: Gathered, key: str, pick: Any) -> list[str]:
    figures = [(run.result or {}).get(key) for run in found.all_runs]
    return list(dict.fromkeys(word for f in figures if isinstance(f, dict) for word in pick(f)))


def _grid(figure: dict[str, Any]) -> list[str]:
    grid = figure.get("grid")
    if not isinstance(grid, dict):
        return []
    both = (("gross", number(grid, "kg_per_kwh")), ("net", number(grid, "net_kg_per_kwh")))
    known = ", ".join(f"{value:g} {basis}" for basis, value in both if value is not None)
    year = f", {grid['year']}" if grid.get("year") else ""
    return [f"{known} kg CO2e per kWh: {grid.get('source', 'source not recorded')}{year} ({grid.get('kind', '')})"]


def _pue(figure: dict[str, Any]) -> list[str]:
    pue = number(figure, "pue")
    about = f" ({figure['pue_source']})" if figure.get("pue_source") else ""
    return [] if pue is None else [f"{pue:g}{about}"]
