"""The footprint of what has not run: so many seconds on so many chips, somewhere; tokens at a run's energy; hardware.

For plans, serving and evaluation. All of it is an estimate, and says from what.
"""

from collections.abc import Mapping
from typing import Any

from areca.errors import ConfigError
from areca.footprint.energy import GridIntensity, check_pue, energy_kwh, tagged
from areca.footprint.power import chip_power
from areca.footprint.regions import grid_of, here, number

HOURS_A_YEAR = 365.25 * 24
FORMULA = "chip-hours x kg per chip / (lifetime hours x utilisation)"


def footprint_of(
    seconds: float,
    chips: float,
    chip: str,
    region: str = "",
    pue: float | None = None,
    *,
    watts: float | None = None,
    grid: GridIntensity | None = None,
) -> dict[str, Any]:
    """Energy and carbon of `seconds` on `chips` chips, gross and, where it is published, net; tagged.

    Args:
        chip: its name, or a file that describes it, for its average system watts or its TDP.
        region: as `areca.footprint.regions.grid_of` knows it; where this machine is if not given.
        pue: of the building; this machine's if not given.
        watts: average system watts of a chip, instead of the table's.
        grid: instead of a region, for example of a window (`areca.footprint.when`).

    Raises ConfigError for a chip, a region or a figure that can't be.
    """
    place = here()
    grid = grid or (grid_of(region) if region else place.grid)
    pue = place.pue if pue is None else check_pue(pue)
    if watts is None:
        power = chip_power(chip)
        watts, kind, source = power.watts, power.kind, power.source
    else:
        kind, source = "assumed", f"{watts:g} W a {chip or 'chip'} as given"
    kwh = energy_kwh(hours=seconds / 3600, chips=chips, watts=watts, pue=pue)
    return tagged(kwh, kind=kind, watts=chips * watts, source=source, pue=pue, grid=grid, seconds=seconds)


def per_1000_tokens(footprint: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """kWh and g CO2e per 1,000 tokens that a generation, a server or an evaluation of that footprint handled.

    Values are None where the energy is unknown. ConfigError for no tokens.
    """
    if tokens < 1:
        raise ConfigError(f"tokens is {tokens}; energy per token needs at least one.")
    names = {
        "energy_kwh": ("kwh_per_1000_tokens", "kWh", 1000.0),
        "carbon_kg": ("gco2e_per_1000_tokens", "g CO2e", 1e6),
        "carbon_net_kg": ("gco2e_net_per_1000_tokens", "g CO2e", 1e6),
    }
    found: dict[str, Any] = {"tokens": tokens}
    for name, (key, unit, scale) in names.items():
        if name in footprint:
            value = footprint[name]["value"]
            value = None if value is None else value * scale / tokens
            found[key] = {"value": value, "unit": f"{unit} per 1,000 tokens", "kind": footprint[name]["kind"]}
    return found


def in_words(cost: Mapping[str, Any]) -> str:
    """A sentence on what `per_1000_tokens` found, with its kinds."""
    kwh, carbon = cost["kwh_per_1000_tokens"], cost["gco2e_per_1000_tokens"]
    if kwh["value"] is None:
        return f"energy of these {cost['tokens']:,} tokens: {kwh['kind']}."
    grams = "unknown carbon" if carbon["value"] is None else f"{carbon['value']:.3g} g CO2e"
    return (
        f"{kwh['value']:.3g} kWh ({kwh['kind']}) and {grams} ({carbon['kind']}) per 1,000 tokens, over "
        f"{cost['tokens']:,} tokens, without loading and compiling."
    )


def embodied(text: str, chip_hours: float | None) -> dict[str, Any]:
    """Carbon of making the chips, the part that `chip_hours` of use take of their lives: kept apart from operation.

    `text` is `kg_per_chip,lifetime_years,utilisation`. Our own formula, which wants a maker's figure:

        embodied_kg = chip_hours x kg_per_chip / (lifetime_years x 8766 h x utilisation)
    """
    words = [w.strip() for w in text.split(",")]
    if len(words) != 3:
        raise ConfigError(f"--embodied is {text!r}; write it as kg_per_chip,lifetime_years,utilisation, as 150,5,0.6.")
    kg, years, share = (
        number(w, f"--embodied {n}") for w, n in zip(words, ("kg", "years", "utilisation"), strict=True)
    )
    if not (0 <= kg < float("inf") and 0 < years < float("inf") and 0 < share <= 1):
        raise ConfigError(
            f"--embodied is {text!r}; kg must be at least 0, years above 0 and utilisation above 0 and at most 1."
        )
    if chip_hours is None:
        raise ConfigError("--embodied needs the run's chip-hours, which are not known here.")
    return {
        "value": chip_hours * kg / (years * HOURS_A_YEAR * share),
        "unit": "kg CO2e",
        "kind": "assumed",
        "source": f"{FORMULA}: {chip_hours:.4g} chip-hours; {kg:g} kg, {years:g} years, utilisation {share:g} as given",
    }


__all__ = ["embodied", "footprint_of", "in_words", "per_1000_tokens"]
