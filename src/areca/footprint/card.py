"""A block for a model card: what its section on environmental impact asks for, in Markdown, tags and all."""

from collections.abc import Mapping
from typing import Any

from areca.footprint.cases import Case


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
    chips = f"{case.chips:g} x " if case.chips and case.chips != 1 else ""
    hours = f"{case.hours:,.4g} h" if case.hours is not None else "not known"
    if case.chip_hours is not None and case.hours is not None and case.chip_hours != case.hours:
        hours += f" ({case.chip_hours:,.4g} chip-hours)"
    place = f"{grid.source}, {grid.year}" if grid.year else grid.source
    lines = [
        "## Environmental impact",
        "",
        f"- **Hardware type:** {chips}{case.chip or 'not known'}",
        f"- **Hours used:** {hours}",
        f"- **Provider and region:** {grid.region or 'not given'} ({place})",
        f"- **PUE:** {case.pue:g}",
        f"- **Energy:** {quantity(energy['value'], 'kWh')}; {energy['kind']}",
        f"- **Carbon emitted, gross:** {_carbon(gross, grid.kg_per_kwh)}",
    ]
    if net is not None:
        lines.append(f"- **Carbon emitted, net of carbon-free energy bought:** {_carbon(net, grid.net_kg_per_kwh)}")
    if embodied is not None:
        about = f"{embodied['kind']}, {embodied['source']}"
        lines.append(f"- **Embodied carbon, not in the above:** {quantity(embodied['value'], 'kg CO2e')}; {about}")
    if runs:
        said = ", ".join(f"{n} {how}" for how, n in runs.items())
        lines.append(f"- **Counted:** {sum(runs.values())} runs ({said})")
    lines.append(f"- **How the energy is known:** {energy.get('source') or case.source}")
    if gaps := energy.get("gaps"):
        lines.append(f"- **Not in it or not seen:** {'; '.join(gaps)}")
    return "\n".join(lines)


def summary_of(found: Mapping[str, Any]) -> str:
    """One line: energy and carbon, gross and net where it is known, each with its kind."""
    parts = [f"{quantity(found['energy_kwh']['value'], 'kWh')} ({found['energy_kwh']['kind']})"]
    for name, basis in (("carbon_kg", "gross"), ("carbon_net_kg", "net")):
        if name in found:
            parts.append(f"{quantity(found[name]['value'], 'kg CO2e')} {basis} ({found[name]['kind']})")
    return ", ".join(parts)


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


def _carbon(figure: Mapping[str, Any], kg_per_kwh: float | None) -> str:
    at = "" if figure["value"] is None or kg_per_kwh is None else f" at {kg_per_kwh:.3g} kg/kWh"
    return f"{quantity(figure['value'], 'kg CO2e')}{at}; {figure['kind']}"
