"""A block for a model card: what its section on environmental impact asks for, in Markdown, tags and all."""

from collections.abc import Mapping
from typing import Any

from areca.footprint.cases import Case
from areca.footprint.energy import UNKNOWN


def model_card(
    case: Case,
    found: Mapping[str, Any],
    *,
    runs: Mapping[str, int] | None = None,
    embodied: Mapping[str, Any] | None = None,
) -> str:
    """The block of a run or a study: hardware, hours, place, PUE, energy, carbon, and how each is known.

    `found` is its footprint; `runs` how many runs ended how, where there are several.
    """
    energy, gross, net = found["energy_kwh"], found["carbon_kg"], found.get("carbon_net_kg")
    grid = case.grid
    chips = f"{'up to ' if case.parts else ''}{case.chips:,g} x " if case.chips and case.chips != 1 else ""
    place = f"{grid.source}, {grid.year}" if grid.year else grid.source
    lines = [
        "## Environmental impact",
        "",
        f"- **Hardware type:** {chips}{case.chip or 'not known'}",
        f"- **Hours used:** {_hours(case, sum((runs or {}).values()) > 1)}",
        f"- **Provider and region:** {grid.region or 'not given'} ({place})",
        f"- **PUE:** {case.pue:g}",
        f"- **Energy:** {_stated(energy, 'kWh')}",
        f"- **Carbon emitted, gross:** {_stated(gross, 'kg CO2e', grid.kg_per_kwh)}",
    ]
    if net is not None:
        lines.append(
            f"- **Carbon emitted, net of carbon-free energy bought:** {_stated(net, 'kg CO2e', grid.net_kg_per_kwh)}"
        )
    if embodied is not None:
        about = f"{embodied['kind']}, {embodied['source']}"
        lines.append(f"- **Embodied carbon, not in the above:** {quantity(embodied['value'], 'kg CO2e')}; {about}")
    if runs:
        said, number = ", ".join(f"{n} {how}" for how, n in runs.items()), sum(runs.values())
        lines.append(f"- **Counted:** {number} run{'s' if number != 1 else ''} ({said})")
    lines.append(f"- **How the energy is known:** {energy.get('source') or case.source}")
    if gaps := energy.get("gaps"):
        lines.append(f"- **Not in it or not seen:** {'; '.join(gaps)}")
    return "\n".join(lines)


def summary_of(found: Mapping[str, Any]) -> str:
    """One line: energy and carbon, gross and net where it is known, each with its kind."""
    parts = [amount(found["energy_kwh"], "kWh", "energy")]
    for name, basis in (("carbon_kg", "gross"), ("carbon_net_kg", "net")):
        if name in found:
            parts.append(amount(found[name], "kg CO2e", f"{basis} carbon", basis))
    return ", ".join(parts)


def amount(figure: Mapping[str, Any], unit: str, of: str, basis: str = "") -> str:
    """A figure with its kind, "1.2 kg CO2e gross (measured)", or "gross carbon not known" with the reason if any."""
    if figure["value"] is None:
        return " ".join(filter(None, (of, "not known", f"({how(figure)})" if how(figure) else "")))
    return " ".join(filter(None, (quantity(figure["value"], unit), basis, f"({how(figure)})")))


def how(figure: Mapping[str, Any]) -> str:
    """How a value is known, and how many runs are not in it; of what is not known why, as far as that is said."""
    kind = str(figure.get("kind", "kind not recorded"))
    if figure["value"] is None:
        return kind.removeprefix(UNKNOWN).removeprefix(": ") if kind.startswith(UNKNOWN) else ""
    left = figure.get("runs_unknown")
    return f"{kind}; {left} more {'run' if left == 1 else 'runs'} not known" if left else kind


def quantity(value: float | None, unit: str) -> str:
    """3,436 MWh, 0.0214 kWh, 271.4 t CO2e, 1.2 g CO2e; "not known" of None."""
    if value is None:
        return "not known"
    mass, _, of = unit.partition(" ")
    scales = {
        "kWh": ((1e7, "GWh"), (1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh")),
        "kg": ((1e3, "t"), (1.0, "kg"), (1e-3, "g")),
    }
    if mass not in scales:
        return f"{value:,.4g} {unit}"
    least, name = next((s for s in scales[mass] if value >= s[0]), scales[mass][-1])
    figures = value / (1e6 if name == "GWh" else least)
    text = f"{figures:,.0f}" if figures >= 1000 else f"{figures:.4g}"
    return " ".join(filter(None, (text, name, of)))


def _stated(figure: Mapping[str, Any], unit: str, kg_per_kwh: float | None = None) -> str:
    at = "" if figure["value"] is None or kg_per_kwh is None else f" at {kg_per_kwh:.3g} kg/kWh"
    return "; ".join(filter(None, (f"{quantity(figure['value'], unit)}{at}", how(figure))))


def _hours(case: Case, several: bool) -> str:
    """Wall clock and chip-hours, and how one comes of the other. `several`: of runs, whose hours are added up."""
    wall, total = (None if v is None else f"{_count(v)}" for v in (case.hours, case.chip_hours))
    if wall is None:
        return "not known" if total is None else f"{total} chip-hours; how many chips share them is not said"
    if case.parts:
        turns = [f"{_count(n)} chips for {_count(h)} h" for h, n in case.parts]
        return f"{wall} h of wall clock: {' and '.join(turns)}; {total} chip-hours in all"
    if several:
        return f"{wall} h of wall clock, added up over the runs" + (f" ({total} chip-hours)" if total != wall else "")
    if total is None or total == wall:
        return f"{wall} h"
    return f"{wall} h of wall clock on {_count(case.chips or 1)} chips ({total} chip-hours)"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
