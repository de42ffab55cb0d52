"""A ladder: for each of some budgets a row of sizes, every run spending the budget in exact FLOPs.

    DIR/ladder.json      the budgets, the runs, and what they were made from
    DIR/runs/NAME/       one run directory each

A size and budget may be run with several seeds, and with several learning rates as factors of the recipe's. The same
call goes on with an interrupted ladder; finished runs are not made again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from areca import runtime
from areca.config import ModelConfig, RunConfig
from areca.data.order import Order
from areca.data.store import TokenStore
from areca.errors import ConfigError, DataError
from areca.files import locked
from areca.model.counts import count_params, exact_flops_per_token
from areca.study import recipe
from areca.study.copies import copied_runs, copied_to, fetch_lost
from areca.study.islands import Islands, on_islands, run_over_islands
from areca.study.ladderjson import refuse_foreign, settle
from areca.study.pool import Heard, Job, run_jobs
from areca.study.programs import Together, arrange

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
    settings: dict[str, Any]  # what was asked for, as a user knows it

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
    seeds: int = 1,
    learning_rates: Sequence[float] = (1.0,),
) -> Ladder:
    """Lays out a ladder: `sizes` shapes for each budget around its expected optimum, or `shapes` for all.

    Every size and budget has seeds of its own, folded from `seed`, so that the scatter about the law is that of new
    runs. `learning_rates` are factors of the recipe's rate; runs that differ in nothing else share their seed, so that
    rates are compared on equal terms. With one seed and the factor 1 the ladder is the plain one, and its runs have the
    same seeds in every sweep. `epochs` is how often a run may read the same text; beyond one, repeated tokens count as
    new ones in the law. Raises ConfigError for budgets, sizes, seeds or rates that can't be used, DataError when the
    store has too few tokens.
    """
    recipe.check_family_seed(seed)
    factors = rate_factors(learning_rates)
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
    cells = len(budgets) * (len(shapes) or sizes)
    if cells > 1000:
        raise ConfigError(f"{len(budgets)} budgets of {cells // len(budgets)} sizes are more than 1000 runs.")
    if not 1 <= seeds <= 1000 // cells:
        raise ConfigError(f"seeds is {seeds}; give 1 to {1000 // cells} for {cells} pairs of a size and a budget.")
    opened = TokenStore.open(store)
    directory = Path(directory)
    jobs: list[Job] = []
    most = 0.0
    grid = [
        (budget, model.resolved())
        for budget in budgets
        for model in list(shapes) or shapes_around(opened.vocab_size, budget, sizes)
    ]
    for cell, (budget, model) in enumerate(grid):
        name = f"{budget:.2e}-n{count_params(model).non_embedding}".replace("+", "")
        for number in range(seeds):
            own = seed * 1000 + number * cells + cell
            plain = recipe.run_config(model, str(store), budget, seed=own, threads=threads, context=context)
            most = max(most, enough(opened, plain, name, epochs))
            cost = exact_flops_per_token(model, context) * plain.tokens
            for factor in factors:
                rate = plain.optimizer.learning_rate * factor
                config = replace(plain, optimizer=replace(plain.optimizer, learning_rate=rate))
                labels: dict[str, Any] = {"budget_flops": budget, "name": name}
                if seeds > 1:
                    labels |= {"name": f"{labels['name']}-s{number}", "seed": number}
                if factors != (1.0,):
                    labels |= {"name": f"{labels['name']}-lr{factor:g}", "learning_rate_factor": factor}
                jobs.append(Job(labels["name"], config, directory / "runs" / labels["name"], labels, cost))
    settings = {
        "vary": "size",
        "budgets": list(budgets),
        "sizes": len(shapes) or sizes,
        "context": context,
        "seed": seed,
        "seeds": seeds,
        "learning_rates": list(factors),
        "threads": threads,
    }
    return Ladder(directory, budgets, jobs, most, settings)


def rate_factors(learning_rates: Sequence[float]) -> tuple[float, ...]:
    """The factors in ascending order."""
    factors = tuple(sorted(float(f) for f in learning_rates))
    if not factors or not all(1e-6 <= f <= 1e6 for f in factors):
        raise ConfigError(
            f"learning rates are {list(learning_rates)}; give factors of the recipe's rate, such as 0.5 1 2."
        )
    if len({f"{f:g}" for f in factors}) < len(factors):
        raise ConfigError(f"a learning rate is given twice in {list(learning_rates)}.")
    return factors


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


def enough(
    store: TokenStore, config: RunConfig, name: str, epochs: float, instead: str = "a smaller budget, larger sizes"
) -> float:
    """How often a run reads the corpus it reads most often; DataError if that is more often than `epochs`."""
    read = passes(store, config)
    for corpus, times in read.items():
        if not times <= epochs:
            raise DataError(
                f"run {name} reads {config.tokens:,} tokens, which is the corpus {corpus} of {store.path} {times:.2g} "
                f"times over; give {instead}, more text, or --epochs {math.ceil(times)}."
            )
    return max(read.values())


def passes(store: TokenStore, config: RunConfig) -> dict[str, float]:
    """How often a run reads each corpus of its mixture."""
    data = config.data
    order = Order(store, data.context, data.seed, data.weights, data.fraction)
    return {
        name: config.tokens * share / (order.windows_per_epoch[name] * config.data.context)
        for name, share in order.weights.items()
    }


def run_ladder(
    ladder: Ladder,
    *,
    workers: int = 0,
    together: Together = "auto",
    islands: Islands | None = None,
    copy_to: str = "",
    on_progress: Heard,
    on_result: Heard,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Makes the runs that are not made yet and returns all results, in order.

    `together` says how runs share the machine (`areca.study.programs`), or `islands` which islands they share
    (`areca.study.islands`; `workers` is then how many runs go at a time). In a sweep of learning rates a run that
    diverges is an outcome, said and left out; in a ladder of one rate it stops the ladder, as every failure does.
    `copy_to` is a URL to which all runs are copied, and from which those are fetched that are not here any more.
    Raises ConfigError for a directory that holds something else, or a ladder with other settings, before anything runs.
    """
    if islands is None:
        how = arrange(ladder.jobs, together, workers, runtime.backend())
        says, threads = how.says, ladder.jobs[0].config.threads
        make = partial(run_jobs, how.programs, threads=threads, workers=how.workers)
    elif together == "auto":
        islands = replace(islands, at_once=workers)
        ladder = replace(ladder, jobs=on_islands(ladder.jobs, islands))
        says = islands.describe(len(ladder.jobs))
        make = partial(run_over_islands, ladder.jobs, islands)
    else:
        raise ConfigError(
            f"together is {together!r}, but runs over islands go one by one as clients of one controller; leave out "
            "--together or --islands."
        )
    refuse_foreign(ladder.directory)  # before the lock leaves a file there
    copied = copied_runs(copy_to, ladder) if copy_to else set[str]()
    with locked(ladder.directory):
        settle(ladder)
        if copy_to:
            fetch_lost(copy_to, ladder, copied, say)
        say(f"ladder: {says}")
        with copied_to(copy_to, ladder, say) as hearing:
            results = make(
                on_progress=hearing(on_progress),
                on_result=hearing(on_result),
                on_diverged=_outcome(ladder, say),
                say=say,
            )
        return [results[j.name] for j in ladder.jobs if j.name in results]


def _outcome(ladder: Ladder, say: Callable[[str], None]) -> Callable[[str, str], None] | None:
    """What to do about a run that diverged: in a sweep of learning rates that is an outcome."""
    if len(ladder.settings["learning_rates"]) == 1:
        return None
    return lambda name, why: say(f"{name}: {why}")
