"""What the runs took in energy and carbon, from result.json: figures with their kinds, where they are from, gaps."""

from typing import Any

from areca.report import markup
from areca.report.gather import Gathered, number
from areca.report.headline import energy, kind
from areca.report.markup import absent, note, text

SHOWN = 6  # sentences on where figures are from, and on gaps


def entries(found: Gathered, summary: dict[str, Any]) -> list[tuple[str, str]]:
    """Energy, gross and net carbon, each under its kind; the grid and PUE they were computed with."""
    used, gross, net = (summary[k] for k in ("energy_kwh", "carbon_kg", "carbon_net_kg"))
    rows = []
    if used:
        rows.append((f"energy, {kind(used)}", energy(used)))
    if gross:
        rows.append((f"carbon, gross, {kind(gross)}", _grams(gross)))
    if net and gross and not net["runs_without"]:  # a sum over other runs would be read beside the gross one
        rows.append((f"carbon, net of carbon-free energy bought, {kind(net)}", _grams(net)))
    grids, pues = _distinct(found, "carbon_kg", _grid), _distinct(found, "energy_kwh", _pue)
    if grids:
        rows.append(("grid", "<br>".join(text(g) for g in grids[:SHOWN])))
    if pues:
        rows.append(("PUE", text(", ".join(pues[:SHOWN]))))
    return rows


def notes(found: Gathered, summary: dict[str, Any]) -> str:
    """Whether it was measured, from what, and what is not in it."""
    used = summary["energy_kwh"]
    if not used:
        return absent("No run recorded its energy.")
    body = ""
    words = used["kind"].lower()
    if "estimat" in words or "assum" in words:
        body += note("Energy and carbon are estimates, not measurements: see the kind beside each figure.")
    if used["runs_without"]:
        body += absent(
            f"{used['runs_without']} of the runs recorded no energy and are not in the sum; `areca footprint` counts "
            "them."
        )
    sources = _distinct(found, "energy_kwh", lambda f: [str(f["source"])] if f.get("source") else [])
    gaps = _distinct(
        found, "energy_kwh", lambda f: [str(g) for g in f["gaps"]] if isinstance(f.get("gaps"), list) else []
    )
    for title, sentences in (("Energy is from", sources), ("Not in it or not seen", gaps)):
        if sentences:
            more = f"; {len(sentences) - SHOWN} more in result.json" if len(sentences) > SHOWN else ""
            body += note(text(f"{title}: {'; '.join(sentences[:SHOWN])}{more}."))
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


def _grams(figure: dict[str, Any]) -> str:
    return f"{markup.significant(1000 * figure['value'], 3)} g CO<sub>2</sub>e"
