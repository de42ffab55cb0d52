"""Four levers on the carbon of a run, as what-if (Patterson et al. 2022): Model, Machine, Mechanization, Map.

    carbon = FLOPs x (system watts / FLOP per second, of a chip) x PUE x kg CO2e per kWh
             Model    Machine                              Mechanization  Map

Each lever multiplies, so the order in which they are pulled changes no factor. Gross and net are followed apart: a
factor of Map exists only where both ends are known on the same basis.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from areca import chips
from areca.errors import ConfigError, closest
from areca.footprint.cases import Case
from areca.footprint.energy import GridIntensity, check_pue, check_watts, tagged
from areca.footprint.power import ACHIEVED, chip_power, key_of
from areca.footprint.regions import grid_of, number

KIND = "estimated (what-if)"
LEAST_FLOPS, MOST_FLOPS, MOST_TFLOPS = 1e6, 1e30, 1e5  # what is no slip; all published trainings are far inside
SETTINGS = {
    "flops": "Model: training FLOPs of the other model",
    "chip": "Machine: another chip",
    "watts": "Machine: average system watts of a chip",
    "tflops": "Machine: TFLOP/s that a chip reaches",
    "mfu": "Machine: that share of the chip's peak",
    "pue": "Mechanization: PUE of the building",
    "region": "Map: another place",
    "gross": "Map: kg CO2e per kWh of the grid",
    "net": "Map: kg CO2e per kWh, less carbon-free energy bought",
}


@dataclass(frozen=True)
class Lever:
    """One lever pulled: how many times less energy (Model, Machine, Mechanization) and carbon it makes."""

    name: str
    change: str  # from what to what
    energy: float
    gross: float | None
    net: float | None


def parse(text: str) -> dict[str, str]:
    """`region=iowa,chip=tpu-v4` as a table; ConfigError names a setting that is none, twice there or without value."""
    found: dict[str, str] = {}
    for word in filter(None, (w.strip() for w in text.split(","))):
        name, equals, value = (w.strip() for w in word.partition("="))
        if name not in SETTINGS:
            raise ConfigError(
                f"--what-if {word}: there is no lever {name!r}{closest(name, SETTINGS)}; use {', '.join(SETTINGS)}."
            )
        if not equals or not value:
            raise ConfigError(f"--what-if {word} has no value; write it as {name}=VALUE.")
        if name in found:
            raise ConfigError(f"--what-if has {name} twice; give one.")
        found[name] = value
    if not found:
        raise ConfigError("--what-if is empty; write it as region=iowa,chip=tpu-v4,pue=1.1.")
    if "region" in found and ("gross" in found or "net" in found):
        raise ConfigError("--what-if has region and an intensity (gross or net); give one of them.")
    if "tflops" in found and "mfu" in found:
        raise ConfigError("--what-if has tflops and mfu, which both say how fast a chip is; give one of them.")
    return found


def what_if(case: Case, settings: Mapping[str, str]) -> dict[str, Any]:
    """The footprint before and after, and every lever that was pulled with its factor (before over after).

    `steps` has energy and carbon after each lever, in order, as a waterfall shows them.

    Raises ConfigError: a setting that can't be, a chip or region that is not known, a figure a lever needs that
    neither the case nor the tables have.
    """
    if case.it_kwh is None:
        raise ConfigError(f"the energy of {case.name} is {case.kind}, so nothing can be compared with it.")
    made = [
        lever
        for lever in (
            _model(case, settings),
            _machine(case, settings),
            _mechanization(case, settings),
            _map(case, settings),
        )
        if lever is not None
    ]
    grid = _new_grid(case, settings) or case.grid
    pue = check_pue(number(settings["pue"], "pue"), "pue") if "pue" in settings else case.pue
    energy_factor = _product([lever.energy for lever in made])
    after_kwh = case.it_kwh * case.pue / energy_factor
    before = case.footprint()
    after = tagged(
        after_kwh, kind=KIND, watts=None, source=f"{case.name} with {_spelled(settings)}", pue=pue, grid=grid
    )
    return {
        "case": case.name,
        "before": before,
        "after": after,
        "levers": [
            {
                "lever": x.name,
                "change": x.change,
                "energy_factor": x.energy,
                "carbon_factor": x.gross,
                "carbon_net_factor": x.net,
            }
            for x in made
        ],
        "steps": _steps(before, made),
        "energy_factor": energy_factor,
        "carbon_factor": _product([x.gross for x in made]),
        "carbon_net_factor": _product([x.net for x in made]) if case.grid.net_kg_per_kwh is not None else None,
    }


def _model(case: Case, settings: Mapping[str, str]) -> Lever | None:
    if "flops" not in settings:
        return None
    if not case.flops:
        raise ConfigError(f"the FLOPs of {case.name} are not known, so flops= has nothing to compare with.")
    flops = _positive(settings, "flops")
    if not LEAST_FLOPS <= flops <= MOST_FLOPS:
        raise ConfigError(
            f"flops is {flops:g}; it is the FLOPs of a whole training, from {LEAST_FLOPS:g} to {MOST_FLOPS:g} such as "
            "3e23 (no PFLOPs and no FLOP/s)."
        )
    factor = case.flops / flops
    return Lever("Model", f"{case.flops:.3g} to {flops:.3g} FLOPs", factor, factor, factor)


def _machine(case: Case, settings: Mapping[str, str]) -> Lever | None:
    if not any(name in settings for name in ("chip", "watts", "tflops", "mfu")):
        return None
    if case.watts_per_chip is None or case.flops_per_chip is None:
        raise ConfigError(
            f"the chips, hours or FLOPs of {case.name} are not known, so another machine has nothing to compare with."
        )
    chip = settings.get("chip", "")
    watts = (
        check_watts(number(settings["watts"], "watts"), "watts")
        if "watts" in settings
        else chip_power(chip).watts
        if chip
        else case.watts_per_chip
    )
    speed = _speed(case, chip, settings)
    factor = (case.watts_per_chip / case.flops_per_chip) / (watts / speed)
    change = (
        f"{case.chip or 'chip'} at {case.watts_per_chip:.4g} W, {case.flops_per_chip / 1e12:.3g} TFLOP/s to "
        f"{chip or case.chip or 'chip'} at {watts:.4g} W, {speed / 1e12:.3g} TFLOP/s"
    )
    return Lever("Machine", change, factor, factor, factor)


def _speed(case: Case, chip: str, settings: Mapping[str, str]) -> float:
    """FLOP/s of the other chip: given, by MFU, as a published run reached, or at this run's own MFU."""
    if "tflops" in settings:
        return 1e12 * _reached(_positive(settings, "tflops"), chip or case.chip)
    mfu = _positive(settings, "mfu") if "mfu" in settings else None
    if mfu is not None and mfu > 1:
        raise ConfigError(f"mfu is {mfu:g}; it is a share of the chip's peak, at most 1.")
    if mfu is None and not chip:
        return float(case.flops_per_chip or 0)
    name = chip or case.chip
    if mfu is None and key_of(name) in ACHIEVED:
        return ACHIEVED[key_of(name)][0]
    try:
        peak = chips.chip(name).peak()
    except ConfigError:
        raise ConfigError(
            f"no peak is known for {name or 'this chip'}; give tflops=, what one of them reaches."
        ) from None
    mfu = mfu if mfu is not None else case.mfu if case.mfu is not None else _own_mfu(case)
    if mfu is None:
        raise ConfigError(
            f"what {name} would reach is not known: {case.name} has no MFU to carry over; give mfu= or tflops=."
        )
    return mfu * peak


