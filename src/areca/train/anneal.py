"""The end of a run on another mixture of corpora: from which step, which examples, and what was read of each corpus.

A run with warm-up, stable rate and decay is often given its best text while the rate falls (Hu et al. 2024, section 5).
`[anneal]` names that mixture. Where it begins is a number of tokens seen, so skipped examples and the batch ramp do not
move it: the first step that starts with as many is the anneal's first, whole. Its examples have numbers of their own
(`areca.data.order.ANNEAL`), in the seed's order of each corpus. A corpus of both mixtures goes on after what the first
one has passed, so no window of it comes again before all others came. All of it is a function of the configuration and
of the ranges that a rewind skips: a run that is killed or goes back needs integers only.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from areca.config import RunConfig
from areca.data.batches import Batches
from areca.data.order import ANNEAL, Order
from areca.data.store import TokenStore
from areca.errors import ConfigError
from areca.train import schedules
from areca.train.schedules import StepPlan


def start_of(config: RunConfig) -> int | None:
    """Tokens seen from which on steps read the anneal's mixture; None where there is none."""
    if not config.anneal.weights:
        return None
    decay = config.schedule.decay_tokens if config.schedule.name == "wsd" else 0
    return config.anneal.start or config.tokens - decay


def plan(config: RunConfig, skipped: Sequence[tuple[int, int]] = ()) -> list[StepPlan]:
    """All steps of a run, without the `skipped` ranges of examples."""
    return list(schedules.steps(config.batch, config.tokens, config.data.context, skipped, start_of(config)))


def before(steps: Sequence[StepPlan]) -> int:
    """The examples that come before the anneal, those that are skipped there included."""
    return max((p.first_example + p.batch for p in steps if p.first_example < ANNEAL), default=0)


def batches(config: RunConfig, store: TokenStore, steps: Sequence[StepPlan]) -> Batches:
    """The batches of a run. DataError where a mixture has fewer sequences than a batch that is read from it."""
    made = Batches(store, config.data, config.anneal.weights)
    made.anneal_after(before(steps))
    for annealing in (False, True):
        sizes = {p.batch: p for p in steps if (p.first_example >= ANNEAL) == annealing}
        if sizes:
            largest = sizes[max(sizes)]
            made.get(largest.first_example, largest.batch)
    return made


def check(config: RunConfig, store: TokenStore) -> None:
    """ConfigError for an anneal that can't be, in one sentence."""
    a, start = config.anneal, start_of(config)
    if start is None:
        if a.start:
            raise ConfigError(
                f"anneal.start is {a.start} and anneal.weights is not set; name the mixture that begins there, as in "
                'weights = [["books", 1.0]].'
            )
        return
    if a.start < 0:
        raise ConfigError(
            f"anneal.start is {a.start}; give the tokens seen when it begins, or 0 for the decay's start."
        )
    if not a.start and config.schedule.name != "wsd":
        raise ConfigError(
            f"anneal.weights is set and schedule.name is {config.schedule.name!r}, which has no decay to begin with; "
            "set anneal.start to the tokens seen when the anneal begins, or take 'wsd'."
        )
    steps = plan(config)
    last = steps[-1].tokens - steps[-1].batch * config.data.context
    if not 0 < start <= last:
        name = "anneal.start" if a.start else "the start of the decay, where the anneal begins,"
        raise ConfigError(
            f"{name} is {start}; it must lie above 0 and be at most {last}, where the last step of a run of "
            f"{config.tokens} tokens starts."
        )
    d = config.data
    Order(store, d.context, d.seed, a.weights, d.fraction, setting="anneal.weights")  # says what it does not hold


def describe(config: RunConfig) -> dict[str, Any]:
    """What run.json says: the step that begins the anneal, and when. Nothing without one."""
    if (start := start_of(config)) is None:
        return {}
    steps = plan(config)
    first = next(p for p in steps if p.first_example >= ANNEAL)
    return {"anneal": {
        "start_tokens": start, "first_step": first.step,
        "tokens_before": first.tokens - first.batch * config.data.context,
        "examples_from": ANNEAL, "weights": dict(config.anneal.weights),
    }}  # fmt: skip


def seen(config: RunConfig, data: Batches, steps: Sequence[StepPlan]) -> dict[str, Any]:
    """What result.json says of the text that `steps` read: distinct tokens and epochs; of an anneal, each mixture.

    `mixtures` has of each, in order: the steps, the examples (their numbers, [from, to)), tokens and, exactly counted,
    the sequences of each corpus and how many of its epochs those are.
    """
    context, tokens = config.data.context, steps[-1].tokens
    if data.anneal is None:
        unique = data.order.unique_tokens(tokens)
        return {"unique_tokens": unique, "epochs": tokens / unique}
    parts = [
        _mixture(name, order, base, context, [p for p in steps if (p.first_example >= ANNEAL) == bool(base)])
        for name, order, base in (("main", data.order, 0), ("anneal", data.anneal, ANNEAL))
    ]
    windows = data.order.windows_per_epoch | data.anneal.windows_per_epoch
    read = {c: sum(p["sequences"].get(c, 0) for p in parts if p) for c in windows}
    unique = context * sum(min(windows[c], read[c]) for c in windows)
    return {"unique_tokens": unique, "epochs": tokens / unique, "mixtures": [p for p in parts if p]}


def _mixture(name: str, order: Order, base: int, context: int, steps: Sequence[StepPlan]) -> dict[str, Any] | None:
    if not steps:
        return None
    sequences = dict.fromkeys(order.corpora, 0)
    for start, stop in _stretches(steps):
        first, end = order.read(start - base), order.read(stop - base)
        for corpus in sequences:
            sequences[corpus] += end[corpus] - first[corpus]
    return {
        "mixture": name,
        "steps": [steps[0].step, steps[-1].step],
        "examples": [steps[0].first_example, steps[-1].first_example + steps[-1].batch],
        "tokens": context * sum(sequences.values()),
        "weights": order.weights,
        "sequences": sequences,
        "epochs": {c: n / order.windows_per_epoch[c] for c, n in sequences.items()},
    }


def _stretches(steps: Sequence[StepPlan]) -> list[tuple[int, int]]:
    """The ranges [from, to) of examples that steps read, one for each piece without a gap."""
    gaps = [i for i, (a, b) in enumerate(pairwise(steps), 1) if b.first_example != a.first_example + a.batch]
    return [(steps[i].first_example, steps[j - 1].first_example + steps[j - 1].batch)
            for i, j in pairwise([0, *gaps, len(steps)])]  # fmt: skip
