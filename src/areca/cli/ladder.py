"""`areca ladder`: a family of runs over budgets and sizes, or over data, shape, context or batch."""

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
    vary: Literal["size", "data", "shape", "context", "batch"] = "size",
    budgets: tuple[float, ...] = (),
    sizes: int | None = None,
    widths: tuple[int, ...] = (),
    tokens: int | None = None,
    fractions: tuple[str, ...] = (),
    depths: tuple[int, ...] = (),
    heads: tuple[int, ...] = (),
    contexts: tuple[int, ...] = (),
    batches: tuple[int, ...] = (),
    evaluations: int | None = None,
    context: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    learning_rates: tuple[str, ...] = ("1",),
    epochs: tuple[float, ...] = (),
    together: Literal["auto", "vmap", "processes", "one"] = "auto",
    workers: int = 0,
    islands: int | None = None,
    islands_on: Literal["devices", "processes", "ray"] = "devices",
    islands_each: int = 1,
    weights: Literal["equal", "flops"] = "equal",
    copy_to: str = "",
    json: bool = False,
) -> int:
    """Train a family of models over sizes and budgets on a token store.

    Every run spends its budget in exact FLOPs, and its learning-rate decay ends at its own last token. Several runs go
    at a time, one thread each. Interrupted, the same command goes on. With --seeds and --learning-rates every size and
    budget is run with each; `areca fit` then takes the best rate of each size and budget, and all seeds. With --vary
    one other thing varies: data (fractions of the text, read over and over), shape (depth and heads at equal
    parameters), context, or batch (at constant rates, for the critical batch).

    Example: areca ladder stores/mine --out runs/ladder --budgets 3e11 1e12 3e12 --seeds 3 --learning-rates 0.5 1 2

    Args:
        store: a token store that `areca corpus build` made.
        out: where the ladder goes.
        vary: what varies from run to run; size is a ladder over budgets and sizes.
        budgets: (size) training FLOPs of a run, exact, in any order.
        sizes: (size) sizes for each budget, spread around the expected optimum; 5 if not given.
        widths: (all others) the sizes, by their width in the ladder's family.
        tokens: (all others) tokens of a run; of a batch B, times 1 + B over the middle batch.
        fractions: (data) parts of the text, each within the next; 0.01 0.03 0.1 0.3 1 if not given.
        depths: (shape) layers, the width following from equal parameters; 1 2 3 4 6 8 12 if not given.
        heads: (shape) also these numbers of heads, at the size's own depth.
        contexts: (context) tokens in a sequence, at equal tokens a step; 16 to 256 if not given.
        batches: (batch) sequences a step; 2 to 128 if not given.
        evaluations: (all others) of held-out loss along a run; 16 for data, 30 for batch, else none.
        context: (not context) tokens in a sequence; 64 if not given.
        seed: every run's own seed is folded from this.
        seeds: runs of each size, budget and learning rate, which differ in parameters and data order.
        learning_rates: factors of the recipe's own learning rate.
        epochs: how often a run may read the same text, at most; 1 if not given. For data a run for each of several
            numbers of passes, no longer than --tokens; 1 4 16 64 if not given.
        together: how runs share the machine: processes, one a core (the bits of runs alone); vmap, runs that differ in
            seed and learning rate as one program (equal to rounding); one after another; auto chooses and says which.
        workers: programs at a time; 0 means one for each core, one on an accelerator, over islands two for each.
        islands: all runs share so many islands of one controller; a run that fails is tried again from its checkpoint.
        islands_on: what islands are: devices of this process, processes of this machine, or of a Ray cluster.
        islands_each: islands that each run trains over, with a shard of the batch on each; with 1 no bit differs.
        weights: how runs share an island, evenly or by their FLOPs (all are then equally far at any time).
        copy_to: a URL, such as s3://bucket/ladder, to which each run is copied at its checkpoints and its end; on a
            machine that has lost them the same command fetches the runs and goes on.
        json: print the results for machines.
    """
    import signal

    from areca.cli.options import numbers, print_json
    from areca.errors import ConfigError, Interrupted
    from areca.study.islands import Islands
    from areca.study.ladder import run_ladder
    from areca.study.progress import FamilyProgress
    from areca.study.vary import plan_family

    given = {"budgets": budgets, "sizes": sizes, "widths": widths, "tokens": tokens, "depths": depths, "heads": heads,
             "contexts": contexts, "batches": batches, "evaluations": evaluations, "context": context, "epochs": epochs,
             "fractions": numbers("--fractions", fractions) if fractions else ()}  # fmt: skip
    if islands is None and (islands_on != "devices" or islands_each != 1 or weights != "equal"):
        raise ConfigError("--islands-on, --islands-each and --weights are about islands; give --islands with them.")
    shared = None if islands is None else Islands(islands, islands_on, islands_each, weights=weights)
    planned = plan_family(
        vary, out, store, given, seed=seed, seeds=seeds, learning_rates=numbers("--learning-rates", learning_rates)
    )
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # runs are saved and copied, as at Ctrl-C
    progress = FamilyProgress({j.name: j.cost for j in planned.jobs}, "run")
    try:
        results = run_ladder(
            planned,
            workers=workers,
            together=together,
            islands=shared,
            copy_to=copy_to,
            on_progress=progress.progress,
            on_result=progress.result,
            say=progress.say,
        )
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; the runs in {out} are saved and the same command goes on.") from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if json:
        print_json(results)
    else:
        lost = len(planned.jobs) - len(results)
        diverged = f" ({lost} more diverged)" if lost else ""
        shared = sum("together" in r for r in results)
        rounding = f", {shared} of them in shared programs and so as alone to rounding only" if shared else ""
        print(
            f"{len(results)} run{'s' if len(results) != 1 else ''}{diverged} in {out}{rounding}; "
            + (f"fit their law with `areca fit {out}`." if vary in ("size", "data") else f"see `areca report {out}`.")
        )
    return 0