def _reached(tflops: float, chip: str) -> float:
    """`tflops` of one chip; ConfigError above its highest published peak, or where that is not known above any chip's.

    The highest is of all number formats, so that nothing is refused that a chip might reach.
    """
    try:
        found = chips.chip(chip)
        most, of = max(found.peak_flops.values()) / 1e12, f"the peak of {found.name}"
    except ConfigError:
        most, of = MOST_TFLOPS, "more than any chip's"
    if tflops > most:
        raise ConfigError(
            f"tflops is {tflops:g}; it is what one chip reaches in TFLOP/s, above 0 and at most {most:,.5g}, {of} "
            "(is it in GFLOP/s, or of all chips together?)."
        )
    return tflops


def _own_mfu(case: Case) -> float | None:
    """What the case reached of its own chip's peak, where that is known."""
    try:
        return float(case.flops_per_chip or 0) / chips.chip(case.chip).peak()
    except ConfigError:
        return None


def _mechanization(case: Case, settings: Mapping[str, str]) -> Lever | None:
    if "pue" not in settings:
        return None
    pue = check_pue(number(settings["pue"], "pue"), "pue")
    factor = case.pue / pue
    return Lever("Mechanization", f"PUE {case.pue:g} to {pue:g}", factor, factor, factor)


def _map(case: Case, settings: Mapping[str, str]) -> Lever | None:
    grid = _new_grid(case, settings)
    if grid is None:
        return None
    gross = _ratio(case.grid.kg_per_kwh, grid.kg_per_kwh)
    net = _ratio(case.grid.net_kg_per_kwh, grid.net_kg_per_kwh)
    change = f"{_shown(case.grid)} to {_shown(grid)}"
    return Lever("Map", change, 1.0, gross, net)


def _new_grid(case: Case, settings: Mapping[str, str]) -> GridIntensity | None:
    if "region" in settings:
        return grid_of(settings["region"])
    if "gross" in settings or "net" in settings:
        gross, net = (number(settings[n], n) if n in settings else None for n in ("gross", "net"))
        return GridIntensity(gross, "as given", "given", net)
    return None


def _shown(grid: GridIntensity) -> str:
    figures = [f"{v:g} {n}" for n, v in (("gross", grid.kg_per_kwh), ("net", grid.net_kg_per_kwh)) if v is not None]
    return f"{grid.region or grid.source} ({', '.join(figures)} kg/kWh)"


def _steps(before: dict[str, Any], levers: list[Lever]) -> list[dict[str, Any]]:
    """Energy and carbon before, and after each lever; None from where a basis is unknown."""
    kwh, gross, net = (before.get(k, {}).get("value") for k in ("energy_kwh", "carbon_kg", "carbon_net_kg"))
    steps = [{"after": "before", "energy_kwh": kwh, "carbon_kg": gross, "carbon_net_kg": net}]
    for lever in levers:
        kwh, gross, net = _over(kwh, lever.energy), _over(gross, lever.gross), _over(net, lever.net)
        steps.append({"after": lever.name, "energy_kwh": kwh, "carbon_kg": gross, "carbon_net_kg": net})
    return steps


def _over(value: float | None, factor: float | None) -> float | None:
    return None if value is None or factor is None else value / factor


def _ratio(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after == 0 else before / after


def _product(factors: list[float | None]) -> Any:
    """The product, or None where one is unknown."""
    total = 1.0
    for factor in factors:
        if factor is None:
            return None
        total *= factor
    return total


def _positive(settings: Mapping[str, str], name: str) -> float:
    value = number(settings[name], name)
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value:g}; it must be a number above 0.")
    return value


def _spelled(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{k}={v}" for k, v in settings.items())
