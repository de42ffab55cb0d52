"""A meter over the time that a process works: sensors read once a second in a thread, integrated, gaps kept.

A counter of joules gives the difference of two readings (over its wrap-around), a sensor of watts the trapezoid between
them. What lies between readings too far apart is not covered, and neither is what a sensor refused: the reading says
how much of the time each sensor saw. Nothing here touches jax, random numbers or what is computed.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

PERIOD_SECONDS = 1.0
LONGEST_GAP_SECONDS = 10.0  # watts are not drawn as a line over more
MOST_WATTS = 2000.0  # of one counter: how soon it may have wrapped more than once


class Sensor(Protocol):
    """What is read: `areca.footprint.rapl`, `areca.footprint.nvml`."""

    @property
    def name(self) -> str: ...
    @property
    def place(self) -> str: ...  # "cpu" or "chips"
    @property
    def counts(self) -> bool: ...  # joules that only grow, or watts
    @property
    def wraps_at(self) -> float | None: ...  # joules
    def read(self) -> float: ...  # OSError or ValueError where it can't be


@dataclass
class Track:
    """One sensor's integral."""

    sensor: Sensor
    joules: float = 0.0
    covered: float = 0.0  # seconds
    refused: int = 0  # readings
    error: str = ""
    watts: float | None = None  # over the last interval
    last: tuple[float, float] | None = None  # time, value

    def sample(self, now: float) -> None:
        """Reads the sensor and adds what it used since the last reading, where that is known."""
        try:
            value = self.sensor.read()
        except (OSError, ValueError) as error:
            self.refused, self.error, self.watts = self.refused + 1, str(error), None
            return
        before, self.last = self.last, (now, value)
        if before is None or now <= before[0]:
            return
        seconds, used = now - before[0], self._used(before, now, value)
        self.watts = None if used is None else used / seconds
        if used is not None:
            self.joules, self.covered = self.joules + used, self.covered + seconds

    def _used(self, before: tuple[float, float], now: float, value: float) -> float | None:
        """Joules between two readings; None where they leave it open."""
        seconds = now - before[0]
        if not self.sensor.counts:
            return seconds * (before[1] + value) / 2 if seconds <= LONGEST_GAP_SECONDS else None
        wrap = self.sensor.wraps_at
        if wrap and seconds * MOST_WATTS >= wrap:
            return None  # it may have gone round more than once
        if value >= before[1]:
            return value - before[1]
        return value + wrap - before[1] if wrap and before[1] <= wrap else None  # else it was reset


class Meter:
    """Reads `sensors` until it is closed; `reading()` at any time."""

    def __init__(
        self,
        sensors: Sequence[Sensor],
        missing: Sequence[str] = (),
        *,
        period: float = PERIOD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        busy: Callable[[], float | None] | None = None,
    ) -> None:
        """`missing`: sentences on sensors that are not there, handed on with every reading.

        `busy` is the CPU time, in seconds, that all processes of the machine have taken (None: unknown).
        """
        self.missing, self.clock, self.busy = list(missing), clock, busy or machine_cpu_seconds
        self.tracks = [Track(s) for s in sensors]
        self.share = 1.0  # of it, for one of several runs that share a process
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._cpu = time.process_time(), self.busy()
        self._began = self._sample()
        if self.tracks and period > 0:
            self._thread = threading.Thread(target=self._run, args=(period,), name="areca-meter", daemon=True)
            self._thread.start()

    @property
    def watts(self) -> float | None:
        """Of all sensors over the last interval; None where there is none, or one could not be read."""
        found = [t.watts for t in self.tracks]
        return self.share * sum(w for w in found if w is not None) if found and None not in found else None

    def reading(self) -> dict[str, Any]:
        """What was seen up to now: seconds, joules by sensor and the seconds it covers, CPU time, what is missing."""
        with self._lock:
            seconds, own = self._sample() - self._began, time.process_time() - self._cpu[0]
            now = self.busy()
            sensors = [
                {
                    "name": t.sensor.name,
                    "place": t.sensor.place,
                    "joules": self.share * t.joules,
                    "covered_seconds": self.share * t.covered,
                    **({"refused": t.refused, "error": t.error} if t.refused else {}),
                }
                for t in self.tracks
            ]
        busy = None if now is None or self._cpu[1] is None else now - self._cpu[1]
        return {
            "seconds": self.share * seconds,
            "sensors": sensors,
            "cpu_seconds": self.share * own,
            "machine_cpu_seconds": None if busy is None else self.share * busy,
            "missing": self.missing,
        }

    def shared(self, runs: int) -> "Meter":
        """This meter as one of `runs` that divide its time and energy evenly; only the whole closes it."""
        part = object.__new__(Meter)
        part.__dict__ = {**self.__dict__, "share": self.share / runs, "_thread": None}
        return part

    def close(self) -> None:
        """Ends the thread. Safe to call twice."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def __enter__(self) -> "Meter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, period: float) -> None:
        while not self._stop.wait(period):
            with self._lock:
                self._sample()

    def _sample(self) -> float:
        """Reads every sensor; returns when that was."""
        now = self.clock()
        for track in self.tracks:
            track.sample(now)
        return now


def machine_cpu_seconds(stat: Path = Path("/proc/stat")) -> float | None:
    """CPU time of all processes of the machine since it started, idling apart; None where the system does not say."""
    try:
        fields = [int(f) for f in stat.read_text().split("\n", 1)[0].split()[1:]]
    except (OSError, ValueError):
        return None
    if len(fields) < 7:
        return None
    user, nice, system, _, _, irq, softirq = fields[:7]  # what a hypervisor gave to others ("steal") is not ours
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
