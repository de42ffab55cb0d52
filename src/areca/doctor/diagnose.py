"""All probes, each guarded: what one can't find out is said, and the others go on."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from areca.doctor import devices, software, storage, system
from areca.doctor.finding import Finding

Probe = Callable[[], Finding]


def probes(runs: Path) -> dict[str, Probe]:
    """By name, in the order in which they are shown; those of energy come after the devices that they are of."""
    return {
        "versions": software.versions,
        "extras": software.extras,
        "devices": devices.devices,
        "energy": devices.energy,
        "processors": system.processors,
        "memory": system.memory,
        "disk": lambda: storage.disk(runs),
        "shared memory": storage.shared_memory,
        "compile cache": storage.compile_cache,
        "limits": system.limits,
        "environment": software.environment,
        "clock": system.clock,
    }


def diagnose(runs: Path | str = "runs", given: dict[str, Probe] | None = None) -> dict[str, Any]:
    """{"ok", "problems": [{"of", "says", "stops"}], "findings": {name: {"values", "lines"}}, "seconds"}.

    `runs` is the directory that runs are to go to. `ok` is False where a problem would stop a run.
    """
    started = time.perf_counter()
    findings: dict[str, Finding] = {}
    for name, probe in (given or probes(Path(runs))).items():
        if name == "energy" and given is None:
            probe = _of_devices(findings["devices"])
        try:
            findings[name] = probe()
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())
            findings[name] = Finding(lines=[f"could not be found out ({why})"])
    problems = [{"of": n, "says": p.says, "stops": p.stops} for n, f in findings.items() for p in f.problems]
    problems.sort(key=lambda p: not p["stops"])
    return {
        "ok": not any(p["stops"] for p in problems),
        "problems": problems,
        "findings": {n: {"values": f.values, "lines": f.lines} for n, f in findings.items()},
        "seconds": time.perf_counter() - started,
    }


def _of_devices(found: Finding) -> Probe:
    """The probe of the energy of what was found to compute."""
    first = next(iter(found.values.get("devices", [])), {})
    backend, kind, count = found.values.get("backend", "cpu"), first.get("kind", "cpu"), first.get("count", 1)
    return lambda: devices.energy(backend, kind, count)
