"""What to buy: for a budget in exact FLOPs the decoder and the tokens of least predicted loss, with an interval.

Composes a law, fitted or published, with the model's own counts: N, D and C of every candidate are those that training
will have, not 6 N D. The answer carries its neighbours at the same compute (half and double the size), so that the
flatness of the valley is seen, and says by how much it leaves the range the law was measured on.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from areca.errors import ConfigError, DataError, check_at_least_one, check_positive
from areca.laws import FAILED_CHECK, LawReport
from areca.laws.fits.compute import PF_DAY
from areca.laws.kaplan import DATA_CURVES, KaplanLaw, breakdown, derived, fitted, guard_tokens
from areca.laws.law import Fitted, Law, as_law, identity
from areca.laws.repeated import FittedDataConstrained
from areca.model.config import ModelConfig
from areca.plan import batch as batches
from areca.plan import choice as choices
from areca.plan.batch import CriticalBatch
from areca.plan.candidates import Batch, Candidate, Terms, flat_range, neighbours
from areca.plan.choice import Choice
from areca.plan.ranges import assumed_size, outside, repeats


@dataclass(frozen=True)
class Plan:
    """The run to buy. Losses are nats per token."""

    budget_flops: float
    best: Candidate
    predicted_loss: float
    interval: list[float] | None  # of the loss one such run will have; None: the law has none
    level: float
    half_width_relative: float | None
    neighbours: dict[str, Candidate]  # "half" and "double" the size at the same compute, where they fit
    flat_range: list[int]  # smallest and largest N, without embeddings, within 0.1% of the least predicted loss
    baseline: dict[str, Any] | None  # the best observed run's loss, carried over
    extrapolation: dict[str, float]  # N, D, C over the largest (or under the smallest) measured, counted as the law's
    warnings: list[str]
    context: int
    batch: int  # sequences a step, at the end
    cost: dict[str, Any] | None = None  # hours, energy_kwh, carbon_kg, usd; estimates
    law: dict[str, Any] = field(default_factory=dict)  # `identity`: which law it is of
    budget_words: str = ""
    ramp: list[list[int]] = field(default_factory=list)  # [[from token, sequences], ...] where the batch grows
    choice: dict[str, Any] | None = None  # why `best` is not the run of least loss, and what that costs
    unique_tokens: float | None = None
    recipe: dict[str, Any] | None = None  # Kaplan's, fitted and derived
    learning_rate: dict[str, Any] | None = None  # value, source
    mesh: list[int] | None = None  # data, model
    memory: dict[str, Any] | None = None  # what a dry run says

    def model(self) -> ModelConfig:
        """The decoder to train."""
        return self.best.model()

    def to_dict(self) -> dict[str, Any]:
        """plan.json."""
        return {
            "equation": "exact training FLOPs = D x (6 N_matmul + 12 L H K T); N without embeddings",
            **asdict(self),
        }


def plan_run(
    law: Law | LawReport,
    budget_flops: float | None,
    shapes: Sequence[ModelConfig],
    *,
    context: int,
    batch: Batch = 1,
    level: float = 0.90,
    choice: Choice | None = None,
    unique_tokens: float | None = None,
    critical: CriticalBatch | None = None,
    data: int = 1,
    given: str = "",
) -> Plan:
    """Chooses among `shapes` the one of least predicted loss when all of `budget_flops` (exact) is spent on it.

    `context` is T in tokens and `batch` the sequences of a step, or a rule that gives them for a shape; D is rounded
    down to whole steps. With `critical` the batch grows along training instead, in multiples of `data`. `choice` takes
    another run than that of least loss; with its `target_loss` there may be no budget. Of `unique_tokens` a longer
    run reads some again. `given` is how the user named the law, such as its file. ConfigError when the budget does not
    pay for one step of the smallest shape.
    """
    law, choice = as_law(law), choice or Choice()
    choice.check(law)
    _check(law, budget_flops, context, unique_tokens, choice)
    sizes = [data if critical else batch(s) if callable(batch) else batch for s in shapes]
    check_at_least_one("batch", min(sizes, default=1))
    terms = Terms(law, context, unique_tokens)
    if choice.target_loss is not None and shapes:
        check_target(choice.target_loss, shapes[0].vocab_size)
    if budget_flops is None:
        runs = choices.at_loss(terms, shapes, sizes, choice.target_loss or 0.0)
        budget_flops = float(min(c.flops_exact for c in runs)) * (1 + 1e-9)
    made = [terms.spending(s, budget_flops, b) for s, b in zip(shapes, sizes, strict=True)]
    candidates = [c for c in made if c is not None]
    if not candidates:
        raise ConfigError(
            f"{budget_flops:.3g} FLOPs do not pay for one step of {min(sizes, default=1)} x {context} tokens; "
            "raise the budget."
        )
    optimum = min(candidates, key=lambda c: c.predicted_loss)
    best, described, around = _choose(terms, choice, shapes, sizes, candidates, optimum)
    _refuse_guessing(best, unique_tokens)
    warnings: list[str] = []
    near, rows = neighbours(law, around, best), []
    if critical:
        rows = batches.ramp(law, critical, best, context, data, unique_tokens)
        best = _along(terms, rows, best)
        near = {k: _along(terms, batches.ramp(law, critical, c, context, data, unique_tokens), c)
                for k, c in near.items()}  # fmt: skip
        warnings += batches.about(critical, law, best, rows, context)
    spent = max(budget_flops, float(best.flops_exact))
    n = float(best.counted(law))
    bounds = law.interval(n, float(best.n_tokens), level, flops=spent, unique_tokens=unique_tokens)
    extrapolation, beyond = outside(law, best, law.flops_of(n, float(best.n_tokens), spent), context)
    warnings = beyond + warnings + _notes(law, best, candidates, optimum, unique_tokens, context)
    return Plan(
        budget_flops=float(budget_flops),
        best=best,
        predicted_loss=best.predicted_loss,
        interval=list(bounds) if bounds else None,
        level=level,
        half_width_relative=(bounds[1] - bounds[0]) / 2 / best.predicted_loss if bounds else None,
        neighbours=near,
        flat_range=flat_range(candidates),
        baseline=_baseline(law),
        extrapolation=extrapolation,
        warnings=warnings,
        context=context,
        batch=rows[-1][1] if rows else best.n_tokens // best.steps // context,
        law=identity(law, given),
        ramp=rows,
        choice=described,
        unique_tokens=unique_tokens,
        recipe=recipe_of(best, spent) if isinstance(law, KaplanLaw) else None,
    )  # fmt: skip


def _check(law: Law, flops: float | None, context: int, unique: float | None, choice: Choice) -> None:
    if flops is None and choice.target_loss is None:
        raise ConfigError("there is no budget; give --flops, or --inference-tokens with --target-loss.")
    check_positive("the budget in FLOPs", flops, "2e13")
    check_at_least_one("context", context)
    check_positive("--unique-tokens", unique, "1e9")
    if isinstance(law, Fitted) and len(law.report.observations) == 0:
        raise DataError("the law holds no observations, so its range is unknown; fit it again.")


def _refuse_guessing(best: Candidate, unique: float | None) -> None:
    few = f" of {unique:.3g} different tokens" if unique is not None and unique < best.n_tokens else ""
    run = f"the run of {best.n_params:,} parameters on {best.n_tokens:,} tokens{few}"
    instead = "give more different tokens" if few else "raise the budget"
    refuse_guessing(best.predicted_loss, best.model().vocab_size, run, instead)


def refuse_guessing(loss: float, vocab_size: int, run: str, instead: str) -> None:
    """ConfigError where the law's loss of `run` is above that of guessing evenly: it says nothing of such a run."""
    guessing = math.log(vocab_size)
    if not loss <= guessing:
        raise ConfigError(
            f"the law gives {run} a loss of {loss:.3g}, above ln V = {guessing:.3g} that guessing has: it does not "
            f"reach down there, so {instead} or take a law measured near it."
        )


