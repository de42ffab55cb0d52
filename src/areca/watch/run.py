"""One run as its files tell of it at this moment: where it is, how fast it goes, what happened.

Files are read as they grow. Whatever is missing, torn or of another version is left out and never stops the watch.
"""

import contextlib
import time
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from areca.errors import ArecaError
from areca.files import read_json
from areca.footprint.regions import here
from areca.footprint.sessions import footprint, sessions_of
from areca.track.rows import EVENTS, METRICS, RUN, Lines
from areca.watch.process import Process, holder

Phase = Literal["not begun", "starting", "running", "unseen", "stopped", "killed", "diverged", "finished"]
RECENT = 50  # steps that "now" is taken over
FRESH_SECONDS = 60.0  # a file written so lately, by a process that can't be seen, is being written


@dataclass
class RunState:
    """What there is to show of a run. None: not known."""

    name: str
    path: str
    phase: Phase
    process: Process
    step: int = 0
    steps: int | None = None
    tokens: int = 0
    total_tokens: int | None = None
    loss: float | None = None
    loss_recent: float | None = None  # the mean of the last RECENT steps
    heldout: tuple[int, float] | None = None  # step, loss
    learning_rate: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    seconds_left: float | None = None
    since_last: float | None = None  # seconds since anything was written
    energy_kwh: float | None = None
    energy_kind: str = ""
    energy_step: int | None = None
    n_params: int | None = None
    islands: tuple[int, int] | None = None  # that carry the run, of how many
    rewinds: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    curve: list[float] = field(default_factory=list)  # losses, one a step


