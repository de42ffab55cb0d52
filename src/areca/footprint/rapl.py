"""Energy counters of the CPU's packages and of the memory, as Linux shows them: powercap, /sys/class/powercap.

A counter is in microjoules and goes back to 0 at `max_energy_range_uj`. It belongs to the whole package, whoever uses
it: `areca.footprint.sessions` says and apportions that. The kernel's own files are read, since those are two integers
of a stable interface, and libraries that read them count a domain that can't be read as 0 (docs/log.md).
"""

from dataclasses import dataclass
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
MIRROR_JOULES = 1.0  # counters that close, read one after the other, are one counter shown twice


@dataclass(frozen=True)
class RaplDomain:
    """One counter: a package, or the memory beside it."""

    name: str  # as in "package-0" or "dram of package-0"
    path: Path  # energy_uj
    wraps_at: float | None  # joules; None where the file that says it can't be read

    place = "cpu"
    counts = True  # joules, not watts

    def read(self) -> float:
        """Joules since some moment. OSError or ValueError where it can't be read."""
        return int(self.path.read_text()) / 1e6


def find_rapl(root: Path = POWERCAP) -> tuple[list[RaplDomain], list[str]]:
    """The counters that together are this machine's processors and memory, and in sentences what is missing.

    None at all if one package can't be read: the rest would be printed as the whole. Subdomains of a package (core,
    uncore) are in it already, and psys contains the packages; only dram is beside them.
    """
    if not root.is_dir():
        return [], [f"this system shows no RAPL counters ({root} is not there)"]
    names = sorted(p.name for p in root.iterdir() if ":" in p.name)
    # intel-rapl is Intel's and AMD's; intel-rapl-mmio shows the same packages once more.
    kind = next((k for k in ("intel-rapl", "intel-rapl-mmio") if any(n.startswith(f"{k}:") for n in names)), None)
    if kind is None:
        return [], [f"this system shows no RAPL counters ({root} has none)"]
    packages: list[RaplDomain] = []
    memory: list[RaplDomain] = []
    missing: list[str] = []
    for name in (n for n in names if n.startswith(f"{kind}:")):
        what = _text(root / name / "name")
        if what is None or not (what.startswith("package") or what == "dram"):
            continue
        parent = name.rpartition(":")[0]
        label = what if what != "dram" else f"dram of {_text(root / parent / 'name') or parent}"
        domain = RaplDomain(label, root / name / "energy_uj", _range(root / name / "max_energy_range_uj"))
        try:
            domain.read()
        except (OSError, ValueError) as error:
            missing.append(f"{label} can't be read ({_why(error)})")
            if what != "dram":
                return [], missing
            continue
        (memory if what == "dram" else packages).append(domain)
    if not packages:
        return [], missing or [f"{root} has no package that RAPL counts"]
    return _distinct(packages, missing) + memory, missing


def _distinct(packages: list[RaplDomain], missing: list[str]) -> list[RaplDomain]:
    """Without the packages that show another's counter: some processors of several dies do."""
    kept: list[tuple[RaplDomain, float]] = []
    for domain in packages:
        value = domain.read()
        same = next((d for d, seen in kept if value > 0 and abs(value - seen) <= MIRROR_JOULES), None)
        if same is None:
            kept.append((domain, value))
        else:
            missing.append(f"{domain.name} shows the counter of {same.name} and is counted once")
    return [domain for domain, _ in kept]


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip().lower()
    except OSError:
        return None


def _range(path: Path) -> float | None:
    try:
        return int(path.read_text()) / 1e6
    except (OSError, ValueError):
        return None


def _why(error: Exception) -> str:
    if isinstance(error, PermissionError):
        return "permission denied: Linux lets root alone read it, until `chmod a+r` on its energy_uj"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "it holds no number"
