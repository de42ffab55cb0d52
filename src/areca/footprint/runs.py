"""All runs of a study summed, also those that were killed or diverged: from run directories, wherever they lie.

A finished run has its own figure. One without result.json is counted from what its sessions recorded, and the steps
that no record covers from their seconds in metrics.jsonl at what the machine is taken to draw; both are tagged.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.errors import DataError
from areca.files import json_words, read_json, read_jsonl
from areca.footprint import sessions
from areca.footprint.cases import Case, grid_in, of_footprint
from areca.footprint.energy import NO_PUE, GridIntensity, add, tagged
from areca.footprint.regions import Location, here

FILES = ("run.json", "result.json", "metrics.jsonl")
ENDS = {"not_finite": "diverged", "interrupt": "stopped"}


@dataclass(frozen=True)
class RunCost:
    """One run: how it ended ("finished", "diverged", "stopped", "killed"), what it cost, and on what."""

    name: str
    path: Path
    ended: str
    footprint: dict[str, Any]
    hours: float | None
    chips: float
    chip: str
    flops: float | None
    mfu: float | None

    def case(self) -> Case:
        """The run as the four levers see it."""
        chip_hours = None if self.hours is None else self.hours * self.chips
        return of_footprint(
            self.name, self.footprint, hours=self.hours, chips=self.chips, chip_hours=chip_hours, chip=self.chip,
            flops=self.flops, mfu=self.mfu,
        )  # fmt: skip


def runs_under(path: Path | str, grid: GridIntensity | None = None, pue: float | None = None) -> list[RunCost]:
    """The runs of a run directory, a ladder, a quickstart or any tree of these, by path.

    `grid` and `pue`: of the place where the runs were, instead of what they recorded. DataError where there is no run.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"{path} {'is no directory' if path.exists() else 'does not exist'}; name a run or a study.")
    found = [_run(p, path, grid, pue) for p in _directories(path)]
    if not found:
        raise DataError(f"{path} holds no run: there is no {' or '.join(FILES)} in it or below.")
    return found


def total(runs: list[RunCost]) -> dict[str, Any]:
    """Their sum, tagged by its least certain part, with how many ended how and the FLOPs and hours of those known."""
    ended: dict[str, int] = {}
    for run in runs:
        ended[run.ended] = ended.get(run.ended, 0) + 1
    hours = [r.hours for r in runs if r.hours is not None]
    summed = add([r.footprint for r in runs])
    energies = [r.footprint["energy_kwh"] for r in runs]
    sources = list(dict.fromkeys(e["source"] for e in energies if e.get("source")))
    summed["energy_kwh"] |= {
        "source": "; ".join(sources) if len(sources) < 3 else f"{len(sources)} kinds of source; each run has its own",
        "gaps": list(dict.fromkeys(gap for e in energies for gap in e.get("gaps", []))),
    }
    return {**summed, "runs": len(runs), "ended": ended, "hours": sum(hours)}


def total_case(name: str, runs: list[RunCost]) -> Case:
    """All runs as one case for the levers; DataError where they were in different places."""
    if len(runs) == 1:
        return runs[0].case()
    cases = [r.case() for r in runs]
    if len({(c.pue, c.grid) for c in cases}) > 1:
        raise DataError(f"the runs of {name} were in different places; give --region and --pue to put them in one.")
    known = [c for c in cases if c.it_kwh is not None]
    hours = sum(c.hours or 0.0 for c in cases)
    summed = total(runs)["energy_kwh"]
    same = {c.chip for c in cases}
    return Case(
        name, sum(c.it_kwh or 0.0 for c in known) if known else None, summed["kind"], f"{len(runs)} runs summed",
        cases[0].pue, cases[0].grid, hours, max(c.chips or 1 for c in cases), sum(c.chip_hours or 0.0 for c in cases),
        same.pop() if len(same) == 1 else "", sum(r.flops or 0.0 for r in runs) or None, _mean_mfu(runs),
    )  # fmt: skip


WHY_PUE = re.compile(r"; PUE [\d.]+ (assumed,.*|given in \w+)$")


def relocate(found: Mapping[str, Any], grid: GridIntensity | None, pue: float | None) -> dict[str, Any]:
    """The same energy with another grid or PUE, where one is given; what the machines drew is kept."""
    energy = dict(found["energy_kwh"])
    value, old = energy.pop("value"), energy.pop("pue", None) or NO_PUE
    kind, watts, source = energy.pop("kind"), energy.pop("watts", None), energy.pop("source", "")
    energy.pop("unit", None)
    if pue is not None:
        energy["pue_source"] = "as given"
        source = WHY_PUE.sub("", source)  # of a plan, which says what it assumed
    new = old if pue is None else pue
    grid = grid or grid_in(found)
    kwh = None if value is None else value / old * new
    return tagged(kwh, kind=kind, watts=watts, source=source, pue=new, grid=grid, **energy)


def _directories(root: Path) -> Iterator[Path]:
    for place, directories, files in os.walk(root):
        directories[:] = sorted(d for d in directories if d not in ("checkpoints", "store") and not d.startswith("."))
        if any(name in files for name in FILES):
            directories[:] = []
            yield Path(place)


