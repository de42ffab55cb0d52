"""The guard: finds spikes of the loss and says what to do about them (Chowdhery et al. 2022, section 5.1).

PaLM's loss spiked about 20 times, at irregular steps and with clipping on. The cure was to go back about 100 steps
before the spike and to skip 200 to 500 batches; the same batches met by other parameters did no harm, so it is the
meeting that is avoided. `Detector` is a pure function of the metrics of the steps up to now, which metrics.jsonl
has, so a resumed run judges every step as one that never stopped. What was done is kept in `rewinds`.
"""

import collections
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from areca.config import GuardConfig, RunConfig
from areca.errors import ConfigError, Diverged, TrainingError
from areca.train.checkpoint_files import Entry

FINITE = ("loss", "z_loss", "grad_norm", "update_norm", "param_norm")  # metrics that must be finite
# Least scale of each logarithm: with the default threshold a loss 1.13 times, an update 4.5 times the median. (Updates
# of 2 to 3 times come when a rare token's row moves for the first time in long; the loss does not notice. docs/log.md)
FLOORS = {"loss": 0.02, "update_norm": 0.25}
_NORMAL = 1.4826  # MAD of a normal distribution to its standard deviation


@dataclass(frozen=True)
class Spike:
    """Where training left its path. `value` and `median` are in the metric's own unit, None if it is not finite."""

    step: int  # the first of the steps in a row that were beyond
    found_at: int  # the step that settled it
    what: str  # the metric
    value: float | None
    median: float | None
    scale: float | None  # of the logarithm


def check(config: GuardConfig) -> None:
    """Raises ConfigError for the first setting that can't be used."""
    c = config
    if not 0 < c.threshold < math.inf:
        raise ConfigError(f"guard.threshold is {c.threshold}; it must be positive, for example 6.")
    if c.window < 4:
        raise ConfigError(f"guard.window is {c.window}; it must be at least 4 steps.")
    if not 2 <= c.min_steps <= c.window:
        raise ConfigError(f"guard.min_steps is {c.min_steps}; it must lie between 2 and guard.window, {c.window}.")
    if not 1 <= c.patience <= c.window // 4:
        raise ConfigError(
            f"guard.patience is {c.patience}; it must lie between 1 and a quarter of guard.window, {c.window // 4}."
        )
    if c.rewind_steps < 1:
        raise ConfigError(f"guard.rewind_steps is {c.rewind_steps}; it must be at least 1.")
    if c.skip_batches < c.rewind_steps:
        raise ConfigError(
            f"guard.skip_batches is {c.skip_batches}; it must be at least guard.rewind_steps, {c.rewind_steps}, or the"
            " batches of the spike come again."
        )
    if c.max_rewinds < 0:
        raise ConfigError(f"guard.max_rewinds is {c.max_rewinds}; it must be at least 0 (stop at the first spike).")


def not_finite(row: Mapping[str, Any]) -> str | None:
    """The first metric of a step that is not finite (metrics.jsonl has null there), or None."""
    for name in FINITE:
        value = row[name]
        if value is None or not math.isfinite(value):
            return name
    return None


def describe(spike: Spike) -> str:
    """`the loss is 7.1, usually 3.2`, for a sentence."""
    name = spike.what.replace("_", " ")
    if spike.value is None or spike.median is None:
        return f"the {name} is not finite"
    return f"the {name} is {spike.value:.3g}, where {spike.median:.3g} is usual"


def exhausted(config: RunConfig, spike: Spike, past: Sequence[int], saved: Sequence[Entry]) -> TrainingError:
    """Why a run stops at a spike that it may not go back from; `past` has the steps of the spikes that it did."""
    latest = next((e for e in reversed(saved) if e.step < spike.step), None)
    often = "once" if len(past) == 1 else f"{len(past)} times"
    places = ", ".join(str(s) if n == 1 else f"{s} ({n} times)" for s, n in sorted(collections.Counter(past).items()))
    before = f"after going back {often} already, from step {places}, and " if past else ""
    return TrainingError(
        f"training spiked at step {spike.step} ({describe(spike)}), {before}guard.max_rewinds is"
        f" {config.guard.max_rewinds}: skipping batches can't cure this, so lower optimizer.learning_rate"
        f" ({config.optimizer.learning_rate}) or lengthen the warm-up in a new run ({_saved(latest)})."
    )


