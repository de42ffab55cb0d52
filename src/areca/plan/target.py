"""The cheapest run that reaches a loss with a given probability: N and D are both free, the cost is in exact FLOPs.

A run planned at the law's own curve misses its target half of the time. The law gives a distribution of one new run's
loss (its samples, a run's noise, and beyond its rows the doubt about its form); for every shape the probability of
reaching the target rises with D, so its least D is a root, and the cheapest of the shapes is the answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from areca.errors import ConfigError, FitError, check_at_least_one, check_positive
from areca.laws import LawReport
from areca.laws.predictive import Predictive
from areca.model.config import ModelConfig
from areca.model.counts import count_params, exact_flops_per_token
from areca.plan.candidates import counted
from areca.plan.plan import Plan, check_target, plan_run

MOST_FLOPS = 1e40  # as `plan_run`: what no run costs
TIGHT = 1e-6  # of ln D, at the root
SAID = {"exact": "FLOPs", "6nd": "FLOPs (6 N D)", "table": "FLOPs (as the rows count them)"}
Z_90 = 1.6448536269514722  # a 90% interval's half-width over the standard deviation


@dataclass(frozen=True)
class Reach:
    """A run and the probability that its loss is at most the target."""

    probability: float
    plan: Plan


@dataclass(frozen=True)
class TargetPlan:
    """The cheapest run for a target loss (nats per token), and what its certainty costs."""

    target_loss: float
    asked: float  # probability
    sure: Reach  # the run to buy
    median: Reach | None  # the cheapest that reaches the target with an even chance; None where none has that
    certainty_costs: float | None  # exact FLOPs of `sure` over those of `median`
    neighbours: dict[str, dict[str, float]]  # half and double the size, as sure: N in both counts, D, exact FLOPs
    floor: float  # the law's loss without end of N and D
    largest_probability: float  # of any of the shapes, however long it trains
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        """The target plan as JSON."""
        runs = {name: getattr(self, name) for name in ("sure", "median")}
        parts = {k: r and {"probability": r.probability, **r.plan.to_dict()} for k, r in runs.items()}
        return {**asdict(self), **parts}


def plan_target(
    law: LawReport,
    target_loss: float,
    shapes: Sequence[ModelConfig],
    *,
    context: int,
    batch: int | Callable[[ModelConfig, float], int] = 1,
    probability: float = 0.90,
    level: float = 0.90,
    given: str = "",
) -> TargetPlan:
    """The cheapest of `shapes` and its tokens with P(loss <= `target_loss`) >= `probability`.

    `context` is T in tokens and `batch` the sequences of a step, or a rule that gives them for a shape and FLOPs; D is
    rounded up to whole steps. `level` is that of the plans' intervals; `given` is how the user named the law.
    ConfigError for a target or a probability that is none; FitError, with the largest probability that can be had, when
    the law's floor is too high or too little known for the target.
    """
    check_positive("the target loss in nats a token", target_loss, "2.5", most=1e6)
    if not 0 < probability < 1:
        raise ConfigError(f"probability is {probability}; it must lie between 0 and 1, such as 0.9.")
    check_at_least_one("context", context)
    if shapes:
        check_target(target_loss, shapes[0].vocab_size)
    search = Search(law, target_loss, shapes, context)
    floor = float(law.predict(1e300, 1e300))
    largest = search.largest_probability()
    if largest < probability:
        raise FitError(_unreachable(target_loss, probability, floor, largest))
    sure = search.cheapest(law, probability)
    if sure is None:
        raise FitError(
            f"no run reaches a loss of {target_loss:g} with {probability:.0%} probability once the doubt about the "
            "law's form beyond its rows is counted; ask for a higher loss or a lower probability, or add larger runs."
        )
    even = search.cheapest(law, 0.5)
    bought = search.reach(law, sure, batch, level, given)
    median = search.reach(law, even, batch, level, given) if even else None
    return TargetPlan(
        target_loss=float(target_loss),
        asked=float(probability),
        sure=bought,
        median=median,
        certainty_costs=bought.plan.best.flops_exact / median.plan.best.flops_exact if median else None,
        neighbours=search.neighbours(sure, probability),
        floor=floor,
        largest_probability=largest,
        warnings=_warnings(law, target_loss, search, sure, bought.plan),
    )


@dataclass(frozen=True)
class Found:
    """A shape by its place, its least D, and the doubt about the law's form at that cost (sd of ln L)."""

    shape: int
    n_tokens: float
    form_sigma: float


