"""What a run used, from what its sessions recorded: measured where a sensor saw it, else estimated, and what is open.

A session is one process at work on a run. It records at its start what it is taken to draw (`areca.footprint.power`)
and from time to time what its meter has read; a run that was killed and resumed has several, and its energy is their
sum, steps that were thrown away included.

The counters of a CPU are of its whole packages. A process that took nine tenths or more of the CPU time that the
machine gave to anyone is charged for all of them, idling included; else for its share of that time, which is an
estimate and is tagged so: the runs of a ladder side by side then add up to the machine's energy, not to twice that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from areca.footprint.energy import check_pue, least_certain, tagged
from areca.footprint.meter import Meter
from areca.footprint.nvml import find_nvml
from areca.footprint.power import expected
from areca.footprint.rapl import find_rapl
from areca.footprint.regions import Location

ALONE = 0.9  # of the machine's CPU time
SEEN = 0.9  # of a session's time: what is missing of it is filled at the mean
BY_SHARE = "estimated (RAPL, by share of CPU time)"
JOULES = 3.6e6  # in a kWh


def start_meter(backend: str, devices: int) -> Meter:
    """A meter over the sensors of what is computed on: the CPU's packages, and NVIDIA's boards for backend "gpu"."""
    sensors, missing = find_rapl()
    if backend in ("gpu", "cuda"):
        boards, why = find_nvml(devices)
        return Meter([*sensors, *boards], [*missing, *why])
    if backend != "cpu":
        missing = [*missing, f"no sensor is read for {backend}"]
    return Meter(sensors, missing)


def expected_power(topology: Mapping[str, Any], devices: int, cores: float) -> dict[str, dict[str, Any]]:
    """What a session of this topology (run.json's) is taken to draw where its sensors are silent."""
    return expected(topology["backend"], topology["device_kind"], devices, cores, topology.get("processor", ""))


class Watch:
    """The energy of a stretch of work that is no run: a generation, a server's hour, an evaluation.

    with Watch(topology, devices, cores) as watch: ...; then watch.footprint(place)
    """

    def __init__(self, topology: Mapping[str, Any], devices: int, cores: float) -> None:
        self._power = expected_power(topology, devices, cores)
        self._topology, self._devices = topology, devices
        self.reading: dict[str, Any] | None = None

    def __enter__(self) -> "Watch":
        self._meter = start_meter(self._topology["backend"], self._devices)
        return self

    def __exit__(self, *_: object) -> None:
        self.reading = self._meter.reading()
        self._meter.close()

    def so_far(self, place: Location) -> dict[str, Any]:
        """Energy and carbon of what was done until now."""
        self.reading = self._meter.reading()
        return self.footprint(place)

    def footprint(self, place: Location) -> dict[str, Any]:
        """Energy and carbon, tagged, once the work is done."""
        return footprint([{"power": self._power, "reading": self.reading, "ended": True}], place)


def sessions_of(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """{"power", "reading", "ended"} of every session in a run's events.jsonl.

    The reading is None where none was recorded; a session that did not end by itself was killed.
    """
    found: list[dict[str, Any]] = []
    for event in events:
        if event.get("event") in ("start", "resume"):
            found.append({"power": event.get("power"), "reading": None, "ended": False})
        elif found and event.get("energy"):
            found[-1]["reading"] = event["energy"]
        if found and event.get("event") in ("interrupt", "finish", "not_finite"):
            found[-1]["ended"] = True
    return found


def footprint(
    sessions: Sequence[Mapping[str, Any]], place: Location, *, training_seconds: float | None = None
) -> dict[str, Any]:
    """Energy and carbon of all `sessions`, as result.json holds them; PUE is applied here, once.

    `energy_kwh` has the seconds they cover, its `parts` with a kind and a source each, the share of it that was
    measured, and in `gaps` whatever is not in it. `training_seconds` are those of steps and saves: `training_share`
    says how much of the time they were (the rest is compilation, evaluation, loading).
    """
    check_pue(place.pue)
    parts: list[dict[str, Any]] = []
    gaps: list[str] = []
    seconds = 0.0
    for number, session in enumerate(sessions, 1):
        which = f"session {number} of {len(sessions)}" if len(sessions) > 1 else "the run"
        reading = session["reading"]
        if reading is None or session["power"] is None:
            gaps.append(f"{which} ended before it recorded any energy, and is not in the sum")
            continue
        seconds += reading["seconds"]
        found, open_ends = _session(reading, session["power"])
        parts += found
        gaps += [f"{which}: {g}" if len(sessions) > 1 else g for g in open_ends]
        if not session["ended"]:
            gaps.append(f"{which} was killed; what it used after its last record is not in the sum")
    merged = _merged(parts)
    known = [p for p in merged if p["kwh"] is not None]
    unknown = len(known) < len(merged) or not known
    it_kwh = sum(p["kwh"] for p in known)
    measured = sum(p["kwh"] for p in known if p["kind"] == "measured")
    more: dict[str, Any] = {
        "pue_source": place.pue_source,
        "seconds": seconds,
        "sessions": len(sessions),
        "measured_share": measured / it_kwh if it_kwh else 0.0,
        "parts": merged,
        "gaps": list(dict.fromkeys(gaps)),
    }
    if training_seconds is not None and seconds > 0:
        more["training_share"] = min(1.0, training_seconds / seconds)
    reasons = [p["source"] for p in merged if p["kwh"] is None]
    return tagged(
        None if unknown else it_kwh * place.pue,
        kind="unknown: " + "; ".join(reasons or gaps) if unknown else least_certain([p["kind"] for p in known]),
        watts=it_kwh * JOULES / seconds if seconds and not unknown else None,
        source="; ".join(p["source"] for p in merged) or "nothing was recorded",
        pue=place.pue,
        grid=place.grid,
        **more,
    )


def _session(reading: Mapping[str, Any], power: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The parts of one session, without PUE, and what is open."""
    parts, gaps = [], list(reading.get("missing", []))
    for place in ("cpu", "chips"):
        sensors = [s for s in reading["sensors"] if s["place"] == place]
        measured = _measured(sensors, reading, gaps) if sensors else None
        if measured is not None:
            parts.append({"what": place, **measured})
        elif place in power:
            p = power[place]
            kwh = None if p["watts"] is None else p["watts"] * reading["seconds"] / JOULES
            parts.append({"what": place, "kwh": kwh, "kind": p["kind"], "source": p["source"]})
    if not any(p["what"] == "cpu" for p in parts):
        gaps.append("the host's processors and memory are not in it")
    return parts, gaps


def _measured(sensors: list[dict[str, Any]], reading: Mapping[str, Any], gaps: list[str]) -> dict[str, Any] | None:
    """One place's energy from its sensors; None where they saw too little of the time."""
    seconds, place = reading["seconds"], sensors[0]["place"]
    names = ", ".join(s["name"] for s in sensors)
    gaps += [f"{s['name']} could not be read {s['refused']} times ({s['error']})" for s in sensors if s.get("refused")]
    seen = min(s["covered_seconds"] for s in sensors) / seconds if seconds else 0.0
    if seen < SEEN:
        gaps.append(f"{names} covered {seen:.0%} of {seconds:.3g} s, too little to measure by")
        return None
    if seen < 0.999:
        gaps.append(f"{names} covered {seen:.1%} of the time; the rest is taken at their mean")
    kwh = sum(s["joules"] * seconds / s["covered_seconds"] for s in sensors) / JOULES
    if place == "chips":
        return {"kwh": kwh, "kind": "measured", "source": f"NVML: {names}, whole boards"}
    busy = reading.get("machine_cpu_seconds")
    share = min(1.0, reading["cpu_seconds"] / busy) if busy else None
    whole = f"RAPL: {names}, whole packages of the machine"
    if share is None:
        gaps.append("how much of the machine's CPU time the run took is not known, so others' use may be in it")
        return {"kwh": kwh, "kind": "measured", "source": whole}
    if share >= ALONE:
        return {"kwh": kwh, "kind": "measured", "source": f"{whole}, of whose CPU time it took {share:.0%}"}
    source = f"{whole}, {kwh:.4g} kWh, times its share of their CPU time"
    return {"kwh": kwh * share, "kind": BY_SHARE, "source": source, "package_kwh": kwh, "share": share}


def _merged(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts of the same place, kind and source as one, so that ten sessions do not make ten lines."""
    merged: dict[tuple[str, str, str], dict[str, Any]] = {}
    for part in parts:
        source = part["source"] if "share" not in part else BY_SHARE
        if (key := (part["what"], part["kind"], source)) not in merged:
            merged[key] = dict(part)
            continue
        into = merged[key]
        into["kwh"] = None if None in (into["kwh"], part["kwh"]) else into["kwh"] + part["kwh"]
        if "share" in part:
            into["package_kwh"] += part["package_kwh"]
            into["share"] = into["kwh"] / into["package_kwh"] if into["package_kwh"] else 0.0
            into["source"] = "RAPL: whole packages of the machine, times the run's share of their CPU time"
    return list(merged.values())
