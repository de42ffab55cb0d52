"""A training run as the four levers see it: energy before the building, PUE, grid, FLOPs, chips.

Published runs are here as their papers print them (inputs rounded as printed, results computed), so that a what-if can
start from any of them; others come from a run directory, a result.json or a plan.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from areca.errors import ConfigError, DataError, closest
from areca.footprint.energy import DEFAULT_GRID, NO_PUE, GridIntensity, energy_kwh, tagged
from areca.footprint.regions import grid_of

PREFIX = "published:"
WHOLE = "measured (as published)"


@dataclass(frozen=True)
class Case:
    """One run, or several summed. Carbon is gross and net, each where its intensity is known."""

    name: str
    it_kwh: float | None  # without PUE; None: unknown
    kind: str  # of it
    source: str
    pue: float
    grid: GridIntensity
    hours: float | None = None
    chips: float | None = None
    chip_hours: float | None = None
    chip: str = ""
    flops: float | None = None
    mfu: float | None = None
    training_share: float = 1.0  # of the time: the rest went to compiling, evaluating, loading
    parts: tuple[tuple[float, float], ...] = ()  # (hours, chips), where the number of chips changed

    def footprint(self) -> dict[str, Any]:
        """Energy and carbon, tagged."""
        kwh = None if self.it_kwh is None else self.it_kwh * self.pue
        watts = self.it_kwh * 1000 / self.hours if self.it_kwh is not None and self.hours else None
        return tagged(kwh, kind=self.kind, watts=watts, source=self.source, pue=self.pue, grid=self.grid)

    @property
    def watts_per_chip(self) -> float | None:
        """Average system watts of one chip."""
        return self.it_kwh * 1000 / self.chip_hours if self.it_kwh is not None and self.chip_hours else None

    @property
    def flops_per_chip(self) -> float | None:
        """FLOP/s that one chip reached while it trained."""
        if not self.flops or not self.chip_hours:
            return None
        return self.flops / (self.chip_hours * self.training_share) / 3600


def _table(
    chip: str, watts: float, parts: list[tuple[float, float]], flops: float, pue: float, region: str, source: str
) -> Case:
    return Case(
        name="",
        it_kwh=sum(energy_kwh(hours=h, chips=n, watts=watts) for h, n in parts),
        kind=WHOLE,
        source=source,
        pue=pue,
        grid=grid_of(region),
        hours=sum(h for h, _ in parts),
        chips=max(n for _, n in parts),
        chip_hours=sum(h * n for h, n in parts),
        chip=chip,
        flops=flops,
        parts=tuple(parts) if len(parts) > 1 else (),
    )


_T1, _T4 = "Patterson et al. 2021, table 1", "Patterson et al. 2021, table 4"
_BIG, _MEDIUM = 1.61e19, 1.03e19
_CASES: dict[str, Case] = {
    "palm-540b": _table(
        "tpu-v4", 378.5, [(1200, 6144), (336, 3072)], 2.56e24, 1.08, "oklahoma", "Chowdhery et al. 2022, appendix B"
    ),
    "gpt-3": _table("v100", 330, [(24 * 14.8, 10_000)], 3.14e23, 1.10, "azure-us", _T4),
    "t5-11b": _table("tpu-v3", 310, [(24 * 20, 512)], 4.05e22, 1.12, "taiwan", _T4),
    "meena": _table("tpu-v3", 289, [(24 * 30, 1024)], 1.12e23, 1.09, "georgia", _T4),
    "gshard-600b": _table("tpu-v3", 288, [(24 * 3.1, 1024)], 1.33e22, 1.09, "north-carolina", _T4),
    "evolved-transformer-nas": _table("tpu-v2", 208, [(24 * 6.8, 200)], 2.91e21, 1.10, "georgia-2018", _T4),
    "transformer-big-p100-us": _table("p100", 296, [(24 * 3.5, 8)], _BIG, 1.59, "us-average", _T1),
    "transformer-big-p100-iowa": _table("p100", 296, [(24 * 3.5, 8)], _BIG, 1.11, "iowa", _T1),
    "evolved-transformer-p100-iowa": _table("p100", 271, [(24 * 3.2, 8)], _MEDIUM, 1.11, "iowa", _T1),
    "transformer-big-tpuv2-iowa": _table("tpu-v2", 229, [(24 * 0.81, 8)], _BIG, 1.11, "iowa", _T1),
    "evolved-transformer-tpuv2-iowa": _table("tpu-v2", 227, [(24 * 0.62, 8)], _MEDIUM, 1.11, "iowa", _T1),
}


def published(name: str) -> Case:
    """The published run of that name; ConfigError names the closest one."""
    key = name.lower()
    if key not in _CASES:
        raise ConfigError(f"there is no published run {name!r}{closest(key, _CASES)}; name one of {', '.join(_CASES)}.")
    return replace(_CASES[key], name=key)


def published_names() -> list[str]:
    """The published runs that `published` knows."""
    return list(_CASES)


def of_footprint(name: str, found: Mapping[str, Any], **known: Any) -> Case:
    """A case from `{"energy_kwh", "carbon_kg"}` as result.json holds them. `known`: further fields of Case."""
    energy = found["energy_kwh"]
    pue, value, grid = energy.get("pue") or NO_PUE, energy.get("value"), grid_in(found)
    known.setdefault("training_share", energy.get("training_share") or 1.0)
    seconds = energy.get("seconds")
    if seconds is not None and "hours" not in known:
        known["hours"] = seconds / 3600
        known["chip_hours"] = known["hours"] * (known.get("chips") or 1)
    kind, source = energy.get("kind", "kind not recorded"), energy.get("source", "")
    return Case(name, None if value is None else value / pue, kind, source, pue, grid, **known)


def grid_in(found: Mapping[str, Any]) -> GridIntensity:
    """The grid that a footprint recorded; the default where it recorded none."""
    grid = (found.get("carbon_kg") or {}).get("grid")
    return GridIntensity(**grid) if isinstance(grid, dict) else DEFAULT_GRID


def plan_in(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The plan of plan.json; one for a target loss holds it under `sure`."""
    return value["sure"] if isinstance(value.get("sure"), dict) else value


def of_plan(value: Mapping[str, Any], path: Path | str) -> Case:
    """A case from plan.json's content; DataError where the plan has no cost, with the way to one that has."""
    plan = plan_in(value)
    cost, best = plan.get("cost"), plan.get("best") or {}
    if not isinstance(cost, dict) or not isinstance(cost.get("energy_kwh"), dict):
        flops = best.get("flops_exact")
        again = f"plan the same run with --flops {flops:.4g} and --chip" if plan is not value and flops else ""
        again = again or "plan again with --chip"
        raise DataError(
            f"{path} is a plan that names no chip and whose law's runs recorded no energy, so it has no hours, energy "
            f"or carbon; {again}, such as --chip h100."
        )
    chips, hours, chip_hours = cost.get("chips"), cost.get("hours"), cost.get("chip_hours")
    if hours is None and cost.get("seconds"):
        hours = cost["seconds"] / 3600
    if chip_hours is None and hours is not None:
        chips = chips or 1
        chip_hours = hours * chips
    known = {"hours": hours, "chips": chips, "chip_hours": chip_hours, "chip": str(cost.get("chip") or "")}
    return of_footprint(str(path), cost, flops=best.get("flops_exact"), mfu=cost.get("mfu"), **known)


__all__ = ["PREFIX", "Case", "of_footprint", "of_plan", "plan_in", "published", "published_names"]
