"""Learning rate and batch as functions of tokens seen, so that they mean the same under any batch size.

Plain arithmetic on the host in float64; importable without jax.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from areca.config import BatchConfig, ScheduleConfig, shown
from areca.data.order import ANNEAL
from areca.errors import ConfigError


def learning_rate_fraction(schedule: ScheduleConfig, tokens: int, total_tokens: int) -> float:
    """The learning rate after `tokens` as a fraction of the peak.

    Linear warm-up over `warmup_tokens`; then cosine or linear to `final_fraction` at `total_tokens`; or constant until
    `hold_tokens` and (hold / tokens)^1/2 after (PaLM section 5: 10k steps, then k^-1/2); or constant and over the last
    `decay_tokens` down to `final_fraction` (warm-up, stable, decay: Hu et al. 2024, section 4), in a line or as 1 -
    sqrt (Haegele et al. 2024, section 4); or constant.
    """
    if tokens < schedule.warmup_tokens:
        return tokens / schedule.warmup_tokens
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "rsqrt":
        return 1.0 if tokens <= schedule.hold_tokens else math.sqrt(schedule.hold_tokens / tokens)
    from_token = schedule.warmup_tokens
    if schedule.name == "wsd":
        from_token = max(from_token, total_tokens - schedule.decay_tokens)
    progress = min(1.0, max(0.0, (tokens - from_token) / max(1, total_tokens - from_token)))
    if schedule.name == "cosine":
        left = 0.5 * (1.0 + math.cos(math.pi * progress))
    else:
        left = 1.0 - (math.sqrt(progress) if schedule.name == "wsd" and schedule.decay == "sqrt" else progress)
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * left


@dataclass(frozen=True)
class StepPlan:
    """One step: which examples it reads and what it has seen when it ends."""

    step: int  # 1-based
    first_example: int
    batch: int  # sequences
    tokens: int  # seen after the step


# The schedules that a setting is of: with others it would say nothing.
_OF = {
    "decay_tokens": ("wsd",),
    "decay": ("wsd",),
    "hold_tokens": ("rsqrt",),
    "final_fraction": ("cosine", "linear", "wsd"),
}


def check(schedule: ScheduleConfig, batch: BatchConfig, tokens: int, context: int) -> None:
    """Raises ConfigError for the first setting that can't be followed."""
    ramp = batch.ramp
    if not ramp or ramp[0][0] != 0:
        raise ConfigError(f"batch.ramp is {shown(ramp)}; its first row must start at token 0, as in [[0, 16]].")
    starts = [start for start, _ in ramp]
    if starts != sorted(set(starts)):
        raise ConfigError(f"batch.ramp is {shown(ramp)}, whose rows start at tokens {starts}; they must increase.")
    for _, sequences in ramp:
        if sequences < 1:
            raise ConfigError(
                f"batch.ramp is {shown(ramp)} and has {sequences} sequences a step; it must be at least 1."
            )
    if tokens < ramp[0][1] * context:
        raise ConfigError(
            f"tokens is {tokens}, less than one batch of {ramp[0][1]} x {context} = {ramp[0][1] * context}; "
            "give more tokens or a smaller batch."
        )
    if schedule.warmup_tokens < 0 or schedule.warmup_tokens > tokens:
        raise ConfigError(
            f"schedule.warmup_tokens is {schedule.warmup_tokens}; it must lie between 0 and tokens, {tokens}."
        )
    if not 0.0 <= schedule.final_fraction <= 1.0:
        raise ConfigError(f"schedule.final_fraction is {schedule.final_fraction}; it must lie between 0 and 1.")
    if schedule.name == "rsqrt" and schedule.hold_tokens < 1:
        raise ConfigError("schedule.name is 'rsqrt', which needs schedule.hold_tokens of at least 1.")
    if schedule.name == "wsd" and schedule.warmup_tokens + max(1, schedule.decay_tokens) > tokens:
        raise ConfigError(
            f"schedule.warmup_tokens {schedule.warmup_tokens} and schedule.decay_tokens {schedule.decay_tokens} do not "
            f"fit one after the other into tokens, {tokens}; lower one of them."
        )
    if schedule.name == "wsd" and not 1 <= schedule.decay_tokens <= tokens - schedule.warmup_tokens:
        raise ConfigError(
            f"schedule.name is 'wsd' and schedule.decay_tokens is {schedule.decay_tokens}; it must lie between 1 and "
            f"the tokens after the warm-up, {tokens - schedule.warmup_tokens}."
        )
    for setting, names in _OF.items():
        value = getattr(schedule, setting)
        if schedule.name not in names and value != getattr(ScheduleConfig(), setting):
            having = f"only {' and '.join(map(repr, names))} {'has' if len(names) == 1 else 'have'} it"
            raise ConfigError(
                f"schedule.{setting} is {shown(value)} and schedule.name is {schedule.name!r}; {having}, so leave it "
                f"out or set it to {shown(getattr(ScheduleConfig(), setting))}."
            )


def steps(
    batch: BatchConfig,
    total_tokens: int,
    context: int,
    skipped: Sequence[tuple[int, int]] = (),
    anneal: int | None = None,
) -> Iterator[StepPlan]:
    """Every step of a run, in order: whole batches until at least `total_tokens` are seen.

    `skipped` are ranges of examples [from, to) that no step reads, in order and apart from each other. A step whose
    batch would touch one starts where the range ends, and so do those after it. What is skipped isn't seen: schedules
    and the end of the run, being functions of tokens trained on, stay where they are.

    With `anneal` the first step that starts when so many tokens have been seen, and all after it, read the examples of
    another mixture, which are numbered from ANNEAL on.
    """
    step = seen = example = 0
    ranges = iter(skipped)
    upcoming = next(ranges, None)
    while seen < total_tokens:
        sequences = batch_at(batch, seen)
        if anneal is not None and seen >= anneal:
            example = max(example, ANNEAL)
        while upcoming is not None and upcoming[0] < example + sequences:
            example = max(example, upcoming[1])
            upcoming = next(ranges, None)
        step += 1
        seen += sequences * context
        yield StepPlan(step=step, first_example=example, batch=sequences, tokens=seen)
        example += sequences


def batch_at(batch: BatchConfig, tokens: int) -> int:
    """Sequences of the step that starts when `tokens` have been seen."""
    return [sequences for start, sequences in batch.ramp if start <= tokens][-1]