class RunWatch:
    """Reads one run directory again and again."""

    def __init__(self, directory: Path | str, name: str = "") -> None:
        self.directory = Path(directory)
        self.name = name or self.directory.resolve().name
        self._rows, self._events = Lines(self.directory / METRICS), Lines(self.directory / EVENTS)
        self._losses = array("d")
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._told: list[dict[str, Any]] = []
        self._run: dict[str, Any] | None = None
        self._gone = False  # at the last look there was no process
        self._elsewhere = 0.0  # when it wrote all the same: it is not of this machine

    def look(self) -> RunState:
        """The state now."""
        process = holder(self.directory)
        if self._read() and self._gone and process.alive == "no":
            self._elsewhere = time.monotonic()
        self._gone = process.alive == "no"
        config = _table(self._run, "config")
        last = self._recent[-1] if self._recent else {}
        state = RunState(self.name, str(self.directory), "not begun", process)
        state.since_last = self._since_last()
        state.phase = self._phase(process, state.since_last)
        state.step, state.tokens = _whole(last.get("step")) or 0, _whole(last.get("tokens")) or 0
        state.total_tokens = _whole(config.get("tokens"))
        state.steps = steps_of(config)
        state.n_params = _whole(_table(self._run, "counts").get("n_params"))
        state.loss = _number(last.get("loss"))
        losses = [x for r in self._recent if (x := _number(r.get("loss"))) is not None]
        state.loss_recent = sum(losses) / len(losses) if losses else None
        state.learning_rate = _number(last.get("learning_rate"))
        self._speed(state, _whole(_table(config, "data").get("context")))
        self._happened(state, config)
        state.curve = list(self._losses)
        return state

    def _read(self) -> bool:
        """Takes in what is new; whether there was any."""
        new = False
        if self._run is None:
            with contextlib.suppress(ArecaError, OSError):
                found = read_json(self.directory / RUN)
                self._run = found if isinstance(found, dict) else None
        while True:
            rows, cut = self._rows.read()
            if cut:
                del self._losses[:]
                self._recent.clear()
            for row in rows:
                loss = _number(row.get("loss"))
                self._losses.append(float("nan") if loss is None else loss)
                self._recent.append(row)
            if not rows:
                break
            new = True
        while True:
            events, cut = self._events.read()
            self._told = events if cut else self._told + events
            if not events:
                return new
            new = True

    def _phase(self, process: Process, since: float | None) -> Phase:
        if (self.directory / "result.json").exists():
            return "finished"
        if process.alive == "yes":
            return "running" if self._recent else "starting"
        if self._run is None and not self._told:
            return "not begun"
        last = next((e["event"] for e in reversed(self._told) if e.get("event") in _ENDS), None)
        if last == "not_finite":
            return "diverged"
        if last == "interrupt":
            return "stopped"
        fresh = since is not None and since < FRESH_SECONDS
        seen = self._elsewhere and time.monotonic() - self._elsewhere < FRESH_SECONDS
        if process.alive == "unknown" or (fresh and process.pid is None) or seen:
            return "unseen"
        return "killed"

    def _since_last(self) -> float | None:
        times = []
        for name in (METRICS, EVENTS):
            with contextlib.suppress(OSError):
                if (seen := (self.directory / name).stat()).st_size:
                    times.append(seen.st_mtime)
        return max(0.0, time.time() - max(times)) if times else None

    def _speed(self, state: RunState, context: int | None) -> None:
        """Tokens/s, MFU and the time left, by the last steps that ran beside nothing else."""
        rows = [r for r in self._recent if (_number(r.get("seconds")) or 0) > 0 and _whole(r.get("batch"))]
        steady = [r for r in rows if r.get("steady", True)]
        seconds = sum(r["seconds"] for r in steady or rows)
        if not seconds or not context:
            return
        state.tokens_per_second = sum(r["batch"] for r in steady or rows) * context / seconds
        known = [(r["mfu"], r["seconds"]) for r in steady or rows if _number(r.get("mfu")) is not None]
        if known:
            state.mfu = sum(m * s for m, s in known) / sum(s for _, s in known)
        if state.total_tokens is not None and state.phase in ("running", "unseen"):
            state.seconds_left = max(0, state.total_tokens - state.tokens) / state.tokens_per_second

    def _happened(self, state: RunState, config: Mapping[str, Any]) -> None:
        islands = _table(config, "islands")
        count = _whole(islands.get("count")) or 1
        carry = count
        for event in self._told:
            kind = event.get("event")
            if kind in ("start", "resume"):
                carry = count
            elif kind == "island_lost" and isinstance(event.get("left"), list) and event.get("island"):
                carry = len(event["left"])
            elif kind == "island_joined":
                carry = min(count, carry + 1)
            elif kind == "rewind":
                state.rewinds += 1
            elif kind == "evaluate" and _number(event.get("loss")) is not None:
                state.heldout = _whole(event.get("step")) or 0, float(event["loss"])
            if event.get("energy"):
                state.energy_step = _whole(event.get("step"))
        state.islands = (carry, count) if count > 1 else None
        state.events = [e for e in self._told if e.get("event") in SHOWN]
        with contextlib.suppress(ArecaError, KeyError, TypeError, ValueError, AttributeError):
            sessions = [s for s in sessions_of(self._told) if s["reading"] is not None]
            if sessions:
                energy = footprint(sessions, here())["energy_kwh"]
                state.energy_kwh, state.energy_kind = energy["value"], str(energy["kind"])


# What a watcher wants to know of, and what ends a session.
SHOWN = {
    "start", "resume", "save", "evaluate", "spike", "rewind", "island_lost", "island_joined", "island_not_back",
    "interrupt", "not_finite", "tracker_failed", "tracking", "retry", "finish",
}  # fmt: skip
_ENDS = {"start", "resume", "interrupt", "not_finite", "finish"}


def steps_of(config: Mapping[str, Any]) -> int | None:
    """How many steps a configuration takes: whole batches until all tokens are seen, the batch by what was seen."""
    total, context = _whole(config.get("tokens")), _whole(_table(config, "data").get("context"))
    ramp = _table(config, "batch").get("ramp")
    try:
        pieces = [(int(start), int(batch)) for start, batch in ramp or ()]
    except (TypeError, ValueError):
        return None
    if not total or not context or not pieces or min(batch for _, batch in pieces) < 1:
        return None
    steps = seen = 0
    for i, (_, batch) in enumerate(pieces):
        until = min(total, pieces[i + 1][0]) if i + 1 < len(pieces) else total
        count = max(0, -(-(until - seen) // (batch * context)))
        steps, seen = steps + count, seen + count * batch * context
    return steps


def _table(values: Any, name: str) -> Mapping[str, Any]:
    found = values.get(name) if isinstance(values, dict) else None
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
