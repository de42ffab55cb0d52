"""`areca ladder`: a family of runs over budgets, sizes, seeds and learning rates."""

from typing import Literal


def run(argv: list[str]) -> int:
    """Parses and runs `areca ladder`."""
    from areca.cli.options import call

    return call(ladder, argv, "areca ladder")


def ladder(
    store: str,
    /,
    *,
    out: str,
    budgets: tuple[float, ...],
    sizes: int = 5,
    context: int = 64,
    seed: int = 0,
    seeds: int = 1,
    learning_rates: tuple[str, ...] = ("1",),
    epochs: float = 1.0,
    together: Literal["auto", "vmap", "processes", "one"] = "auto",
    workers: int = 0,
    json: bool = False,
) -> int:
    """Train a family of models over sizes and budgets on a token store.

    Every run spends its budget in exact FLOPs, and its learning-rate decay ends at its own last token. Several runs go
    at a time, one thread each. Interrupted, the same command goes on. With --seeds and --learning-rates every size and
    budget is run with each; `areca fit` then takes the best rate of each size and budget, and all seeds.

    Example: areca ladder stores/mine --out runs/ladder --budgets 3e11 1e12 3e12 --seeds 3 --learning-rates 0.5 1 2

    Args:
        store: a token store that `areca corpus build` made.
        out: where the ladder goes.
        budgets: training FLOPs of a run, exact, in any order.
        sizes: sizes for each budget, spread around the expected optimum.
        context: tokens in a sequence.
        seed: every run's own seed is folded from this.
        seeds: runs of each size, budget and learning rate, which differ in parameters and data order.
        learning_rates: factors of the recipe's own learning rate.
        epochs: how often a run may read the same text, at most.
        together: how runs share the machine: processes, one a core (the bits of runs alone); vmap, runs that differ in
            seed and learning rate as one program (equal to rounding); one after another; auto chooses and says which.
        workers: programs at a time; 0 means one for each core, one on an accelerator.
        json: print the results for machines.
    """
    from areca.cli.options import numbers, print_json
    from areca.errors import Interrupted
    from areca.study.ladder import plan_ladder, run_ladder
    from areca.study.progress import FamilyProgress

    planned = plan_ladder(
        out,
        store,
        budgets,
        sizes=sizes,
        context=context,
        seed=seed,
        epochs=epochs,
        seeds=seeds,
        learning_rates=numbers("--learning-rates", learning_rates),
    )
    progress = FamilyProgress({j.name: j.cost for j in planned.jobs}, "run")
    try:
        results = run_ladder(
            planned,
            workers=workers,
            together=together,
            on_progress=progress.progress,
            on_result=progress.result,
            say=progress.say,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the runs in {out} are saved and the same command goes on.") from None
    if json:
        print_json(results)
    else:
        lost = len(planned.jobs) - len(results)
        diverged = f" ({lost} more diverged)" if lost else ""
        shared = sum("together" in r for r in results)
        rounding = f", {shared} of them in shared programs and so as alone to rounding only" if shared else ""
        print(
            f"{len(results)} run{'s' if len(results) != 1 else ''}{diverged} in {out}{rounding}; fit their law with "
            f"`areca fit {out}`."
        )
    return 0
