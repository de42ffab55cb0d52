"""What `areca footprint` answers: a run, a study, a plan or a published run, and what is asked about it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from areca.errors import ConfigError, DataError
from areca.files import json_kind, read_json
from areca.footprint import cases, levers, planned, runs, when
from areca.footprint.card import model_card
from areca.footprint.cases import Case
from areca.footprint.energy import DEFAULT_GRID, GridIntensity, carbon_kg, check_pue
from areca.footprint.regions import given_here, grid_of


def answer(
    target: str,
    *,
    region: str = "",
    pue: float | None = None,
    what_if: str | None = None,
    embodied: str = "",
    intensity: str = "",
    hours: float | None = None,
) -> dict[str, Any]:
    """The footprint of `target`, with whatever else was asked; for printing or as JSON.

    Args:
        target: a run directory or any directory of runs, a result.json, a plan.json, or published:NAME.
        region, pue: of the place, instead of what was recorded.
        what_if: levers as `areca.footprint.levers.parse` takes them.
        embodied: as `areca.footprint.planned.embodied` takes it.
        intensity: a table of intensity by region and hour; `hours` of the window, the run's own if None.

    Raises ConfigError and DataError, one sentence each.
    """
    grid = grid_of(region) if region else None
    if pue is not None:
        check_pue(pue, "--pue")
    wanted = None if what_if is None else levers.parse(what_if)
    table = when.read_intensity(intensity) if intensity else None
    if hours is not None and table is None:
        raise ConfigError(f"--hours is {hours:g}, but there is no table to find a window in; give --intensity.")
    case, found, of = _look(target, grid, pue)
    result: dict[str, Any] = {"target": target, **of, "footprint": found, "run": _facts(case)}
    if wanted is not None:
        result["what_if"] = levers.what_if(case, wanted)
    if embodied:
        result["embodied_kg"] = planned.embodied(embodied, case.chip_hours)
    if table is not None:
        result["when"] = _windows(case, table, hours)
    one = of.get("places") != "several"
    result["card"] = model_card(case, found, runs=of.get("ended"), embodied=result.get("embodied_kg")) if one else None
    return result


def _look(target: str, grid: GridIntensity | None, pue: float | None) -> tuple[Case, dict[str, Any], dict[str, Any]]:
    """The case, its footprint as recorded, and what there is to say of what it is."""
    if target.startswith(cases.PREFIX):
        case = _moved(cases.published(target.removeprefix(cases.PREFIX)), grid, pue)
        return case, case.footprint(), {"of": "published"}
    path = Path(target)
    if path.is_dir():
        found = runs.runs_under(path, grid, pue)
        if len(found) == 1 and found[0].path == path:
            return found[0].case(), found[0].footprint, {"of": "run", "ended": {found[0].ended: 1}}
        total = runs.total(found)
        rows = [
            {"name": r.name, "ended": r.ended, "hours": r.hours, **{k: _brief(v) for k, v in r.footprint.items()}}
            for r in found
        ]
        footprint = {k: total[k] for k in keys_of(total)}
        about = {"of": "study", "ended": total["ended"], "runs": rows}
        try:
            return runs.total_case(target, found), footprint, about
        except DataError:  # runs of several places have a sum, but no levers in common
            grid = GridIntensity(None, "several places")
            case = Case(target, None, "of runs in several places (give --region and --pue)", "", 1.0, grid)
            return case, footprint, {**about, "places": "several"}
    if path.suffix != ".json":
        known = "a run or a directory of runs, a result.json, a plan.json, or published:NAME"
        raise DataError(f"{target} {'is a file of another kind' if path.exists() else 'does not exist'}; name {known}.")
    value = read_json(path)
    if json_kind(value) == "plan":
        case = cases.of_plan(value, path)
        here, around = given_here()  # as when it is trained: in place of what the plan assumed, not of what it was told
        if grid is None and case.grid == DEFAULT_GRID:
            grid = here
        if pue is None and (said := runs.WHY_PUE.search(case.source)) and said[1].startswith("assumed"):
            pue = around
        case = _moved(case, grid, pue)
        return case, runs.relocate(cases.plan_in(value)["cost"], grid, pue), {"of": "plan"}
    if path.name == "result.json" and (path.parent / "run.json").exists():
        return _look(str(path.parent), grid, pue)
    value = runs.result_footprint(path)
    footprint = {k: value[k] for k in keys_of(value)}
    if grid is not None or pue is not None:
        footprint = runs.relocate(footprint, grid, pue)
    known = {"flops": value.get("flops_exact"), "mfu": value.get("mfu"), "chips": 1.0}
    if value.get("seconds") is not None and footprint["energy_kwh"].get("seconds") is None:
        known["hours"] = known["chip_hours"] = value["seconds"] / 3600
    return cases.of_footprint(str(path), footprint, **known), footprint, {"of": "result"}


def _moved(case: Case, grid: GridIntensity | None, pue: float | None) -> Case:
    return replace(case, grid=grid or case.grid, pue=case.pue if pue is None else pue)


def keys_of(value: Mapping[str, Any]) -> list[str]:
    """The keys of a footprint that `value` has."""
    return [k for k in ("energy_kwh", "carbon_kg", "carbon_net_kg") if isinstance(value.get(k), dict)]


def _brief(figure: Mapping[str, Any]) -> dict[str, Any]:
    return {k: figure[k] for k in ("value", "unit", "kind") if k in figure}


def _facts(case: Case) -> dict[str, Any]:
    """What the case is known to have taken."""
    return {
        "hours": case.hours,
        "chips": case.chips,
        "chip_hours": case.chip_hours,
        **({"parts": [{"hours": h, "chips": n} for h, n in case.parts]} if case.parts else {}),
        "chip": case.chip,
        "watts_per_chip": case.watts_per_chip,
        "flops": case.flops,
        "pue": case.pue,
        "grid": case.grid.to_dict(),
    }


def _windows(case: Case, table: dict[str, when.Hourly], hours: float | None) -> dict[str, Any]:
    """The best start in every region of the table, cheapest first, with what the run would emit there (gross)."""
    length = hours if hours is not None else case.hours
    if length is None:
        raise ConfigError(f"how long {case.name} takes is not known; give --hours.")
    windows = when.best_start(table, length)
    kwh = None if case.it_kwh is None else case.it_kwh * case.pue
    rows = [
        {
            "region": w.region,
            "start": w.start,
            "hours": w.hours,
            "kg_per_kwh": w.kg_per_kwh,
            "mean_kg_per_kwh": w.mean_kg_per_kwh,
            "worst_kg_per_kwh": w.worst_kg_per_kwh,
            "carbon_kg": None if kwh is None else carbon_kg(kwh, w.kg_per_kwh),
        }
        for w in windows
    ]
    return {"best": rows[0], "windows": rows, "kind": f"{case.kind}, grid hourly as given"}
