"""Energy of NVIDIA's GPUs through NVML, by NVIDIA's own bindings (nvidia-ml-py, imported as `pynvml`).

From Volta on a board counts its millijoules; before that there is its power, which the meter integrates. Both are of
the whole board, memory and all, without the host around it.
"""

import importlib
import os
from dataclasses import dataclass
from typing import Any

from areca.errors import install

EXTRA = f"nvidia-ml-py is not installed; {install('energy')} has it"


@dataclass(frozen=True)
class Board:
    """One GPU: a counter of joules, or its watts where it has none."""

    name: str
    handle: Any
    counts: bool
    library: Any  # the module pynvml

    place = "chips"
    wraps_at = None  # 64 bits of millijoules

    def read(self) -> float:
        """Joules since the driver was loaded, or watts now. OSError where NVML can't say."""
        try:
            if self.counts:
                return self.library.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1000
            return self.library.nvmlDeviceGetPowerUsage(self.handle) / 1000
        except self.library.NVMLError as error:
            raise OSError(str(error)) from None


def find_nvml(count: int, library: Any = None) -> tuple[list[Board], list[str]]:
    """The first `count` GPUs this process may use, and in sentences what is missing; no board if one can't be read.

    CUDA_VISIBLE_DEVICES says which they are, by number or UUID; numbers are taken in NVML's order (that of the bus),
    which is CUDA's where all boards are alike.
    """
    if library is None:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return [], [EXTRA]
    try:
        library.nvmlInit()
        there = library.nvmlDeviceGetCount()
    except library.NVMLError as error:
        return [], [f"NVML can't start ({error})"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = [w.strip() for w in visible.split(",")] if visible is not None else [str(i) for i in range(there)]
    if len(wanted) < count:
        return [], [f"NVML shows {len(wanted)} GPUs to this process, which uses {count}"]
    boards: list[Board] = []
    for which in wanted[:count]:
        board = _board(library, which)
        if isinstance(board, str):
            return [], [board]
        boards.append(board)
    return boards, []


def _board(library: Any, which: str) -> Board | str:
    """A board that can be read, or in a sentence why it can't."""
    try:
        if which.isdigit():
            handle = library.nvmlDeviceGetHandleByIndex(int(which))
        else:
            handle = library.nvmlDeviceGetHandleByUUID(which)
        name = library.nvmlDeviceGetName(handle)
    except library.NVMLError as error:
        return f"GPU {which} is not there for NVML ({error})"
    name = f"GPU {which} ({name.decode() if isinstance(name, bytes) else name})"
    if which.startswith("MIG-") or _in_slices(library, handle):
        return f"{name} is a board in slices (MIG), whose sensors tell of all of them together"
    error: OSError | None = None
    for counts in (True, False):
        board = Board(name, handle, counts, library)
        try:
            board.read()
            return board
        except OSError as refused:
            error = refused
    return f"{name} can't be read ({error})"


def _in_slices(library: Any, handle: Any) -> bool:
    try:
        return library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE
    except library.NVMLError:  # boards that have no such mode
        return False