class Search:
    """A target over the shapes: P(D) for each, inverted."""

    def __init__(self, law: LawReport, target: float, shapes: Sequence[ModelConfig], context: int) -> None:
        self.predictive, self.target, self.shapes, self.context = Predictive.of(law), target, shapes, context
        self.n_params = np.array([counted(law, s) for s in shapes], dtype=float)  # as the law counts
        self.per_token = np.array([exact_flops_per_token(s, context) for s in shapes], dtype=float)

    def largest_probability(self) -> float:
        """Of any shape, with all the tokens of `MOST_FLOPS`."""
        return float(self.predictive.probability(self.target, self.n_params, MOST_FLOPS / self.per_token).max())

    def least_tokens(
        self, which: np.ndarray, probability: float, form_sigma: float = 0.0, *, only_cheapest: bool = False
    ) -> np.ndarray:
        """[len(which)] the least D of these shapes with that probability; inf where no D has it.

        Bisection in ln D, all shapes at once. With `only_cheapest` a shape leaves (inf) as soon as the least that it
        can cost is more than another costs at most.
        """

        def reached(of: np.ndarray, log_d: np.ndarray) -> np.ndarray:
            n = self.n_params[of]
            return self.predictive.probability(self.target, n, np.exp(log_d), form_sigma=form_sigma) >= probability

        log_cost = np.log(self.per_token[which])
        low, high = np.zeros(len(which)), np.log(MOST_FLOPS) - log_cost
        alive = np.flatnonzero(reached(which, high))
        found = np.full(len(which), np.inf)
        while alive.size and (high - low)[alive].max() > TIGHT:
            middle = (low[alive] + high[alive]) / 2
            yes = reached(which[alive], middle)
            high[alive[yes]], low[alive[~yes]] = middle[yes], middle[~yes]
            if only_cheapest:
                alive = alive[(low + log_cost)[alive] <= (high + log_cost)[alive].min()]
        found[alive] = np.exp(high[alive])
        return found

    def cheapest(self, law: LawReport, probability: float) -> Found | None:
        """The cheapest shape; None where none has that probability.

        Beyond the rows the law's interval also has the doubt about its form, which grows with the cost; the search is
        repeated with the doubt of its own answer until that stands. It widens and never helps, so it counts only above
        an even chance.
        """
        form_sigma = 0.0
        for _ in range(50):
            tokens = self.least_tokens(np.arange(len(self.shapes)), probability, form_sigma, only_cheapest=True)
            best = int((tokens * self.per_token).argmin())
            if not np.isfinite(tokens[best]):
                return None
            found = Found(best, float(tokens[best]), form_sigma)
            doubt = self._form_sigma(law, found) if probability > 0.5 else 0.0
            if abs(doubt - form_sigma) <= 1e-3 * doubt + 1e-9:
                return found
            form_sigma = doubt
        return None

    def _form_sigma(self, law: LawReport, found: Found) -> float:
        """The doubt on the side of higher losses that `law.predict_interval` adds beyond the rows, as an sd of ln L."""
        n, d = float(self.n_params[found.shape]), found.n_tokens
        centre = float(np.log(law.predict(n, d)))
        cost = law.observations.flops_of(n, d, d * float(self.per_token[found.shape]))
        highs = [law.predict_interval(n, d, flops=c)[1] for c in (None, cost)]
        plain, wider = (float(np.log(h)) - centre for h in highs)
        return float(np.sqrt(max(0.0, wider**2 - plain**2))) / Z_90

    def neighbours(self, found: Found, probability: float) -> dict[str, dict[str, float]]:
        """What half and double the size cost with the same probability, where the family has one within a quarter."""
        near = {}
        for name, factor in (("half", 0.5), ("double", 2.0)):
            wanted = self.n_params[found.shape] * factor
            i = int(np.abs(np.log(self.n_params / wanted)).argmin())
            tokens = float(self.least_tokens(np.array([i]), probability, found.form_sigma)[0])
            if abs(self.n_params[i] / wanted - 1) <= 0.25 and np.isfinite(tokens):
                counts, cost = count_params(self.shapes[i]), float(tokens * self.per_token[i])
                sizes = {"n_params": float(counts.non_embedding), "n_params_total": float(counts.total)}
                near[name] = {**sizes, "n_tokens": tokens, "flops_exact": cost}
        return near

    def reach(
        self,
        law: LawReport,
        found: Found,
        batch: int | Callable[[ModelConfig, float], int],
        level: float,
        given: str = "",
    ) -> Reach:
        """The run of whole steps, rounded up, as a plan, and the probability it has."""
        shape = self.shapes[found.shape]
        flops = found.n_tokens * self.per_token[found.shape]
        sequences = batch(shape, flops) if callable(batch) else batch
        check_at_least_one("batch", sequences)
        steps = int(np.ceil(found.n_tokens / (sequences * self.context)))
        budget = exact_flops_per_token(shape, self.context) * steps * sequences * self.context  # an int: no rounding
        plan = plan_run(law, budget, [shape], context=self.context, batch=sequences, level=level, given=given)
        n, d = float(plan.best.counted(law)), float(plan.best.n_tokens)
        return Reach(float(self.predictive.probability(self.target, n, d, form_sigma=found.form_sigma)[0]), plan)


def _unreachable(target: float, probability: float, floor: float, largest: float) -> str:
    most = f"{largest:.1%}" if largest >= 0.001 else "under 0.1%"
    if target <= floor:
        return (
            f"a loss of {target:g} lies below the floor of the law, {floor:.4g} nats a token: no run reaches it with "
            f"more than {most} probability, so ask for a higher loss."
        )
    return (
        f"no run reaches a loss of {target:g} with {probability:.0%} probability: the floor of the law, {floor:.4g}, "
        f"is too little known, and the most that any run reaches is {most}; ask for a higher loss or a lower "
        "probability, or narrow the law first (`areca design`)."
    )


def _warnings(law: LawReport, target: float, search: Search, sure: Found, plan: Plan) -> list[str]:
    warnings = list(plan.warnings)
    if len(search.shapes) > 2 and sure.shape in (0, len(search.shapes) - 1):
        edge = "smallest" if sure.shape == 0 else "largest"
        warnings.append(f"the cheapest shape is the {edge} of those considered; widen the family.")
    o = law.observations
    if len(o) and o.loss.min() <= target:
        i = int(np.flatnonzero(o.loss <= target)[o.flops[o.loss <= target].argmin()])
        warnings.append(f"{o.name(i)} reached {o.loss[i]:.4f} already, with {o.flops[i]:.3g} {SAID[o.flops_counts]}.")
    return warnings
