"""What is written of a step and told to who listens: its line of metrics.jsonl, and how fast the run goes."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from areca.config import RunConfig
from areca.train.efficiency import Machine
from areca.train.noise import ESTIMATES, NoiseScale
from areca.train.progress import Progress
from areca.train.schedules import StepPlan
from areca.train.step import METRICS


class Taken(NamedTuple):
    """A step whose metrics were read; several runs in one program have a rate and a row of metrics each."""

    plan: StepPlan
    rate: Any
    metrics: Any
    seconds: float
    saving: int | None  # the save whose files were being written meanwhile
    steady: bool  # whether it followed another without a save or an evaluation between


def line_of(
    config: RunConfig, machine: Machine, noise: NoiseScale, taken: Taken, watts: float | None
) -> dict[str, Any]:
    """A step's line; `noise` takes its estimates where the run has them."""
    p = taken.plan
    names = METRICS + ESTIMATES if config.noise_parts else METRICS
    values: dict[str, float] = dict(zip(names, map(float, taken.metrics), strict=True))
    speed = p.batch * config.data.context / taken.seconds
    return {
        "step": p.step,
        "tokens": p.tokens,
        **values,
        **({"noise_scale": noise.observe(values)} if config.noise_parts else {}),
        "learning_rate": taken.rate,
        "batch": p.batch,
        "tokens_per_second": speed,
        "mfu": machine.mfu(config, speed),
        "hfu": machine.hfu(config, speed),
        "seconds": taken.seconds,
        "steady": taken.steady,
        "saving": taken.saving,
        "watts": watts,
    }


class Pace:
    """How fast this process takes steps. Several may be read at once, so what a person sees is a running mean."""

    def __init__(self) -> None:
        self.steps, self.seconds = 0, 0.0
        self.slow: float | None = None  # seconds a token

    def step(self, line: dict[str, Any]) -> None:
        """A step was taken."""
        self.steps, self.seconds = self.steps + 1, self.seconds + line["seconds"]
        slow = 1.0 / line["tokens_per_second"]
        self.slow = slow if self.slow is None else 0.95 * self.slow + 0.05 * slow

    def progress(
        self, name: str, config: RunConfig, machine: Machine, plan: Sequence[StepPlan], line: dict[str, Any]
    ) -> Progress:
        """What a listener is told after the step that this line is of."""
        assert self.slow is not None
        return Progress(
            run=name,
            step=line["step"],
            steps=len(plan),
            tokens=line["tokens"],
            total_tokens=plan[-1].tokens,
            loss=line["loss"],
            tokens_per_second=1.0 / self.slow,
            mfu=machine.mfu(config, 1.0 / self.slow),
            seconds_left=(len(plan) - line["step"]) * self.seconds / self.steps,
        )
