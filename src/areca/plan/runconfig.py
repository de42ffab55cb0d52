"""From a plan to a run that `areca train` takes.

What a law does not decide comes from the template. Warm-up and hold keep their share of the run's tokens, as in a
ladder whose every run ends its own decay. Without a template it is PaLM's optimizer at PaLM's rate (Chowdhery et al.
2022, section 5) on Hoffmann et al.'s schedule: cosine to a tenth, ending with the run.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from areca.config import (
    BatchConfig,
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    GuardConfig,
    OptimizerConfig,
    ParallelConfig,
    RunConfig,
)
from areca.errors import ConfigError
from areca.plan.plan import Plan
from areca.plan.template import Rule, Template

DEFAULT_WARMUP = 0.02  # of the tokens, where no run says otherwise
PALM_RATE = OptimizerConfig(learning_rate=1e-2)


def learning_rate_of(template: Template | None, rule: Rule | None, steps: int) -> dict[str, Any]:
    """{"value", "source"} of the peak rate."""
    if template is None:
        return {
            "value": PALM_RATE.learning_rate,
            "source": "PaLM's for 8B to 540B, relative to each matrix' root mean square (section 5 of the paper)",
        }
    if rule is not None and template.made_by(rule):
        return {"value": rule.learning_rate(steps), "source": f"the ladder's own rule at {steps:,} steps"}
    return {"value": template.config.optimizer.learning_rate, "source": f"that of {template.name}"}


def about_store(store: str) -> list[str]:
    """What to say of a token store that a configuration names and that is not there."""
    if not store or (Path(store) / "store.json").is_file():
        return []
    return [f"--store {store} is not here yet; `areca train` will look for it under that name."]


def run_config(
    plan: Plan, template: Template | None, store: str, rule: Rule | None = None
) -> tuple[RunConfig, list[str]]:
    """The configuration of the planned run on a token store, and in sentences where its settings are from."""
    if not store:
        raise ConfigError("a run configuration needs the token store to train on; name it with --store.")
    data = DataConfig(store=store, context=plan.context)
    rate = learning_rate_of(template, rule, plan.best.steps)
    if template is None:
        base = RunConfig(model=plan.model(), data=data, tokens=plan.best.n_tokens, optimizer=PALM_RATE)
        spans = {"warmup_tokens": round(DEFAULT_WARMUP * plan.best.n_tokens)}
        notes = [
            f"no run says how to train, so it is Adafactor at {rate['value']:g}, {rate['source']}, warm-up over "
            f"{DEFAULT_WARMUP:.0%} of the tokens, cosine to a tenth at the last (Hoffmann et al. 2022) and Areca's "
            "defaults, not tuned for these runs."
        ]
    else:
        base = template.config
        share = plan.best.n_tokens / base.tokens
        spans = {name: round(getattr(base.schedule, name) * share)
                 for name in ("warmup_tokens", "hold_tokens", "decay_tokens")}  # fmt: skip
        data = replace(base.data, store=store, context=plan.context)
        notes = [
            f"optimizer, schedule, order and threads ({base.threads}) are those of {template.name}, warm-up at the "
            "same share of the tokens; guard and saves are the defaults."
        ]
        if rule is not None and template.made_by(rule):
            notes.append(f"the learning rate is that of {rate['source']}.")
    parallel, evaluation = base.parallel, base.evaluation
    if plan.mesh:
        parallel = ParallelConfig(plan.mesh[0], plan.mesh[1], remat="block")
        evaluation = _shared(evaluation, plan.mesh[0])
        notes.append("on the mesh a layer keeps its input only (remat block), as `areca dryrun` takes it.")
    config = replace(
        base,
        optimizer=replace(base.optimizer, learning_rate=rate["value"]),
        model=plan.model(),
        data=data,
        tokens=plan.best.n_tokens,
        schedule=replace(base.schedule, **spans),
        batch=BatchConfig(tuple((start, size) for start, size in plan.ramp) or ((0, plan.batch),)),
        evaluation=evaluation,
        parallel=parallel,
        # Those of a rung are for a rung: a run of its own is guarded, and saves by what it costs.
        guard=GuardConfig(),
        checkpoint=CheckpointConfig(),
    )
    return config, notes


def _shared(evaluation: EvalConfig, data: int) -> EvalConfig:
    """With a batch that a mesh's data axis divides."""
    return replace(evaluation, batch=-(-evaluation.batch // data) * data)
