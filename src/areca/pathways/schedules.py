"""In which order the stages of a pipeline work: GPipe's (Huang et al. 2019) and 1F1B (Narayanan et al. 2019).

A stage is given its work by the order of the nodes in a traced graph, so a schedule is an order of all stages' actions.
Both add up a stage's gradients over the microbatches in their order, so the numbers are the same. Both leave a stage
idle for (S - 1) / (M + S - 1) of a step of equal stages; 1F1B keeps at most S - s microbatches' activations on stage s,
GPipe all M of them. Importable without jax.
"""

import collections
from dataclasses import dataclass
from typing import Literal, get_args

from areca.errors import ConfigError

Schedule = Literal["1f1b", "gpipe"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
BACKWARD = 3.0  # times a forward pass, where it computes the forward pass again


@dataclass(frozen=True)
class Action:
    """A stage's forward or backward pass of one microbatch."""

    stage: int
    microbatch: int
    backward: bool


def check(schedule: str) -> None:
    """ConfigError for a schedule that there is not."""
    if schedule not in SCHEDULES:
        raise ConfigError(f"pipeline.schedule is {schedule!r}; choose one of {', '.join(map(repr, SCHEDULES))}.")


def of_stage(schedule: str, stage: int, stages: int, microbatches: int) -> list[Action]:
    """What one stage does, in its order. ConfigError for a schedule that there is not."""
    check(schedule)
    forward = [Action(stage, m, False) for m in range(microbatches)]
    backward = [Action(stage, m, True) for m in range(microbatches)]
    ahead = microbatches if schedule == "gpipe" else min(microbatches, stages - 1 - stage)
    order = forward[:ahead]
    for more, back in zip(forward[ahead:], backward, strict=False):
        order += [more, back]
    return order + backward[microbatches - ahead :]


def order(schedule: str, stages: int, microbatches: int) -> list[Action]:
    """All stages' actions in one order, of the times at which they start where all stages are alike.

    A stage waits for what it reads and for nothing else, so in this order no stage's work is held up behind another's.
    """
    todo = [collections.deque(of_stage(schedule, s, stages, microbatches)) for s in range(stages)]
    free, ends, found = [0.0] * stages, dict[Action, float](), list[Action]()
    while any(todo):
        starts = [
            (max([free[s], *(ends[a] for a in before(waiting[0], stages))]), s)
            for s, waiting in enumerate(todo)
            if waiting and all(a in ends for a in before(waiting[0], stages))
        ]
        start, s = min(starts)
        action = todo[s].popleft()
        free[s] = ends[action] = start + (BACKWARD if action.backward else 1.0)
        found.append(action)
    return found


def before(action: Action, stages: int) -> list[Action]:
    """The actions whose results an action reads."""
    s, m = action.stage, action.microbatch
    if not action.backward:
        return [Action(s - 1, m, False)] if s else []
    return [Action(s, m, False), *([Action(s + 1, m, True)] if s < stages - 1 else [])]


def in_flight(order: list[Action], stage: int) -> int:
    """The most microbatches that a stage has gone forward with and not back."""
    most = now = 0
    for action in order:
        if action.stage == stage:
            now += -1 if action.backward else 1
            most = max(most, now)
    return most


def bubble(stages: int, microbatches: int) -> float:
    """The share of a step in which a stage of equal stages is idle: (S - 1) / (M + S - 1) (Huang et al. 2019)."""
    return (stages - 1) / (microbatches + stages - 1)