def check_target(loss: float, vocab_size: int) -> None:
    """ConfigError for a target loss that guessing evenly among the vocabulary reaches without training."""
    guessing = math.log(vocab_size)
    if loss >= guessing:
        raise ConfigError(
            f"--target-loss is {loss:g}, and guessing evenly among {vocab_size:,} tokens already gives ln V = "
            f"{guessing:.3g}; give a loss below it."
        )


def _choose(
    terms: Terms,
    choice: Choice,
    shapes: Sequence[ModelConfig],
    sizes: Sequence[int],
    candidates: list[Candidate],
    optimum: Candidate,
) -> tuple[Candidate, dict[str, Any] | None, list[Candidate]]:
    """(the run, why it, the runs it was chosen from)."""
    if choice.over_train is not None:
        return *choices.over_train(candidates, optimum, choice.over_train), candidates
    if choice.stop_above_convergence is not None:
        return *choices.stop_above(candidates, optimum, choice.stop_above_convergence), candidates
    if choice.inference_tokens is not None:
        loss = choice.target_loss or optimum.predicted_loss
        runs = choices.at_loss(terms, shapes, sizes, loss)
        return *choices.cheapest_to_serve(runs, choice.inference_tokens, terms.context, loss), runs
    return optimum, None, candidates


def _along(terms: Terms, rows: list[list[int]], run: Candidate) -> Candidate:
    found = batches.along(terms, rows, run)
    if found is None:
        raise ConfigError(
            f"{run.n_tokens:,} tokens are less than one batch of {rows[0][1]} x {terms.context}, the first that the "
            "critical batch asks for; give --batch."
        )
    return found


