"""Watts of a CPU core, for the estimate where there is no sensor: thermal design power over cores, as makers print it.

A few CPUs are known here. With codecarbon installed (the extra `energy`) its table of some thousands is asked too; it
has a package's TDP but not its cores, so it serves a machine that shows its own: a virtual one does not.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from areca.footprint import maintained
from areca.runtime import CPUINFO, cpuinfo

# Part as it appears in the system's name for the CPU -> (TDP in watts, cores). Makers' data sheets.
TDP: dict[str, tuple[int, int]] = {
    "EPYC 7742": (225, 64),
    "EPYC 7763": (280, 64),
    "EPYC 9654": (360, 96),
    "Platinum 8280": (205, 28),
    "Platinum 8380": (270, 40),
    "Platinum 8480": (350, 56),
    "Gold 6248": (150, 20),
    "Ryzen 9 5950X": (105, 16),
    "Ryzen 9 7950X": (170, 16),
    "i9-12900K": (125, 16),
    "i7-1165G7": (28, 4),
}
ASSUMED_WATTS_PER_CORE = 10.0  # the upper end of the table: the board and memory are not in a TDP


@dataclass(frozen=True)
class CpuWatts:
    """What a core is taken to draw, where that is from, and its kind."""

    watts_per_core: float
    source: str
    kind: str


def cpu_watts(name: str, path: Path = CPUINFO) -> CpuWatts:
    """Watts a core of a CPU by its name; an assumption, said to be one, if it is not known."""
    for part, (watts, cores) in TDP.items():
        if re.search(rf"{re.escape(part)}(?![0-9A-Za-z])", name):  # Gold 6248, not 6248R
            return CpuWatts(
                watts / cores, f"TDP of {part}, {watts} W for {cores} cores; no sensor was read", "estimated (TDP)"
            )
    found = maintained.cpu_tdp(plain(name))
    cores = _cores(path, name) if found else None
    if found and cores:
        return CpuWatts(
            found / cores,
            f"TDP of {name}, {found:g} W ({maintained.source()}) for {cores} cores; no sensor was read",
            "estimated (TDP)",
        )
    why = f" (its TDP is {found:g} W, but a virtual machine does not say of how many cores)" if found else ""
    return CpuWatts(
        ASSUMED_WATTS_PER_CORE,
        f"{ASSUMED_WATTS_PER_CORE:g} W a core assumed for {name or 'an unknown CPU'}{why}; no sensor was read",
        "assumed",
    )


def plain(name: str) -> str:
    """A CPU's name without what systems add to it: marks, clock, "CPU", number of cores."""
    name = re.sub(
        r"\((R|TM|C)\)|\bCPU\b|@.*|\d+-Core Processor.*|\bProcessor\b.*|\bwith Radeon.*", "", name, flags=re.I
    )
    return " ".join(name.split()).lower()


def _cores(path: Path, name: str) -> int | None:
    """Cores of one package of this machine, if it is that CPU and no virtual machine."""
    if cpuinfo("model name", path) != name or "hypervisor" in (cpuinfo("flags", path) or "hypervisor").split():
        return None
    cores = cpuinfo("cpu cores", path) or ""
    return int(cores) if cores.isdigit() and int(cores) > 0 else None
