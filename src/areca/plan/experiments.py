"""The next runs of a ladder: a menu of what an allowance affords, the choice among it, and the plain next rung beside.

The menu stays where the law has been tested: budgets from the ladder's smallest up to the target's, and tokens per
parameter within those the ladder has. `areca.laws.design` chooses.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from areca.config import RunConfig
from areca.errors import ConfigError, FitError, check_positive
from areca.laws.design import Doubt, Menu, check_allowance, propose
from areca.laws.law import Fitted, identity
from areca.model.config import ModelConfig
from areca.model.counts import count_params, exact_flops_per_token
from areca.plan.at_hand import AtHand, Family
from areca.plan.candidates import counted
from areca.plan.plan import plan_run, refuse_guessing
from areca.plan.ranges import assumed_size
from areca.plan.runconfig import run_config

LEVELS = 12  # budgets of the menu
SIZES = 15  # of each
RATIO = 3.0  # of the next rung's budget, where the ladder has one budget only
DEFINITION = "narrowing per FLOP = (relative half-width before - after) / exact FLOPs of the runs added"


@dataclass(frozen=True)
class Run:
    """A run to add."""

    shape: dict[str, Any]
    n_params: int  # without embeddings
    n_params_total: int
    n_tokens: int
    steps: int
    batch: int
    flops_exact: int
    predicted_loss: float

    @property
    def name(self) -> str:
        return f"{self.flops_exact:.2e}-n{self.n_params}".replace("+", "")


@dataclass(frozen=True)
class Added:
    """Runs to add and the interval at the target that is expected after them."""

    runs: list[Run]
    flops: float
    half_width_relative: float
    narrowing_per_flop: float


@dataclass(frozen=True)
class Design:
    """What to run next, for the prediction of one larger run. The interval is the law's own (`LawReport.predictor`)."""

    n_params: float  # the target's N without embeddings, N of all parameters, D and exact FLOPs; the N that the law
    n_params_total: float  # does not count, and FLOPs, are by the shape nearest in size where N and D were given
    n_tokens: float
    flops: float
    predicted_loss: float
    interval: list[float]
    level: float
    half_width_relative: float
    noise_half_width: float  # what remains when nothing but one run's noise is unknown
    allowance: float
    proposed: Added
    next_rung: Added | None  # the next budget, the usual sizes
    at_the_rungs_cost: Added | None  # what would be proposed for the rung's FLOPs and as many runs
    context: int
    warnings: list[str]
    law: dict[str, Any] = field(default_factory=dict)  # `areca.laws.law.identity`: which law it is of

    def to_dict(self) -> dict[str, Any]:
        return {"definition": DEFINITION, **asdict(self)}


