"""Many small runs for a comparison of losses: one process a core, finished and diverged ones not made again."""

import math
from pathlib import Path

from areca.config import (
    BatchConfig,
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    GuardConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    ScheduleConfig,
)
from areca.model.counts import exact_flops_per_token
from areca.study.pool import Job, run_jobs


def job_of(
    name: str,
    model: ModelConfig,
    out: Path,
    store: Path,
    *,
    rate: float,
    steps: int,
    batch: int,
    context: int,
    seed: int,
) -> Job:
    """A run of so many steps with the ladder's optimizer: a tenth of warm-up, cosine to a tenth of the peak rate."""
    tokens = steps * batch * context
    config = RunConfig(
        model=model,
        data=DataConfig(str(store), context, seed=seed),
        tokens=tokens,
        optimizer=OptimizerConfig(learning_rate=rate, weight_decay=0.0),
        schedule=ScheduleConfig("cosine", warmup_tokens=tokens // 10, final_fraction=0.1),
        batch=BatchConfig(((0, batch),)),
        evaluation=EvalConfig(max_tokens=131_072, batch=64),
        checkpoint=CheckpointConfig(every_steps=steps, keep_last=1),
        guard=GuardConfig(enabled=False),
        seed=seed,
        threads=1,
    )
    return Job(name, config, out / "runs" / name, {}, exact_flops_per_token(model, context) * tokens)


def losses_of(jobs: list[Job]) -> dict[str, float]:
    """Held-out loss of every run by its name; infinity for one that diverged."""
    losses: dict[str, float] = {}
    run_jobs(
        [[job] for job in jobs],
        on_progress=lambda *_: None,
        on_result=lambda name, result: losses.__setitem__(name, result["loss"]),
        on_diverged=lambda name, _: losses.__setitem__(name, math.inf),
    )
    return losses
