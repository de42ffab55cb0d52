"""What to buy: for a budget in exact FLOPs the decoder and the tokens of least predicted loss, with an interval.

Composes a fitted law with the model's own counts: N, D and C of every candidate are those that training will have, not
6 N D. The answer carries its neighbours at the same compute (half and double the size), so that the flatness of the
valley is seen, and says by how much it leaves the range the law was fitted on.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from areca.errors import ConfigError, DataError
from areca.laws import FAILED_CHECK, LawReport
from areca.model.config import ModelConfig
from areca.model.counts import count_params, exact_flops_per_token

FLAT = 1e-3  # candidates within 0.1% of the least predicted loss belong to the valley's floor


@dataclass(frozen=True)
class Candidate:
    """One run of the budget: a decoder, whole batches of tokens, and its predicted loss in nats per token."""

    shape: dict[str, Any]  # the ModelConfig's fields
    n_params: int  # without embeddings
    n_params_total: int
    n_tokens: int
    steps: int
    flops_exact: int
    flops_6nd: int
    tokens_per_param: float
    predicted_loss: float


@dataclass(frozen=True)
class Plan:
    """The run to buy. Losses are nats per token."""

    budget_flops: float
    best: Candidate
    predicted_loss: float
    interval: list[float]  # of the loss one such run will have
    level: float
    half_width_relative: float
    neighbours: dict[str, Candidate]  # "half" and "double" the size at the same compute, where they fit
    flat_range: list[int]  # smallest and largest N within 0.1% of the least predicted loss
    baseline: dict[str, Any] | None  # the best observed run's loss, carried over
    extrapolation: dict[str, float]  # N, D, C over the largest (or under the smallest) fitted; 1 inside
    warnings: list[str]
    context: int
    batch: int
    cost: dict[str, Any] | None = None  # seconds, energy_kwh, carbon_kg at an observed run's speed; estimates

    def model(self) -> ModelConfig:
        """The decoder to train."""
        return ModelConfig(**self.best.shape)

    def to_dict(self) -> dict[str, Any]:
        """plan.json."""
        return {
            "equation": "exact training FLOPs = D x (6 N_matmul + 12 L H K T); N without embeddings",
            **asdict(self),
        }


def plan_run(
    law: LawReport,
    budget_flops: float,
    shapes: Sequence[ModelConfig],
    *,
    context: int,
    batch: int | Callable[[ModelConfig], int] = 1,
    level: float = 0.90,
) -> Plan:
    """Chooses among `shapes` the one of least predicted loss when all of `budget_flops` (exact) is spent on it.

    `context` is T in tokens and `batch` the sequences of a step, or a rule that gives them for a shape; D is rounded
    down to whole steps. ConfigError when
    the budget does not pay for one step of the smallest shape.
    """
    if not 0 < budget_flops < 1e40:
        raise ConfigError(f"the budget is {budget_flops} FLOPs; it must be a positive number, such as 2e13.")
    batches = [batch(shape) if callable(batch) else batch for shape in shapes]
    if context < 1 or min(batches, default=1) < 1:
        raise ConfigError(f"context is {context} and batch {min(batches, default=1)}; both must be at least 1.")
    made = [_candidate(law, s, budget_flops, context, b) for s, b in zip(shapes, batches, strict=True)]
    candidates = [c for c in made if c is not None]
    if not candidates:
        raise ConfigError(
            f"{budget_flops:.3g} FLOPs do not pay for one step of {min(batches, default=1)} x {context} tokens; "
            "raise --flops."
        )
    best = min(candidates, key=lambda c: c.predicted_loss)
    low, high = law.predict_interval(float(best.n_params), float(best.n_tokens), level, flops=budget_flops)
    flat = [c.n_params for c in candidates if c.predicted_loss <= best.predicted_loss * (1 + FLAT)]
    extrapolation, warnings = _range(law, best, budget_flops)
    warnings += [note for note in law.notes if note.startswith(FAILED_CHECK)]
    if len(candidates) > 2 and best in (candidates[0], candidates[-1]):
        edge = "smallest" if best is candidates[0] else "largest"
        warnings.append(f"the best shape is the {edge} of those considered; widen the family.")
    return Plan(
        budget_flops=float(budget_flops),
        best=best,
        predicted_loss=best.predicted_loss,
        interval=[low, high],
        level=level,
        half_width_relative=(high - low) / 2 / best.predicted_loss,
        neighbours=_neighbours(candidates, best),
        flat_range=[min(flat), max(flat)],
        baseline=_baseline(law),
        extrapolation=extrapolation,
        warnings=warnings,
        context=context,
        batch=best.n_tokens // best.steps // context,
    )


def _candidate(law: LawReport, shape: ModelConfig, budget: float, context: int, batch: int) -> Candidate | None:
    per_token, counts = exact_flops_per_token(shape, context), count_params(shape)
    step_tokens = batch * context
    steps = int(budget // (per_token * step_tokens))
    if steps < 1:
        return None
    tokens = steps * step_tokens
    return Candidate(
        shape=asdict(shape.resolved()),
        n_params=counts.non_embedding,
        n_params_total=counts.total,
        n_tokens=tokens,
        steps=steps,
        flops_exact=per_token * tokens,
        flops_6nd=6 * counts.non_embedding * tokens,
        tokens_per_param=tokens / counts.non_embedding,
        predicted_loss=float(law.predict(float(counts.non_embedding), float(tokens))),
    )


def _neighbours(candidates: list[Candidate], best: Candidate) -> dict[str, Candidate]:
    """The candidates nearest to half and to double the best size, where one lies within a fifth of it."""
    found = {}
    for name, factor in (("half", 0.5), ("double", 2.0)):
        wanted = best.n_params * factor
        near = min(candidates, key=lambda c: abs(c.n_params - wanted))
        if near is not best and abs(near.n_params / wanted - 1) <= 0.25:
            found[name] = near
    return found


def _baseline(law: LawReport) -> dict[str, Any] | None:
    o = law.observations
    if len(o) == 0:
        return None
    i = int(o.loss.argmin())
    return {
        "loss": float(o.loss[i]),
        "label": o.name(i),
        "flops": float(o.flops[i]),
        "rule": "the best observed loss, carried over",
    }


def _range(law: LawReport, best: Candidate, budget: float) -> tuple[dict[str, float], list[str]]:
    """How far N, D and C leave the rows fitted, as a factor, and a warning for each of N and D that does."""
    o = law.observations
    if len(o) == 0:
        raise DataError("the law holds no observations, so its range is unknown; fit it again.")
    factors, warnings = {}, []
    for name, value, values, words in (
        ("n_params", best.n_params, o.n_params, "N"),
        ("n_tokens", best.n_tokens, o.n_tokens, "D"),
        ("flops", budget, o.flops, "the budget"),
    ):
        low, high = float(values.min()), float(values.max())
        factor = value / high if value > high else value / low if value < low else 1.0
        factors[name] = factor
        if factor != 1.0 and name != "flops":
            side = f"{factor:.3g} times the largest" if factor > 1 else f"{1 / factor:.3g} times below the smallest"
            warnings.append(f"{words} = {value:.3g} is {side} the law was fitted on ({low:.3g} to {high:.3g}).")
    if factors["flops"] > 100:
        warnings.append(
            f"the budget is {factors['flops']:.3g} times the largest fitted; the interval trusts the law's form."
        )
    return factors, warnings
