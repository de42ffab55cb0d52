"""Sensors at their boundary: a tree of powercap files, a module that answers as pynvml does, a clock set by hand."""

from pathlib import Path
from types import SimpleNamespace


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def domain(root: Path, where: str, name: str, microjoules: int | str, wraps_at: int | None = 262_143_328_850) -> Path:
    """A RAPL domain of a powercap tree, flat as in /sys/class/powercap; returns its energy_uj."""
    place = root / where
    place.mkdir(parents=True)
    (place / "name").write_text(f"{name}\n")
    (place / "energy_uj").write_text(f"{microjoules}\n")
    if wraps_at is not None:
        (place / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    return place / "energy_uj"


class NVMLError(Exception):
    pass


class FakeNvml(SimpleNamespace):
    """Boards with `millijoules` (None: a board that does not count) and `milliwatts` (None: it does not say)."""

    def __init__(self, boards, *, mig=(), starts=True) -> None:
        super().__init__(NVMLError=NVMLError, NVML_DEVICE_MIG_ENABLE=1, boards=boards, mig=mig, starts=starts)

    def nvmlInit(self):
        if not self.starts:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self):
        return len(self.boards)

    def nvmlDeviceGetHandleByIndex(self, i):
        if i >= len(self.boards):
            raise NVMLError("Invalid Argument")
        return i

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return next(i for i, b in enumerate(self.boards) if b.get("uuid") == uuid)

    def nvmlDeviceGetName(self, i):
        return "NVIDIA H200"

    def nvmlDeviceGetMigMode(self, i):
        return [1 if i in self.mig else 0, 0]

    def nvmlDeviceGetTotalEnergyConsumption(self, i):
        return self._figure(i, "millijoules")

    def nvmlDeviceGetPowerUsage(self, i):
        return self._figure(i, "milliwatts")

    def _figure(self, i, name):
        if self.boards[i].get(name) is None:
            raise NVMLError("Not Supported")
        return self.boards[i][name]