def design_runs(
    have: AtHand,
    *,
    allowance: float,
    target_flops: float | None = None,
    target: tuple[float, float] | None = None,
    runs: int = 6,
    level: float = 0.90,
    rule: Family | None = None,
) -> Design:
    """At most `runs` runs of `allowance` exact FLOPs together, that narrow the interval at a target the most.

    The target is the run that `plan_run` buys for `target_flops`, or (N as the law counts it, D). ConfigError for a
    target that is none, an allowance that pays for no run; FitError where there is no doubt to narrow.
    """
    law = have.law
    check_allowance(allowance, runs)
    if (target is None) == (target_flops is None):
        raise ConfigError("the target is one of --target-flops, or --target-params with --target-tokens.")
    check_positive("--target-flops", target_flops, "1e15")
    for name, value, example in zip(("params", "tokens"), target or (), ("1e9", "2e10"), strict=False):
        check_positive(f"--target-{name}", value, example, most=1e30)
    if target is None:
        # One step's batch hardly moves N and D, and a rule for it needs the shape first.
        best = plan_run(law, target_flops, have.shapes(), context=have.context).best
        target, target_flops = (float(best.counted(law)), float(best.n_tokens)), float(best.flops_exact)
        sizes = float(best.n_params), float(best.n_params_total)
    shapes = have.rungs(rule)
    if target_flops is None:
        near = _nearest(have, shapes, target[0])
        target_flops = exact_flops_per_token(near, have.context) * target[1]
        counts, scale = count_params(near), target[0] / counted(law, near)
        sizes = counts.non_embedding * scale, counts.total * scale
    low, high = law.predictor.interval(*target, level)
    loss = float(law.predict(*target))
    run = f"the target of {target[0]:.3g} parameters on {target[1]:.3g} tokens"
    refuse_guessing(loss, have.vocab_size, run, "give a larger target")
    half = (high - low) / 2 / loss

    def added(menu: list[Run], allowed: float | None, most: int) -> tuple[Added, Doubt]:
        points = _menu(have, menu)
        doubt = Doubt.of(law, points, *target)
        chosen = range(len(menu)) if allowed is None else propose(doubt, points, allowance=allowed, runs=most)
        taken = [menu[i] for i in chosen]
        flops, after = float(sum(r.flops_exact for r in taken)), half * doubt.narrowing(list(chosen))
        return Added(taken, flops, after, (half - after) / flops), doubt

    proposed, doubt = added(menu_of(have, shapes, min(allowance, target_flops)), allowance, runs)
    rung = next_rung(have, shapes)
    beside = added(rung, None, 0)[0] if rung else None
    equal = None
    if beside:
        menu = menu_of(have, shapes, min(beside.flops, target_flops))
        equal = added(menu, beside.flops, len(beside.runs))[0]
    warnings = [*have.notes, *assumed_size(Fitted(law))]
    if rung is None:
        warnings.append("no budget is shared by at least 4 sizes, so there is no next rung to compare with.")
    if allowance >= target_flops:
        warnings.append(f"the allowance pays for the target itself, which costs {target_flops:.3g} FLOPs.")
    most, largest = max(_rows_flops(have, r) for r in proposed.runs), float(law.observations.flops.max())
    if most > largest:
        warnings.append(f"the largest run proposed is {most / largest:.3g} times the largest the law was fitted on.")
    return Design(
        n_params=sizes[0], n_params_total=sizes[1], n_tokens=target[1], flops=float(target_flops),
        predicted_loss=loss, interval=[low, high], level=level, half_width_relative=half,
        noise_half_width=half * float(np.sqrt(doubt.noise / (doubt.of_target + doubt.noise))),
        allowance=float(allowance), proposed=proposed, next_rung=beside, at_the_rungs_cost=equal,
        context=have.context, warnings=warnings, law=identity(law, have.given),
    )  # fmt: skip


def menu_of(have: AtHand, shapes: Sequence[ModelConfig], largest: float) -> list[Run]:
    """Runs of the family at `LEVELS` budgets, with tokens per parameter as the ladder has them.

    A shape's budgets go from the ladder's smallest, as its rows count C, to `largest` exact FLOPs.
    """
    o = have.law.observations
    if not len(o):
        raise FitError("the law holds no observations, so it is unknown which runs it was fitted on; fit it again.")
    ratio = o.n_tokens / o.n_params
    smallest = np.array([_exact(have, shape, float(o.flops.min())) for shape in shapes])
    found: dict[tuple[int, int], Run] = {}
    for budgets in np.geomspace(smallest, np.maximum(largest, smallest), LEVELS):
        made = [_run(have, shape, float(budget)) for shape, budget in zip(shapes, budgets, strict=True)]
        inside = [r for r in made if ratio.min() <= r.n_tokens / _counted(have, r) <= ratio.max() and r.n_tokens]
        if not inside:
            continue
        # Sizes evenly over those of the budget; a family may have many more than tell apart.
        places = np.unique(np.linspace(0, len(inside) - 1, SIZES).round().astype(int))
        found |= {(inside[i].n_params, inside[i].n_tokens): inside[i] for i in places}
    return list(found.values())


