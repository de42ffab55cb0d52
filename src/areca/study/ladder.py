"""A ladder: for each of some budgets a row of sizes, every run spending the budget in exact FLOPs.

    DIR/ladder.json      the budgets, the runs, and what they were made from
    DIR/runs/NAME/       one run directory each

The same call goes on with an interrupted ladder; finished runs are not made again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areca.config import ModelConfig, RunConfig, differences, to_dict
from areca.data.order import Order
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError
from areca.files import read_json, write_json
from areca.model.counts import count_params, exact_flops_per_token
from areca.study import recipe
from areca.study.alone import alone
from areca.study.pool import Heard, Job, run_jobs

# The valleys of the default corpus lie near N = OPTIMUM (C / 1e12)^EXPONENT (docs/log.md); sizes are laid around it.
OPTIMUM, EXPONENT = 95_000, 0.55
SPREAD = 3.5  # the smallest and the largest size of a budget, as factors below and above
WIDTHS = (*range(16, 128, 8), *range(128, 1025, 16))


@dataclass(frozen=True)
class Ladder:
    """All runs of a ladder, in the order of ladder.json."""

    directory: Path
    budgets: tuple[float, ...]
    jobs: list[Job]
    most_passes: float  # how often a run reads a corpus, at most

    def total_flops(self) -> float:
        return sum(j.cost for j in self.jobs)


def plan_ladder(
    directory: Path | str,
    store: Path | str,
    budgets: Sequence[float],
    *,
    sizes: int = 5,
    shapes: Sequence[ModelConfig] = (),
    context: int = recipe.CONTEXT,
    seed: int = 0,
    threads: int = 1,
    epochs: float = 1.0,
) -> Ladder:
    """Lays out a ladder: `sizes` shapes for each budget around its expected optimum, or `shapes` for all.

    Every run has a seed of its own, folded from `seed`, so that the scatter about the law is that of new runs.
    `epochs` is how often a run may read the same text; beyond one, repeated tokens count as new ones in the law.
    Raises ConfigError for budgets or sizes that can't be used, DataError when the store has too few tokens.
    """
    recipe.check_family_seed(seed)
    budgets = tuple(sorted(float(b) for b in budgets))
    if not budgets or not all(0 < b < 1e30 for b in budgets):
        raise ConfigError(f"budgets are {list(budgets)}; give positive numbers of FLOPs, such as 3e11 1e12 3e12.")
    if len({f"{b:.2e}" for b in budgets}) < len(budgets):  # as runs are named
        raise ConfigError(f"a budget is given twice, to three digits, in {list(budgets)}; leave one out.")
    if not shapes and not 1 <= sizes <= len(WIDTHS) // 2:
        raise ConfigError(f"sizes is {sizes}; give 1 to {len(WIDTHS) // 2} (a law needs four or more).")
    if context < 1:
        raise ConfigError(f"context is {context}; it must be at least 1 token.")
    if not epochs > 0:
        raise ConfigError(f"epochs is {epochs}; it must be a positive number.")
    opened = TokenStore.open(store)
    directory = Path(directory)
    jobs: list[Job] = []
    most = 0.0
    for budget in budgets:
        row = list(shapes) or shapes_around(opened.vocab_size, budget, sizes)
        for model in row:
            model = model.resolved()
            name = f"{budget:.2e}-n{count_params(model).non_embedding}".replace("+", "")
            config = recipe.run_config(
                model, str(store), budget, seed=seed * 1000 + len(jobs), threads=threads, context=context
            )
            most = max(most, _enough(opened, config, name, epochs))
            cost = exact_flops_per_token(model, context) * config.tokens
            labels = {"budget_flops": budget, "name": name}
            jobs.append(Job(name, config, directory / "runs" / name, labels, cost))
    return Ladder(directory, budgets, jobs, most)


def shapes_around(vocab_size: int, budget: float, sizes: int) -> list[ModelConfig]:
    """`sizes` decoders of the family whose N are spread evenly (in log) around the budget's expected optimum."""
    centre = OPTIMUM * (budget / 1e12) ** EXPONENT
    family = [recipe.shape(vocab_size, width) for width in WIDTHS]
    numbers = [count_params(m).non_embedding for m in family]
    chosen: list[int] = []
    for i in range(sizes):
        wanted = centre * SPREAD ** (2 * i / (sizes - 1) - 1 if sizes > 1 else 0)
        free = [j for j in range(len(family)) if j not in chosen]
        chosen.append(
            min(free, key=lambda j: abs(numbers[j] / wanted - 1) if numbers[j] > wanted else wanted / numbers[j] - 1)
        )
    return [family[j] for j in sorted(chosen)]


def _enough(store: TokenStore, config: RunConfig, name: str, epochs: float) -> float:
    """How often a run reads the corpus it reads most often; DataError if that is more often than `epochs`."""
    read = passes(store, config)
    for corpus, times in read.items():
        if not times <= epochs:
            raise DataError(
                f"run {name} reads {config.tokens:,} tokens, which is the corpus {corpus} of {store.path} {times:.2g} "
                f"times over; give a smaller budget, larger sizes, more text, or --epochs {math.ceil(times)}."
            )
    return max(read.values())


def passes(store: TokenStore, config: RunConfig) -> dict[str, float]:
    """How often a run reads each corpus of its mixture."""
    order = Order(store, config.data.context, config.data.seed, config.data.weights)
    return {
        name: config.tokens * share / (order.windows_per_epoch[name] * config.data.context)
        for name, share in order.weights.items()
    }


@alone
def run_ladder(ladder: Ladder, *, workers: int = 0, on_progress: Heard, on_result: Heard) -> list[dict[str, Any]]:
    """Makes the runs that are not made yet and returns all results, in order."""
    record = describe(ladder)
    path = ladder.directory / "ladder.json"
    if path.exists():
        changed = differences(_by_name(read_json(path)), _by_name(record))
        if changed:
            raise ConfigError(
                f"{ladder.directory} holds another ladder ({'; '.join(c[:100] for c in changed[:4])}); "
                "choose another directory or the same settings."
            )
    else:
        write_json(path, record)
    threads = ladder.jobs[0].config.threads
    results = run_jobs(ladder.jobs, threads=threads, workers=workers, on_progress=on_progress, on_result=on_result)
    return [results[j.name] for j in ladder.jobs]


def _by_name(record: dict[str, Any]) -> dict[str, Any]:
    """ladder.json for comparing: the budgets, the names of the runs, and each run's settings under its name."""
    runs = {run["name"]: run for run in record["runs"]}
    return {"budgets_flops": record["budgets_flops"], "runs": sorted(runs), **runs}


def describe(ladder: Ladder) -> dict[str, Any]:
    """The content of ladder.json."""
    return {
        "budgets_flops": list(ladder.budgets),
        "runs": [
            {
                "name": j.name,
                "budget_flops": j.labels["budget_flops"],
                "path": str(j.run_dir.relative_to(ladder.directory)),
                "n_params": count_params(j.config.model).non_embedding,
                "n_tokens": j.config.tokens,
                "learning_rate": j.config.optimizer.learning_rate,
                "config": {k: v for k, v in to_dict(j.config).items() if k != "data"},
            }
            for j in ladder.jobs
        ],
    }
