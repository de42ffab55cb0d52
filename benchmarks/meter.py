"""What the meter of a run costs: a reading of its sensors, as a share of the second between two.

    python benchmarks/meter.py

Sensors are stood in for: a tree of two packages with their memory, as powercap shows them, and eight boards whose
library takes a millisecond to answer (NVML's calls let go of the interpreter, and so does this). What training loses is
the processor time: the thread sleeps else. Wall time depends on what else the machine does, processor time hardly.
"""

import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from areca.footprint.meter import PERIOD_SECONDS, Meter, machine_cpu_seconds
from areca.footprint.rapl import find_rapl


def main() -> None:
    """Prints what a reading takes, and of what share of the time."""
    with tempfile.TemporaryDirectory() as place:
        packages = _packages(Path(place))
        boards = [_Board(f"GPU {i}") for i in range(8)]
        for what, sensors in (
            ("2 packages and their memory", packages),
            ("the same and 8 boards", [*packages, *boards]),
        ):
            meter = Meter(sensors, period=0)
            seconds, processor = _timed(meter.reading, 200)
            print(
                f"a reading of {what}: {1e6 * seconds:.0f} us, {1e6 * processor:.0f} us of processor time, "
                f"{processor / PERIOD_SECONDS:.4%} of the {PERIOD_SECONDS:g} s between two"
            )
        print(f"of that /proc/stat: {1e6 * _timed(machine_cpu_seconds, 200)[0]:.0f} us (once a reading, not a sample)")


def _timed(work, times: int) -> tuple[float, float]:
    """Wall and processor seconds of one call."""
    wall, processor = time.perf_counter(), time.process_time()
    for _ in range(times):
        work()
    return (time.perf_counter() - wall) / times, (time.process_time() - processor) / times


def _packages(root: Path) -> list:
    for where, name in (("0", "package-0"), ("0:0", "dram"), ("1", "package-1"), ("1:0", "dram")):
        place = root / f"intel-rapl:{where}"
        place.mkdir()
        (place / "name").write_text(name)
        (place / "energy_uj").write_text(str(10**10 * (1 + len(where) + int(where[0]))))
        (place / "max_energy_range_uj").write_text("262143328850")
    return find_rapl(root)[0]


class _Board(SimpleNamespace):
    """A counter of joules that answers after a millisecond."""

    place, counts, wraps_at = "chips", True, None

    def __init__(self, name: str) -> None:
        super().__init__(name=name)

    def read(self) -> float:
        time.sleep(1e-3)
        return 1000 * time.monotonic()


if __name__ == "__main__":
    main()
