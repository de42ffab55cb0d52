"""`make_plan`: from what a user says on a command line to a Plan: a law's name or file, a budget, what to choose."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from areca.config import BatchConfig
from areca.errors import ConfigError, check_at_least_one
from areca.files import read_json
from areca.laws.law import Fitted, Law
from areca.laws.published import LAWS, published
from areca.laws.repeated import read_repeated
from areca.model.config import ModelConfig
from areca.plan.batch import PUBLISHED, CriticalBatch, parse_critical_batch
from areca.plan.budget import Machine, Purchase, budget_of, machine_of
from areca.plan.choice import Choice
from areca.plan.cost import cost_on
from areca.plan.plan import Plan, plan_run
from areca.plan.runconfig import learning_rate_of
from areca.plan.shapes import parse_mesh
from areca.plan.template import (
    Rule,
    Template,
    cost_at,
    find_template,
    names_published,
    read_law,
    shapes_for,
    unmarked,
)


@dataclass(frozen=True)
class Request:
    """What a plan is asked for. What is left None or empty is as in the runs behind the law."""

    law: str | Path
    purchase: Purchase
    vocab_size: int | None = None
    context: int | None = None
    batch: int | None = None  # sequences a step
    b_crit: str = ""  # kaplan, or "B*,alpha": the batch grows by the critical batch
    mesh: str = ""  # DATAxMODEL
    level: float = 0.90
    choice: Choice = field(default_factory=Choice)
    unique_tokens: float | None = None

    def check(self) -> None:
        """ConfigError for the first setting that can't be."""
        for name in ("vocab_size", "context", "batch"):
            check_at_least_one(f"--{name.replace('_', '-')}", getattr(self, name))
        if not 0 < self.level < 1:
            raise ConfigError(f"--level is {self.level}; it is a probability, such as 0.9.")
        if self.batch and self.b_crit:
            raise ConfigError("--batch fixes the batch and --b-crit lets it grow; give one of them.")
        self.purchase.check(or_none=self.choice.target_loss is not None)


@dataclass(frozen=True)
class _Source:
    """A law and the runs behind it."""

    law: Law
    template: Template | None
    taken: list[str]  # of the runs, where the law is fitted here


def make_plan(request: Request, rule: Rule | None = None) -> tuple[Plan, Template | None]:
    """`plan_run` from a request; `rule` is how runs of ours choose rate and batch, where the runs follow it."""
    request.check()
    mesh = parse_mesh(request.mesh) if request.mesh else (1, 1)
    source = _source(request.law)
    request.choice.check(source.law)
    template, runs = source.template, source.template and source.template.config
    vocab_size = request.vocab_size or (runs and runs.model.vocab_size)
    context = request.context or (runs and runs.data.context)
    if vocab_size is None or context is None:
        behind = f"the runs behind {request.law} are not at hand"
        if source.law.name in LAWS:
            behind = f"{source.law.name} is a published law"
        raise ConfigError(f"{behind}, so the plan needs --vocab-size and --context to count FLOPs.")
    devices = mesh[0] * mesh[1] if request.mesh else 0
    machine = machine_of(request.purchase, template and template.observed, devices)
    budget = budget_of(request.purchase, machine)
    sequences, critical, note = _batch(request, source, context, budget and budget.flops, rule, mesh[0])
    plan = plan_run(
        source.law,
        budget and budget.flops,
        shapes_for(template, vocab_size, mesh),
        context=context,
        batch=sequences,
        level=request.level,
        choice=request.choice,
        unique_tokens=request.unique_tokens,
        critical=critical,
        data=mesh[0],
        given=str(request.law),
    )
    plan.warnings.extend([*source.taken, *note])
    if runs and context != runs.data.context:
        plan.warnings.append(
            f"the runs behind the law had a context of {runs.data.context}, and the plan has {context}."
        )
    return replace(
        plan,
        budget_words=budget.words if budget else f"the cheapest run of a loss of {request.choice.target_loss:g}",
        cost=_cost(machine, request.purchase, template, plan.best.flops_exact),
        learning_rate=learning_rate_of(template, rule, plan.best.steps),
        mesh=list(mesh) if request.mesh else None,
    ), template


def _source(law: str | Path) -> _Source:
    """The law of a name, of a law.json, or fitted to runs."""
    path = Path(law)
    if names_published(law):
        return _Source(published(str(law)), None, [])
    if path.is_file() and path.suffix == ".json" and (repeated := read_repeated(values := read_json(path), path)):
        runs = find_template(s for s in (path.parent / name for name in values.get("sources", [])) if s.exists())
        return _Source(repeated, runs, unmarked(values, path))
    report, template, taken = read_law(path)
    if (path / "quickstart.json").exists() and (path / "law.json").exists():
        taken.append(f"the quickstart's own law, an average over couplings, is {path / 'law.json'}.")
    return _Source(Fitted(report), template, taken)


def _batch(
    request: Request, source: _Source, context: int, flops: float | None, rule: Rule | None, data: int
) -> tuple[int | Callable[[ModelConfig], int], CriticalBatch | None, list[str]]:
    """(sequences or a rule for them, the critical batch to follow instead, what to say of it).

    What is given comes first, then the runs' own rule or batch, then for a published law Kaplan's critical batch.
    """

    def shared(sequences: int) -> int:
        return -(-sequences // data) * data

    template = source.template
    if request.batch:
        if request.batch % data:
            raise ConfigError(
                f"--batch is {request.batch} sequences, which the mesh's data axis of {data} does not divide; choose a "
                "multiple of it."
            )
        return request.batch, None, []
    if request.b_crit:
        return data, parse_critical_batch(request.b_crit), []
    if template and rule is not None and template.made_by(rule) and flops is not None:
        return lambda shape: shared(rule.batch_sequences(shape, flops, context)), None, []
    if template:
        return shared(template.config.batch.ramp[-1][1]), None, []
    if source.law.name in LAWS:
        return data, PUBLISHED, []
    default = shared(BatchConfig().ramp[0][1])
    return (
        default,
        None,
        [f"no batch is known, so it is Areca's default of {default} sequences; give --batch or --b-crit."],
    )


def _cost(machine: Machine | None, purchase: Purchase, template: Template | None, flops: float) -> dict | None:
    return cost_on(machine, purchase, flops) if machine else cost_at(template, flops)


__all__ = ["Request", "make_plan"]
