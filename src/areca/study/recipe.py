"""How a small run is trained: PaLM's optimizer with the learning rate, batch and warm-up measured at this scale.

A law is only as good as its worst-tuned rung, so these are functions of the run and not constants to retype; the
measurements behind them are in docs/log.md.
"""

import math

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
from areca.errors import ConfigError
from areca.model.counts import exact_flops_per_token
from areca.plan.shapes import depth_for, heads_for

SEEDS = 1000  # of runs that may be folded from a family's seed
CONTEXT = 64


def shape(vocab_size: int, width: int) -> ModelConfig:
    """The decoder of a width in the ladder's family: F = 4 D, and up to a width of 128 three layers of heads near 16.

    One depth and one kind of head for all rungs: going from one head to two, or from two layers to three, changes loss
    by up to 3% at these sizes, which bends a valley (docs/log.md). Wider models follow `areca.plan.shapes`.
    """
    if width <= 128:
        return ModelConfig(vocab_size, width, 3, heads_near_16(width)).resolved()
    return ModelConfig(vocab_size, width, round(depth_for(width)), heads_for(width)).resolved()


def heads_near_16(width: int) -> int:
    """Heads that divide the width into even parts nearest 16."""
    choices = [h for h in range(1, width // 8 + 1) if width % (2 * h) == 0]
    return min(choices, key=lambda h: abs(math.log(width / h / 16)))


def check_family_seed(seed: int) -> None:
    """ConfigError unless every run of a family can have a seed of its own, SEEDS x seed and on."""
    most = 2**32 // SEEDS - 1
    if not 0 <= seed <= most:
        raise ConfigError(f"seed is {seed}; it must be a whole number from 0 to {most}, as runs fold theirs from it.")


def run_config(model: ModelConfig, store: str, flops: float, *, seed: int, threads: int, context: int) -> RunConfig:
    """The run that spends `flops` (exact) on `model`: its decay ends at its own last token."""
    per_token = exact_flops_per_token(model, context)
    batch = batch_sequences(model, flops, context)
    steps = max(1, round(flops / (per_token * batch * context)))
    return run_of_steps(model, store, steps, batch=batch, seed=seed, threads=threads, context=context)


def run_of_steps(
    model: ModelConfig, store: str, steps: int, *, batch: int, seed: int, threads: int, context: int
) -> RunConfig:
    """The run of so many steps of `batch` sequences, at the rate for them."""
    tokens = steps * batch * context
    return RunConfig(
        model=model,
        data=DataConfig(store=store, context=context, seed=seed),
        tokens=tokens,
        optimizer=OptimizerConfig(learning_rate=learning_rate(steps), weight_decay=0.0),
        schedule=ScheduleConfig(name="cosine", warmup_tokens=round(0.1 * tokens), final_fraction=0.1),
        batch=BatchConfig(((0, batch),)),
        evaluation=EvalConfig(max_tokens=131_072, batch=64),
        guard=GuardConfig(enabled=False),  # a rung's loss is its own, unmended
        checkpoint=CheckpointConfig(keep_last=1),
        seed=seed,
        threads=threads,
    )


def follows(config: RunConfig) -> bool:
    """Whether a run's rate and batch are those that this recipe gives it; a batch may be off by its rounding."""
    if len(config.batch.ramp) != 1:
        return False
    batch, context = config.batch.ramp[0][1], config.data.context
    flops = exact_flops_per_token(config.model, context) * config.tokens
    steps = config.tokens // (batch * context)
    return (
        abs(batch - batch_sequences(config.model, flops, context)) <= 1
        and steps > 0
        and config.optimizer.learning_rate == learning_rate(steps)
    )


def batch_sequences(model: ModelConfig, flops: float, context: int) -> int:
    """Sequences a step of the run that spends `flops` on `model`."""
    return max(2, round(batch_tokens(flops / exact_flops_per_token(model, context)) / context))


def batch_tokens(tokens: float) -> float:
    """Tokens a step: 1024 for a run of 1.3M tokens, growing with the square root of the run's length."""
    return 1024 * math.sqrt(tokens / 1.34e6)


def learning_rate(steps: int) -> float:
    """The peak rate, relative to each matrix' root mean square: 0.056 for 1300 steps, falling as steps^-0.35.

    A little under the best rate: at 1.6 times it loss jumps by 20%, and near that edge runs of other seeds scatter.
    """
    return round(min(0.07, 0.056 * (1300 / steps) ** 0.35), 4)
