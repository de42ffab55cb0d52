"""`areca ladder`: a family of runs over budgets and sizes."""


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
    epochs: float = 1.0,
    workers: int = 0,
    json: bool = False,
) -> int:
    """Train a family of models over sizes and budgets on a token store.

    Every run spends its budget in exact FLOPs, and its learning-rate decay ends at its own last token. Several runs go
    at a time, one thread each. Interrupted, the same command goes on.

    Example: areca ladder stores/mine --out runs/ladder --budgets 3e11 1e12 3e12

    Args:
        store: a token store that `areca corpus build` made.
        out: where the ladder goes.
        budgets: training FLOPs of a run, exact, in any order.
        sizes: sizes for each budget, spread around the expected optimum.
        context: tokens in a sequence.
        seed: every run's own seed is folded from this.
        epochs: how often a run may read the same text, at most.
        workers: runs at a time; 0 means one for each core.
        json: print the results for machines.
    """
    from areca.errors import Interrupted
    from areca.study.ladder import plan_ladder, run_ladder
    from areca.study.progress import FamilyProgress

    planned = plan_ladder(out, store, budgets, sizes=sizes, context=context, seed=seed, epochs=epochs)
    progress = FamilyProgress({j.name: j.cost for j in planned.jobs}, "run")
    try:
        results = run_ladder(planned, workers=workers, on_progress=progress.progress, on_result=progress.result)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the runs in {out} are saved and the same command goes on.") from None
    if json:
        from areca.cli.options import print_json

        print_json(results)
    else:
        print(f"{len(results)} run{'s' if len(results) != 1 else ''} in {out}; fit their law with `areca fit {out}`.")
    return 0
