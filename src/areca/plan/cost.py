"""What a planned run costs: chip-hours, hours, energy, carbon and money, each estimate tagged as one."""

from typing import Any

from areca.footprint import DEFAULT_GRID, GridIntensity, energy_kwh, tagged
from areca.footprint.regions import PUE, given_here
from areca.plan.budget import Machine, Purchase

# Patterson et al. 2021: large cloud sites have 1.09 to 1.12, the average of the United States is 1.59.
ASSUMED_PUE = 1.10
WHY_PUE = "PUE 1.10 assumed, a large cloud site's (Patterson et al. 2021: 1.09 to 1.12; the US average is 1.59)"


def cost_on(machine: Machine, purchase: Purchase, flops: float) -> dict[str, Any]:
    """Of `flops` exact training FLOPs on the chip: what `Plan.cost` holds. What is not known is None, with a reason."""
    chip_hours = flops / machine.flops_per_chip_hour
    rate = machine.usd_per_chip_hour
    return {
        "chip": machine.chip.name,
        "chips": machine.chips,
        "mfu": machine.mfu,
        "mfu_source": machine.mfu_source,
        "chip_hours": chip_hours,
        "hours": None if machine.chips is None else chip_hours / machine.chips,
        "usd": None if rate is None else chip_hours * rate,
        **footprint(machine, purchase, chip_hours),
    }


def footprint(machine: Machine, purchase: Purchase, chip_hours: float) -> dict[str, Any]:
    """{"energy_kwh", "carbon_kg"} of the chip-hours, tagged; values are None where no power is known.

    The only place here that knows how power becomes energy and carbon.
    """
    if purchase.watts is None and machine.chip.tdp_watts is None:
        why = f"unknown: no TDP is published for {machine.chip.name}; give --watts"
        return {"energy_kwh": {"value": None, "kind": why}, "carbon_kg": {"value": None, "kind": why}}
    if purchase.watts is not None:
        watts, kind, source = purchase.watts, "assumed", "watts a chip as given"
    else:
        watts, kind = float(machine.chip.tdp_watts or 0), "estimated (TDP)"
        source = f"TDP of {machine.chip.name} alone, without its host"
    here, around = given_here()
    if purchase.pue is not None:
        pue = purchase.pue
    elif around is not None:
        pue, source = around, f"{source}; PUE {around:g} given in {PUE}"
    else:
        pue, source = ASSUMED_PUE, f"{source}; {WHY_PUE}"
    grid = (here or DEFAULT_GRID) if purchase.kg_per_kwh is None else GridIntensity(purchase.kg_per_kwh, "as given")
    kwh = energy_kwh(hours=chip_hours, chips=1, watts=watts, pue=pue)
    return tagged(kwh, kind=kind, watts=watts, source=source, pue=pue, grid=grid)
