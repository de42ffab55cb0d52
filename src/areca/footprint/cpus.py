"""Thermal design power of CPUs, as their makers print it, for the estimate where there is no sensor."""

from pathlib import Path

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


def cpu_watts_per_core(name: str) -> tuple[float, str]:
    """(watts a core, where they are from) of a CPU by its name; an assumption, said to be one, if it is not known."""
    for part, (watts, cores) in TDP.items():
        if part in name:
            return watts / cores, f"TDP of {part}, {watts} W for {cores} cores; no sensor was read"
    return (
        ASSUMED_WATTS_PER_CORE,
        f"{ASSUMED_WATTS_PER_CORE:g} W a core assumed for {name or 'an unknown CPU'}; no sensor was read",
    )


def cpu_name() -> str:
    """This machine's CPU by name, or "" where the system does not say."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    import platform

    return platform.processor()