def diverged(config: RunConfig, row: Mapping[str, Any], latest: Entry | None) -> Diverged:
    """Why a run without the guard stops at a step that is not finite."""
    return Diverged(
        f"at step {row['step']} the loss is {row['loss']} and the gradient norm {row['grad_norm']}: training has"
        f" diverged ({_saved(latest)}); lower optimizer.learning_rate ({config.optimizer.learning_rate}) or lengthen"
        " the warm-up."
    )


def _saved(latest: Entry | None) -> str:
    return f"the checkpoint of step {latest.step} is from before" if latest else "nothing was saved yet"


class Detector:
    """Hears the metrics of the steps in order and says when they are a spike.

    `rows` are those of the steps before, as metrics.jsonl has them; only the last few matter.
    """

    def __init__(self, config: GuardConfig, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.config = config
        self._windows = {name: _Window(config.window, floor) for name, floor in FLOORS.items()}
        self._beyond: list[Spike] = []  # steps in a row
        # A verdict needs the window before its step, and a row of verdicts the steps since the last good one.
        for row in collections.deque(rows, maxlen=config.window + config.patience):
            self.observe(row)

    def observe(self, row: Mapping[str, Any]) -> Spike | None:
        """The spike that this step's metrics settle, or None."""
        broken = not_finite(row)
        if broken is not None:
            found: Spike | None = Spike(row["step"], row["step"], broken, None, None, None)
        else:
            found = next(
                filter(None, [self._judge(row, name, value) for name, value in _logarithms(row).items()]), None
            )
        self._beyond = [*self._beyond, found] if found else []
        if broken is None and len(self._beyond) < self.config.patience:
            return None
        return replace(self._beyond[0], found_at=row["step"])

    def _judge(self, row: Mapping[str, Any], name: str, value: float | None) -> Spike | None:
        """Whether one metric of a step is beyond; then its value joins the window."""
        window, found = self._windows[name], None
        if value is not None and len(window.ordered) >= self.config.min_steps:
            scale = window.scale_if_beyond(value, self.config.threshold)
            if scale is not None:
                usual = row[name] * math.exp(_middle(window.ordered) - value)  # in the metric's own unit
                found = Spike(row["step"], row["step"], name, row[name], usual, scale)
        window.add(value)
        return found


def _logarithms(row: Mapping[str, Any]) -> dict[str, float | None]:
    """What is judged: the update norm by the learning rate, so that a schedule's warm-up or decay is no change."""
    update, rate = row["update_norm"], row["learning_rate"]
    return {
        "loss": math.log(row["loss"]) if row["loss"] > 0 else None,
        "update_norm": math.log(update / rate) if update > 0 and rate > 0 else None,
    }


class _Window:
    """The last values of one quantity, by time and by size; None only takes its place in time."""

    def __init__(self, steps: int, floor: float) -> None:
        self.floor = floor
        self.recent: collections.deque[float | None] = collections.deque(maxlen=steps)
        self.ordered: list[float] = []

    def add(self, value: float | None) -> None:
        if len(self.recent) == self.recent.maxlen and (oldest := self.recent[0]) is not None:
            del self.ordered[bisect_left(self.ordered, oldest)]
        self.recent.append(value)
        if value is not None:
            insort(self.ordered, value)

    def scale_if_beyond(self, value: float, threshold: float) -> float | None:
        """The scale, if the value lies more than `threshold` of it over the median; None otherwise."""
        median = _middle(self.ordered)
        above = value - median
        if above <= threshold * self.floor:  # most steps end here, so a step costs microseconds
            return None
        scale = max(self.floor, _NORMAL * _middle(sorted(abs(v - median) for v in self.ordered)))
        return scale if above > threshold * scale else None


def _middle(values: list[float]) -> float:
    n = len(values)
    return values[n // 2] if n % 2 else 0.5 * (values[n // 2 - 1] + values[n // 2])