def next_rung(have: AtHand, shapes: Sequence[ModelConfig]) -> list[Run] | None:
    """What a plain ladder does next: its budgets' step once more, the last budget's sizes moved by the frontier.

    Sizes and the budget are counted as the ladder's rows count them.
    """
    budgets = have.law.observations.budgets()
    if not budgets:
        return None
    last, rows = budgets[-1]
    budget = last * (last / budgets[-2][0] if len(budgets) > 1 else RATIO)
    numbers = np.array([counted(have.law, s) for s in shapes], dtype=float)
    moved = float(have.law.parametric.frontier(budget)[0] / have.law.parametric.frontier(last)[0])
    sizes = np.unique(have.law.observations.n_params[rows]) * moved
    near = sorted({int(np.abs(np.log(numbers / size)).argmin()) for size in sizes})
    chosen = [shapes[i] for i in near]
    return [_run(have, shape, _exact(have, shape, budget)) for shape in chosen]


def run_configs(
    design: Design, have: AtHand, store: str, rule: Family | None = None
) -> tuple[dict[str, RunConfig], list[str]]:
    """The proposed runs as configurations by name, made as the ladder's own, each with a seed of its own.

    Where the runs are not at hand they are made as `run_config` makes a plan's, which the notes say.
    """
    template = have.template
    seed = order = 0
    if template is not None:
        seed, order = (1 + max(v) for v in zip(*((c.seed, c.data.seed) for c in template.configs), strict=True))
    configs, notes = {}, []
    for i, run in enumerate(design.proposed.runs):
        plan = plan_run(have.law, run.flops_exact, [ModelConfig(**run.shape)], context=have.context, batch=run.batch)
        config, notes = run_config(plan, template, store, rule)
        config = replace(config, seed=seed + i, data=replace(config.data, seed=order + i))
        if template is not None:  # a rung's, not those of a run of its own
            config = replace(config, guard=template.config.guard, checkpoint=template.config.checkpoint)
        configs[run.name] = config
    if template is None:
        return configs, notes
    rate = ", the learning rate by the ladder's own rule" if template.made_by(rule) else ""
    return configs, [f"all but size, tokens and seeds is as in {template.name}, warm-up at the same share{rate}."]


def _run(have: AtHand, shape: ModelConfig, budget: float) -> Run:
    """The run of whole steps within a budget of exact FLOPs; of no tokens where it does not pay for one."""
    per_token, counts = exact_flops_per_token(shape, have.context), count_params(shape)
    batch = have.batch(shape, budget)
    step = batch * have.context
    steps = int(budget // (per_token * step))
    loss = float(have.law.predict(float(counted(have.law, shape)), steps * step)) if steps else float("inf")
    tokens = steps * step
    resolved = asdict(shape.resolved())
    return Run(resolved, counts.non_embedding, counts.total, tokens, steps, batch, per_token * tokens, loss)


def _counted(have: AtHand, run: Run) -> int:
    """N of a run as the law counts it."""
    return run.n_params_total if have.law.n_counts == "total" else run.n_params


def _menu(have: AtHand, runs: list[Run]) -> Menu:
    n = [_counted(have, r) for r in runs]
    return Menu(*(np.array(v, float) for v in (n, [r.n_tokens for r in runs], [r.flops_exact for r in runs])))


def _rows_flops(have: AtHand, run: Run) -> float:
    """C of a run as the law's rows count it."""
    return have.law.observations.flops_of(_counted(have, run), run.n_tokens, float(run.flops_exact))


def _exact(have: AtHand, shape: ModelConfig, budget: float) -> float:
    """Exact FLOPs of a shape's run whose C is `budget` as the law's rows count it: both are in proportion to D."""
    o, per_token = have.law.observations, float(exact_flops_per_token(shape, have.context))
    if o.flops_counts == "exact":
        return budget
    return budget * per_token / o.flops_of(counted(have.law, shape), 1.0, per_token)


def _nearest(have: AtHand, shapes: Sequence[ModelConfig], n_params: float) -> ModelConfig:
    """The shape nearest in N, as the law counts it."""
    return min(shapes, key=lambda s: abs(np.log(counted(have.law, s) / n_params)))