def _notes(
    law: Law, best: Candidate, candidates: list[Candidate], optimum: Candidate, unique: float | None, context: int
) -> list[str]:
    notes = []
    if isinstance(law, Fitted):
        notes += law.report.warnings
        notes += [note for note in law.report.notes if note.startswith(FAILED_CHECK)]
    if isinstance(law, FittedDataConstrained):
        notes += law.warnings
    notes += assumed_size(law)
    if len(candidates) > 2 and optimum in (candidates[0], candidates[-1]):
        edge = "smallest" if optimum is candidates[0] else "largest"
        notes.append(f"the best shape is the {edge} of those considered; widen the family.")
    if unique is not None:
        notes += repeats(law, best.n_tokens, unique)
    if isinstance(law, KaplanLaw):
        if context > 12 * best.shape["d_model"]:
            notes.append(
                f"a context of {context} is over 12 D = {12 * best.shape['d_model']}, where 6 N D misses much of the "
                "attention's FLOPs (section 2.1); the recipe counts by it, the plan by exact FLOPs."
            )
        wanted, has = float(guard_tokens(best.n_params)), min(float(best.n_tokens), unique or float("inf"))
        if has < wanted:
            notes.append(
                f"{has:.3g} different tokens are fewer than 5e3 N^0.74 = {wanted:.3g}, so the model overfits them by "
                "more than seeds scatter (equation 4.4)."
            )
    return notes


def recipe_of(best: Candidate, flops: float) -> dict[str, Any]:
    """Kaplan's recipe for the budget at the critical batch, where C_min is half of it; 6 N D, as the paper counts."""
    pf_days = flops * best.flops_6nd / best.flops_exact / PF_DAY
    return {
        "pf_days": pf_days,
        "fitted": asdict(fitted(pf_days / 2)),
        "derived": asdict(derived(pf_days / 2)),
        "breakdown": [asdict(breakdown(curve)) for curve in DATA_CURVES],
    }


def _baseline(law: Law) -> dict[str, Any] | None:
    if not isinstance(law, Fitted):
        return None
    o = law.report.observations
    i = int(o.loss.argmin())
    return {
        "loss": float(o.loss[i]),
        "label": o.name(i),
        "flops": float(o.flops[i]),
        "rule": "the best observed loss, carried over",
    }


__all__ = ["Candidate", "Plan", "check_target", "plan_run", "recipe_of", "refuse_guessing"]
