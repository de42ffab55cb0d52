"""From a plan to a run that `areca train` takes: what a law does not decide comes from a run it was fitted on.

The template is the observed run of lowest loss: its optimizer, schedule, batch, order and threads. Warm-up and hold
keep their share of the run's tokens, as in a ladder whose every run ends its own decay. Where all runs follow a rule
that gives rate and batch for a run's length, the planned run follows it too.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from areca.config import BatchConfig, CheckpointConfig, DataConfig, GuardConfig, RunConfig, from_dict
from areca.errors import ConfigError, DataError
from areca.files import read_json
from areca.footprint import GridIntensity, tagged
from areca.laws import LawReport, fit_laws, load
from areca.laws.sweeps import best_rates
from areca.laws.tables import run_directories
from areca.model.config import ModelConfig
from areca.plan.plan import Plan, plan_run
from areca.plan.shapes import family, interpolate

DEFAULT_WARMUP = 0.02  # of the tokens, where no run says otherwise


class Rule(Protocol):
    """How rate and batch depend on a run, such as `areca.study.recipe`."""

    def follows(self, config: RunConfig) -> bool:
        """Whether a run was made by this rule."""
        ...

    def learning_rate(self, steps: int) -> float: ...
    def batch_sequences(self, model: ModelConfig, flops: float, context: int) -> int: ...


@dataclass(frozen=True)
class Template:
    """What the runs behind a law were."""

    config: RunConfig  # of the run of lowest loss
    result: dict[str, Any]  # its result.json
    name: str
    configs: list[RunConfig]  # of all the runs

    @property
    def shapes(self) -> list[ModelConfig]:
        return [c.model for c in self.configs]

    def made_by(self, rule: Rule | None) -> bool:
        return rule is not None and all(rule.follows(c) for c in self.configs)


def find_template(sources: Iterable[Path | str]) -> Template | None:
    """The template among run directories, ladders and directories of runs; None where there is no run (tables only)."""
    found = []
    for source in map(Path, sources):
        if not source.is_dir():
            continue
        for path, _ in best_rates(run_directories(source)[0])[0]:
            if not (path / "run.json").exists():
                continue
            try:
                config = from_dict(read_json(path / "run.json")["config"], where=f"{path / 'run.json'}: config")
                found.append((float(read_json(path / "result.json")["loss"]), path, config))
            except (KeyError, TypeError, ValueError):
                raise DataError(
                    f"{path} does not hold a run of Areca's (run.json, result.json); leave it out."
                ) from None
    if not found:
        return None
    _, path, config = min(found, key=lambda item: item[0])
    return Template(config, read_json(path / "result.json"), path.name, [c for _, _, c in found])


def run_config(
    plan: Plan, template: Template | None, store: str, rule: Rule | None = None
) -> tuple[RunConfig, list[str]]:
    """The configuration of the planned run on a token store, and in sentences where its settings are from."""
    if not store:
        raise ConfigError("a run configuration needs the token store to train on; name it with --store.")
    data = DataConfig(store=store, context=plan.context)
    if template is None:
        base = RunConfig(model=plan.model(), data=data, tokens=plan.best.n_tokens)
        warmup, hold = round(DEFAULT_WARMUP * plan.best.n_tokens), 0
        notes = ["the law came from a table, so optimizer and schedule are Areca's defaults, not tuned for these runs."]
    else:
        base = template.config
        share = plan.best.n_tokens / base.tokens
        warmup, hold = round(base.schedule.warmup_tokens * share), round(base.schedule.hold_tokens * share)
        data = replace(base.data, store=store, context=plan.context)
        notes = [
            f"optimizer, schedule, order and threads ({base.threads}) are those of {template.name}, warm-up at the "
            "same share of the tokens; guard and saves are the defaults."
        ]
    optimizer = base.optimizer
    if template is not None and rule is not None and template.made_by(rule):
        optimizer = replace(optimizer, learning_rate=rule.learning_rate(plan.best.steps))
        notes.append(f"the learning rate is that of the ladder's own rule at {plan.best.steps:,} steps.")
    config = replace(
        base,
        optimizer=optimizer,
        model=plan.model(),
        data=data,
        tokens=plan.best.n_tokens,
        schedule=replace(base.schedule, warmup_tokens=warmup, hold_tokens=hold),
        batch=BatchConfig(((0, plan.batch),)),
        # Those of a rung are for a rung: a run of its own is guarded, and saves by what it costs.
        guard=GuardConfig(),
        checkpoint=CheckpointConfig(),
    )
    return config, notes


def make_plan(
    law: Path | str,
    budget_flops: float,
    *,
    vocab_size: int = 0,
    context: int = 0,
    batch: int = 0,
    level: float = 0.90,
    rule: Rule | None = None,
) -> tuple[Plan, Template | None]:
    """`plan_run` from files: a law.json, or runs to fit first; what is left 0 is as in the runs behind the law."""
    for name, value in (("vocab-size", vocab_size), ("context", context), ("batch", batch)):
        if value < 0:
            raise ConfigError(f"--{name} is {value}; it must be at least 1.")
    path = Path(law)
    taken: list[str] = []  # of the runs, where the law is fitted here
    if path.is_file() and path.suffix == ".json" and not isinstance(read_json(path), list):
        report = LawReport.load(path)
        sources = [path.parent / source for source in report.sources]
    else:
        observations = load([path], fit_first=True)
        report, sources, taken = fit_laws(observations), [path], list(observations.notes)
        if (path / "quickstart.json").exists() and (path / "law.json").exists():
            taken.append(f"the quickstart's own law, an average over couplings, is {path / 'law.json'}.")
    template = find_template(s for s in sources if s.exists())
    sequences: int | Callable[[ModelConfig], int] = batch or BatchConfig().ramp[0][1]
    known = batch > 0
    if template:
        vocab_size = vocab_size or template.config.model.vocab_size
        context = context or template.config.data.context
        if not batch:
            known, sequences = True, template.config.batch.ramp[-1][1]
            if rule is not None and template.made_by(rule):
                sequences = partial(_batch, rule, budget_flops, context)
    elif not (vocab_size > 0 and context > 0):
        raise ConfigError(
            f"the runs behind {path} are not at hand, so the plan needs --vocab-size and --context to count FLOPs."
        )
    plan = plan_run(
        report, budget_flops, shapes_for(template, vocab_size), context=context, batch=sequences, level=level
    )
    plan.warnings.extend(taken)
    if not known:
        plan.warnings.append(f"no batch is known, so it is Areca's default of {sequences} sequences; give --batch.")
    return replace(plan, cost=cost_at(template, plan.best.flops_exact)), template


def _batch(rule: Rule, budget_flops: float, context: int, shape: ModelConfig) -> int:
    return rule.batch_sequences(shape, budget_flops, context)


def shapes_for(template: Template | None, vocab_size: int) -> list[ModelConfig]:
    """The family to choose from: the runs' own shapes, continued, or Areca's for a vocabulary."""
    if template is None:
        return family(vocab_size)
    if vocab_size == template.config.model.vocab_size:
        return interpolate(template.shapes, vocab_size)
    return family(vocab_size, like=template.config.model)


def cost_at(template: Template | None, flops: float) -> dict[str, Any] | None:
    """Seconds, energy and carbon of `flops` at the template's observed speed and power; None where it has none."""
    if template is None:
        return None
    result = template.result
    try:
        speed = result["flops_exact"] / result["seconds"]
        energy = result["energy_kwh"]
        grid = GridIntensity(**result["carbon_kg"]["grid"])
        kwh = energy["value"] * flops / result["flops_exact"]
        source = f"{template.name}: {energy['source']}"
        footprint = tagged(
            kwh, kind="estimated (TDP)", watts=energy["watts"], source=source, pue=energy["pue"], grid=grid
        )
    except (KeyError, TypeError, ZeroDivisionError):
        return None
    return {"seconds": flops / speed, "flops_per_second": speed, "of": template.name, **footprint}