def _run(path: Path, root: Path, grid: GridIntensity | None, pue: float | None) -> RunCost:
    result = _object(path / "result.json")
    about = _object(path / "run.json") or {}
    recorded = about.get("topology")
    topology: dict[str, Any] = recorded if isinstance(recorded, dict) else {}
    devices = _devices(about, topology)
    if result is not None:
        ended, found = "finished", _finished(path, result, topology, devices)
        flops, mfu = result.get("flops_exact"), result.get("mfu")
    else:
        ended, found, flops = _unfinished(path, about, topology, devices, here())
        mfu = None
    if grid is not None or pue is not None:
        found = relocate(found, grid, pue)
    seconds = found["energy_kwh"].get("seconds")
    if seconds is None and result is not None:
        seconds = result.get("seconds")
    name = str(path.relative_to(root)) if path != root else path.resolve().name
    chip = topology.get("device_kind") if topology.get("backend") != "cpu" else topology.get("processor")
    return RunCost(
        name, path, ended, found, None if seconds is None else seconds / 3600, devices, chip or "", flops, mfu
    )


def _finished(path: Path, result: dict[str, Any], topology: Mapping[str, Any], devices: float) -> dict[str, Any]:
    """What result.json says; from its seconds where it says nothing of energy."""
    if isinstance(result.get("energy_kwh"), dict) and "value" in result["energy_kwh"]:
        return {k: result[k] for k in ("energy_kwh", "carbon_kg", "carbon_net_kg") if isinstance(result.get(k), dict)}
    return _by_seconds(
        float(result.get("seconds") or 0.0), topology, devices, here(), f"{path.name} recorded no energy"
    )


def _unfinished(
    path: Path, about: Mapping[str, Any], topology: Mapping[str, Any], devices: float, place: Location
) -> tuple[str, dict[str, Any], float | None]:
    """How a run without result.json ended, its footprint, and the exact FLOPs of the steps that are left of it."""
    events = [e for e in _lines(path / "events.jsonl") if isinstance(e, dict)]
    rows = [r for r in _lines(path / "metrics.jsonl") if isinstance(r, dict)]
    last = events[-1].get("event") if events else None
    ended = ENDS.get(str(last), "killed")
    found = [s for s in sessions.sessions_of(events) if s["reading"] is not None and s["power"] is not None]
    recorded = max((e.get("step", 0) for e in events if e.get("energy")), default=0) if found else 0
    tail = sum(r.get("seconds", 0.0) for r in rows if r.get("step", 0) > recorded)
    if not found:
        tail += sum(e.get("seconds", 0.0) for e in events if e.get("event") == "rewind")
    power = next((e["power"] for e in reversed(events) if e.get("power")), None) or _power(topology, devices)
    if tail > 0:
        reading = {"seconds": tail, "sensors": [], "cpu_seconds": 0.0, "machine_cpu_seconds": None, "missing": []}
        found = [*found, {"power": power, "reading": reading, "ended": True}]
    footprint = sessions.footprint(found, place)
    why = f"the run has no result ({ended}); steps after its last record are counted by their seconds"
    footprint["energy_kwh"]["gaps"] = [*footprint["energy_kwh"]["gaps"], why]
    if not found:  # not a step was taken
        footprint = _by_seconds(0.0, topology, devices, place, "not a step is recorded", power)
    per_token = (
        (about.get("counts") or {}).get("exact_flops_per_token") if isinstance(about.get("counts"), dict) else None
    )
    flops = per_token * rows[-1]["tokens"] if per_token and rows and rows[-1].get("tokens") else None
    return ended, footprint, flops


def _by_seconds(
    seconds: float,
    topology: Mapping[str, Any],
    devices: float,
    place: Location,
    why: str,
    power: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    reading = {"seconds": seconds, "sensors": [], "cpu_seconds": 0.0, "machine_cpu_seconds": None, "missing": [why]}
    session = {"power": power or _power(topology, devices), "reading": reading, "ended": True}
    return sessions.footprint([session], place)


def _power(topology: Mapping[str, Any], devices: float) -> dict[str, Any]:
    """What a run of that topology is taken to draw; unknown where it recorded none."""
    if not topology.get("backend"):
        return {"cpu": {"watts": None, "kind": "unknown", "source": "the run did not record what it ran on"}}
    cores = float(topology.get("threads") or 1)
    return sessions.expected_power({"device_kind": "", **topology}, int(devices), cores)


def _devices(about: Mapping[str, Any], topology: Mapping[str, Any]) -> float:
    """Chips of the run; one machine on a CPU, whose virtual devices share its cores."""
    if topology.get("backend") in (None, "cpu"):
        return 1
    parallel = (about.get("config") or {}).get("parallel") or {}
    return int(parallel.get("data", 1)) * int(parallel.get("model", 1))


def _mean_mfu(runs: list[RunCost]) -> float | None:
    """MFU over all FLOPs: the mean that weights by the time each took."""
    known = [(r.mfu, r.hours) for r in runs if r.mfu is not None and r.hours]
    hours = sum(h for _, h in known)
    return sum(m * h for m, h in known) / hours if hours and len(known) == len(runs) else None


def _object(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    value = read_json(path)
    if not isinstance(value, dict):
        raise DataError(f"{path} is {json_words(value)} where an object was expected; restore or remove it.")
    return value


def _lines(path: Path) -> list[Any]:
    return list(read_jsonl(path)) if path.exists() else []


def result_footprint(path: Path) -> dict[str, Any]:
    """The energy and carbon that a result.json (or any JSON file with them) holds; DataError where it has none."""
    value = read_json(path)
    energy = value.get("energy_kwh") if isinstance(value, dict) else None
    if not isinstance(energy, dict) or "value" not in energy:
        raise DataError(
            f"{path} is {json_words(value)} and holds no energy (energy_kwh with its value); name a run, a result.json "
            "or a plan.json made with --chip."
        )
    return value


__all__ = ["RunCost", "relocate", "result_footprint", "runs_under", "total", "total_case"]
